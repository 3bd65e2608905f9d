"""How does training go on after a kill, with the same bits? Its state on disk, whole or not at all.

The state is what hangs on a `Team`: tensors, numbers, text, and the lists, dicts and objects that
hold them, as compressors have made them. Tensors stand in a safetensors file; the rest in JSON
beside it says where they belong. Nothing is unpickled: beside tensors and arrays, reading makes
objects of classes alone that are loaded already and are compressors, parameters, dataclasses, or
stand in gcsim's own compressors, and it calls none of their code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from gcsim.compressors.base import Compressor
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import GcsimError
from gcsim.files import replacing, sealed, unsealed

_PLAIN = (type(None), bool, int, float, str)
_LENGTH = 8
"""Bytes in front of the JSON."""


class CannotBeKeptError(GcsimError):
    """A compressor holds something that is no tensor, number, text, or a collection of such."""


def write(path: Path, about: Mapping[str, object], state: object) -> None:
    """Put plain data and a state under `path`. Raises `InputError` where there is no room, and
    `CannotBeKeptError`."""
    import safetensors.torch

    tensors: dict[str, Tensor] = {}
    text = json.dumps({"about": about, "state": _written(state, tensors)}).encode()
    apart = {name: one.detach().contiguous().clone() for name, one in tensors.items()}
    body = len(text).to_bytes(_LENGTH, "little") + text + safetensors.torch.save(apart)
    with replacing(path) as temporary:
        temporary.write_bytes(sealed(body))


def read(path: Path) -> tuple[Any, Any] | None:
    """What was written: the plain data, and what `restore` takes; None where it is not whole, or
    was not written by `write`."""
    try:
        body = unsealed(path.read_bytes())
    except OSError:
        return None
    if body is None:
        return None
    length = int.from_bytes(body[:_LENGTH], "little")
    try:
        found = json.loads(body[_LENGTH : _LENGTH + length])
        return found["about"], (found["state"], body[_LENGTH + length :])
    except (ValueError, TypeError, KeyError):
        return None


def restore(state: object, kept: Any) -> None:
    """Bring a fresh `state` to what was written; tensors and objects that it has stay the same.

    Raises `CannotBeKeptError` for what `write` did not write; the state is of no use then.
    """
    import safetensors.torch

    saved, body = kept
    try:
        _read(saved, safetensors.torch.load(body), state)
    except CannotBeKeptError:
        raise
    except Exception as error:  # all that a text can bring about that is no state
        raise CannotBeKeptError(f"{type(error).__name__}: {error}") from error


def _written(  # noqa: PLR0911 (a case each)
    value: Any, tensors: dict[str, Tensor]
) -> Any:
    """As JSON: plain values as they are, all else a list that begins with its kind."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        name = str(id(value))  # one that stands in two places is one again
        tensors[name] = value
        return ["tensor", name]
    if isinstance(value, np.ndarray):
        return ["array", _written(torch.from_numpy(np.ascontiguousarray(value)), tensors)]
    if isinstance(value, np.generic):
        return ["scalar", _written(torch.from_numpy(np.asarray(value)), tensors)]
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


def _read(  # noqa: PLR0911 (a case each)
    saved: Any, tensors: Mapping[str, Tensor], old: Any = None
) -> Any:
    """What was written, in the place of `old` where that can be changed."""
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
    if kind == "array":
        return _read(content[0], tensors).numpy()
    if kind == "scalar":
        return _read(content[0], tensors).numpy()[()]
    if kind == "dtype":
        return getattr(torch, content[0])
    if kind == "class":
        return _loaded(content[0])
    if kind == "dict":
        return _read_dict(content[0], tensors, old)
    if kind in ("list", "tuple"):
        olds = old if isinstance(old, Sequence) and len(old) == len(content[0]) else None
        olds = olds or [None] * len(content[0])
        found = [_read(each, tensors, one) for each, one in zip(content[0], olds, strict=True)]
        return tuple(found) if kind == "tuple" else found
    if kind == "parameters":
        return old if old is not None else _loaded(content[0])(**_read(content[1], tensors))
    return _read_object(content, tensors, old)


def _read_dict(pairs: Any, tensors: Mapping[str, Tensor], old: Any) -> dict[Any, Any]:
    target: dict[Any, Any] = old if isinstance(old, dict) else {}
    before = dict(target)
    target.clear()
    for key, each in pairs:
        name = _read(key, tensors)
        target[name] = _read(each, tensors, before.get(name))
    return target


def _read_object(content: Any, tensors: Mapping[str, Tensor], old: Any) -> Any:
    path, saved = content
    cls = _loaded(path)
    made = old if type(old) is cls else object.__new__(cls)
    for name, value in _read(saved, tensors, _attributes(made) if made is old else None).items():
        object.__setattr__(made, name, value)
    return made


def _loaded(path: str) -> Any:
    """A class that is there already."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and _may_be_made(found)):
        raise CannotBeKeptError(path)
    return found
