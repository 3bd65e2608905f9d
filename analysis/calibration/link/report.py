"""Report of a fitted link, and its file for a scenario.

The report has every figure with its interval, the errors by size, and warnings. The file has a
table `links:` with one entry, for `cluster.network: FILE`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from gcsim.analysis.calibration.link.fit import FAR_OFF, Estimate, LinkFit, Point
from gcsim.analysis.calibration.link.solver import LARGE
from gcsim.analysis.calibration.measurements.collectives import Reading
from gcsim.analysis.report.numbers import duration, plural, rate, significant, size
from gcsim.errors import printable
from gcsim.scenarios.reading.document import write
from gcsim.scenarios.reading.values import number_text
from gcsim.scenarios.sections.link import plain_link
from gcsim.simulator.network.links import Link

_WIDTH = 80
_SHOWN = 40  # most sizes in the report's table, those with the largest errors


def report(fit: LinkFit, readings: Sequence[Reading]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield from wrapped(f"{fit.link.name}: {_data_text(fit)}")
    yield ""
    yield from table(list(_figures(fit)))
    yield ""
    yield "intervals: 95 %, by the covariance of the fit (least squares of log times)"
    yield from wrapped(f"overhead per message: {fit.overhead}")
    yield from wrapped(f"other figures by size: {fit.steps}")
    yield ""
    yield from table(list(_sizes(fit)), right=True)
    worst = fit.worst
    yield ""
    yield from wrapped(
        f"errors of {plural(len(fit.points), 'size')}: median {fit.median_error:.1%}, worst "
        f"{worst.error:+.1%} at {_size(worst)}"
    )
    for note in (note for reading in readings for note in reading.notes):
        yield from wrapped(f"note: {note}")


def warnings(fit: LinkFit) -> Iterator[str]:
    """Yield weaknesses of the fit, a sentence each."""
    far = fit.far_off
    if far:
        named = ", ".join(f"{_size(point)} by {point.error:+.0%}" for point in far[:6])
        more = f" and {len(far) - 6} more" if len(far) > 6 else ""
        hint = "another --algorithm may fit better, or the host was busy during the measurement"
        yield (
            f"the fit misses {plural(len(far), 'size')} of {len(fit.points)} by more than "
            f"{FAR_OFF:.0%}: {named}{more}; {hint}"
        )
    if not fit.goodput_known:
        yield (
            "these sizes do not determine the goodput; measure longer messages (the efficiency is "
            "the catalogue's, with its range)"
        )
        return
    yield from above_line_rate(fit.link, fit.line_rate)


def above_line_rate(link: Link, line_rate: float | None) -> Iterator[str]:
    """Yield a warning if the link is faster than the stated line rate."""
    goodput = float(link.bandwidth * link.efficiency)
    if line_rate is not None and goodput > line_rate * 1.001:
        yield (
            f"the goodput, {rate(goodput)}, exceeds the stated line rate, "
            f"{rate(line_rate)}; the efficiency is set to 1"
        )


def entry(fit: LinkFit, readings: Sequence[Reading], *, date: str, command: str) -> str:
    """Return the YAML file of the link, with comments on its origin."""
    files = ", ".join(reading.file for reading in readings)
    tools = ", ".join(dict.fromkeys(reading.tool for reading in readings))
    source = (
        f"fitted to {files} ({tools}): {_data_text(fit)}; median error {fit.median_error:.1%}, "
        f"worst {fit.worst.error:+.1%}; {date}; {command}"
    )
    comments = [
        *(": ".join((row[0], ", ".join(filter(None, row[1:])))) for row in _figures(fit)),
        "intervals: 95 %, by the covariance of the fit",
        f"overhead per message: {fit.overhead}",
        f"other figures by size: {fit.steps}",
        f"errors: median {fit.median_error:.1%}, worst {fit.worst.error:+.1%} at "
        f"{_size(fit.worst)}; errors beyond {LARGE:.0%} have less than quadratic weight",
        f"from: {files} ({tools})",
        f"date: {date}",
        f"command: {command}",
    ]
    return entry_text(fit.link, source=source, comments=comments, estimate=not fit.goodput_known)


def entry_text(link: Link, *, source: str, comments: Sequence[str], estimate: bool = False) -> str:
    """Return the YAML file of one link, with comments above it."""
    section = plain_link(link)
    del section["name"]
    section["bandwidth"] = rate(float(link.bandwidth), digits=12)
    if link.efficiency == 1:
        del section["efficiency"]
    section["latency"] = _exact_time(section["latency"], float(link.latency))
    section["estimate"] = estimate
    section["source"] = printable(source)
    head = "".join(f"# {printable(' '.join(comment.split()))}\n" for comment in comments)
    return head + write({"links": {link.name: section}})


def wrapped(sentence: str) -> list[str]:
    """Wrap a sentence to lines of a report."""
    return textwrap.wrap(printable(sentence), _WIDTH, subsequent_indent="  ")


def _exact_time(text: str, seconds: float) -> str:
    """Return microseconds if exact, else `text`."""
    micro = f"{seconds * 1e6:.12g}"
    return f"{micro} us" if "e" not in micro else text


def _data_text(fit: LinkFit) -> str:
    kinds = sorted({point.measurement.collective for point in fit.points})
    counts = sorted({point.measurement.ranks for point in fit.points})
    algorithms = sorted({point.measurement.algorithm for point in fit.points})
    nodes = sorted({point.measurement.devices_per_node for point in fit.points})
    each = "" if nodes == [1] else f", {', '.join(map(str, nodes))} per machine"
    return (
        f"{plural(fit.measured, 'measurement')} of {plural(len(fit.points), 'size')}, "
        f"{', '.join(kinds)} on {', '.join(map(str, counts))} ranks{each}, "
        f"carried out as {', '.join(algorithms)}"
    )


def _figures(fit: LinkFit) -> Iterator[tuple[str, ...]]:
    """Yield label, value, interval and message sizes of each figure."""
    for estimate in fit.estimates:
        starts = [other.from_bytes for other in fit.estimates if other.figure == estimate.figure]
        later = [start for start in starts if start > estimate.from_bytes]
        of = f"from {size(estimate.from_bytes)}" if estimate.from_bytes else ""
        if later:
            of = " ".join(filter(None, (of, f"below {size(min(later))}")))
        value, interval = _value(estimate)
        yield estimate.figure, value, interval, of
    link = fit.link
    if link.efficiency != 1 or (fit.line_rate and float(link.bandwidth) == fit.line_rate):
        yield "efficiency", number_text(link.efficiency), f"of {rate(float(link.bandwidth))}", ""


def _value(estimate: Estimate) -> tuple[str, str]:
    def text(value: float) -> str:
        return rate(value) if estimate.figure == "goodput" else time_text(value)

    low, high = estimate.low, estimate.high
    if low is None or high is None:
        return "unknown", "not determined by these sizes"
    if estimate.value < 1e-9:
        return text(estimate.value), f"at most {text(high)}"
    return text(estimate.value), f"{text(low)} to {text(high)}"


def time_text(seconds: float) -> str:
    """Format a time with four digits."""
    return "0 us" if seconds < 1e-10 else duration(float(f"{seconds:.4g}"))


def _sizes(fit: LinkFit) -> Iterator[tuple[str, ...]]:
    points = list(fit.points)
    several = len({point.measurement.ranks for point in points}) > 1
    if len(points) > _SHOWN:
        worst = sorted(points, key=lambda point: -abs(point.error))[:_SHOWN]
        points = [point for point in points if point in worst]
    yield "collective", "ranks", "bytes", "times", "measured", "fitted", "error"
    for number, point in enumerate(points):
        told = point.measurement
        before = points[number - 1].measurement if number else None
        same = before is not None and before.collective == told.collective
        yield (
            "" if same else told.collective,
            str(told.ranks) if several or not same else "",
            f"{told.nbytes:,}",
            str(point.repeats),
            _short(told.seconds),
            _short(point.fitted),
            f"{point.error:+.1%}" + ("" if abs(point.error) <= FAR_OFF else " !"),
        )


def _short(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{significant(seconds / factor, 4)} {unit}"
    return f"{significant(seconds * 1e6, 4)} us"


def _size(point: Point) -> str:
    told = point.measurement
    return f"{told.nbytes:,} B ({told.collective}, {told.ranks} ranks)"


def table(rows: Sequence[tuple[str, ...]], *, right: bool = False) -> Iterator[str]:
    """Yield columns of equal width; with `right` all but the first are right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if right and column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "  ".join(cells)).rstrip()
