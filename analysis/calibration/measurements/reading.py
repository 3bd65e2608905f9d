"""Which format has a file of measurements, and which of its lines count?

Three formats are read, each in a file of its own: what nccl-tests prints, what Gloo's benchmark
prints, and a CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gcsim.analysis.calibration.measurements import csv_table, gloo_log, nccl_tests
from gcsim.analysis.calibration.measurements.collectives import (
    LARGEST,
    LEAST_SIZES,
    MOST_RANKS,
    Mistakes,
    Parser,
    Reading,
    Stated,
)
from gcsim.errors import InputError, Problem
from gcsim.scenarios.reading.document import read_text


def formats() -> Mapping[str, tuple[Callable[[str], bool], Parser]]:
    """By name: whether a text is of that format, and its parser. A new format is a line here."""
    return {
        "nccl-tests": (nccl_tests.recognised, nccl_tests.parse),
        "gloo": (gloo_log.recognised, gloo_log.parse),
        "csv": (csv_table.recognised, csv_table.parse),
    }


def read(
    files: Sequence[Path], file_format: str = "auto", stated: Stated | None = None
) -> list[Reading]:
    """Every file's measurements, those of `stated.ranks` only.

    Raises `InputError` for a file of no known format, for lines that are cut off, whose time is
    not positive or whose bytes or ranks are more than there are anywhere (with file and line), for
    different numbers of ranks of which none was selected, for collectives that are not known, and
    for fewer than three sizes.
    """
    stated = stated or Stated()
    problems: list[Problem] = []
    readings: list[Reading] = []
    for path in files:
        try:
            readings.append(_read(path, file_format, stated))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return _selected(readings, stated)


def _read(path: Path, file_format: str, stated: Stated) -> Reading:
    text = read_text(path, str(path))
    known = formats()
    if file_format == "auto":
        fitting = [name for name, (recognised, _) in known.items() if recognised(text)]
        if not fitting:
            message = "is of no known format"
            hint = (
                "known: what nccl-tests prints (with its '# nThread ...' line and its headings), "
                "what Gloo's benchmark prints, and CSV with the header "
                "collective,ranks,bytes,seconds"
            )
            raise InputError(message, place=str(path), hint=hint)
        file_format = fitting[0]
    reading = known[file_format][1](str(path), text, stated)
    mistakes = Mistakes(str(path))
    for point in reading.measurements:
        line = int(point.place.rpartition(":")[2])
        if point.nbytes > LARGEST:
            mistakes.add(line, f"{point.nbytes:,} bytes are more than 256 GiB")
        if point.ranks > MOST_RANKS:
            mistakes.add(line, f"{point.ranks:,} ranks are more than {MOST_RANKS:,}")
    mistakes.raise_any()
    return reading


def _selected(readings: Sequence[Reading], stated: Stated) -> list[Reading]:
    points = [point for reading in readings for point in reading.measurements]
    counts: dict[int, str] = {}
    for point in points:
        counts.setdefault(point.ranks, point.place)
    if stated.ranks:
        missing = [count for count in stated.ranks if count not in counts]
        if missing and counts:
            message = f"nothing was measured on {_listed(missing)} ranks"
            hint = f"there are measurements on {_listed(sorted(counts))}"
            raise InputError(message, place="--ranks", hint=hint)
    elif len(counts) > 1:
        where = ", ".join(f"{count} at {place}" for count, place in sorted(counts.items()))
        raise InputError(
            f"different numbers of ranks were measured: {where}",
            place=next(iter(counts.values())),
            hint=f"select one with --ranks {max(counts)}; "
            "given several times, --ranks fits one link to all of those",
        )
    kept = []
    for reading in readings:
        chosen = tuple(
            point
            for point in reading.measurements
            if not stated.ranks or point.ranks in stated.ranks
        )
        if chosen:
            kept.append(replace(reading, measurements=chosen))
    sizes = {point.nbytes for reading in kept for point in reading.measurements}
    if len(sizes) < LEAST_SIZES:
        files = ", ".join(reading.file for reading in readings) or "the files"
        raise InputError(
            f"{len(sizes)} different sizes were measured; a fit needs {LEAST_SIZES}",
            place=files,
            hint="measure from a few kilobytes to some hundred megabytes",
        )
    return kept


def _listed(counts: Iterable[int]) -> str:
    return ", ".join(str(count) for count in counts)
