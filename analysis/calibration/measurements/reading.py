"""Reading of files of measurements, each by the only format that recognises it.

A file, plain or gzip, that begins as JSON is read as a stream (`json_text.py`), any other as text.
From text, additions of launchers, terminals and mails are removed: control sequences, and the
prefix before a table's headings (`0: ` of `srun -l`, `[1,0]<stdout>:` of Open MPI, kubectl's time
stamp, `> ` of a quote, an indent) on all lines with a prefix of the same shape (words, numbers and
blanks may differ, punctuation may not). Line numbers stay correct.
"""

from __future__ import annotations

import codecs
import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from gcsim.analysis.calibration.measurements import collectives, torch_profile
from gcsim.analysis.calibration.measurements.formats import FORMATS, Kind
from gcsim.analysis.calibration.measurements.json_text import Listed, at, loaded
from gcsim.errors import UNPRINTABLE, InputError, Problem, did_you_mean
from gcsim.json_file import LARGEST as LARGEST_FILE
from gcsim.json_stream import opened
from gcsim.traces.kineto import json_stream

Content = str | dict[str, Any] | Listed
_SHOWN = 60  # characters shown of unrecognised content
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*(?:[]{[\"]|$))")
"""An object, or a non-trivial list: `[1,0]<stdout>:` and `[INFO]` begin text."""


def read(
    files: Sequence[Path], file_format: str = "auto", stated: collectives.Stated | None = None
) -> list[collectives.Reading]:
    """Measurements of every file, those of `stated.ranks` only.

    Raises `InputError` for a file of no known format, lines cut off or with an impossible time,
    bytes or ranks (with file and line), different numbers of ranks without a selection, unknown
    collectives, and fewer than three sizes of measured collectives.
    """
    stated = stated or collectives.Stated()
    if file_format not in {"auto", *FORMATS}:
        hint = did_you_mean(file_format, FORMATS)
        raise InputError(f"{file_format!r:.40} is not a known format", place="--format", hint=hint)
    problems: list[Problem] = []
    readings: list[collectives.Reading] = []
    for path in files:
        try:
            readings.append(_read(path, file_format, stated))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return _selected(_last_to_come(readings), stated)


def _last_to_come(readings: Sequence[collectives.Reading]) -> list[collectives.Reading]:
    """Keep of several ranks' files the time of the last rank to arrive, which did not wait."""
    shortest: dict[collectives.Measurement, collectives.Measurement] = {}
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


def _shared(point: collectives.Measurement) -> collectives.Measurement:
    """Return the facts that are equal on all ranks; a benchmark's line stays distinct."""
    return replace(point, seconds=1.0, place="" if point.call else point.place)


def _read(path: Path, file_format: str, stated: collectives.Stated) -> collectives.Reading:
    with contents(path) as content:
        claims = formats(content) if file_format == "auto" else _forced(path, content, file_format)
        if not claims:
            raise _unknown(path, content)
        if len(claims) > 1:
            names = " and ".join(claims)
            hint = f"name one with --format, {' or '.join(claims)}, or split it into two files"
            raise InputError(f"holds several formats: {names}", place=str(path), hint=hint)
        ((name, own),) = claims.items()
        reading: collectives.Reading = _module(name).parse(str(path), own, stated)
    mistakes = collectives.Mistakes(str(path))
    each, notes = stated.devices_per_node, reading.notes
    if not reading.placed and not each:
        notes += (f"{path}: one rank per machine is assumed; set it with --devices-per-node",)
    points = tuple(
        replace(
            point,
            devices_per_node=each or point.devices_per_node,
            algorithm=stated.algorithm or point.algorithm,
        )
        for point in reading.measurements
    )
    for point in points:
        if point.ranks % point.devices_per_node:
            message = f"{point.ranks} ranks do not divide into nodes of {point.devices_per_node}"
            mistakes.at(point.place, message, "--devices-per-node N")
        if point.nbytes > collectives.LARGEST:
            mistakes.at(
                point.place, f"{point.nbytes:,} bytes are more than {collectives.LARGEST >> 30} GiB"
            )
        if point.ranks > collectives.MOST_RANKS:
            mistakes.at(
                point.place, f"{point.ranks:,} ranks are more than {collectives.MOST_RANKS:,}"
            )
        if point.seconds > collectives.LONGEST_S:
            mistakes.at(point.place, f"a time of {point.seconds:.3g} s is more than a day")
    mistakes.raise_any()
    return replace(reading, measurements=points, notes=notes)


def formats(content: Content) -> dict[str, Content]:
    """Return the formats that recognise a content, each with the content without prefixes."""
    kind = _kind(content)
    found: dict[str, Content] = {}
    for name, one in FORMATS.items():
        if kind in one.takes:
            own = _without_prefix(content, name)
            if _module(name).recognised(own):
                found[name] = own
    return found


def _forced(path: Path, content: Content, name: str) -> dict[str, Content]:
    kind, takes = _kind(content), FORMATS[name].takes
    if kind not in takes:
        message = f"is {kind}, and {name} is {' or '.join(takes)}"
        raise InputError(message, place=str(path), hint="leave --format out")
    return {name: _without_prefix(content, name)}


def _kind(content: Content) -> Kind:
    if isinstance(content, str):
        return "text"
    return "JSON list" if isinstance(content, Listed) else "JSON object"


def _module(name: str) -> ModuleType:
    return importlib.import_module(FORMATS[name].module)


def _without_prefix(content: Content, name: str) -> Content:
    headings = getattr(_module(name), "HEADINGS", None)
    return without_prefix(content, headings) if headings and isinstance(content, str) else content


@contextmanager
def contents(path: Path) -> Iterator[Content]:
    """Yield the content of a file, with entries of a JSON list on demand; raises `InputError` if it
    is unreadable, too large, or known to hold no measurements."""
    name = str(path)
    with opened(path, lambda what: InputError(what, place=name)) as (file, head):
        if json_stream.is_pickle(head):
            raise InputError("is a pickle", place=name, hint=json_stream.FLIGHT_RECORDER_JSON)
        if json_stream.is_chakra_protobuf(head):
            raise InputError(json_stream.PROTOBUF, place=name, hint=json_stream.NAME_THE_KINETO)
        if _JSON.match(head):
            content = loaded(name, file, torch_profile.is_nccl_kernel)
            if isinstance(at(content, "nodes"), list):
                raise InputError(
                    json_stream.OPERATORS, place=name, hint=json_stream.NAME_THE_KINETO
                )
            yield content
            return
        data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise InputError(f"is larger than {LARGEST_FILE >> 20} MiB", place=name)
        wide = data[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}  # a redirect in PowerShell
        yield _CONTROL.sub("", data.decode("utf-16" if wide else "utf-8-sig", errors="replace"))


def _unknown(path: Path, content: Content) -> InputError:
    told = ""
    if isinstance(content, str):
        first = next((line.strip() for line in content.splitlines() if line.strip()), "")
        told = f" (it begins with {UNPRINTABLE.sub('?', first)[:_SHOWN]!r})" if first else ""
    elif isinstance(content, dict) and content:
        told = f" (its keys: {', '.join(content)!r:.{_SHOWN}})"
    hint = "known: " + "; ".join(f"{one.title} ({name})" for name, one in FORMATS.items())
    return InputError(f"has an unknown format{told}", place=str(path), hint=hint)


def _selected(
    readings: Sequence[collectives.Reading], stated: collectives.Stated
) -> list[collectives.Reading]:
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
            "given several times, --ranks fits one link to all of them",
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
    if len(sizes) < collectives.LEAST_SIZES and (points or not kept):
        files = ", ".join(reading.file for reading in readings) or "the files"
        raise InputError(
            f"{len(sizes)} different sizes were measured; a fit needs {collectives.LEAST_SIZES}",
            place=files,
            hint="measure from a few kilobytes to some hundred megabytes",
        )
    return kept


def _listed(counts: Iterable[int]) -> str:
    return ", ".join(str(count) for count in counts)


_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\x07")
"""A terminal's control sequences (ECMA-48): CSI, operating system commands, single functions."""
_PIECE = re.compile(r"\d+|[^\W\d_]\w*|[ \t]+|.")
_LONGEST = 200  # most characters of a prefix


def without_prefix(text: str, headings: re.Pattern[str]) -> str:
    """Return text whose lines lose the prefix that precedes `headings`."""
    lines = text.splitlines()
    shapes: dict[str, None] = {}
    for line in lines:
        if (found := headings.search(line)) and 0 < found.start() <= _LONGEST:
            shapes[_shape(line[: found.start()])] = None
    if not shapes:
        return text
    longest_first = sorted(shapes, key=len, reverse=True)
    prefix = re.compile("^(?:" + "|".join(longest_first) + ")")
    return "\n".join(prefix.sub("", line) for line in lines)


def _shape(prefix: str) -> str:
    return "".join(_generalised(piece) for piece in _PIECE.findall(prefix))


def _generalised(piece: str) -> str:
    if piece.isdigit():
        return r"\d+"
    if piece.isspace():
        return rf"[ \t]{{0,{len(piece)}}}"
    if piece[0].isalpha():
        return r"\w+"
    return re.escape(piece)
