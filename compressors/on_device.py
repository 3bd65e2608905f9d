"""Primitives: the choice between a compiled loop and a kernel on a GPU.

    @primitive
    def cell_norms(values, cells, norm): ...     # coding/rounding/norms.py: a loop in host memory

    @kernel_of(loops.cell_norms)
    def cell_norms(values, cells, norm): ...     # gpu/rounding/norms.py: the same bytes

A call whose first argument is a tensor on a GPU goes to the kernel, which imports Triton. Without
Triton, or on a GPU too old for it, the loop works on a copy in host memory; so does a kernel that
cannot take its arguments (`by_loop`).
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
"""Tensors of a device that loops worked on in host memory: their time is not the device's."""

_OLDEST = 7, 0
"""Compute capability that Triton compiles for."""

primitives: dict[Any, Any] = {}
"""Kernel by primitive's loop; None before the first tensor on a GPU."""


def handled(values: Tensor) -> bool:
    """Whether kernels work on this tensor."""
    return (interpreted or (values.is_cuda and _new_enough(values.device))) and _has_triton()


def primitive(loop: Callable[P, R]) -> Callable[P, R]:
    """Hand calls whose first argument is a tensor on a GPU to the `kernel_of` this primitive: for
    `coding/a/b.py`, in `gpu/a/b.py`, with the same contract and bytes."""

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
    """Register the decorated function as the GPU's version of the primitive `loop`."""

    def pair(kernel: Callable[P, R]) -> Callable[P, R]:
        primitives[inspect.unwrap(loop)] = kernel
        return kernel

    return pair


def by_loop(primitive: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a primitive's loop from its kernel: for too long inputs, or to report damage."""
    found: R = inspect.unwrap(primitive)(*args, **kwargs)
    return found


@functools.cache
def _new_enough(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= _OLDEST


@functools.cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
