"""Plain data of a YAML text, with the place of every key and value.

Nodes are read by `yaml.compose`, with YAML 1.2's core schema for plain scalars: PyYAML's 1.1 rules
read `1e9` as text, `off` as False and `12:30` as 750, and silently keep the last of equal keys.
Equal keys, tags, anchors and aliases are refused: they are not needed, and aliases can make a small
file huge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from gcsim.errors import UNPRINTABLE, InputError, Problem
from gcsim.files import open_file

LARGEST = 1 << 20  # most bytes of a file

Keys = tuple[str | int, ...]  # path to a value: `("cluster", "nodes", 0)`

_NULL = re.compile(r"null|Null|NULL|~|", re.ASCII)
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE", re.ASCII)
_INT = re.compile(r"[-+]?\d{1,40}", re.ASCII)
_HEX = re.compile(r"0x[0-9a-fA-F]{1,32}|0o[0-7]{1,40}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
                    re.ASCII)  # fmt: skip


def dotted(key_path: Keys) -> str:
    """Return `("a", "b", 0)` as in --set: `a.b.0`."""
    return ".".join(str(key) for key in key_path)


@dataclass(slots=True)
class Document:
    """Nested dicts, lists and scalars, with their places."""

    name: str
    data: Any
    values: dict[Keys, str] = field(default_factory=dict)  # `file:line:column` by path
    keys: dict[Keys, str] = field(default_factory=dict)  # the same for the keys of mappings
    order: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Line and column by place, for sorting."""
    written: dict[Keys, Keys] = field(default_factory=dict)
    """Original paths in the file of values that have been moved in `data`."""

    def place(self, key_path: Keys) -> str:
        """Return the place of a value, or of the nearest enclosing one."""
        while key_path:
            if key_path in self.values:
                return self.values[key_path]
            key_path = key_path[:-1]
            if key_path in self.keys:
                return self.keys[key_path]
        return self.values.get((), self.name)

    def location_of_key(self, key_path: Keys) -> str:
        """Return the place of a value's key, or of the value in a list."""
        return self.keys.get(key_path) or self.place(key_path)

    def name_of(self, key_path: Keys) -> str:
        """Return the value's path in the file, dotted."""
        whole = (key_path[:end] for end in range(len(key_path), 0, -1))
        moved = next((part for part in whole if part in self.written), ())
        return dotted((*self.written.get(moved, ()), *key_path[len(moved) :]))

    def problem(
        self, setting: Keys | str, message: str, hint: str = "", of_key: bool = False
    ) -> Problem:
        """Return a problem with a value, whose path may be dotted, or with its key; the message
        continues after its name."""
        key_path = tuple(setting.split(".")) if isinstance(setting, str) else setting
        place = self.location_of_key(key_path) if of_key else self.place(key_path)
        return Problem(place=place, message=f"{self.name_of(key_path)}{message}", hint=hint)

    def sorted(self, problems: Iterable[Problem]) -> list[Problem]:
        """Sort problems in text order, those of options first."""
        return sorted(problems, key=lambda problem: self.order.get(problem.place, (0, 0)))

    def forget(self, key_path: Keys) -> None:
        """Remove the places at and below `key_path`, whose value is replaced."""
        for places in (self.values, self.keys):
            for old in [key for key in places if key[: len(key_path)] == key_path]:
                del places[old]


class _Refused(yaml.MarkedYAMLError):
    """Error for YAML that this reader refuses."""


def _refuse(event: Any) -> None:
    """Raise if a node has a tag, anchor or alias."""
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
        message = "anchors and aliases are not accepted here; write the value out"
        raise _Refused(problem=message, problem_mark=event.start_mark)
    if getattr(event, "tag", None):
        message = f"tags such as {event.tag!r} are not accepted here; write the plain value"
        raise _Refused(problem=message, problem_mark=event.start_mark)


class _Loader(yaml.SafeLoader):
    """Composer of nodes that keeps plain scalars as text and has messages for users."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        _refuse(self.peek_event())  # type: ignore[no-untyped-call]  # types-PyYAML
        return super().compose_node(parent, index)


_OF_SHIPPED: type[Any] = _Loader

if yaml.__with_libyaml__:

    class _FastLoader(yaml.composer.Composer, yaml.CSafeLoader):
        """The same with events from libyaml, in an eighth of the time."""

        yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

        def __init__(self, stream: str) -> None:
            yaml.CSafeLoader.__init__(self, stream)
            yaml.composer.Composer.__init__(self)

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            _refuse(self.peek_event())
            return super().compose_node(parent, index)

    _OF_SHIPPED = _FastLoader


def read_file(path: Path, name: str | None = None) -> Document:
    """Read a YAML file, named `name` in messages; `InputError` when it cannot be read, is too
    large, not UTF-8, or not the YAML of `read`."""
    name = name or str(path)
    known = _read_once(read_text(path, name), name)
    places = {name: dict(getattr(known, name)) for name in ("values", "keys", "order")}
    return Document(name=known.name, data=deepcopy(known.data), **places)


@lru_cache(maxsize=4)
def _read_once(text: str, name: str) -> Document:
    """Read a text; cached, since a sweep reads its file for every point."""
    return read(text, name)


def read_shipped(path: Path, name: str | None = None) -> Document:
    """Read one of gcsim's own files, as `read_file`, by libyaml if PyYAML has it. Other files are
    not read so: it accepts more (`[a?b]`, some tabs), with other messages and columns."""
    name = name or str(path)
    return read(read_text(path, name), name, loader=_OF_SHIPPED)


def read_text(path: Path, name: str) -> str:
    """Read a user's file of at most `LARGEST` bytes of UTF-8; raises `InputError`."""
    try:
        with open_file(path) as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise InputError(error.strerror or str(error), place=name) from error
    if len(content) > LARGEST:
        raise InputError(f"is larger than {LARGEST >> 20} MiB", place=name)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 text (byte {content[error.start]:#04x})"
        raise InputError(message, place=f"{name}:{line}:1") from error
    return text


def read(text: str, name: str, *, position: bool = True, loader: type[Any] = _Loader) -> Document:
    """Read one YAML document; with `position` false every place is just `name`. Raises `InputError`
    for a syntax error, equal keys, a key that is no scalar, a tag, anchor or alias, more than one
    document, or none."""
    document = Document(name=name, data=None)
    try:
        node = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = _at(document, mark, position) if mark else name
        raise InputError(_syntax(error, position), place=where) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        where = f"{name}:{line}:1" if position else name
        message = f"character {chr(error.character)!r} is not allowed in YAML"
        raise InputError(message, place=where) from error
    except RecursionError as error:
        raise InputError("is nested too deeply", place=name) from error
    if node is None:
        raise InputError("is empty", place=name)
    problems: list[Problem] = []
    document.data = _plain(node, (), document, position, problems)
    if problems:
        raise InputError(problems)
    return document


def _syntax(error: yaml.MarkedYAMLError, position: bool) -> str:
    context, began = error.context, error.context_mark
    if context and began and position:
        context += f" that begins at {began.line + 1}:{began.column + 1}"
    said = "; ".join(part for part in (context, error.problem) if part)
    if "\\t" in said:
        return "a tab indents this line; YAML wants spaces"
    return said or "is not valid YAML"


def _at(document: Document, mark: Any, position: bool) -> str:
    if not position:
        return document.name
    place = f"{document.name}:{mark.line + 1}:{mark.column + 1}"
    document.order[place] = (mark.line, mark.column)
    return place


def _plain(
    node: yaml.Node, key_path: Keys, document: Document, position: bool, problems: list[Problem]
) -> Any:
    document.values[key_path] = place = _at(document, node.start_mark, position)
    if isinstance(node, yaml.ScalarNode):
        _printable(node.value, place, problems)
        return node.value if node.style else scalar(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(item, (*key_path, number), document, position, problems)
            for number, item in enumerate(node.value)
        ]
    data: dict[str, Any] = {}
    for key_node, value_node in node.value:
        place = _at(document, key_node.start_mark, position)
        if not isinstance(key_node, yaml.ScalarNode):
            problems.append(Problem(place=place, message="a key must be a single word"))
            continue
        key = key_node.value
        _printable(key, place, problems)
        if key in data:
            first = document.keys[(*key_path, key)]
            message = f"key {key!r} appears here for the second time"
            problems.append(Problem(place=place, message=message, hint=f"first at {first}"))
            continue
        document.keys[(*key_path, key)] = place
        data[key] = _plain(value_node, (*key_path, key), document, position, problems)
    return data


def _printable(text: str, place: str, problems: list[Problem]) -> None:
    """Refuse control characters (quoted escapes can make them) in files, tables and terminals."""
    odd = UNPRINTABLE.search(text)
    if odd:
        message = f"character {odd[0]!r} is not allowed in text"
        problems.append(Problem(place=place, message=message, hint="leave it out"))


def scalar(text: str) -> bool | int | float | str | None:
    """Return the value of a plain scalar in YAML 1.2's core schema."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _HEX.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
    return text


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes text which `scalar` would not read back as text."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Line breaks of Unicode (\x85, \u2028) survive only as escapes, in double quotes.
    style = '"' if not text.isprintable() else None if isinstance(scalar(text), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def write(data: Any) -> str:
    """Return YAML that `read` reads back to the same data."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=96))
