"""Reader of a run's `results.json`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gcsim.errors import InputError
from gcsim.files import require_one_run
from gcsim.json_file import broken, read_object
from gcsim.scenarios.result import SCHEMA, Result, Row

RESULTS = "results.json"
_HINT = "gcsim run creates it"
NUMBERS = tuple(
    entry.name for entry in fields(Row)
    if "float" in str(entry.type) and entry.name != "cosine_similarity"
)  # fmt: skip
"""Fields of a row that are numbers from 0 on."""


def read_results(path: Path, hint: str = _HINT) -> Result:
    """Result of a run's folder or `results.json`, without timelines; `hint`: its writer. Raises
    `InputError` with the file, and the key, value and rule of each fault."""
    file = path / RESULTS if path.is_dir() else path
    require_one_run(file.parent)
    body = read_object(file, str(file), "result of a run", hint)
    schema = body.pop("schema", None)
    if schema != SCHEMA or "rows" not in body:
        message = f"is not a run's result of schema {SCHEMA}"
        raise InputError(message, place=str(file), hint=hint)
    try:
        found = TypeAdapter(Result).validate_python(body)
    except ValidationError as error:
        raise InputError(list(broken(error, body, str(file), hint))) from error
    if not found.rows:
        raise InputError("has no rows", place=str(file), hint=hint)
    for wrong in _contradictions(found):
        raise InputError(wrong, place=str(file), hint=f"it was changed since: {hint}")
    return found


def _contradictions(result: Result) -> Iterator[str]:
    """Rules of a run's result that this one breaks."""
    rows = result.rows
    sizes = dict.fromkeys((row.nodes, row.workers) for row in rows)
    if len({(row.label, row.nodes) for row in rows}) < len(rows):
        yield "has two rows with the same label and size"
    if any(len({size[place] for size in sizes}) < len(sizes) for place in (0, 1)):
        yield "has rows with equal numbers of nodes but different numbers of workers"
    if len({(row.label, row.compressor) for row in rows}) > len({row.label for row in rows}):
        yield "has one label for two compressors"
    if any(min(row.nodes, row.workers, row.period) < 1 or row.iteration_s <= 0 for row in rows):
        yield "has a row without nodes, workers, period or time"
    for name, value in ((name, getattr(row, name)) for row in rows for name in NUMBERS):
        numbers = value if isinstance(value, tuple) else (value,)
        if not all(one is None or (math.isfinite(one) and one >= 0) for one in numbers):
            yield f"has {name} = {value}: not a number of 0 or more"
    counts = {len(row.iteration_draws_s) for row in rows}
    counts |= {len(one.draws) for one in result.inputs}
    if len(counts - {0}) > 1:
        yield "has different numbers of draws"
