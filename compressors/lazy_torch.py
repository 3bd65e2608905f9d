"""`torch`, imported when a tensor is first touched.

A compressor's file also holds its parameters, and a scenario is checked against those without
running anything: `gcsim check`, `gcsim list` and a run from the cache must not pay for torch.
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch  # noqa: PLC0414 - re-exported
else:

    class _LazyModule(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module(self.__name__), name)
            setattr(self, name, value)  # the next access costs a dictionary look-up
            return value

    torch = _LazyModule("torch")
