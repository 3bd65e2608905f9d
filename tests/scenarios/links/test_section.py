"""Links as users write them: what is read is what is meant, and every mistake has its place."""

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.reading.values import section_of
from gcsim.scenarios.sections.link import LinkSection
from gcsim.scenarios.sections.named_files import read_link
from gcsim.simulator.cluster import TransportName
from gcsim.simulator.network.links import Jitter, Link, Loss, SizeFactor, Uplink
from gcsim.simulator.network.rate_trace import RateTrace
from tests.scenarios.links.files import link, load, problem

MS = Fraction(1, 1000)
US = Fraction(1, 10**6)
MBIT = Fraction(10**6, 8)

# --- what is read --------------------------------------------------------------------------------


def test_every_key_reaches_the_link_with_its_unit(tmp_path: Path) -> None:
    text = """\
network:
  name: mine
  bandwidth: 10 Gbit/s
  latency: 50 us
  latency_range: [20 us, 0.1 ms]
  efficiency: 1448/1538
  efficiency_range: [0.5, 1448/1538]
  overhead: 5 us
  overhead_range: [0 us, 5 us]
  factors:                     # measured
    - {from: 0 B, latency: 2.5}
    - {from: 64 KiB, bandwidth: 0.941, latency: 11.64}
  jitter:
    - {distribution: exponential, mean: 100 us}
    - {distribution: pareto, mean: 1 ms, shape: 1.5, probability: 1/100}
  loss: {rate: 0.001, model: sampled, timeout: 300 ms, segment: 8948 B, recovery: timeout}
  background: 0.2
  up: {bandwidth: 10 Mbit/s, latency: 18 ms, grant: 2.5 ms}
  grant: 1 ms
  source: a test
  estimate: true
"""
    assert load(text, tmp_path) == Link(
        name="mine",
        bandwidth=10_000 * MBIT,
        latency=50 * US,
        efficiency=Fraction(1448, 1538),
        overhead=5 * US,
        latency_range=(20 * US, 100 * US),
        efficiency_range=(Fraction(1, 2), Fraction(1448, 1538)),
        overhead_range=(Fraction(0), 5 * US),
        factors=(
            SizeFactor(from_bytes=0, latency=Fraction(5, 2)),
            SizeFactor(
                from_bytes=65536, bandwidth=Fraction(941, 1000), latency=Fraction(1164, 100)
            ),
        ),
        jitter=(
            Jitter(distribution="exponential", mean=100 * US),
            Jitter(
                distribution="pareto", mean=MS, shape=Fraction(3, 2), probability=Fraction(1, 100)
            ),
        ),
        loss=Loss(rate=MS, model="sampled", timeout=300 * MS, segment=8948, recovery="timeout"),
        background=Fraction(1, 5),
        up=Uplink(bandwidth=10 * MBIT, latency=18 * MS, grant=Fraction(5, 2) * MS),
        grant=MS,
        source="a test",
        estimate=True,
    )


def test_no_field_of_a_link_is_without_a_key() -> None:
    # What is added to the simulator's link must reach its users.
    fields = {field.name for field in dataclasses.fields(Link)} - {"alone"}
    assert fields <= set(LinkSection.model_fields)
    for kind in (SizeFactor, Jitter, Loss, Uplink):
        keys = set(section_of(kind).model_fields)
        assert {field.name for field in dataclasses.fields(kind)} == keys


def test_what_is_left_out_has_the_links_own_default() -> None:
    bare = Link(name="custom", bandwidth=MBIT, latency=MS, source="given in the scenario")
    assert link("{bandwidth: 1 Mbit/s, latency: 1 ms}") == bare
    for model in ("capped", "sampled"):
        lossy = link(f"{{bandwidth: 1 Mbit/s, latency: 1 ms, loss: {{rate: 0, model: {model}}}}}")
        assert lossy.loss == Loss(rate=Fraction(0), model=model)
    assert lossy.loss is not None
    assert lossy.loss.recovery == "rack", "what Linux does"


def test_a_figure_that_is_stated_has_the_range_that_is_stated_with_it(tmp_path: Path) -> None:
    """An inherited range belongs to the figure that was inherited with it."""
    path = tmp_path / "links.yaml"
    path.write_text(
        "links:\n"
        "  a: {bandwidth: 8 Mbit/s, latency: 50 us, latency_range: [10 us, 200 us],\n"
        "      efficiency: 0.9, efficiency_range: [0.5, 1], estimate: true, source: x}\n"
        "  b: {like: a, latency: 1 ms}\n"
        "  c: {like: a, latency: 60 us, latency_range: [50 us, 70 us], efficiency: 0.8}\n"
        "  d: {like: a, latency_range: null}\n"
        "  e: {like: a, trace: {points: [[0 s, 1 MB/s]], after: hold}}\n"
    )
    a, b, c, d, e = catalog.read_links(path).values()
    assert b == dataclasses.replace(a.exactly(latency=MS), name="b")
    assert c.latency_range == (50 * US, 70 * US)
    assert (c.efficiency_range, d.latency_range) == (None, None)
    assert d.efficiency_range == a.efficiency_range
    assert (e.efficiency_range, e.latency_range) == (None, a.latency_range)


def test_a_range_that_is_none_is_refused(tmp_path: Path) -> None:
    start = "network: {bandwidth: 1 Mbit/s, latency: 1 ms, "
    for key, said in (
        ("latency_range: [2 ms, 3 ms]}", "latency lies outside of latency_range"),
        ("latency_range: [2 ms, 0 ms]}", "latency lies outside of latency_range"),
        ("latency_range: [1 ms, 2]}", "network.latency_range.1: 2 has no unit"),
        ("latency_range: 1 ms}", "network.latency_range"),
        ("latency_range: [1 ms]}", "network.latency_range"),
        ("efficiency_range: [0, 1]}", "network.efficiency_range.0: 0 must be greater than 0"),
        ("overhead_range: [1 us, 2 us]}", "overhead_range is given without overhead"),
    ):
        assert said in problem(start + key, tmp_path)


def test_one_jitter_needs_no_list() -> None:
    one = "{distribution: lognormal, mean: 1 ms, shape: 2}"
    alone = link(f"{{bandwidth: 1 Mbit/s, latency: 1 ms, jitter: {one}}}")
    assert alone == link(f"{{bandwidth: 1 Mbit/s, latency: 1 ms, jitter: [{one}]}}")
    assert alone.jitter == (Jitter(distribution="lognormal", mean=MS, shape=Fraction(2)),)
    assert link("{bandwidth: 1 Mbit/s, latency: 1 ms, jitter: null}").jitter == ()


def test_a_shared_medium_and_an_access_link() -> None:
    assert link("{bandwidth: 44.5 Mbit/s, latency: 2 ms, shared: true}").shared
    cell = link("{bandwidth: 30 Mbit/s, latency: 7 ms, up: {bandwidth: 9 Mbit/s, latency: 18 ms}}")
    assert cell.up == Uplink(bandwidth=9 * MBIT, latency=18 * MS)


# --- like ----------------------------------------------------------------------------------------


def test_a_name_and_a_section_that_changes_nothing_are_the_catalogues_link() -> None:
    assert link("10gbe") is catalog.link("10gbe")
    assert link("{like: 10gbe}") == catalog.link("10gbe")


@pytest.mark.parametrize(
    ("base", "stated", "changes"),
    [
        ("10gbe", "latency: 1 us", {"latency": US}),
        ("10gbe", "overhead: 5 us", {"overhead": 5 * US}),
        ("10gbe", "shared: true", {"shared": True}),
        ("10gbe", "background: 0.25", {"background": Fraction(1, 4)}),
        ("10gbe_smpi_factors", "factors: []", {"factors": ()}),
        (
            "10gbe_smpi_factors",
            "factors: [{from: 1 B, latency: 2}]",
            {"factors": (SizeFactor(from_bytes=1, latency=Fraction(2)),)},
        ),
        ("5g_measured", "up: null", {"up": None}),
        (
            "5g_measured",
            "up: {grant: 0 s}",  # the rest of the uplink stays
            {
                "up": Uplink(
                    bandwidth=10 * MBIT,
                    bandwidth_range=(5 * MBIT, Fraction("31.27") * MBIT),
                    latency=18 * MS,
                    latency_range=(9 * MS, 36 * MS),
                )
            },
        ),
        (
            "5g_measured",
            "up: {trace: {points: [[0 s, 1 Mbit/s]], after: hold}}",
            {
                "up": Uplink(
                    bandwidth=MBIT,  # a trace has no range
                    latency=18 * MS,
                    latency_range=(9 * MS, 36 * MS),
                    grant=Fraction(5, 2) * MS,
                    trace=RateTrace(
                        times=(Fraction(0),), rates=(MBIT,), duration=Fraction(1), after="hold"
                    ),
                )
            },
        ),
        (
            "10gbe",
            "trace: {points: [[0 s, 1 Mbit/s]], after: hold}",  # instead of rate and efficiency
            {
                "bandwidth": MBIT,
                "efficiency": Fraction(1),
                "trace": RateTrace(
                    times=(Fraction(0),), rates=(MBIT,), duration=Fraction(1), after="hold"
                ),
            },
        ),
    ],
)
def test_what_a_section_states_replaces_the_bases(
    base: str, stated: str, changes: dict[str, Any]
) -> None:
    shipped = catalog.link(base)
    found = link(f"{{like: {base}, {stated}}}")
    name = stated.partition(":")[0]
    assert found.name == f"{base}, changed"
    assert found.source == f"{name} stated in the scenario, the rest as {base}: {shipped.source}"
    stated_ones: dict[str, Any] = {"name": found.name, "source": found.source, **changes}
    assert found == shipped.exactly(**stated_ones)
    assert found.estimate


def test_what_a_section_leaves_open_is_as_its_transport_finds_the_base(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("links: {mine: {like: 25gbe, latency: 1 us}}\n")
    for transport in ("gloo", "nccl", None):
        base = catalog.link("25gbe", transport)
        section = LinkSection.model_validate({"like": "25gbe", "latency": "1 us"})
        found = section.build(transport=transport)
        assert found == base.exactly(name="25gbe, changed", latency=US, source=found.source)
        assert found.efficiency_range == base.efficiency_range
        filed = read_link("my.yaml", tmp_path, transport)[0]
        assert filed == found.exactly(name="mine", source=filed.source)
        traced = {"like": "25gbe", "trace": {"points": [["0 s", "1 Mbit/s"]], "after": "hold"}}
        late = LinkSection.model_validate(traced).build(transport=transport)
        assert (late.latency, late.efficiency) == (base.latency, Fraction(1))


@pytest.mark.parametrize(
    ("transport", "gbit", "reached"),
    [
        ("nccl", 1, 0.35), ("nccl", 8, 0.4), ("nccl", 100, 0.1), ("nccl", 40, 4.1 / 40),
        ("nccl", 7.5, 0.26), ("nccl", 5, 0.99), ("mpich", 7.5, 0.44), ("gloo", 10, 0.497),
    ],
)  # fmt: skip
def test_what_shaped_links_reached_is_in_the_range_of_a_limit(
    transport: TransportName, gbit: float, reached: float
) -> None:
    """Shares of the line in published runs (see `LIMITED`)."""
    near = min((f"{one}gbe" for one in (1, 10, 40, 100)), key=lambda one: abs(int(one[:-3]) - gbit))
    text = {"like": near, "bandwidth": f"{gbit} Gbit/s", "limited": True}
    found = LinkSection.model_validate(text).build(transport=transport)
    assert found.estimate
    assert found.efficiency_range is not None
    low, high = found.efficiency_range
    assert low < found.efficiency < high
    assert low < reached < high


def test_a_base_with_losses_jitter_and_a_trace_can_be_changed_and_cleared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = Link(
        name="cell",
        bandwidth=MBIT,
        latency=MS,
        jitter=(Jitter(distribution="uniform", mean=MS),),
        loss=Loss(rate=Fraction(1, 10), model="sampled", recovery="fast_retransmit"),
        background=Fraction(1, 2),
        trace=RateTrace(times=(Fraction(0),), rates=(MBIT,), duration=Fraction(1), after="hold"),
        estimate=True,
    )
    monkeypatch.setattr(catalog, "links", lambda _=None: {"cell": base})
    monkeypatch.setattr(catalog, "link", lambda *_: base)
    more = link("{like: cell, loss: {rate: 0.2}}")
    assert more.loss == Loss(rate=Fraction(1, 5), model="sampled", recovery="fast_retransmit")
    assert more.trace == base.trace
    # The base's way to repair losses goes with its model.
    capped = link("{like: cell, loss: {model: capped}}")
    assert capped.loss == Loss(rate=Fraction(1, 10), model="capped")
    rack = link("{like: cell, loss: {recovery: rack}}")
    assert rack.loss == Loss(rate=Fraction(1, 10), model="sampled")
    none = link("{like: cell, loss: null, jitter: [], background: 0}")
    assert none == dataclasses.replace(
        base, name=none.name, source=none.source, loss=None, jitter=(), background=Fraction(0)
    )
    fixed = link("{like: cell, bandwidth: 2 Mbit/s}")
    assert (fixed.trace, fixed.bandwidth) == (None, 2 * MBIT)
    with pytest.raises(InputError, match="key 'bandwidth' is missing"):
        link("{like: cell, trace: null}")


@pytest.mark.parametrize(
    ("text", "estimate"),
    [
        ("{bandwidth: 1 GB/s, latency: 1 us}", False),
        ("{bandwidth: 1 GB/s, latency: 1 us, estimate: true}", True),
        ("{like: 10gbe, overhead: 5 us}", True),
        ("{like: 10gbe, bandwidth: 5 Gbit/s, latency: 1 us}", True),  # the efficiency is left
        ("{like: 10gbe, bandwidth: 5 Gbit/s, latency: 1 us, efficiency: 0.9}", False),
        ("{like: 10gbe, latency: 1 us, trace: {points: [[0 s, 1 MB/s]], after: hold}}", False),
        ("{like: 10gbe, trace: {points: [[0 s, 1 MB/s]], after: hold}}", True),
        ("{like: pcie3_x16, latency: 1 us}", False),
        ("{like: wifi_802.11n, bandwidth: 9 Mbit/s, latency: 1 ms, efficiency: 1}", False),
        (
            "{like: 5g_50mbit, bandwidth: 9 Mbit/s, latency: 9 ms, efficiency: 1,"
            " up: {latency: 9 ms}}",
            True,
        ),
        (
            "{like: 5g_50mbit, bandwidth: 9 Mbit/s, latency: 9 ms, efficiency: 1,"
            " up: {latency: 9 ms, bandwidth: 9 Mbit/s}}",
            False,
        ),
    ],
)
def test_a_link_is_an_estimate_while_a_figure_of_it_is(text: str, estimate: bool) -> None:
    assert link(text).estimate == estimate


# --- mistakes ------------------------------------------------------------------------------------

BARE = "network:\n  bandwidth: 1 Gbit/s\n  latency: 1 ms\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("jitter: {distribution: uniform, mean: -1 ms}", "a.yaml:4:41: error: network.jitter.mean: "
         "-1 ms is negative; write it like '50 us'"),
        ("jitter: 100 us", "a.yaml:4:11: error: network.jitter: 100 us is not a distribution; "
         "write it like {distribution: exponential, mean: 100 us}, or a list of such"),
        ("jitter: {distribution: normal, mean: 1 ms}", "a.yaml:4:26: error: "
         "network.jitter.distribution = 'normal': is not a choice; did you mean 'lognormal'?"),
        ("jitter: [{mean: 1 ms}]", "4:12: error: key 'distribution' is missing in network.jitter."),
        ("jitter: {distribution: pareto, mean: 1 ms, shape: 1}", "a.yaml:4:3: error: "
         "network.jitter: `shape`, the exponent of the Pareto distribution's tail, is 1; write it, "
         "more than 1; the nearer to 1, the longer the tail"),
        ("jitter: {distribution: pareto, mean: 1 ms}", "distribution's tail, is not given; write"),
        ("jitter: {distribution: uniform, mean: 1 ms, shape: 2}", "network.jitter: `shape` would "
         "have no effect, uniform has none; remove it"),
        ("jitter: [{distribution: uniform, mean: 1 ms, probability: 2}]", "a.yaml:4:61: error: "
         "network.jitter.0.probability: 2 must be at least 0 and at most 1"),
        ("loss: {rate: 1, model: capped}", "a.yaml:4:16: error: network.loss.rate: 1 must be at "
         "least 0 and less than 1"),
        ("loss: {rate: 5 in 9, model: capped}", "network.loss.rate: 5 in 9 is not a number or a "
         "ratio"),
        ("loss: {rate: 0.1}", "a.yaml:4:3: error: network.loss: `model` is missing; capped (the "
         "rate is what TCP reaches at steady state with such losses) or sampled (a message that "
         "loses a packet is late until that is repaired)"),
        ("loss: {rate: 0.1, model: capped, recovery: rack}", "a.yaml:4:3: error: network.loss: "
         "`recovery` would have no effect on capped losses, whose formula has its own"),
        ("loss: {rate: 0.1, model: sampled, recovery: tlp}", "'tlp'"),
        ("background: 1", "a.yaml:4:15: error: network.background: 1 must be at least 0 and less"),
        ("factors: [{from: 2 KiB}, {from: 1 KiB}]", "a.yaml:4:12: error: network.factors: entry 1 "
         "is from 1 KiB and comes after 2 KiB; sizes ascend"),
        ("factors: [{from: 64 KiB, bandwidth: 0}]", "a.yaml:4:39: error: "
         "network.factors.0.bandwidth: 0 must be greater than 0 and at most 1"),
        ("factors: [{from: 64}]", "network.factors.0.from: 64 has no unit; write it like '25 MiB'"),
        ("factors: [{bandwidth: 0.5}]", "key 'from' is missing in network.factors.0"),
        ("trace: {points: [[0 s, 1 Mbit/s]], after: hold}", "a.yaml:1:1: error: network: "
         "`bandwidth` would have no effect with `trace`, which is the goodput over time; remove "
         "one of them"),
        ("up: {latency: 1 ms}", "a.yaml:4:3: error: network.up: key 'bandwidth' is missing; write "
         "it, or `like:` with"),
        ("shared: true\n  up: {bandwidth: 1 Mbit/s, latency: 1 ms}", "a.yaml:1:1: error: network: "
         "`up` with `shared: true`: a half-duplex medium has one direction; remove one of "
         "them"),
        ("efficiency: 0.9\n  limited: true", "a.yaml:1:1: error: network: `limited` would have no "
         "effect with a stated goodput; leave out limited, or efficiency and trace"),
        ("like: 10bge", "a.yaml:4:9: error: network.like: unknown link '10bge'; did you mean '10g"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(tmp_path: Path, line: str, expected: str) -> None:
    assert expected in problem(f"{BARE}  {line}\n", tmp_path)
