"""What may a scenario say of the code around an exchange, and of what runs beside it?"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from gcsim.scenarios.reading.checking import Duration, Section, refuse
from gcsim.scenarios.reading.types import Variation
from gcsim.simulator.training import Framework, Interference, SharedNode

_Value = TypeVar("_Value", Framework, Interference, SharedNode)
_LENGTH = 2


def _two(value: object) -> object:
    if not isinstance(value, list) or len(value) != _LENGTH:
        raise refuse(f"{value!s:.40} is no range", "write [lowest, highest]")
    return tuple(value)


_Durations = Annotated[tuple[Duration, Duration], BeforeValidator(_two)]
Shares = Annotated[tuple[Variation, Variation], BeforeValidator(_two)]


class Ranged(Section):
    """Figures, some with a range in which the truth is expected."""

    @model_validator(mode="after")
    def _in_its_range(self) -> Self:
        for name in type(self).model_fields:
            span = getattr(self, f"{name}_range", None)
            if span is None:
                continue
            low, high = span
            if not low <= getattr(self, name) <= high:
                stated = float(getattr(self, name))
                message = f"{name} = {stated:g} is not in its range"
                raise refuse(message, "let the range hold the value")
        return self


class InterferenceSection(Ranged):
    """How much longer what runs at the same time on a device takes."""

    computation: Variation = Fraction(0)
    computation_range: Shares | None = None
    bus: Variation = Fraction(0)
    bus_range: Shares | None = None


class SharedNodeSection(Ranged):
    """What the devices of a node take from each other."""

    slowdown: Variation = Fraction(0)
    slowdown_range: Shares | None = None


class CodeSection(Ranged):
    """The code around an exchange."""

    per_tensor: Duration = Fraction(0)
    per_tensor_range: _Durations | None = None
    per_bucket: Duration = Fraction(0)
    per_bucket_range: _Durations | None = None
    passes: Variation = Fraction(0)
    passes_range: Shares | None = None


class FrameworkSection(Section):
    """A framework's own exchange, and one that it leaves to a hook."""

    reducer: CodeSection = Field(default_factory=CodeSection)
    hook: CodeSection = Field(default_factory=CodeSection)


def built(section: BaseModel, kind: type[_Value]) -> _Value:
    """The simulator's value of a section with its fields."""
    names = kind.__dataclass_fields__
    return kind(**{name: getattr(section, name) for name in names})
