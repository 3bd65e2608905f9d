"""Models that are known only by a table of their layers.

A CSV file with the header of `COLUMNS` and a row per parameter tensor, in forward order
(`gcsim list models NAME --layers` writes one); gradients become ready in reverse. Empty lines and
those with # are skipped.

    name,shape,forward_flops
    conv1.weight,64x3x11x11,140553600
    conv1.bias,64,0

Or the rows in the YAML, as in a resolved scenario: `layers: [{name: conv1.weight, shape: [64, 3,
11, 11], forward_flops: 140553600}, ...]`. Mistakes name their line. Nothing is trained: gradients
are synthetic or recorded.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gcsim.compressors.bucket import MOST_ELEMENTS
from gcsim.compressors.registry import compressor_class
from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.scenarios.links.csv_table import few, read_rows, shown
from gcsim.scenarios.reading.document import Document, Keys
from gcsim.scenarios.reading.values import Spelled
from gcsim.scenarios.scenario import CompressorChoice
from gcsim.traces.models.registry import MODELS, ModelEntry, TableLayer
from gcsim.traces.models.table import COLUMNS, table_entry

MOST_ROWS = 4_000  # a resolved scenario has all rows and must be readable
MOST_FLOPS = 1 << 62
_NAME = re.compile(r"[^\s,#\"'\x00-\x1f\x7f-\x9f][^\s,\"'\x00-\x1f\x7f-\x9f]{0,254}")
_SIZES = re.compile(r"\d{1,12}(?:\s*[xX]\s*\d{1,12})*", re.ASCII)
_WHOLE = re.compile(r"\d{1,20}", re.ASCII)
_POWER = re.compile(r"(\d{1,20})(?:\.(\d{1,20}))?[eE]\+?(\d{1,2})", re.ASCII)
_ROW_HINT = "a row is a name, a shape and FLOPs, such as conv1.weight,64x3x11x11,140553600"
_HEADER_HINT = f"begin with {','.join(COLUMNS)}; gcsim list models NAME --layers writes a table"
_FILE_NAME = re.compile(r"\w[\w.-]*")

Named = tuple[str, TableLayer]  # row with its place


def tabled_model(
    document: Document, path: Path, name: str | None
) -> tuple[ModelEntry | None, list[Problem]]:
    """Read the model of a CSV file, or its problems; `name` defaults to the file's stem."""
    place = shown(path)
    if not path.exists():
        hint = "write one with: gcsim list models NAME --layers > FILE"
        return None, [document.problem("model.layers", f": there is no {place}", hint)]
    if name is None and not _FILE_NAME.fullmatch(path.stem):
        message = f": the file's name {path.stem!r} cannot name a model"
        return None, [document.problem("model.layers", message, "add `name:` next to `layers:`")]
    try:
        rows = _read(path, place)
    except InputError as error:
        return None, list(error.problems)
    return _checked(rows, name or path.stem, place)


def inline_model(
    document: Document, rows: Sequence[Spelled], name: str | None
) -> tuple[ModelEntry | None, list[Problem]]:
    """Return the model of rows in the YAML, or their problems."""
    key_path: Keys = ("model", "layers")
    named = []
    problems = []
    for number, row in enumerate(rows):
        place = document.place((*key_path, number))
        if not _NAME.fullmatch(row.name):
            where = document.place((*key_path, number, "name"))
            problems.append(Problem(place=where, message=f"{row.name!r:.40} cannot name a tensor"))
        named.append((place, row.value(TableLayer)))
    if problems:
        return None, few(problems)
    if name is None:
        hint = "add `name:` next to `layers:`"
        where = document.location_of_key(key_path)
        return None, [
            Problem(place=where, message="model: a table in the file has no name", hint=hint)
        ]
    return _checked(named, name, document.location_of_key(key_path))


def untrainable(
    document: Document, entry: ModelEntry, source: str, compressors: Sequence[CompressorChoice]
) -> Iterator[Problem]:
    """Yield contradictions of a model without code, or of gradients without samples."""
    key_path: Keys = ("gradients", "source")
    if entry.layers and source == "live":
        place = document.values.get(key_path) or document.location_of_key(("model",))
        yield Problem(
            place=place,
            message=f"model {entry.name!r} is a table of layers: there is nothing to train, so "
            "its gradients cannot be live",
            hint="write gradients: {source: synthetic}, or replay a trace of the same tensors",
        )
    if source != "synthetic":
        return
    for number, choice in enumerate(compressors):
        if "second_moments" in compressor_class(choice.kind).requires:
            yield Problem(
                place=document.place(("compressors", number)),
                message=f"{choice.label!r} needs second moments of samples' gradients, which "
                "synthetic gradients do not have",
                hint="leave it out, or use live gradients or a trace with --second-moments",
            )


# --- reading -------------------------------------------------------------------------------------


def _read(path: Path, name: str) -> list[Named]:
    def header(number: int, line: str) -> Callable[[str], TableLayer]:
        _check_header(name, number, line)
        return _row

    hints = (_HEADER_HINT, _ROW_HINT)
    return read_rows(path, name, header, most=MOST_ROWS, hints=hints, what="layers")


def _check_header(name: str, number: int, header: str) -> None:
    found = tuple(part.strip().lower() for part in header.split(","))
    if found == COLUMNS:
        return
    message = f"{header!r:.60} is not the header {','.join(COLUMNS)}"
    wrong = [word for word in found if word not in COLUMNS]
    near = did_you_mean(wrong[0], COLUMNS) if len(found) == len(COLUMNS) and wrong else ""
    hint = near if near.startswith("did") else _HEADER_HINT
    raise InputError(message, place=f"{name}:{number}", hint=hint)


def _row(line: str) -> TableLayer:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(COLUMNS):
        raise ValueError(f"{line!r:.60} has {len(cells)} values, not {len(COLUMNS)}")
    name, shape, flops = cells
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.40} cannot name a tensor")
    if not _SIZES.fullmatch(shape):
        raise ValueError(f"shape {shape!r:.40} is not written like 64x3x11x11")
    sizes = tuple(int(size) for size in re.split(r"\s*[xX]\s*", shape))
    if 0 in sizes:
        raise ValueError(f"shape {shape} of {name} has a size of 0")
    return TableLayer(name=name, shape=sizes, forward_flops=_flops(flops, name))


def _flops(text: str, name: str) -> int:
    if text.startswith("-"):
        raise ValueError(f"forward_flops {text:.40} of {name} is negative")
    power = _POWER.fullmatch(text)
    if power:
        digits, behind = power[1], power[2] or ""
        exponent = int(power[3]) - len(behind)
        if exponent >= 0:
            return int(f"{digits}{behind}{'0' * exponent}")
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"forward_flops {text!r:.40} of {name} is not a whole number")
    return int(text)


# --- checking ------------------------------------------------------------------------------------


def _checked(
    rows: Sequence[Named], name: str, place: str
) -> tuple[ModelEntry | None, list[Problem]]:
    """Check the rows together."""
    problems = []
    first: dict[str, str] = {}
    for where, row in rows:
        if row.name in first:
            message = f"two tensors are named {row.name!r}"
            hint = f"first at {first[row.name]}; names are unique in a model"
            problems.append(Problem(place=where, message=message, hint=hint))
        first.setdefault(row.name, where)
        if row.forward_flops > MOST_FLOPS:
            message = f"forward_flops of {row.name} are more than {MOST_FLOPS:.1e}"
            problems.append(Problem(place=where, message=message))
    elements = sum(math.prod(row.shape) for _, row in rows)
    if elements > MOST_ELEMENTS:
        message = f"a model of {elements:.3g} elements is more than any device holds"
        problems.append(Problem(place=place, message=message, hint="check the shapes"))
    if problems:
        return None, few(problems)
    return table_entry(name, (row for _, row in rows)), []


@functools.cache
def known_parameters(entry: ModelEntry) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """Return names and shapes of the trained tensors of a table or shipped model; else None."""
    if entry.layers:
        return tuple((row.name, row.shape) for row in entry.layers)
    shipped = MODELS.get(entry.name)
    if shipped is None or shipped.build != entry.build:
        return None
    from gcsim.traces.models.building import build_model, trainable  # imports torch

    model = build_model(entry, seed=0, device="meta")
    return tuple((name, tuple(tensor.shape)) for name, tensor in trainable(model))


def misfit(entry: ModelEntry, parameters: Sequence[tuple[str, tuple[int, ...]]]) -> str | None:
    """Return how a trace's tensors differ from the model's; None if equal, or for user's code."""
    known = known_parameters(entry)
    if known is None:
        return None
    owner = "table" if entry.layers else "model"
    table = dict(known)
    trace = {name: tuple(shape) for name, shape in parameters}
    text: Callable[[tuple[int, ...]], str] = lambda shape: str(list(shape))  # noqa: E731
    for name, shape in trace.items():
        if name not in table:
            return f"it has a tensor {name!r}, which the {owner} lacks"
        if table[name] != shape:
            return f"its {name!r} is {text(shape)}, the {owner}'s {text(table[name])}"
    for name in table:
        if name not in trace:
            return f"it has no tensor {name!r}, which the {owner} has"
    if list(table) != list(trace):
        return "its tensors are in another order"
    return None
