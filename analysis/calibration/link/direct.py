"""Link from throughput and round trips between two hosts, without any collective.

iperf3 measures the one-way rate of long messages. ping measures a latency that lacks the programs'
share, since the kernel of the other host replies. The range of the latency is therefore from half
of the shortest round trip to half of the long ones plus the software's share: the width of the
range in the catalogue's Ethernet of that rate, which also provides all unmeasured figures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gcsim.analysis.calibration.link.report import entry_text, table, time_text, wrapped
from gcsim.analysis.calibration.link.shape import rounded_number, rounded_seconds
from gcsim.analysis.calibration.measurements.collectives import Reading, Spread
from gcsim.analysis.report.numbers import rate
from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.simulator.network.links import Link, Range

_ETHERNET = ("100mbit_ethernet", "1gbe", "10gbe", "25gbe", "40gbe", "100gbe")
"""Catalogue entries that provide unmeasured figures."""
_DIGITS = 5
_SLOWEST, FASTEST = 125.0, 1.25e12
"""Slowest and fastest plausible bytes per second between two hosts: 1 kbit/s to 10 Tbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectLink:
    """The link, with the origin of its figures."""

    link: Link
    figures: tuple[tuple[str, str, str, str], ...]  # name, value, range, origin


def direct(readings: Sequence[Reading], *, line_rate: float | None, name: str) -> DirectLink:
    """Return the link from goodputs and latencies; of several, the median and their whole range.
    `line_rate` is in bytes per second. Raises `InputError` without a goodput or line rate."""
    goodput = _together([one.goodput for one in readings if one.goodput])
    latency = _together([one.latency for one in readings if one.latency])
    files = ", ".join(reading.file for reading in readings)
    if goodput is None and line_rate is None:
        raise InputError(
            "measures round trips, not the bandwidth",
            place=files,
            hint="add the output of iperf3, or --line-rate RATE",
        )
    if goodput and not _SLOWEST <= goodput.low <= goodput.high <= FASTEST:
        ends = f"{rate(goodput.low)} to {rate(goodput.high)}"
        raise InputError(f"{ends} is not a rate between two hosts", place=files)
    line = max(line_rate or 0.0, goodput.value if goodput else 0.0)
    like = ethernet_like(line)
    found = Link(
        name=name,
        bandwidth=rounded_number(line * 8, _DIGITS) / 8,
        latency=like.latency,
        latency_range=like.latency_range,
        efficiency=like.efficiency,
        efficiency_range=like.efficiency_range,
    )
    catalogue = f"not measured: as {like.name} of the catalogue, with its range"
    how = {
        "goodput": f"{catalogue}; add the output of iperf3 -c HOST",
        "latency": f"{catalogue}; add the output of ping -c 100 HOST",
    }
    if goodput is not None:
        share = [
            rounded_number(each / line, _DIGITS)
            for each in (goodput.value, goodput.low, goodput.high)
        ]
        found = found.exactly(efficiency=min(Fraction(1), share[0]), efficiency_range=_range(share))
        how["goodput"] = goodput.how
    if latency is not None:
        low, high = like.latency_range or (like.latency, like.latency)
        software = float(high - low)
        bounds = (latency.value, latency.low, latency.high + software)
        times = [rounded_seconds(each, _DIGITS) for each in bounds]
        found = found.exactly(latency=times[0], latency_range=_range(times))
        how["latency"] = (
            f"{latency.how}; ping leaves out the time of the programs at both ends, so the range "
            f"ends {time_text(software)} above half of the slow round trips, the width of "
            f"{like.name}'s in the catalogue (torchrun -m gcsim.calibrate_link measures it)"
        )
    return DirectLink(link=found, figures=tuple(_figures(found, how, line_rate)))


def ethernet_like(line_rate: float) -> Link:
    """Return the catalogue's Ethernet nearest to a rate in bytes per second."""
    return min(
        (catalog.link(known) for known in _ETHERNET),
        key=lambda known: abs(math.log(float(known.bandwidth) / line_rate)),
    )


def report_direct(found: DirectLink, readings: Sequence[Reading]) -> Iterator[str]:
    """Yield the lines of the report."""
    files = ", ".join(f"{reading.file} ({reading.tool})" for reading in readings)
    yield from wrapped(f"{found.link.name}: from {files}; no collective was measured")
    yield ""
    yield from table([figure[:3] for figure in found.figures])
    yield ""
    for name, _, _, how in found.figures:
        if how:
            yield from wrapped(f"{name}: {how}")
    for note in (note for reading in readings for note in reading.notes):
        yield from wrapped(f"note: {note}")


def entry_direct(found: DirectLink, readings: Sequence[Reading], *, date: str, command: str) -> str:
    """Return the YAML file of the link, with comments on its origin."""
    files = ", ".join(f"{reading.file} ({reading.tool})" for reading in readings)
    figures = [
        f"{name} {value}" + (f" ({spread})" if spread else "") + (f": {how}" if how else "")
        for name, value, spread, how in found.figures
    ]
    guessed = any("not measured" in how for _, _, _, how in found.figures)
    return entry_text(
        found.link,
        source=f"from {files}: {'; '.join(figures)}; {date}; {command}",
        comments=[*figures, f"from: {files}", f"date: {date}", f"command: {command}"],
        estimate=guessed,
    )


def compared(link: Link, readings: Sequence[Reading]) -> Iterator[str]:
    """Compare direct measurements with the fitted link's figures, a sentence each."""
    for reading in readings:
        if reading.goodput is not None:
            fitted = rate(float(link.bandwidth * link.efficiency))
            measured = rate(reading.goodput.value)
            yield from wrapped(f"{reading.file}: {measured} measured, {fitted} fitted")
        if reading.latency is not None:
            one, other = time_text(reading.latency.value), time_text(float(link.latency))
            yield from wrapped(f"{reading.file}: {one} is {reading.latency.how}; {other} fitted")


def _together(spreads: Sequence[Spread]) -> Spread | None:
    if not spreads:
        return None
    return Spread(
        value=statistics.median(spread.value for spread in spreads),
        low=min(spread.low for spread in spreads),
        high=max(spread.high for spread in spreads),
        how="; ".join(dict.fromkeys(spread.how for spread in spreads)),
    )


def _range(values: Sequence[Fraction]) -> Range | None:
    """Return the range of the values; None if they are all equal."""
    low, high = min(values), max(values)
    return None if low == high else (low, high)


def _figures(
    link: Link, how: dict[str, str], line_rate: float | None
) -> Iterator[tuple[str, str, str, str]]:
    line = float(link.bandwidth)
    ends = [rate(line * float(end)) for end in link.efficiency_range or ()]
    yield "goodput", rate(line * float(link.efficiency)), " to ".join(ends), how["goodput"]
    ends = [time_text(float(end)) for end in link.latency_range or ()]
    yield "latency", time_text(float(link.latency)), " to ".join(ends), how["latency"]
    if line_rate is not None:
        yield "efficiency", f"{float(link.efficiency):.4g}", f"of {rate(line)}", ""
