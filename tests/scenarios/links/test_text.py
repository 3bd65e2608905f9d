"""A link is written so that it reads back to itself, and a result says all of it in short."""

import dataclasses
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.scenarios import catalog
from gcsim.scenarios.links.csv_table import MOST_POINTS
from gcsim.scenarios.reading.document import read, write
from gcsim.scenarios.reading.types import exact_number
from gcsim.scenarios.reading.values import number_text
from gcsim.scenarios.sections.link import link_facts, plain_link
from gcsim.simulator.network.links import Jitter, Link, Loss, Range, Recovery, SizeFactor, Uplink
from gcsim.simulator.network.rate_trace import RateTrace
from tests.scenarios.links.files import built, csv, link, load

MS = Fraction(1, 1000)
US = Fraction(1, 10**6)
MBIT = Fraction(10**6, 8)

# --- written and read again ----------------------------------------------------------------------

times = st.integers(0, 10**15).map(lambda n: Fraction(n, 10**12))
positive_times = st.integers(1, 10**15).map(lambda n: Fraction(n, 10**12))
rates = st.integers(1, 10**14).map(lambda n: Fraction(n, 80))
shares = st.one_of(
    st.fractions(0, 1, max_denominator=10**6),
    st.integers(0, 10**12).map(lambda n: Fraction(n, 10**12)),
)
multiples = st.one_of(
    st.fractions(Fraction(1, 1000), 1000, max_denominator=1000),
    st.decimals("0.001", 1000, places=6).map(Fraction),
)
parts = multiples.filter(lambda part: part <= 1)
names = st.sampled_from(["custom", "a: b", "1e3", "10gbe", "x, changed"])


@st.composite
def traces(draw: st.DrawFn) -> RateTrace:
    instants = sorted(draw(st.sets(st.integers(1, 10**9), max_size=5)) | {0})
    after: Literal["repeat", "hold"] = draw(st.sampled_from(["repeat", "hold"]))
    duration = Fraction(instants[-1] + draw(st.integers(1, 10**9)), 1000)
    carried = [draw(st.one_of(st.just(Fraction(0)), rates)) for _ in instants[1:]]
    return RateTrace(
        times=tuple(Fraction(instant, 1000) for instant in instants),
        rates=(*carried, draw(rates)),
        duration=duration,
        after=after,
    )


Kind = Literal["exponential", "uniform", "lognormal", "pareto"]


@st.composite
def jitters(draw: st.DrawFn) -> Jitter:
    kind: Kind = draw(st.sampled_from(["exponential", "uniform", "lognormal", "pareto"]))
    shape = {"pareto": multiples.map(lambda x: 1 + x), "lognormal": multiples}
    return Jitter(
        distribution=kind,
        mean=draw(times),
        shape=draw(shape.get(kind, st.none())),
        probability=draw(shares),
    )


recoveries: st.SearchStrategy[Recovery] = st.sampled_from(["rack", "fast_retransmit", "timeout"])


@st.composite
def losses(draw: st.DrawFn) -> Loss:
    model: Literal["capped", "sampled"] = draw(st.sampled_from(["capped", "sampled"]))
    loss = Loss(
        rate=draw(shares.filter(lambda x: x < 1)),
        model=model,
        timeout=draw(positive_times),
        segment=draw(st.integers(1, 10**6)),
    )
    return loss if model == "capped" else replace(loss, recovery=draw(recoveries))


def ranges_of(value: Fraction) -> st.SearchStrategy[Range | None]:
    ends = st.tuples(st.integers(1, 10), st.integers(1, 10))
    return st.none() | ends.map(lambda n: (value * n[0] / 10, value * (1 + Fraction(n[1], 10))))


@st.composite
def links(draw: st.DrawFn) -> Link:
    trace = draw(st.none() | traces())
    up_trace = draw(st.none() | traces())
    shared = draw(st.booleans())
    up = Uplink(
        bandwidth=up_trace.long_run if up_trace else draw(rates),
        latency=draw(times),
        trace=up_trace,
        grant=draw(times),
    )
    sizes = sorted(draw(st.sets(st.integers(0, 10**9), max_size=4)))
    latency, overhead = draw(times), draw(times)
    efficiency = Fraction(1) if trace else draw(shares.filter(bool))
    return Link(
        name=draw(names),
        bandwidth=trace.long_run if trace else draw(rates),
        latency=latency,
        efficiency=efficiency,
        overhead=overhead,
        latency_range=draw(ranges_of(latency)),
        efficiency_range=None if trace else draw(ranges_of(efficiency)),
        overhead_range=draw(ranges_of(overhead)),
        factors=tuple(
            SizeFactor(from_bytes=size, bandwidth=draw(parts), latency=draw(multiples))
            for size in sizes
        ),
        jitter=tuple(draw(st.lists(jitters(), max_size=3))),
        loss=draw(st.none() | losses()),
        background=draw(shares.filter(lambda x: x < 1)),
        trace=trace,
        up=None if shared or draw(st.booleans()) else up,
        grant=draw(times),
        shared=shared,
        source=draw(st.sampled_from(["", "a test: 1e9", "off"])),
        estimate=draw(st.booleans()),
    )


@given(links())
def test_a_link_reads_back_to_itself(given_link: Link) -> None:
    plain = plain_link(given_link)
    again = built(read(write({"network": plain}), "a.yaml"), Path("a.yaml"))
    assert again == given_link
    assert plain_link(again) == plain


def test_only_what_differs_from_the_default_is_written() -> None:
    bare = link("{bandwidth: 1 Mbit/s, latency: 1 ms}")
    always = ["name", "bandwidth", "latency", "efficiency", "source", "estimate"]
    assert list(plain_link(bare)) == always
    assert plain_link(bare)["bandwidth"] == "125 kB/s"
    lossy = link("{bandwidth: 1 Mbit/s, latency: 1 ms, overhead: 5 us, shared: true}")
    assert {key: value for key, value in plain_link(lossy).items() if key not in always} == {
        "overhead": "5 us",
        "shared": True,
    }


@pytest.mark.long
def test_a_long_trace_stays_readable_by_the_reader_of_scenarios(tmp_path: Path) -> None:
    rows = "".join(f"{n / 10:.1f},{n * 7919 % 333_000_000}\n" for n in range(1, MOST_POINTS))
    found = csv(tmp_path, "seconds,bit_per_second\n0,1\n" + rows)
    again = load(write({"network": plain_link(found)}), tmp_path)
    assert again == found


@pytest.mark.parametrize("name", sorted(catalog.links()))
def test_every_link_of_the_catalogue_reads_back(name: str) -> None:
    for transport in (None, *catalog.own_figures()[name]):
        shipped = catalog.link(name, transport)
        text = write({"network": plain_link(shipped)})
        assert built(read(text, "a.yaml"), Path("a.yaml")) == shipped


numbers = st.one_of(
    st.floats(1e-60, 1e6).map(str),
    st.from_regex(r"[0-9]{1,18}\.[0-9]{1,20}", fullmatch=True),
    st.from_regex(r"[0-9]{1,34}e-[1-9][0-9]", fullmatch=True),
    st.from_regex(r"[0-9]{1,19}/[1-9][0-9]{0,19}", fullmatch=True),
)


@given(numbers)
def test_every_number_that_is_read_can_be_written(text: str) -> None:
    value = exact_number(text)
    assert value is not None
    assert exact_number(number_text(value)) == value


def test_a_number_that_no_file_gives_is_not_written_wrong() -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        number_text(Fraction(1, 3**400))


# --- what a result says of a link ----------------------------------------------------------------


def test_a_plain_links_facts_are_short() -> None:
    facts = link_facts(catalog.link("10gbe"))
    always = ["name", "calibration", "efficiency", "source"]
    assert list(facts) == [*always, "latency_range", "efficiency_range"]
    assert facts["latency_range"] == ["10 us", "220 us"]
    assert list(link_facts(catalog.link("10gbe_smpi_factors")))[:4] == always
    assert link_facts(catalog.link("10gbe", "gloo"))["calibration"] == "estimate"
    assert facts["calibration"] == "estimate"
    assert link_facts(catalog.link("10gbe_ideal"))["calibration"] == "ideal"
    assert link_facts(catalog.link("pcie3_x16"))["calibration"] == "measured"
    changed = dataclasses.replace(catalog.link("pcie3_x16"), overhead=US)
    assert link_facts(changed)["calibration"] == "stated"


def test_all_that_makes_a_link_more_than_a_rate_is_a_fact_of_it() -> None:
    found = link(
        "{bandwidth: 1 Mbit/s, latency: 1 ms, overhead: 5 us, factors: [{from: 1 B, latency: 2}], "
        "jitter: {distribution: uniform, mean: 1 ms}, loss: {rate: 0.1, model: capped}, "
        "background: 0.2, grant: 1 ms, "
        "up: {latency: 1 ms, trace: {points: [[0 s, 1 MB/s], [1 s, 3 MB/s]], after: repeat}}}"
    )
    facts = link_facts(found)
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["overhead"] == "5 us"
    assert facts["factors"] == [{"from": "1 B", "latency": "2"}]
    assert facts["jitter"] == [{"distribution": "uniform", "mean": "1 ms"}]
    assert facts["loss"]["rate"] == "0.1"
    assert "recovery" not in facts["loss"], "the formula has its own"
    assert (facts["background"], facts["grant"]) == ("0.2", "1 ms")
    trace = facts["up"]["trace"]
    assert (trace["changes"], trace["duration"], trace["after"]) == (2, "2 s", "repeat")
    assert trace["mean_bytes_per_s"] == 2e6
    assert (trace["lowest_bytes_per_s"], trace["highest_bytes_per_s"]) == (1e6, 3e6)
    other = link_facts(link("{latency: 1 ms, trace: {points: [[0 s, 2 MB/s]], after: hold}}"))
    assert len(other["trace"]["sha256"]) == 64
    assert other["trace"]["sha256"] != trace["sha256"]
    assert "points" not in other["trace"]
