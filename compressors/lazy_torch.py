"""`torch`, imported when a tensor is first touched, so that checking a scenario against a
compressor's parameters and runs from the cache do not pay for it. `Tensor` is for annotations; code
that runs says `torch.Tensor`."""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

__all__ = ["Tensor", "nn", "torch"]

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:

    class _LazyModule(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module(self.__name__), name)
            setattr(self, name, value)  # the next access costs a dictionary look-up
            return value

    torch = _LazyModule("torch")
    nn = _LazyModule("torch.nn")
    Tensor = Any  # `isinstance` refuses it
