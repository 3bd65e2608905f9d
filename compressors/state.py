"""Conversion of a compressor's state to plain data: a JSON-ready structure and tensors by name.

Writing accepts tensors, numbers, text, and lists, dicts and objects of them. Reading creates only
objects of classes that are already imported: compressors, parameters, dataclasses, or classes of
gcsim.compressors. It runs none of their code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel

from gcsim.compressors.base import Compressor
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import GcsimError

_PLAIN = (type(None), bool, int, float, str)
_Numbered = dict[int, tuple[str, Tensor]]
"""Names and tensors, keyed by the tensor's `id`."""


class CannotBeKeptError(GcsimError):
    """A compressor's state contains more than tensors, numbers, text and collections of them."""


def plain(value: object) -> tuple[Any, dict[str, Tensor]]:
    """Return `value` as JSON-ready data and copies of tensors; may raise `CannotBeKeptError`."""
    found: _Numbered = {}
    structure = _written(value, found)
    return structure, {name: one.detach().contiguous().clone() for name, one in found.values()}


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested collections and in objects of our classes."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(each)
    elif not isinstance(value, _PLAIN) and _may_be_made(type(value)):
        yield from tensors_in(_attributes(value))


def _written(  # noqa: PLR0911 (a case each)
    value: Any, tensors: _Numbered
) -> Any:
    """Return JSON-ready data: a plain value, or a list whose first item is the kind."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        name, _ = tensors.setdefault(id(value), (str(len(tensors)), value))
        return ["tensor", name]  # a tensor that appears twice is restored as one tensor
    if isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return [kind, _written(torch.from_numpy(np.array(value, order="C")), tensors)]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, Mapping):
        pairs = [[_written(k, tensors), _written(each, tensors)] for k, each in value.items()]
        return ["dict", pairs]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [_written(each, tensors) for each in value]]
    if isinstance(value, type) and _may_be_made(value):
        return ["class", _path(value)]
    path = _path(type(value))
    if isinstance(value, BaseModel):
        return ["parameters", path, _written(dict(value), tensors)]
    if _may_be_made(type(value)):
        return ["object", path, _written(_attributes(value), tensors)]
    raise CannotBeKeptError(f"a {type(value).__module__}.{type(value).__qualname__}")


def _path(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _attributes(value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return dict(vars(value))


def _may_be_made(cls: type) -> bool:
    ours = cls.__module__.startswith("gcsim.compressors.") and hasattr(cls, "__dict__")
    return ours or is_dataclass(cls) or issubclass(cls, BaseModel | Compressor)


def restored(  # noqa: PLR0911 (a case each)
    saved: Any, tensors: Mapping[str, Tensor], old: Any = None
) -> Any:
    """Rebuild the value from the data of `plain`. Tensors and objects of `old` are kept and filled
    in place if they match; all other tensors are those of `tensors`, not copies."""
    if isinstance(saved, _PLAIN):
        return saved
    kind, *content = saved
    if kind == "tensor":
        tensor = tensors[content[0]]
        if (
            isinstance(old, torch.Tensor)
            and old.shape == tensor.shape
            and old.dtype == tensor.dtype
        ):
            return old.copy_(tensor)
        return tensor
    if kind in ("array", "scalar"):
        values = restored(content[0], tensors).numpy(force=True)
        return values if kind == "array" else values[()]
    if kind == "dtype":
        return getattr(torch, content[0])
    if kind == "class":
        return _loaded(content[0])
    if kind == "dict":
        return _read_dict(content[0], tensors, old)
    if kind in ("list", "tuple"):
        olds = old if isinstance(old, Sequence) and len(old) == len(content[0]) else None
        olds = olds or [None] * len(content[0])
        found = [restored(each, tensors, one) for each, one in zip(content[0], olds, strict=True)]
        return tuple(found) if kind == "tuple" else found
    if kind == "parameters":
        return old if old is not None else _loaded(content[0])(**restored(content[1], tensors))
    return _read_object(content, tensors, old)


def _read_dict(pairs: Any, tensors: Mapping[str, Tensor], old: Any) -> dict[Any, Any]:
    target: dict[Any, Any] = old if isinstance(old, dict) else {}
    before = dict(target)
    target.clear()
    for key, each in pairs:
        name = restored(key, tensors)
        target[name] = restored(each, tensors, before.get(name))
    return target


def _read_object(content: Any, tensors: Mapping[str, Tensor], old: Any) -> Any:
    path, saved = content
    cls = _loaded(path)
    made = old if type(old) is cls else object.__new__(cls)
    for name, value in restored(saved, tensors, _attributes(made) if made is old else None).items():
        object.__setattr__(made, name, value)
    return made


def _loaded(path: str) -> Any:
    """Return the class at this path, which must be imported already and one of ours."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and _may_be_made(found)):
        raise CannotBeKeptError(path)
    return found
