"""Settings such as `--set cluster.nodes=8`, applied to a document before its checks.

The path is dotted, list entries are numbered from 0 (`compressors.1.ratio=0.05`), and values are
YAML (`cluster.nodes=[1, 2]`). A name is expanded if needed: `cluster.network.latency` changes the
latency of the link in `network: 10gbe`. A replaced value loses the file's range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

from gcsim.errors import InputError, Problem
from gcsim.scenarios.reading.document import Document, Keys, dotted, read

FRAMEWORK: Keys = ("training", "framework")
LINKS: tuple[Keys, ...] = (
    ("cluster", "network"),
    ("cluster", "intra_node"),
    ("cluster", "racks", "uplink"),
    ("cluster", "racks", "pod_uplink"),
    ("cluster", "collectives", "server_network"),
)
"""Links in a scenario, except for NICs of single nodes."""


def apply(document: Document, overrides: Mapping[str, str] | Sequence[str]) -> list[Problem]:
    """Apply overrides to `document` in order; return problems."""
    if isinstance(overrides, Mapping):
        pairs = list(overrides.items())
    else:
        pairs = []
        for assignment in overrides:
            key, equals, text = assignment.partition("=")
            if not equals:
                problem = Problem(
                    place=f"--set {assignment}", message="no value", hint="write --set key=value"
                )
                return [problem]
            pairs.append((key.strip(), text))
    return [problem for key, text in pairs for problem in _set(document, key, text)]


def _set(document: Document, key: str, text: str) -> list[Problem]:
    place = f"--set {key}"
    try:
        given = _read(text, place) if text.strip() else Document(place, None)
    except InputError as error:
        return list(error.problems)
    found = _container(document, key, place)
    if isinstance(found, Problem):
        return [found]
    container, key_path = found
    _forget_range(document, container, key_path)
    container[key_path[-1]] = deepcopy(given.data)
    document.forget(key_path)
    document.keys[key_path] = place
    for inner in {(), *given.values}:
        document.values[(*key_path, *inner)] = place
    for inner in given.keys:
        document.keys[(*key_path, *inner)] = place
    return []


def _forget_range(document: Document, container: Any, key_path: Keys) -> None:
    """Remove the file's range of a replaced value."""
    *above, last = key_path
    beside = (*above, f"{last}_range")
    if not document.keys.get(beside, "--set").startswith("--set"):
        del container[beside[-1]]
        document.forget(beside)


@lru_cache(maxsize=4096)
def _read(text: str, place: str) -> Document:
    """Read a value; cached, since many scenarios differ in few values."""
    return read(text, place, position=False)


def _container(document: Document, key: str, place: str) -> tuple[Any, Keys] | Problem:
    """Return the dict or list that has `key`, and its path."""
    current, key_path = document.data, Keys()
    words = key.split(".")
    for number, word in enumerate(words):
        last = number == len(words) - 1
        step: str | int = word
        if isinstance(current, list):
            if not (word.isascii() and word.isdigit() and int(word[:9]) < len(current)):
                size = len(current)
                message = (
                    f"{dotted(key_path)} has no entry {word!r}: it has {size}, from 0 to {size - 1}"
                )
                return Problem(place=place, message=message)
            step = int(word)
        elif not isinstance(current, dict):
            message = f"{dotted(key_path)} is a single value: it holds no {word!r}"
            return Problem(place=place, message=message)
        if not word:
            return Problem(place=place, message="a word between two dots is missing")
        key_path = (*key_path, step)
        if not last:
            current = _descend(document, current, key_path, place)
    return (current if isinstance(current, dict | list) else {}, key_path)


def _descend(document: Document, container: Any, key_path: Keys, place: str) -> Any:
    step = key_path[-1]
    value = container.get(step) if isinstance(container, dict) else container[step]
    spelled_out = _spelled_out(key_path, value)
    if spelled_out is not value:
        where = document.values.get(key_path, place)
        container[step] = spelled_out
        document.keys.setdefault(key_path, where)
        document.values[key_path] = where
        for key in spelled_out:
            document.keys[(*key_path, key)] = document.values[(*key_path, key)] = where
    return spelled_out


def _spelled_out(key_path: Keys, value: Any) -> Any:
    """Return a mapping that replaces a missing value, or a name."""
    if value is None:
        return {}
    if isinstance(value, str):
        if len(key_path) == 2 and key_path[0] == "compressors":
            return {"kind": value}
        match key_path:
            case ("cluster", "nics", _) | ("cluster", "groups", _, "network" | "intra_node"):
                return {"like": value}
        if key_path in (*LINKS, FRAMEWORK):
            return {"like": value}
        if key_path == ("model",):
            return {"build": value}
    return value
