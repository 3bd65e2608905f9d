"""Which tensors are worked on where they lie? Those on a GPU, by kernels instead of loops.

    @kernel("reduction")
    @on_device("rounding.levels")
    def bucket_norms(values, size, norm): ...      # a compiled loop, in host memory

A call whose first argument is a tensor on a GPU, or a list of such, is handed over to the function
of the same name and signature in `gpu/rounding/levels.py`: its twin, which has the same contract
and gives the same bytes. The meter stands outside and counts both alike. A twin that has no kernel
for its arguments returns `NotImplemented`; the call is then the loop's, by way of host memory, and
so it is where Triton is not installed, or the GPU is too old for it. Triton is imported at the
first tensor on a GPU.
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
"""Set by tests: tensors in host memory are handed over too, to Triton's interpreter."""

host_visits = 0
"""So far: tensors of a device that loops have worked on in host memory, since they have no kernel.
What takes time there says nothing about the device."""


_OLDEST = 7, 0
"""Compute capability that Triton compiles for."""


def handled(values: Tensor) -> bool:
    """Whether kernels work on this tensor."""
    return (interpreted or (values.is_cuda and _new_enough(values.device))) and _has_triton()


def on_device(file: str, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Hand calls with tensors on a GPU over to the function's twin: `a.b` is `gpu/a/b.py`.

    It has the function's name, or that one.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def chosen(*args: P.args, **kwargs: P.kwargs) -> R:
            first: Any = args[0] if args else next(iter(kwargs.values()))
            if isinstance(first, (list, tuple)):
                first = first[0]
            if isinstance(first, torch.Tensor) and handled(first):
                # kernels are launched on the current device
                with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
                    result = twin(file, name or function.__name__)(*args, **kwargs)
                if result is not NotImplemented:
                    return result  # type: ignore[no-any-return]  # as the contract of twins says
            return function(*args, **kwargs)

        twins[f"{function.__module__}.{function.__name__}"] = file, name or function.__name__
        return chosen

    return decorate


def primitive(loop: Callable[P, R]) -> Callable[P, R]:
    """Hand calls whose first argument is a tensor on a GPU over to the `kernel_of` this primitive.

    That of `coding/a/b.py` is in `gpu/a/b.py`. It has the same contract and gives the same bytes.
    """

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
    """Decorate what does on a GPU what the primitive `loop` does in host memory."""

    def pair(kernel: Callable[P, R]) -> Callable[P, R]:
        primitives[inspect.unwrap(loop)] = kernel
        return kernel

    return pair


primitives: dict[Any, Any] = {}
"""Kernel by primitive's loop; None before the first tensor on a GPU."""

twins: dict[str, tuple[str, str]] = {}
"""By function, with its module: the file and the name of its twin."""


@functools.cache
def twin(file: str, name: str) -> Callable[..., Any]:
    """The function of that name in a file of `gpu/`."""
    found: Callable[..., Any] = getattr(
        importlib.import_module(f"gcsim.compressors.gpu.{file}"), name
    )
    return found


@functools.cache
def _new_enough(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= _OLDEST


@functools.cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
