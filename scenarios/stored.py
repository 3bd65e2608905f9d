"""What does a folder of results say? A run's `results.json` as the result that wrote it."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gcsim.errors import InputError
from gcsim.files import require_one_run
from gcsim.json_file import broken, read_object
from gcsim.scenarios.result import SCHEMA, Result

RESULTS = "results.json"
_HINT = "gcsim run writes it"
_RESULT = TypeAdapter(Result)


def read_results(path: Path, hint: str = _HINT) -> Result:
    """The result of a run's folder, or of its `results.json`, without timelines; `hint` says what
    writes it.

    Raises `InputError` with the file, and the key, value and rule of what is wrong in it.
    """
    file = path / RESULTS if path.is_dir() else path
    require_one_run(file.parent)
    body = read_object(file, str(file), "result of a run", hint)
    schema = body.pop("schema", None)
    if schema != SCHEMA or "rows" not in body:
        message = f"is no result of a run of schema {SCHEMA}"
        raise InputError(message, place=str(file), hint=hint)
    try:
        found = _RESULT.validate_python(body)
    except ValidationError as error:
        raise InputError(list(broken(error, body, str(file), hint))) from error
    if not found.rows:
        raise InputError("has no rows", place=str(file), hint=hint)
    return found
