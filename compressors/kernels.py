"""Costs of tensor kernels as plain data: counted on any machine, priced for another.

Classes differ in their bottleneck: memory bandwidth (streaming), random access (gather), passes
over the data (selection), arithmetic (random numbers), FLOPs (matrix products).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from gcsim.fields import Whole

KernelClass = Literal[
    "streaming",  # element-wise, casts, copies, fills, bit packing
    "reduction",  # sums, norms, extrema
    "gather_scatter",  # indexed reads and writes, compaction (nonzero, masked select)
    "selection",  # the k largest, or quantiles by selection
    "sort",
    "random",  # generation of random numbers
    "matmul",
    "factorization",  # QR and similar: small and sequential
    "host_sync",  # the host waits for a device value
]
KERNEL_CLASSES: tuple[KernelClass, ...] = get_args(KernelClass)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """The summed cost of kernels of one class and one name."""

    kind: KernelClass
    name: str = ""
    """E.g. "signs.sign_bits" for a method's own kernel, "aten.topk" for torch's; "" if unknown. A
    device on which this kernel was measured has a price for the name, others use the class."""
    part: bool = False
    """Whether this work belongs to launches of `name` of another class, such as the random draws of
    a fused kernel; the kernel's measured time includes it."""
    launches: Whole
    elements: Whole
    """Number of elements of the largest operand, summed over launches."""
    nbytes: Whole
    """Bytes read plus bytes written."""
    flops: Whole = 0
    """Floating-point operations; counted only for matrix products."""
    work: Whole = 0
    """Bytes that determine the kernel's time if they differ from `nbytes`, e.g. those of the few
    touched elements of a large tensor. Only a price for the kernel's name uses it."""


@dataclass(frozen=True, slots=True)
class TimedKernel:
    cost: KernelCost
    seconds: float


def total(costs: Iterable[KernelCost]) -> tuple[KernelCost, ...]:
    """Add up costs of the same class and name whose bytes per launch are in the same octave: small
    tensors in a cache cost less per byte than large ones, so a mean would fit neither. Sorted by
    `KERNEL_CLASSES`, then name, then bytes per launch."""
    groups: dict[tuple[KernelClass, str, bool, int], KernelCost] = {}
    for cost in costs:
        key = (cost.kind, cost.name, cost.part, octave(cost))
        groups[key] = joined(groups[key], cost) if key in groups else cost
    order = sorted(groups, key=lambda key: (KERNEL_CLASSES.index(key[0]), *key[1:]))
    return tuple(groups[key] for key in order)


def octave(cost: KernelCost) -> int:
    """Return n if a launch works on 2^(n-1) … 2^n - 1 bytes; 0 without a launch or a name."""
    return (worked(cost) // cost.launches).bit_length() if cost.launches and cost.name else 0


def worked(cost: KernelCost) -> int:
    """Return the bytes that determine the kernel's time."""
    return cost.work or cost.nbytes


def spread(elements: int) -> str:
    """Return the range of indexed accesses as the next power of four of elements. It is part of the
    name of gathers and scatters: few accesses to a large tensor cost more than to a cached one."""
    return f"2^{2 * (max(0, elements - 1).bit_length() + 1 >> 1)}"


def joined(first: KernelCost, second: KernelCost) -> KernelCost:
    """Return the sum of two costs with the class and name of the first."""
    summed = ("launches", "elements", "nbytes", "flops", "work")
    return replace(first, **{key: getattr(first, key) + getattr(second, key) for key in summed})
