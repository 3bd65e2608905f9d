"""Checks of a document against its schema, with errors as sentences with their places.

pydantic finds all errors in one pass; they are converted to `file:line:column` and a sentence with
a suggestion. Checks are strict: text is never read as a number, nor a number as a truth value.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Tag, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.json_file import EXPECTED, choices, context, rule, shown
from gcsim.scenarios.reading.document import Document, Keys, dotted, read_shipped


class Section(BaseModel):
    """Mapping of a file: unknown keys are refused, and values are not converted silently."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


AnySection = TypeVar("AnySection", bound=Section)

NAMED, SPELLED_OUT, TABLED = "<name>", "<mapping>", "<table>"
"""Tags of unions of a name, a mapping and a table, as in pydantic's locations."""


def by_shape(value: Any) -> str:
    """Return the tag of a value in such a union."""
    return SPELLED_OUT if isinstance(value, Mapping | Section) else NAMED


def either(named: Any, spelled_out: Any) -> Any:
    """Return the union of a name, number or list with a mapping."""
    return Annotated[
        Annotated[named, Tag(NAMED)] | Annotated[spelled_out, Tag(SPELLED_OUT)],
        Discriminator(by_shape),
    ]


def invalid(message: str, hint: str = "") -> PydanticCustomError:
    """Return an error for a validator to raise, whose message is shown unchanged."""
    return PydanticCustomError("refused", "{message}", {"message": message, "hint": hint})


def not_a_list(value: Any) -> None:
    """Refuse a list instead of a single value."""
    if isinstance(value, list):
        raise PydanticCustomError("one_value", "")


def check(model: type[AnySection], document: Document) -> tuple[AnySection | None, list[Problem]]:
    """Check a document against `model`; return the section, or None and all problems."""
    try:
        return model.model_validate(document.data), []
    except ValidationError as error:
        faults = error.errors()
    if any(_respelled(document, fault) for fault in faults):
        return check(model, document)
    return None, [_problem(model, document, fault) for fault in faults]


def checked(model: type[AnySection], document: Document) -> AnySection:
    """Check a document against `model`; `InputError` with all problems."""
    found, faults = check(model, document)
    if found is None:
        raise InputError(document.sorted(faults))
    return found


def shipped_table(model: type[AnySection], path: Path) -> AnySection:
    """Parse one of gcsim's own files, as `checked`."""
    return checked(model, read_shipped(path))


_CHOICES = (
    dict.fromkeys(("half", "float16", "halfprecision", "amp", "mixed", "mixedprecision"), "fp16")
    | dict.fromkeys(("16mixed", "16true"), "fp16")  # Lightning's
    | dict.fromkeys(("bfloat16", "bf16mixed", "bf16true"), "bf16")
    | {"adamw": "adam", "sgdmomentum": "momentum", "momentumsgd": "momentum"}
    | {"tensorfloat32": "tf32", "fsdp": "zero3", "fsdp2": "zero3"}
    | {f"zerostage{stage}": f"zero{stage}" for stage in (1, 2, 3)}
    | dict.fromkeys(("float32", "single", "singleprecision", "32true"), "fp32")
    | {"nvls": "nccl_nvls_simple", "nvlstree": "nccl_nvls_tree_simple"}
    | {"sharp": "nccl_collnet_simple"}
)
"""Other spellings of choices, in lower case without blanks and hyphens."""
_TAGS = (NAMED, SPELLED_OUT, TABLED, "[key]")


def _respelled(document: Document, fault: ErrorDetails) -> bool:
    """Replace another spelling of a choice by the choice; return whether it was one."""

    def plain(text: str) -> str:
        return re.sub(r"[\W_]", "", text.casefold())

    said, holder = fault["input"], document.data
    if fault["type"] != "literal_error" or not isinstance(said, str):
        return False
    by_word = {plain(choice): choice for choice in choices(fault) if choice != said}
    found = by_word.get(plain(said)) or by_word.get(plain(_CHOICES.get(plain(said), "")))
    *above, last = (key for key in fault["loc"] if key not in _TAGS)
    for key in above if found else ():
        holder = holder[key] if isinstance(holder, dict) and key in holder else None
    if not found or not isinstance(holder, dict) or holder.get(last) != said:
        return False
    holder[last] = found
    return True


def _problem(model: type[Section], document: Document, fault: ErrorDetails) -> Problem:
    last = fault["loc"][-1] if fault["loc"] else ""
    kind = fault["type"]
    key_path: Keys = tuple(key for key in fault["loc"] if key not in _TAGS)
    if kind == "extra_forbidden" and last in _TAGS:  # a key may have the name of a tag
        key_path = (*key_path, last)
    around = f" in {document.name_of(key_path[:-1])}" if key_path[:-1] else ""
    if kind == "extra_forbidden":
        key_path = (*key_path, last) if last in _TAGS else key_path  # a key with the name of a tag
        known = known_keys(model, key_path[:-1])
        return unknown_key(document, key_path, known, _elsewhere(model, str(key_path[-1])))
    if kind == "missing":
        place = document.location_of_key(key_path[:-1])
        shown_key = f"write {key_path[-1]}: {_example(model, key_path)}"
        message = f"key {key_path[-1]!r} is missing{around}"
        return Problem(place=place, message=message, hint=shown_key)
    if last == "[key]" and kind != "refused":
        return unknown_key(document, key_path, choices(fault))
    name = document.name_of(key_path) or "the file"
    value = fault["input"]
    # A block mapping begins at its first key, so problems of the whole mapping are put at its name.
    of_key = isinstance(value, dict) or last == "[key]"
    place = document.location_of_key(key_path) if of_key else document.place(key_path)
    if kind == "refused":
        message = context(fault, "message")
        hint = context(fault, "hint") or _instead(model, key_path)
        if isinstance(value, str) and not re.search(r"\d", value):
            hint = _KINDS.get(dotted(key_path), hint)
        return Problem(place=place, message=f"{name}: {message}", hint=hint)
    said, hint = rule(fault)
    instead, most = _instead(model, key_path), context(fault, "le")
    if most and instead.startswith("leave"):
        instead = f"write {most}, or {instead}"
    hint = hint or _way_out(model, key_path, kind, value) or instead
    stated = f" = {shown(value)}" if not isinstance(value, dict | list) else ""
    return Problem(place=place, message=f"{name}{stated}: {said}", hint=hint)


def unknown_key(
    document: Document, key_path: Keys, known: list[str], elsewhere: Sequence[str] = ()
) -> Problem:
    """Return the problem of an unknown key; `elsewhere` are keys of this name in other sections."""
    around = f" in {document.name_of(key_path[:-1])}" if key_path[:-1] else ""
    hint = _ELSEWHERE.get(dotted(key_path))
    if not hint and 1 <= len(elsewhere) <= _FEW:
        hint = f"there {'is' if len(elsewhere) == 1 else 'are'} {', '.join(elsewhere)}"
    return Problem(
        place=document.location_of_key(key_path),
        message=f"unknown key {key_path[-1]!r}{around}",
        hint=hint or did_you_mean(str(key_path[-1]), known),
    )


def _elsewhere(model: type[BaseModel], key: str) -> list[str]:
    """Return the keys of this name in a file, to the third level."""
    return [
        dotted(path)
        for first in known_keys(model, ())
        for second in ("", *known_keys(model, (first,)))
        for third in ("", *(known_keys(model, (first, second)) if second else ()))
        if (path := tuple(filter(None, (first, second, third))))[-1] == key
    ]


_KINDS = {"training.optimizer": "optimizer_state: adam, momentum or none states its kind"}
"""Hints for a word where a quantity is expected."""
_ELSEWHERE = {"gradients.dtype": "gradients in 16 bits are training: {gradients: fp16}"}
_FEW = 4  # most values in a hint
_EXAMPLES = {
    "batch_size": "32",
    "build": "package.module:build",
    "cluster": "{nodes: [1, 2, 4], device: v100, network: 10gbe}",
    "compressors": "[none, topk]",
    "device": "v100",
    "device.name": "v100",
    "failures.checkpoint": "30 s",
    "failures.every": "1 h",
    "failures.mtbf": "2000 h",
    "failures.restart": "10 min",
    "faults.deaths": "[{node: 1, at: 60 s}]",
    "faults.horizon": "3600 s",
    "faults.restart": "60 s",
    "gradients": "{source: live}",
    "gradients.source": "live",
    "kind": "topk",
    "like": "10gbe",
    "model": "lenet",
    "network": "10gbe",
    "nodes": "[1, 2, 4]",
    "racks.nodes": "4",
    "racks.uplink": "10gbe",
    "racks.pod": "4",
    "racks.pod_uplink": "10gbe",
    "shape": "[64, 3, 3, 3]",
    "source": "where the figure is from",
}
_ENTRIES = {"compressors": "topk", "nodes": "4"}  # example entries of a list, by the list's name
_OF_TYPE = {"boolean": "true", "integer": "1", "number": "0.5", "array": "[1, 2]", "object": "{}"}
_LONGEST = 320  # most letters of a hint


def _way_out(model: type[BaseModel], key_path: Sequence[str | int], kind: str, value: Any) -> str:
    """Return a suggestion for a value of the wrong type; empty if the rule has one."""
    hint = ""
    if value is None:
        hint = "write its value, or leave the key out if it has a default"
    elif kind == "list_type":
        hint = f"write [{', '.join(map(str, value if isinstance(value, dict) else [value]))}]"
    elif kind in {"model_type", "model_attributes_type"}:
        keys = known_keys(model, key_path)
        hint = f"its keys: {', '.join(keys)}" if keys else ""
    elif kind in {"int_type", "int_from_float"} and isinstance(value, float):
        ends = dict.fromkeys((math.floor(value), math.ceil(value))) if math.isfinite(value) else ()
        hint = f"write {' or '.join(map(str, ends))}" if ends else ""
    elif kind == "int_type" and isinstance(value, str) and value.isascii() and value.isdigit():
        hint = f"write {value}, without quotes"
    elif kind in EXPECTED and kind != "dict_type" and isinstance(value, list):
        values = ",".join(map(str, value[:_FEW]))
        if values and all(isinstance(key, str) for key in key_path):
            hint = f"for one run each: gcsim sweep --grid '{'.'.join(map(str, key_path))}={values}'"
    return hint if len(hint) <= _LONGEST else ""


def _instead(model: type[BaseModel], key_path: Sequence[str | int]) -> str:
    """Return a value that is always valid: the default, or an example."""
    default = _stated(model, key_path, "default")
    return f"leave it out for {default}" if default else f"for example {_example(model, key_path)}"


def _example(model: type[BaseModel], key_path: Sequence[str | int]) -> str:
    """Return an example value of a key, as in a file."""
    names = [key for key in key_path if isinstance(key, str)]
    listed = bool(key_path) and isinstance(key_path[-1], int)
    for name in (".".join(names[-2:]), *names[-1:]):
        if name in (known := _ENTRIES if listed else _EXAMPLES):
            return known[name]
    for keyword in ("default", "examples", "enum", "const", "minimum"):
        found = _stated(model, key_path, keyword)
        if found:
            return found
    return next((such for kind, such in _OF_TYPE.items() if _has(model, key_path, kind)), "mine")


def _stated(model: type[BaseModel], key_path: Sequence[str | int], keyword: str) -> str:
    """Return the first text of a schema keyword; "" if none."""
    for node in _nodes(model, key_path):
        value = node.get(keyword)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str | int | float) and value != "":
            return str(value)
    return ""


def _has(model: type[BaseModel], key_path: Sequence[str | int], kind: str) -> bool:
    return any(kind in str(node.get("type")) for node in _nodes(model, key_path))


def known_keys(model: type[BaseModel], key_path: Sequence[str | int]) -> list[str]:
    """Return the keys of a mapping at `key_path`, of all possible sections."""
    return sorted({key for node in _nodes(model, key_path) for key in node.get("properties", ())})


def _nodes(model: type[BaseModel], key_path: Sequence[str | int]) -> list[dict[str, Any]]:
    """Return the JSON schema nodes for values at `key_path`."""
    schema = _schema(model)
    found = _alternatives(schema, schema)
    for key in key_path:
        inner = [
            node.get("items")
            if isinstance(key, int)
            else node.get("properties", {}).get(key)
            or next(iter(node.get("patternProperties", {}).values()), None)
            or node.get("additionalProperties")
            for node in found
        ]
        nodes = [node for node in inner if isinstance(node, dict)]
        found = [each for node in nodes for each in _alternatives(node, schema)]
    return found


def _alternatives(node: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in node:
        return [node, *_alternatives(schema["$defs"][node["$ref"].rpartition("/")[2]], schema)]
    parts = [*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())]
    return [node, *(each for part in parts for each in _alternatives(part, schema))]


@functools.cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()
