"""What a tensor kernel costs, as plain data: counted on any machine, priced for another.

The classes are those whose speed differs between devices for reasons other than clock rate:
a streaming kernel is bound by memory bandwidth, a gather by its random accesses, a selection by
its passes over the data, a draw of random numbers by arithmetic, a matrix product by FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

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
    """The sum over some kernels of one class."""

    kind: KernelClass
    launches: int
    elements: int
    """Elements of the largest operand, summed over launches."""
    nbytes: int
    """Bytes read plus bytes written."""
    flops: int = 0
    """Floating-point operations; counted for matrix products only."""


def total(costs: Iterable[KernelCost]) -> tuple[KernelCost, ...]:
    """Add up costs of the same class; in the order of `KERNEL_CLASSES`."""
    sums: dict[KernelClass, list[int]] = {}
    for cost in costs:
        entry = sums.setdefault(cost.kind, [0, 0, 0, 0])
        for position, value in enumerate((cost.launches, cost.elements, cost.nbytes, cost.flops)):
            entry[position] += value
    return tuple(
        KernelCost(kind=kind, launches=s[0], elements=s[1], nbytes=s[2], flops=s[3])
        for kind in KERNEL_CLASSES
        if (s := sums.get(kind)) is not None
    )
