"""Lists of links: calibrated rates, and ideal bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gcsim.analysis.report.numbers import duration, rate
from gcsim.cli.list import Entry
from gcsim.scenarios.sweeps.grid import written

Rows = list[tuple[str, ...]]

_CALIBRATION = {
    "ideal": "ideal: the line rate, an upper bound that no transport reaches",
    "measured": "measured: on such a link",
    "estimate": "estimate: a figure was not measured, or not on such a link",
    "stated": "stated: in its file",
}

ABOUT_LINKS = (
    "In parentheses: the range. Indented: the link as one transport sees it (gloo).",
    "estimate: a figure was not measured, or not on such a link.",
    "One link with its source: gcsim list links NAME.",
    "To change a figure in a scenario: network: {like: NAME, latency: 20 us}.",
)
"""Notes below the tables."""


def link_tables(entries: Sequence[Entry]) -> Iterator[tuple[str, tuple[str, ...], Rows]]:
    """Yield title, headings and rows of the calibrated links, and of the ideal ones by line rate.

    A link has another row for each transport with other figures, and an access link one for its
    other direction.
    """
    ideal = [entry for entry in entries if entry["calibration"] == "ideal"]
    calibrated = [entry for entry in entries if entry["calibration"] != "ideal"]
    headings = ("name", "goodput", "latency", "calibration")
    rows = [row for entry in calibrated for row in _rows(entry)]
    yield "Calibrated: goodput that a transport reaches", headings, rows
    bounds: Rows = [
        (e["name"], rate(e["bandwidth_bytes_per_s"]), duration(e["latency_s"])) for e in ideal
    ]
    yield "Ideal: the line rate itself, an upper bound", ("name", "line rate", "latency"), bounds


def link_details(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield label and text of each known fact about a link."""
    up = entry["up"]
    towards = " towards the node" if up else ""
    yield "calibration", _CALIBRATION[entry["calibration"]]
    share = entry["goodput_bytes_per_s"] / entry["bandwidth_bytes_per_s"]
    of_line = "" if share == 1 else f", {share:.4g} of the line rate"
    yield "goodput", f"{_goodput(entry)}{towards}{of_line}"
    yield "latency", _latency(entry) + towards
    for transport, own in entry["transports"].items():
        text = f"goodput {_goodput(own)}, latency {_latency(own)}\n"
        yield f"with {transport}", text + own["source"].split(" Others: ")[0].split(": ", 1)[1]
    if up:
        yield "up", f"{rate(up['bandwidth_bytes_per_s'])} and {duration(up['latency_s'])}"
    if entry["shared"]:
        yield "medium", "one for all nodes, half-duplex: a message crosses it twice"
    yield "source", entry["source"]
    named = {"name", "source", "estimate"}
    stated = {key: value for key, value in entry["section"].items() if key not in named}
    if "trace" in stated:
        stated["trace"] = f"{len(stated['trace']['points'])} rates"
    yield "as a mapping", "\n".join(f"{key}: {written(each)}" for key, each in stated.items())
    yield "in a scenario", f"network: {entry.get('file', entry['name'])}"


def _goodput(entry: Entry) -> str:
    """Return goodput with its range, in one unit: `15 (11-24) Gbit/s`."""
    value, ends = entry["goodput_bytes_per_s"], entry["efficiency_range"]
    return _ranged(value, ends and [value / entry["efficiency"] * end for end in ends], rate)


def _latency(entry: Entry) -> str:
    return _ranged(entry["latency_s"], entry["latency_range_s"], duration)


def _ranged(value: float, bounds: Sequence[float] | None, write: Callable[[float], str]) -> str:
    if bounds is None:
        return write(value)
    unit_of = value or bounds[-1]
    number, unit = write(unit_of).split()
    scale = float(number) / unit_of
    ends = "-".join(_short(end * scale) for end in bounds)
    return f"{_short(value * scale, 3)} ({ends}) {unit}"


def _short(number: float, digits: int = 2) -> str:
    return f"{number:.0f}" if number >= 10**digits else f"{number:.{digits}g}"


def _rows(entry: Entry) -> Iterator[tuple[str, ...]]:
    remarks = [entry["calibration"]]
    remarks += ["shared"] if entry["shared"] else []
    remarks += ["by size"] if entry["by_size"] else []
    yield (entry["name"], _goodput(entry), _latency(entry), ", ".join(remarks))
    for transport, own in entry["transports"].items():
        yield f"  {transport}", _goodput(own), _latency(own), ""
    up = entry["up"]
    if up:
        grants = f"starts every {duration(up['grant_s'])}" if up["grant_s"] else ""
        yield "  up", rate(up["bandwidth_bytes_per_s"]), duration(up["latency_s"]), grants
