"""What `gcsim list links` shows: what transports reach, and the ideal bounds apart from it."""

import json
from fractions import Fraction
from typing import Any

import pytest

from gcsim.cli.links import link_details, link_tables
from gcsim.cli.list import Entry, Kind, details, entries
from gcsim.scenarios import catalog
from gcsim.scenarios.sections.link import plain_link
from gcsim.simulator.network.links import Jitter, Link, Loss, SizeFactor, Uplink
from gcsim.simulator.network.rate_trace import RateTrace
from tests.command import invoked


def gcsim(*arguments: str) -> str:
    done = invoked(list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(params=[80, 120])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def test_the_tables_fit_and_wrap_no_row(columns: int) -> None:
    lines = gcsim("list", "links").splitlines()
    assert max(map(len, lines)) <= columns
    names = [line.split()[0] for line in lines if line]
    for name in catalog.links():
        assert names.count(name) == 1
    (shown,) = (line.split() for line in lines if line.split()[:1] == ["10gbe_smpi_factors"])
    assert " ".join(shown) == "10gbe_smpi_factors 9.407 Gbit/s 50 us estimate, by size"


def test_ideal_links_stand_apart(columns: int) -> None:
    text = gcsim("list", "links")
    real, ideal = text.split("\nIdeal: the line rate itself, an upper bound\n")
    assert real.startswith("Calibrated: goodput that a transport reaches\n")
    assert "_ideal" not in real
    rows = ideal.split("\n\n")[0].splitlines()
    assert rows[0].split() == ["name", "line", "rate", "latency"]
    assert len(rows) > 5
    assert all(row.split()[0].endswith("_ideal") for row in rows[1:])


def test_estimates_are_marked_and_what_is_measured_is_too() -> None:
    (_, headings, rows), _ = link_tables(entries(Kind.links))
    assert headings == ("name", "goodput", "latency", "calibration")
    marks = {row[0]: row[-1].split(", ")[0] for row in rows if not row[0].startswith(" ")}
    for name, mark in marks.items():
        assert mark == ("estimate" if catalog.link(name).estimate else "measured")
    assert marks["pcie3_x16"] == "measured"


def test_a_row_says_rates_latency_and_what_is_special() -> None:
    (_, _, rows), (_, _, bounds) = link_tables(entries(Kind.links))
    found = {row[0]: row[1:] for row in rows if not row[0].startswith(" ")}
    assert found["10gbe"] == ("9.41 (7.5-10) Gbit/s", "50 (10-220) us", "estimate")
    assert found["5g_measured"] == ("29.8 (15-166) Mbit/s", "7 (3.5-14) ms", "estimate")
    assert found["wifi_802.11n"] == ("44.5 (20-57) Mbit/s", "2 (1-10) ms", "estimate, shared")
    at = [row[0] for row in rows].index("25gbe")
    assert rows[at + 2] == ("  nccl", "15 (11-24) Gbit/s", "50 (20-160) us", "")
    at = [row[0] for row in rows].index("5g_measured")
    assert rows[at][1] == "29.8 (15-166) Mbit/s"
    assert rows[at + 1] == ("  up", "10 Mbit/s", "18 ms", "starts every 2.5 ms")
    assert ("nvlink4_ideal", "3.6 Tbit/s", "3.4 us") in bounds


@pytest.mark.parametrize("name", list(catalog.links()))
def test_one_link_is_shown_with_everything_and_its_source(name: str, columns: int) -> None:
    text = gcsim("list", "links", name)
    lines = text.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0] == name
    words = " ".join(text.split())
    assert " ".join(catalog.link(name).source.split()) in words
    label = "ideal: " if name.endswith("_ideal") else ""
    label = label or ("estimate: " if catalog.link(name).estimate else "measured: ")
    assert f"calibration {label}" in words
    assert words.endswith(f"in a scenario network: {name}")


ONE = Fraction(1)
MS = Fraction(1, 1000)
EVERYTHING: dict[str, Any] = {
    "name": "all",
    "bandwidth": Fraction(10**6, 8),
    "latency": MS,
    "overhead": MS / 200,
    "latency_range": (MS / 2, 2 * MS),
    "efficiency_range": (ONE / 2, ONE),
    "overhead_range": (0 * MS, MS / 100),
    "factors": (SizeFactor(from_bytes=1024, bandwidth=ONE / 2),),
    "jitter": (
        Jitter(distribution="pareto", mean=MS, shape=ONE * 3 / 2, probability=ONE / 100),
    ),
    "loss": Loss(rate=ONE / 100, model="sampled"),
    "background": ONE / 4,
    "grant": MS,
    "up": Uplink(bandwidth=Fraction(10**5, 8), latency=2 * MS),
    "source": "a test",
}  # fmt: skip


@pytest.mark.parametrize("timed", [False, True])
def test_nothing_of_a_link_is_hidden(monkeypatch: pytest.MonkeyPatch, timed: bool) -> None:
    trace = RateTrace(times=(0 * ONE,), rates=(ONE,), duration=ONE * 2, after="repeat")
    link = Link(**EVERYTHING | ({"trace": trace, "bandwidth": ONE} if timed else {}))
    monkeypatch.setattr(catalog, "links", lambda _=None: {link.name: link})
    monkeypatch.setattr(catalog, "link", lambda *_: link)
    monkeypatch.setattr(catalog, "own_figures", dict)
    entry: Entry = details(Kind.links, link.name)
    assert json.loads(json.dumps(entry, allow_nan=False)) == entry
    found = dict(link_details(entry))
    stated = dict(line.split(": ", 1) for line in found["as a mapping"].split("\n"))
    assert stated.keys() == plain_link(link).keys() - {"name", "source", "estimate"}
    assert stated["latency_range"] == "[500 us, 2 ms]"
    assert stated["up"] == "{bandwidth: 12.5 kB/s, latency: 2 ms}"
    assert stated.get("trace", "1 rates") == "1 rates"
    assert found["source"] == "a test"


def test_json_has_both_directions_and_in_full_the_whole_section() -> None:
    short = {entry["name"]: entry for entry in json.loads(gcsim("list", "links", "--json"))}
    assert short["5g_measured"]["up"] == {
        "bandwidth_bytes_per_s": 1.25e6,
        "latency_s": 0.018,
        "grant_s": 0.0025,
    }
    assert short["10gbe"]["up"] is None
    assert short["10gbe"]["goodput_bytes_per_s"] == pytest.approx(1.25e9 * 1448 / 1538)
    assert short["10gbe"]["latency_range_s"] == [1e-5, 2.2e-4]
    own = short["10gbe"]["transports"]["gloo"]
    assert (own["latency_s"], own["latency_range_s"]) == (1.2e-4, [5e-5, 2.2e-4])
    assert short["10gbe_ideal"]["calibration"] == "ideal"
    assert short["wifi_802.11n"]["shared"]
    full = json.loads(gcsim("list", "links", "5g_measured", "--json"))
    assert full["section"]["up"] == {
        "bandwidth": "1.25 MB/s",
        "latency": "18 ms",
        "bandwidth_range": ["625 kB/s", "3.90875 MB/s"],
        "latency_range": ["9 ms", "36 ms"],
        "grant": "2.5 ms",
    }
