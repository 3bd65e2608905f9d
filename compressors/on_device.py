"""Primitives: functions with two versions, a compiled loop and a GPU kernel.

    @primitive
    def cell_norms(values, cells, norm): ...     # coding/rounding/norms.py: a loop in host memory

    @kernel_of(loops.cell_norms)
    def cell_norms(values, cells, norm): ...     # gpu/rounding/norms.py: the same bytes

If the first argument is a tensor on a GPU, the call goes to the kernel, which imports Triton.
Without Triton, or on a GPU too old for it, the loop works on a copy in host memory; so does a
kernel that cannot handle its arguments (`by_loop`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

from gcsim.compressors.lazy_torch import Tensor, torch

P = ParamSpec("P")
R = TypeVar("R")

interpreted = False
"""Set by tests: tensors in host memory go to kernels too, in Triton's interpreter."""

host_visits = 0
"""Number of device tensors copied to the host for loops: this time is not the device's."""

_OLDEST = 7, 0
"""Lowest compute capability that Triton supports."""

primitives: dict[Any, Any] = {}
"""Kernel for each primitive's loop; None before the first tensor on a GPU."""


def handled(values: Tensor) -> bool:
    """Whether kernels process this tensor."""
    return (interpreted or (values.is_cuda and _new_enough(values.device))) and _has_triton()


def primitive(loop: Callable[P, R]) -> Callable[P, R]:
    """Make a loop a primitive: calls with a GPU tensor as first argument go to its `kernel_of`. For
    `coding/a/b.py` that is in `gpu/a/b.py`, with the same contract and bytes."""

    primitives[loop] = None

    @functools.wraps(loop)
    def chosen(*args: P.args, **kwargs: P.kwargs) -> R:
        first: Any = args[0]
        if not handled(first):
            return loop(*args, **kwargs)
        if primitives[loop] is None:
            importlib.import_module(loop.__module__.replace(".coding.", ".gpu."))
        with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
            return primitives[loop](*args, **kwargs)  # type: ignore[no-any-return]

    return chosen


def kernel_of(loop: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register the decorated function as GPU version of the primitive `loop`."""

    def pair(kernel: Callable[P, R]) -> Callable[P, R]:
        primitives[inspect.unwrap(loop)] = kernel
        return kernel

    return pair


def by_loop(primitive: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a primitive's loop from its kernel: for long inputs, or to report damage."""
    found: R = inspect.unwrap(primitive)(*args, **kwargs)
    return found


@functools.cache
def _new_enough(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= _OLDEST


@functools.cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
