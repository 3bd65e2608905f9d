"""Labels of methods that a scenario does not label: the kind, and what tells it from its like.

`[none, {kind: powersgd, rank: 1}, {kind: powersgd, rank: 4}]` are "dense", "powersgd rank 1" and
"powersgd rank 4".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gcsim.scenarios.scenario import CompressorChoice

DENSE = "dense"
"""Label of uncompressed training, kind `none`."""
_LONGEST = 40
"""Characters of a parameter's value."""


def labelled(choices: Sequence[CompressorChoice]) -> tuple[CompressorChoice, ...]:
    """Return the choices with a label in the place of an empty one.

    Two of them have one label only where a scenario says so, or lists the same method twice.
    """
    unnamed = [choice for choice in choices if not choice.label]
    return tuple(
        choice if choice.label else replace(choice, label=_label(choice, unnamed))
        for choice in choices
    )


def _label(choice: CompressorChoice, others: Sequence[CompressorChoice]) -> str:
    like = [other.parameters for other in others if other.kind == choice.kind]
    kind = DENSE if choice.kind == "none" else choice.kind
    return " ".join((kind, *_differing(choice.parameters, like)))


def _differing(own: Mapping[str, Any], like: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Name and value of each parameter that is not the same in all."""
    for name, value in own.items():
        if any(other.get(name) != value for other in like):
            yield f"{name.replace('_', ' ')} {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
