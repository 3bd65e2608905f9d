"""What does PyTorch's DDP cost around an exchange here, and a hook? For `training.framework`.

Steps that compute next to nothing are timed by themselves, with DistributedDataParallel, and with
`gcsim.ddp_hook("none")`, in a group of one rank, so that nothing travels. What they take longer is
fitted to so many tensors, buckets and bytes. Processor time of all threads together (torch has one
of them), with gradients in host memory whatever the device is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gcsim.compressors.ddp.hook import ddp_hook
from gcsim.compressors.lazy_torch import torch
from gcsim.scenarios.catalog import loops

Code = Literal["reducer", "hook"]
CODES: tuple[Code, ...] = ("reducer", "hook")


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a model's gradients: float32, in buckets of equal tensors."""

    buckets: int
    tensors: int
    """In a bucket."""
    elements: int
    """In a tensor."""

    @property
    def nbytes(self) -> int:
        """Of a bucket."""
        return 4 * self.tensors * self.elements


SHAPES = (
    Shape(1, 1, 256), Shape(8, 1, 256), Shape(32, 1, 256), Shape(8, 8, 256), Shape(32, 4, 256),
    Shape(1, 64, 256), Shape(1, 1, 1_000_000), Shape(2, 1, 1_000_000), Shape(1, 1, 4_000_000),
    Shape(2, 1, 4_000_000),
)  # fmt: skip
"""Tensors and buckets apart from each other, and long vectors of a few."""
_FIRST_BUCKET = "_DEFAULT_FIRST_BUCKET_BYTES"
"""Of `torch.distributed`: DDP's first bucket has a limit of its own, 1 MB."""
_WARM_UP = 6
"""Steps: DDP forms its buckets anew after the first."""


@dataclass(frozen=True, slots=True)
class CodeCost:
    """Of the code around an exchange, in processor time."""

    per_tensor: float
    """Seconds a tensor."""
    per_bucket: float
    """Seconds a bucket."""
    per_byte: float
    """Seconds a byte of the float32 gradient."""


def time_framework(
    *,
    shapes: Sequence[Shape] = SHAPES,
    steps: int = 40,
    clock: Callable[[], float] = time.process_time,
) -> dict[Code, CodeCost]:
    """What DDP's own exchange costs, and a hook's; a few seconds.

    Empty where torch was built without Gloo, and in a process that has a process group already.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        return {}
    if distributed.is_initialized():
        return {}
    with _one_rank():
        found = [step_seconds(shape, steps, clock) for shape in shapes]
    return {
        code: fitted(
            shapes, [one[code] - one["alone"] for one in found], [one[code] for one in found]
        )
        for code in CODES
    }


def fitted(shapes: Sequence[Shape], longer: Sequence[float], steps: Sequence[float]) -> CodeCost:
    """By how much steps of these seconds are longer: by least squares, no cost below zero.

    A step's noise is a share of the whole step, of which the code may be a small part.
    """
    from scipy.optimize import nnls

    design = np.array(
        [[one.buckets * one.tensors, one.buckets, one.buckets * one.nbytes] for one in shapes],
        dtype=float,
    )
    weights = 1 / np.array(steps)
    scale = design.max(axis=0)  # tensors and bytes differ by seven digits
    found, _ = nnls(design / scale * weights[:, None], np.array(longer) * weights)
    return CodeCost(*(float(value) for value in found / scale))


def step_seconds(
    shape: Shape, steps: int, clock: Callable[[], float]
) -> dict[Code | Literal["alone"], float]:
    """The lower quartile of a step's time by itself, with DDP, and with a hook.

    By turns, so that a slow minute of the machine meets all three.
    """
    from torch.nn.parallel import DistributedDataParallel

    setattr(torch.distributed, _FIRST_BUCKET, shape.nbytes)
    reducer, hooked = (
        DistributedDataParallel(_net(shape), bucket_cap_mb=shape.nbytes / 2**20) for _ in CODES
    )
    hook = ddp_hook("none")
    hook.register(hooked)
    models: dict[Code | Literal["alone"], Any] = {
        "alone": _net(shape),
        "reducer": reducer,
        "hook": hooked,
    }
    inputs = torch.randn(shape.elements) / 10
    found: dict[Code | Literal["alone"], list[float]] = {how: [] for how in models}
    for _ in range(_WARM_UP + steps):
        for how, model in models.items():
            begun = clock()
            model(inputs).backward()
            for parameter in model.parameters():
                parameter.grad = None
            found[how].append(clock() - begun)
    if len(hook.layouts) != shape.buckets:
        raise RuntimeError(f"DDP made {len(hook.layouts)} buckets of {shape}")
    return {how: sorted(seconds[_WARM_UP:])[steps // 4] for how, seconds in found.items()}


def as_setting(costs: Mapping[Code, CodeCost], streaming: float | None) -> str:
    """`training.framework` as a scenario takes it; empty where nothing was measured.

    `passes` by the rate in B/s of the `streaming` kernels of the device that was measured; those
    of the catalogue where the gradients of a scenario lie elsewhere (None).
    """
    known = dict(zip(CODES, loops.framework("pytorch"), strict=True))
    parts = []
    for code, cost in costs.items():
        passes = known[code].passes if streaming is None else cost.per_byte * streaming
        parts.append(
            f"{code}: {{per_tensor: {cost.per_tensor * 1e6:.3g} us, "
            f"per_bucket: {cost.per_bucket * 1e6:.3g} us, passes: {float(passes):.2g}}}"
        )
    return f"training.framework: {{{', '.join(parts)}}}" if parts else ""


def _net(shape: Shape) -> Any:
    class Net(torch.nn.Module):
        """Every parameter gets a gradient of its own length by next to no computation."""

        def __init__(self) -> None:
            super().__init__()
            count = shape.buckets * shape.tensors
            self.all = torch.nn.ParameterList(
                torch.nn.Parameter(torch.randn(shape.elements)) for _ in range(count)
            )

        def forward(self, x: Any) -> Any:
            for parameter in self.all:
                x = x + parameter * x
            return x.sum()

    return Net()


@contextmanager
def _one_rank() -> Iterator[None]:
    distributed = torch.distributed
    bytes_before, threads = getattr(distributed, _FIRST_BUCKET), torch.get_num_threads()
    store = distributed.HashStore()  # type: ignore[attr-defined]  # not in its list
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        setattr(distributed, _FIRST_BUCKET, bytes_before)
        distributed.destroy_process_group()
