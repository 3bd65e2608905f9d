"""What may a JSON schema's value be? One that it accepts, near its limits as often as not.

The schemas are those that `gcsim schema` and the parameters of compressors give. A value that is
drawn here keeps to its own type and limits; whether it agrees with its neighbours is the reader's
to say.
"""

from random import Random
from typing import Any

_QUANTITIES = {
    "Gbit/s": (
        "10 Gbit/s", "1 Mbit/s", "1 bit/s", "125 MB/s", "1e6 Gbit/s", "0 bit/s", "1e-9 bit/s",
    ),
    "us": ("0 s", "1 us", "50 us", "3 ms", "2 s", "1 ps", "3000 h", "1e-9 s", "1e300 s"),
    "MiB": ("1 B", "1 KiB", "32 KiB", "25 MiB", "1 GiB", "0 B"),
}  # fmt: skip
"""By the unit of the schema's example."""
_DEPTH = 6


def drawn(  # noqa: PLR0911 (a case each)
    rng: Random, schema: dict[str, Any], known: dict[str, Any], depth: int = 0
) -> Any:
    """A value of `schema`; `known` are the definitions that it refers to."""
    schema = _followed(schema, known)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        real = [one for one in choices if one.get("type") != "null"]
        return drawn(rng, rng.choice(real or choices), known, depth)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema.get("type", "string")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if "properties" in schema or "patternProperties" in schema:
        return _mapping(rng, schema, known, depth)
    if kind == "array":
        return _array(rng, schema, known, depth)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "integer":
        return int(_number(rng, schema, whole=True))
    if kind == "number":
        return _number(rng, schema, whole=False)
    return _text(rng, schema)


def _followed(schema: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    return schema


def _mapping(
    rng: Random, schema: dict[str, Any], known: dict[str, Any], depth: int
) -> dict[str, Any]:
    needed = set(schema.get("required", ()))
    share = 0.3 if depth < _DEPTH else 0.0
    found = {
        key: drawn(rng, below, known, depth + 1)
        for key, below in schema.get("properties", {}).items()
        if key in needed or rng.random() < share
    }
    for below in schema.get("patternProperties", {}).values():
        found[str(rng.randrange(4))] = drawn(rng, below, known, depth + 1)
    return found


def _array(rng: Random, schema: dict[str, Any], known: dict[str, Any], depth: int) -> list[Any]:
    if "prefixItems" in schema:
        each = [drawn(rng, below, known, depth + 1) for below in schema["prefixItems"]]
        numbers = all(isinstance(one, int | float) for one in each)
        return sorted(each) if numbers else each
    count = max(schema.get("minItems", 0), rng.choice((0, 1, 2, 3)))
    below = schema.get("items", {"type": "integer"})
    return [drawn(rng, below, known, depth + 1) for _ in range(count)]


def _number(rng: Random, schema: dict[str, Any], *, whole: bool) -> Any:
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    most = schema.get("maximum", schema.get("exclusiveMaximum", 1e6))
    usual = [number for number in (1, 2, 3, 4, 8, 0.01, 0.1, 0.5, 1.5, 30) if least < number < most]
    edges = [schema[limit] for limit in ("minimum", "maximum") if limit in schema]
    near = [least + (1 if whole else 1e-9), most - (1 if whole else 1e-9)]
    number = rng.choice(usual if usual and rng.random() < 0.7 else [*edges, *near])
    return int(number) if whole else number


def _text(rng: Random, schema: dict[str, Any]) -> str:
    examples = [str(one) for one in schema.get("examples", ())]
    unit = examples[0].rpartition(" ")[2] if examples else ""
    several = _QUANTITIES.get(unit, ())
    return rng.choice([*examples, *several] or ["a", "auto", "none", "0.5", "1"])
