"""torch kernels that represent each class: a table of calls that run on any torch device. A case
has the class, its operands for n elements, and the call, whose bytes the meter counts. As in
compressors, selections keep 1 %, indices ascend, and values are heavy-tailed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import segment
from gcsim.errors import InternalError
from gcsim.traces.timing.kernels import gradient

Operands = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One torch kernel."""

    kind: KernelClass
    title: str
    make: Callable[[int, str], Operands]
    """Operands for n elements on a device."""
    call: Callable[..., object]
    largest: int = 1 << 25
    """Most elements: more would take too long."""
    waits: bool = False
    """Whether the host waits for the device inside the call."""


def cost_of(call: Callable[[], object]) -> KernelCost:
    """Return the metered cost of a call that runs one kernel. Raises `InternalError` otherwise."""
    with segment() as recorder:
        call()
    if len(recorder.fixed) != 1:
        names = [cost.name for cost in recorder.fixed]
        raise InternalError(f"a case is one kernel, not {names}")
    return recorder.fixed[0]


def _values(n: int, device: str) -> Tensor:
    return gradient(n, seed=0).to(device)


def _one(n: int, device: str) -> Operands:
    return (_values(n, device),)


def _two(n: int, device: str) -> Operands:
    return _values(n, device), _values(n, device)


def _hundredth(n: int, device: str) -> Tensor:
    """Return ascending positions of 1 % of n."""
    return torch.arange(0, n, 100, device=device)


def _mask(n: int, device: str) -> Operands:
    mask = torch.zeros(n, dtype=torch.bool, device=device)
    mask[_hundredth(n, device)] = True
    return (mask,)


def _masked(n: int, device: str) -> Operands:
    return _values(n, device), *_mask(n, device)


def _indexed(n: int, device: str) -> Operands:
    return _values(n, device), _hundredth(n, device)


def _scattered(n: int, device: str) -> Operands:
    index = _hundredth(n, device)
    return _values(n, device), index, torch.ones(index.numel(), device=device)


def _square(n: int, device: str) -> Operands:
    side = max(1, int(n**0.5))
    return _values(side * side, device).view(side, side), torch.ones(side, side, device=device)


def _thin(columns: int) -> Callable[[int, str], Operands]:
    def make(n: int, device: str) -> Operands:
        side = max(1, int(n**0.5))
        matrix = _values(side * side, device).view(side, side)
        return matrix, _values(side * columns, device).view(side, columns)

    return make


def _tall(columns: int) -> Callable[[int, str], Operands]:
    def make(n: int, device: str) -> Operands:
        return (_values(max(n // columns, columns) * columns, device).view(-1, columns),)

    return make


def _kept(n: int) -> int:
    return max(1, n // 100)


CASES: tuple[Case, ...] = (
    Case("streaming", "mul", _one, lambda x: x * 2.0),
    Case("streaming", "add_", _two, lambda x, y: x.add_(y, alpha=1e-6)),
    Case("streaming", "clone", _one, lambda x: x.clone()),
    Case("streaming", "half", _one, lambda x: x.half()),
    Case("reduction", "sum", _one, lambda x: x.sum()),
    Case("reduction", "norm", _one, torch.linalg.vector_norm),
    Case("reduction", "amax", _one, lambda x: x.amax()),
    Case("gather_scatter", "index", _indexed, lambda x, i: x[i]),
    Case("gather_scatter", "index_add_", _scattered, lambda x, i, v: x.index_add_(0, i, v)),
    Case("gather_scatter", "nonzero", _mask, lambda m: m.nonzero()),
    Case("gather_scatter", "masked_select", _masked, torch.masked_select, 1 << 23),
    Case("selection", "topk", _one, lambda x: x.topk(_kept(x.numel())), 1 << 22),
    Case("selection", "kthvalue", _one, lambda x: x.kthvalue(_kept(x.numel())), 1 << 22),
    Case("sort", "sort", _one, lambda x: x.sort(), 1 << 21),
    Case("random", "uniform_", _one, lambda x: x.uniform_(), 1 << 23),
    Case("random", "bernoulli_", _one, lambda x: x.bernoulli_(0.5), 1 << 23),
    Case("random", "normal_", _one, lambda x: x.normal_(), 1 << 22),
    Case("matmul", "square", _square, torch.mm, 1 << 21),
    Case("matmul", "thin, 4 columns", _thin(4), torch.mm, 1 << 24),
    Case("matmul", "thin, 1 column", _thin(1), torch.mm, 1 << 24),
    Case("factorization", "qr, 4 columns", _tall(4), torch.linalg.qr, 1 << 16),
    Case("factorization", "qr, 16 columns", _tall(16), torch.linalg.qr, 1 << 18),
    Case("host_sync", "item", _one, lambda x: x[0].item(), 1, True),
)
"""Cases of all classes."""
