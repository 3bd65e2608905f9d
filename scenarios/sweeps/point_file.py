"""File of a point: its grid's values, resolved scenario, rows, provenance, and a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from gcsim.scenarios.result import SCHEMA, Result, UncertainInput, columns_of

_SUM, _END = ', "sha256": "', "}\n"


def text_of(head: Mapping[str, Any], result: Result) -> str:
    """Return the text of a point's file; `head`: everything but the result. Raises `ValueError` for
    numbers that are not finite."""
    rest = {name: value for name, value in result.document().items() if name != "schema"}
    document = {"schema": SCHEMA, **head, **rest}
    texts = {name: _text(value) for name, value in document.items() if name != "inputs"}
    inputs = f"[{', '.join(map(_text_of_input, result.inputs))}]"
    body = "{" + ", ".join(f"{_text(name)}: {texts.get(name, inputs)}" for name in document)
    return f'{body}{_SUM}{_checksum(body)}"{_END}'


def _text(value: Any) -> str:
    # on one line: with an indent, Python's encoder is ten times as slow
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


@lru_cache(maxsize=64)
def _text_of_input(one: UncertainInput) -> str:
    """Return the text of an input, cached: most points of a sweep share most inputs."""
    return _text(columns_of(one))


def read(path: Path) -> dict[str, Any] | None:
    """Return the document of a point; None if it is damaged."""
    try:
        body, _, rest = path.read_text(encoding="utf-8").rpartition(_SUM)
        if rest == f'{_checksum(body)}"{_END}':
            document = json.loads(body + _END)
            return dict(document) if document["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
