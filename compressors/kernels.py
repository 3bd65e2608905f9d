"""Costs of tensor kernels as plain data: counted on any machine, priced for another.

Classes differ in what bounds them: memory bandwidth (streaming), random accesses (gather), passes
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
    "selection",  # the k largest, quantiles by selection
    "sort",
    "random",  # drawing random numbers
    "matmul",
    "factorization",  # QR and the like: small, sequential
    "host_sync",  # the host waits for a device value
]
KERNEL_CLASSES: tuple[KernelClass, ...] = get_args(KernelClass)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """The sum over some kernels of one class and one name."""

    kind: KernelClass
    name: str = ""
    """"signs.sign_bits" of a method's own kernel, "aten.topk" of torch's; "" when unknown. A device
    on which that kernel was measured prices by it, others by the class."""
    part: bool = False
    """Work of another class inside the launches of `name`, such as random draws of a fused kernel;
    the kernel's measured time includes it."""
    launches: Whole
    elements: Whole
    """Elements of the largest operand, summed over launches."""
    nbytes: Whole
    """Bytes read plus bytes written."""
    flops: Whole = 0
    """Floating-point operations; counted for matrix products only."""
    work: Whole = 0
    """Bytes that determine the kernel's time where they differ from `nbytes`, such as the few
    touched elements of a large tensor. Only the kernel's own curve uses it."""


@dataclass(frozen=True, slots=True)
class TimedKernel:
    cost: KernelCost
    seconds: float


def total(costs: Iterable[KernelCost]) -> tuple[KernelCost, ...]:
    """Add up costs of equal class and name whose bytes per launch share a power of two: a small
    tensor in a cache costs less a byte than a large one, and a mean stands for neither. In the
    order of `KERNEL_CLASSES`, by name, small launches first."""
    groups: dict[tuple[KernelClass, str, bool, int], KernelCost] = {}
    for cost in costs:
        key = (cost.kind, cost.name, cost.part, octave(cost))
        groups[key] = joined(groups[key], cost) if key in groups else cost
    order = sorted(groups, key=lambda key: (KERNEL_CLASSES.index(key[0]), *key[1:]))
    return tuple(groups[key] for key in order)


def octave(cost: KernelCost) -> int:
    """n when a launch works on 2^(n-1) … 2^n - 1 bytes; 0 where nothing was launched."""
    return (worked(cost) // cost.launches).bit_length() if cost.launches and cost.name else 0


def worked(cost: KernelCost) -> int:
    """Bytes that the kernel's own time is a function of."""
    return cost.work or cost.nbytes


def spread(elements: int) -> str:
    """Reach of indexed accesses: the power of four of elements that holds them all. In the name of
    gathers and scatters: few touches of a large tensor cost more than as many within a cache."""
    return f"2^{2 * (max(0, elements - 1).bit_length() + 1 >> 1)}"


def by_class(costs: Iterable[KernelCost]) -> tuple[KernelCost, ...]:
    """Add up costs of the same class, whatever their names."""
    return total(replace(cost, name="", part=False) for cost in costs)


def joined(first: KernelCost, second: KernelCost) -> KernelCost:
    """Both together; class and name are those of the first."""
    summed = ("launches", "elements", "nbytes", "flops", "work")
    return replace(first, **{key: getattr(first, key) + getattr(second, key) for key in summed})
