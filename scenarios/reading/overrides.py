"""Settings such as `--set cluster.nodes=8`: one value of a document is replaced before it is
checked.

The way is dotted, a list's entry is counted from 0 (`compressors.1.ratio=0.05`), the value is
YAML (`cluster.nodes=[1, 2]`). A name is spelled out where that is needed: setting
`cluster.network.latency` on `network: 10gbe` means the link `10gbe` with another latency. A value
that is replaced loses the range that the file states for it.
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
    ("cluster", "collectives", "server_network"),
)
"""Places of links in a scenario, beside the NICs."""


def apply(document: Document, overrides: Mapping[str, str] | Sequence[str]) -> list[Problem]:
    """Change `document` in the order given; what could not be changed comes back."""
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
    """Drop the file's range of a value that is replaced."""
    *above, last = key_path
    beside = (*above, f"{last}_range")
    if not document.keys.get(beside, "--set").startswith("--set"):
        del container[beside[-1]]
        document.forget(beside)


@lru_cache(maxsize=4096)
def _read(text: str, place: str) -> Document:
    """Many scenarios differ in a few values."""
    return read(text, place, position=False)


def _container(document: Document, key: str, place: str) -> tuple[Any, Keys] | Problem:
    """The dict or list that holds what `key` names, and the way to that."""
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
    """A mapping in the place of nothing, or of a name that stands for one."""
    if value is None:
        return {}
    if isinstance(value, str):
        if len(key_path) == 2 and key_path[0] == "compressors":
            return {"kind": value}
        nic = len(key_path) == len(("cluster", "nics", "3")) and key_path[:2] == ("cluster", "nics")
        if key_path in (*LINKS, FRAMEWORK) or nic:
            return {"like": value}
        if key_path == ("model",):
            return {"build": value}
    return value
