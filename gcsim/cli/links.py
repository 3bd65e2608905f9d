"""Lists of links: their rates on real hardware, and apart from those the ideal bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gcsim.analysis.report.numbers import duration, rate
from gcsim.cli.list import Entry

Rows = list[tuple[str, ...]]

_CALIBRATION = {
    "ideal": "ideal: a bound, the line rate, which no transport reaches",
    "measured": "measured: on such a link",
    "estimate": "estimate: a figure was not measured, or not on such a link",
    "stated": "stated: in its file",
}

_AFTER = {"repeat": "all again", "hold": "the last one for good"}

ABOUT_LINKS = (
    "In parentheses the range of such links. Indented: the link as a transport gets it (gloo).",
    "estimate: a figure was not measured, or not on such a link.",
    "One link with its source: gcsim list links NAME. Another figure in a scenario:",
    "network: {like: NAME, latency: 20 us}",
)
"""Notes below the tables."""


def link_tables(entries: Sequence[Entry]) -> Iterator[tuple[str, tuple[str, ...], Rows]]:
    """Title, headings and rows: of the calibrated links, and of the ideal ones, by line rate.

    A link has a row more for each transport that finds other figures, and an access link one for
    its other direction.
    """
    ideal = [entry for entry in entries if entry["calibration"] == "ideal"]
    calibrated = [entry for entry in entries if entry["calibration"] != "ideal"]
    headings = ("name", "goodput", "latency", "calibration")
    rows = [row for entry in calibrated for row in _rows(entry)]
    yield "Calibrated: goodput that a transport reaches", headings, rows
    bounds: Rows = [
        (e["name"], rate(e["bandwidth_bytes_per_s"]), duration(e["latency_s"])) for e in ideal
    ]
    yield "Ideal: the line rate itself, a bound", ("name", "line rate", "latency"), bounds


def link_details(entry: Entry) -> Iterator[tuple[str, str]]:
    """Label and text of each thing that is known of a link."""
    section = entry["section"]
    yield "calibration", _CALIBRATION[entry["calibration"]]
    yield from _rate(entry, section)
    if "overhead" in section:
        yield "overhead", f"{section['overhead']} per message"
    if entry["overhead_range_s"]:
        yield "overhead range", _between(entry["overhead_range_s"])
    if "factors" in section:
        yield "by size", "\n".join(_factor(factor) for factor in section["factors"])
    for jitter in section.get("jitter", ()):
        yield "jitter", _jitter(jitter)
    if "loss" in section:
        loss = section["loss"]
        repaired = f", recovery {loss['recovery']}" if "recovery" in loss else ""
        text = f"{loss['rate']} of the packets, {loss['model']}, time-out {loss['timeout']}"
        yield "loss", text + repaired
    if "background" in section:
        yield "background", f"other traffic takes {section['background']} of the rate"
    if entry["shared"]:
        yield (
            "medium",
            "one for all nodes, half-duplex: between two nodes a message crosses it twice",
        )
    yield "source", entry["source"]
    yield "in a scenario", f"network: {entry.get('file', entry['name'])}"


def _rate(entry: Entry, section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    up, line = entry["up"], entry["bandwidth_bytes_per_s"]
    towards = " towards the node" if up else ""
    if "trace" in section:
        trace = section["trace"]
        yield (
            "rate",
            f"{rate(entry['goodput_bytes_per_s'])} in the long run{towards}: "
            f"{len(trace['points'])} rates in {trace['duration']}, then {_AFTER[trace['after']]}",
        )
    else:
        known = entry["calibration"] == "ideal" or entry["goodput_bytes_per_s"] != line
        # of many links only what they carry is known
        yield "line rate" if known else "goodput", rate(line) + towards
        share = entry["goodput_bytes_per_s"] / line
        if share != 1:
            yield "goodput", f"{rate(entry['goodput_bytes_per_s'])}, {share:.4g} of the line rate"
        if entry["efficiency_range"]:
            yield "goodput range", " to ".join(rate(end) for end in _goodputs(entry))
    yield "latency", duration(entry["latency_s"]) + towards
    if entry["latency_range_s"]:
        yield "latency range", _between(entry["latency_range_s"])
    for transport, own in entry["transports"].items():
        text = f"goodput {_goodput(own)}, latency {_latency(own)}\n"
        yield f"with {transport}", text + own["source"].split(" Others: ")[0].split(": ", 1)[1]
    if "grant" in section:
        yield "grants", f"a message may start every {section['grant']}"
    if up:
        grants = up["grant_s"]
        starts = f"; a message may start every {duration(grants)}" if grants else ""
        bandwidth = rate(up["bandwidth_bytes_per_s"])
        yield "up", f"{bandwidth} and {duration(up['latency_s'])} away from the node{starts}"


def _goodputs(entry: Entry) -> list[float]:
    known = entry["goodput_bytes_per_s"] / entry["efficiency"]
    return [known * end for end in entry["efficiency_range"]]


def _goodput(entry: Entry) -> str:
    """Goodput with its range, in one unit: `15 (11-24) Gbit/s`."""
    bounds = _goodputs(entry) if entry["efficiency_range"] else None
    return _ranged(entry["goodput_bytes_per_s"], bounds, rate)


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


def _between(bounds: Sequence[float]) -> str:
    return " to ".join(duration(end) for end in bounds)


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


def _factor(factor: Mapping[str, str]) -> str:
    bandwidth, latency = factor.get("bandwidth", "1"), factor.get("latency", "1")
    return f"from {factor['from']}: rate x {bandwidth}, latency x {latency}"


def _jitter(jitter: Mapping[str, str]) -> str:
    shape = f", shape {jitter['shape']}" if "shape" in jitter else ""
    some = f", {jitter['probability']} of the messages" if "probability" in jitter else ""
    return f"{jitter['distribution']}, mean {jitter['mean']}{shape}{some}"
