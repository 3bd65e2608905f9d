"""The state of a training on disk, whole or not at all, to continue with the same bits after a
kill: a `Team`'s state as plain data (`compressors/state.py`), with tensors in a safetensors file
after the rest as JSON. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.state import CannotBeKeptError, plain, restored
from gcsim.files import replacing, sealed, unsealed

_LENGTH = 8
"""Bytes of the length before the JSON."""


def write(path: Path, about: Mapping[str, object], state: object) -> None:
    """Write plain data and a state to `path`. Raises `InputError` without room, and
    `CannotBeKeptError`."""
    import safetensors.torch

    structure, tensors = plain(state)
    text = json.dumps({"about": about, "state": structure}).encode()
    body = len(text).to_bytes(_LENGTH, "little") + text + safetensors.torch.save(tensors)
    with replacing(path) as temporary:
        temporary.write_bytes(sealed(body))


def read(path: Path) -> tuple[Any, Any] | None:
    """Return the plain data, and the argument for `restore`; None if damaged or not by `write`."""
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


def restore(state: object, kept: Any, device: torch.device | str = "cpu") -> None:
    """Set a new `state` to a stored one; its tensors and objects are kept, other vectors are put on
    the device. Raises `CannotBeKeptError` for data that `write` did not make; the state is then
    unusable."""
    import safetensors.torch

    saved, body = kept
    try:
        read = safetensors.torch.load(body)
        restored(saved, {name: t.to(device) if t.dim() else t for name, t in read.items()}, state)
    except CannotBeKeptError:
        raise
    except Exception as error:  # anything that text which is not a state can cause
        raise CannotBeKeptError(f"{type(error).__name__}: {error}") from error
