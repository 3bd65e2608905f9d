"""Dataclasses of the simulator as sections of a file, by their type hints (`gcsim.fields`).

`section_of` makes a section with a key per field and its unit, limits and default; `Spelled.value`
converts a section to the dataclass, and `text_of` a dataclass to its text. A field with a dataclass
is a mapping, a tuple or set is a list; errors of `__post_init__` are errors of the section.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import pydantic
from pydantic import AfterValidator, BeforeValidator, create_model, model_validator
from pydantic_core import CoreSchema

from gcsim import units
from gcsim.fields import (
    INTERNAL,
    POSITIVE,
    SHOWN,
    STATED,
    Index,
    Key,
    Limits,
    Rule,
    Unit,
    broken_ranges,
)
from gcsim.scenarios.reading.checking import Section, invalid
from gcsim.scenarios.reading.types import asking, exact_number, index, number, quantity

Kind = TypeVar("Kind")


class Spelled(Section):
    """Section whose keys are the fields of a dataclass, and further keys."""

    spells: ClassVar[type]
    read: ClassVar[frozenset[str]]  # fields read as their hints say
    rule: ClassVar[Callable[[Any], None] | None] = None
    """Rule of the section in addition to the dataclass's."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        rule = type(self).rule
        if rule is not None:
            rule(self)
        for name in sorted(self.model_fields_set):
            figure = name.removesuffix("_range")
            if figure != name and figure in self.read and figure not in self.model_fields_set:
                hint = f"state {figure} or leave the range out"
                raise invalid(f"{name} is given without {figure}", hint)
        needed = {
            field.name
            for field in fields(self.spells)
            if field.default is MISSING and field.default_factory is MISSING
        }
        if needed <= self.read:
            asking(lambda: self.value(self.spells))
        for problem in broken_ranges(self, self.spells):
            raise invalid(problem.message, problem.hint)
        return self

    def value(self, kind: type[Kind], over: Kind | None = None, **own: Any) -> Kind:
        """Build the dataclass, with `own` fields that the section does not have. Unstated fields
        come from `over`, at any depth; a stated figure loses its range."""
        stated = {
            name: _plain(getattr(self, name), getattr(over, name, None))
            for name in self.model_fields_set & self.read
        }
        stated = {name: value for name, value in stated.items() if value is not None} | own
        if over is None:
            return kind(**stated)
        ranges = {f"{name}_range": None for name in stated if hasattr(over, f"{name}_range")}
        return replace(over, **{**ranges, **stated})  # type: ignore[type-var]  # a dataclass


def _plain(value: Any, over: Any = None) -> Any:
    """Convert inner sections to dataclasses, over the defaults `over`."""
    if isinstance(value, Spelled):
        return value.value(value.spells, over if isinstance(over, value.spells) else None)
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return value


# --- from hints to sections ----------------------------------------------------------------------


def section_of(
    kind: type, title: str = "", rule: Callable[[Spelled], None] | None = None, **other: Any
) -> type[Spelled]:
    """Return the section of a dataclass, with an extra rule. `other`: `(type, default)` of keys
    without a field and of fields with another form; None omits a field."""
    hints = get_type_hints(kind, include_extras=True)
    own = {
        field.name: hints[field.name]
        for field in fields(kind)
        if field.name not in other and INTERNAL not in get_args(hints[field.name])
    }
    entries: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in own:
            entries[field.name] = _entry(field, own[field.name])
        elif other.get(field.name) is not None:
            entries[field.name] = other[field.name]
    entries |= {key: entry for key, entry in other.items() if entry is not None}
    section = create_model(
        title or f"{kind.__name__}Section", __base__=Spelled, __doc__=kind.__doc__, **entries
    )
    section.spells, section.read, section.rule = kind, frozenset(own), rule
    return section


_plain_section = functools.cache(section_of)


class As:
    """Annotation of `Spelled`: the dataclass whose section is read.

    host: Annotated[Spelled, As(Host)]
    """

    def __init__(self, kind: type, **other: Any) -> None:
        self.section = section_of(kind, **other) if other else _plain_section(kind)

    def __get_pydantic_core_schema__(
        self, _source: Any, handler: pydantic.GetCoreSchemaHandler
    ) -> CoreSchema:
        return handler.generate_schema(self.section)


def _entry(field: Field[Any], hint: Any) -> tuple[Any, Any]:
    """Return the type and default of a key."""
    keys = [note.name for note in get_args(hint) if isinstance(note, Key)]
    alias = keys[0] if keys else None
    read = _readable(hint)
    if field.default is MISSING and field.default_factory is MISSING:
        return read, pydantic.Field(alias=alias)
    default = ... if STATED in get_args(hint) else field.default
    if not isinstance(default, str | int | float | Fraction):  # `value` builds it
        read, default = Union[read, None], None  # noqa: UP007 (of values)
    return read, pydantic.Field(default=default, alias=alias)


def _readable(hint: Any) -> Any:  # noqa: PLR0911 (a case each)
    """Return the type with which pydantic reads a field."""
    if is_dataclass(hint):
        return _plain_section(hint)  # type: ignore[arg-type]  # a class, not a value of it
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _noted(parts[0], parts[1:])
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_readable, parts))]  # noqa: UP007 (of values)
    if origin is tuple and parts[-1] is Ellipsis:
        return Annotated[_many(parts[0]), AfterValidator(tuple)]
    if origin is tuple:
        return Annotated[
            types.GenericAlias(tuple, tuple(map(_readable, parts))),
            BeforeValidator(_range if parts[0] == parts[1] else _pair),
        ]
    if origin is frozenset:
        return Annotated[_many(parts[0]), AfterValidator(_once)]
    if origin is Mapping:
        by_key = types.GenericAlias(dict, tuple(map(_readable, parts)))
        if get_origin(parts[0]) is not Annotated:
            return by_key
        return Annotated[
            by_key, AfterValidator(lambda table: {int(key): table[key] for key in table})
        ]
    return hint


def _noted(base: Any, notes: tuple[Any, ...]) -> Any:  # noqa: PLR0911 (a case each)
    limits = next((note for note in notes if isinstance(note, Limits)), None)
    for note in notes:
        if isinstance(note, Rule):
            others = tuple(other for other in notes if other is not note)
            return Annotated[_noted(base, others), AfterValidator(_keeping(note))]
        if isinstance(note, Unit):
            read = quantity(note.dimension, positive=limits == POSITIVE)
            return Annotated[base, *read, AfterValidator(base)]
        if isinstance(note, Index):
            return Annotated[str, *index(note.of)]
    if limits is None:
        return _readable(base)
    if base in (float, Fraction):
        return Annotated[base, *number(limits), AfterValidator(base)]
    if base is int:
        return Annotated[int, pydantic.Field(ge=limits.least, le=limits.most)]
    length = pydantic.Field(min_length=limits.least, max_length=limits.most)
    if base is str:
        return Annotated[str, length]
    return Annotated[_many(get_args(base)[0]), length, AfterValidator(tuple)]


def _keeping(rule: Rule) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        asking(lambda: rule.check(_plain(value)))
        return value

    return check


def _many(hint: Any) -> Any:
    return types.GenericAlias(list, (_readable(hint),))


def _range(value: object) -> object:
    if not isinstance(value, list) or len(value) != len(("lowest", "highest")):
        raise invalid(f"{value!s:.40} is not a range", "write [lowest, highest]")
    return tuple(value)


def _pair(value: object) -> object:
    if not isinstance(value, list) or len(value) != len(("one", "other")):
        raise invalid(f"{value!s:.40} is not a pair", "write two values in brackets")
    return tuple(value)


def _once(entries: list[Any]) -> frozenset[Any]:
    for entry in entries:
        if entries.count(entry) > 1:
            raise invalid(f"{entry!r} appears {entries.count(entry)} times", "name it once")
    return frozenset(entries)


# --- from values to text -------------------------------------------------------------------------


def text_of(value: Any, *, brief: bool = False, **other: Any) -> dict[str, Any]:
    """Return the section that reads back to a dataclass, without None and empty values. Floats with
    a unit were measured and get four digits. `brief` omits defaults and writes unitless numbers as
    text. `other`: text of fields with another form; None omits a field."""
    entries: dict[str, Any] = {}
    for field in _written(type(value)):  # type: ignore[arg-type]  # it is hashable
        content = getattr(value, field.name)
        empty = content is None or (not content and isinstance(content, _HOLDERS))
        if field.name in other:
            text = other[field.name]
        elif field.internal or empty or (brief and _as_usual(value, field, content)):
            text = None
        else:
            text = _text(content, field.form, brief)
        if text is not None:
            entries[field.key] = text
    return entries


_HOLDERS = tuple, Mapping, frozenset
_Form = tuple[units.Dimension | None, tuple[Any, ...]]
"""Dimension of a number, and a type's arguments inside unions and annotations."""


class _FieldText(NamedTuple):
    """Facts of a field that `text_of` needs."""

    name: str
    key: str
    default: Any
    internal: bool
    shown: bool
    form: _Form


def _as_usual(value: Any, field: _FieldText, content: Any) -> bool:
    """Whether a figure is the default and has no range, so that it can be omitted."""
    usual = content == field.default and not field.shown
    return usual and getattr(value, f"{field.name}_range", None) is None


@functools.cache
def _written(kind: type[Any]) -> list[_FieldText]:
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in fields(kind):
        notes = get_args(hints[field.name])
        key = next((note.name for note in notes if isinstance(note, Key)), field.name)
        form = _form(hints[field.name])
        found.append(
            _FieldText(field.name, key, field.default, INTERNAL in notes, SHOWN in notes, form)
        )
    return found


@functools.cache
def _form(hint: Any) -> _Form:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        for note in parts[1:]:
            if isinstance(note, Unit):
                return note.dimension, ()
    if origin in (Annotated, Union, types.UnionType):
        return _form(parts[0])
    return None, parts


def _text(value: Any, form: _Form, brief: bool) -> Any:  # noqa: PLR0911 (a case each)
    if is_dataclass(value):
        return text_of(value, brief=brief)
    dimension, parts = form
    if dimension is not None:
        known = Fraction(f"{value:.4g}") if isinstance(value, float) else value
        return units.exact(known, dimension)
    if isinstance(value, Mapping):
        numbered = all(isinstance(key, int) for key in value)
        keys = sorted(value) if numbered else value
        return {str(key): _text(value[key], _form(parts[1]), brief) for key in keys}
    if isinstance(value, frozenset):
        return [each for each in get_args(parts[0]) if each in value]
    if isinstance(value, tuple):
        hints = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return [_text(each, _form(hint), brief) for each, hint in zip(value, hints, strict=True)]
    if isinstance(value, Fraction):
        return number_text(value) if brief else plain_number(value)
    return str(value) if isinstance(value, Path) else value


def plain_number(value: Fraction) -> int | float | str:
    """Return a number that is read as this value: as digits or a ratio if no float is exact."""
    if value.denominator == 1:
        return int(value)
    if Fraction(repr(float(value))) == value:
        return float(value)
    return number_text(value)


def number_text(value: Fraction) -> str:
    """Return the text that `types.exact_number` reads back; `ValueError` if there is none."""
    for text in (units.decimal(value), str(value)):
        if text is not None and exact_number(text) == value:
            return text
    raise ValueError(f"{value} cannot be written in short")
