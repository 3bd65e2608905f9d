"""Launches that a GPU's host queues for a metered kernel, from `launches.csv`, which
`python -m tests.benchmarks.launches` counts without a GPU. Means over calls: a few kernels'
launches depend on arguments, and launches of frames count to kernels of the same message."""

from __future__ import annotations

import csv
import functools
from fractions import Fraction
from pathlib import Path
from typing import Literal, get_args

from gcsim.compressors.kernels import KernelCost

Queued = Literal["kernel", "operator", "wait"]
"""A launch of Triton, an operator of torch that launches, a wait for a number of the device."""
QUEUED: tuple[Queued, ...] = get_args(Queued)
Counts = tuple[Fraction, ...]
"""Numbers of calls, in the order of `QUEUED`."""

_NONE, _OPERATOR, _WAIT = ((Fraction(0), Fraction(n == 1), Fraction(n == 2)) for n in range(3))
_FACTORIZATION = (Fraction(0), Fraction(5), Fraction(0))
"""One launches 18 kernels on an H100, in the time of some five operators (PowerSGD's stages in
`analysis/validation/suites/gpu_hook/stages.csv`: 4 to 8)."""


@functools.cache
def launches() -> dict[str, Counts]:
    """Launches by kernel and variant."""
    with Path(__file__).with_name("launches.csv").open(encoding="utf-8", newline="") as file:
        return {
            row["name"]: tuple(Fraction(row[what]) for what in QUEUED)
            for row in csv.DictReader(file)
        }


def variant(name: str) -> str:
    """The name without the reach of its accesses (`kernels.spread`)."""
    return name.partition(":2^")[0]


def queued(cost: KernelCost) -> Counts:
    """Launches behind one metered launch; none without a name (other people's code)."""
    if not cost.name:
        return _NONE
    if cost.kind == "host_sync":
        return _WAIT
    if cost.kind == "factorization":
        return _FACTORIZATION
    return _OPERATOR if cost.name.startswith("aten.") else _of_kernel(variant(cost.name))


@functools.cache
def _of_kernel(name: str) -> Counts:
    """The table's row; else the mean of the kernel's variants, or of all for a plug-in's kernel."""
    table, base = launches(), name.partition(":")[0]
    alike = [counts for key, counts in table.items() if key.partition(":")[0] == base]
    rows = [table[name]] if name in table else alike or list(table.values())
    return tuple(sum(column, Fraction(0)) / len(rows) for column in zip(*rows, strict=True))
