"""`torch`, imported at the first use of an attribute, so that checking a scenario's parameters and
reading cached runs do not pay for the import. `Tensor` is only for annotations; code that runs uses
`torch.Tensor`."""

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
            setattr(self, name, value)  # the next access is a plain dictionary look-up
            return value

    torch = _LazyModule("torch")
    nn = _LazyModule("torch.nn")
    Tensor = Any  # not usable with `isinstance`
