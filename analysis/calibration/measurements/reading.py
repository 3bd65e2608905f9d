"""What do files of measurements say, and which of their lines count?"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gcsim.analysis.calibration.measurements.collectives import (
    LARGEST,
    LEAST_SIZES,
    LONGEST_S,
    MOST_RANKS,
    Measurement,
    Mistakes,
    Reading,
    Stated,
)
from gcsim.analysis.calibration.measurements.formats import FORMATS
from gcsim.errors import UNPRINTABLE, InputError, Problem, did_you_mean
from gcsim.files import open_file
from gcsim.json_file import LARGEST as LARGEST_FILE
from gcsim.scenarios.reading.document import read_text
from gcsim.traces.kineto.refused import FLIGHT_RECORDER_JSON, is_pickle

_SHOWN, _HEAD = 60, 4096
"""Characters of a text that nobody knows: of its first line, and those that are looked at."""


def read(
    files: Sequence[Path], file_format: str = "auto", stated: Stated | None = None
) -> list[Reading]:
    """Every file's measurements, those of `stated.ranks` only.

    Raises `InputError` for a file of no known format, for lines that are cut off, whose time is
    not positive or whose bytes or ranks are more than there are anywhere (with file and line), for
    different numbers of ranks of which none was selected, for collectives that are not known, and
    where collectives were measured, for fewer than three sizes.
    """
    stated = stated or Stated()
    if file_format not in {"auto", *FORMATS}:
        hint = did_you_mean(file_format, FORMATS)
        raise InputError(f"{file_format!r:.40} is no known format", place="--format", hint=hint)
    problems: list[Problem] = []
    readings: list[Reading] = []
    for path in files:
        try:
            readings.append(_read(path, file_format, stated))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return _selected(_last_to_come(readings), stated)


def _last_to_come(readings: Sequence[Reading]) -> list[Reading]:
    """Of a collective that several ranks wrote down, the time of who came last and did not wait."""
    shortest: dict[Measurement, Measurement] = {}
    for point in (point for reading in readings for point in reading.measurements):
        known = shortest.setdefault(_shared(point), point)
        if point.seconds < known.seconds:
            shortest[_shared(point)] = point
    kept = {id(point) for point in shortest.values()}
    return [
        replace(
            reading,
            measurements=tuple(p for p in reading.measurements if not p.call or id(p) in kept),
        )
        for reading in readings
    ]


def _shared(point: Measurement) -> Measurement:
    """What is the same on all ranks; a line of a benchmark is shared with nobody."""
    return replace(point, seconds=1.0, place="" if point.call else point.place)


def _read(path: Path, file_format: str, stated: Stated) -> Reading:
    _refuse_pickle(path)
    text = read_text(path, str(path), LARGEST_FILE)
    names = [file_format] if file_format != "auto" else list(FORMATS)
    for name in names:
        module = importlib.import_module(FORMATS[name].module)
        if file_format != "auto" or module.recognised(text):
            break
    else:
        raise _unknown(path, text)
    reading: Reading = module.parse(str(path), text, stated)
    mistakes = Mistakes(str(path))
    for point in reading.measurements:
        if point.nbytes > LARGEST:
            mistakes.at(point.place, f"{point.nbytes:,} bytes are more than {LARGEST >> 30} GiB")
        if point.ranks > MOST_RANKS:
            mistakes.at(point.place, f"{point.ranks:,} ranks are more than {MOST_RANKS:,}")
        if point.seconds > LONGEST_S:
            mistakes.at(point.place, f"a time of {point.seconds:.3g} s is more than a day")
    mistakes.raise_any()
    return reading


def _refuse_pickle(path: Path) -> None:
    """What cannot be opened is told by who reads it."""
    with contextlib.suppress(OSError), open_file(path) as file:
        if is_pickle(file.read(2)):
            raise InputError("is a pickle", place=str(path), hint=FLIGHT_RECORDER_JSON)


def _unknown(path: Path, text: str) -> InputError:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    told = f" (it begins with {UNPRINTABLE.sub('?', first)[:_SHOWN]!r})" if first else ""
    hint = "known: " + "; ".join(f"{one.told} ({name})" for name, one in FORMATS.items())
    if '"traceEvents"' in text[:_HEAD] or '"schemaVersion"' in text[:_HEAD]:
        hint = (
            "this is a profile of PyTorch's profiler: it says what passes take, "
            "`compute: {profile: FILE}` in a scenario"
        )
    return InputError(f"is of no known format{told}", place=str(path), hint=hint)


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
        elif reading.goodput or reading.latency:
            kept.append(reading)
    sizes = {point.nbytes for reading in kept for point in reading.measurements}
    if len(sizes) < LEAST_SIZES and (points or not kept):
        files = ", ".join(reading.file for reading in readings) or "the files"
        raise InputError(
            f"{len(sizes)} different sizes were measured; a fit needs {LEAST_SIZES}",
            place=files,
            hint="measure from a few kilobytes to some hundred megabytes",
        )
    return kept


def _listed(counts: Iterable[int]) -> str:
    return ", ".join(str(count) for count in counts)
