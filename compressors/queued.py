"""Number of launches that the host queues on a GPU per metered kernel, from `launches.csv`, which
`python -m tests.benchmarks.launches` counts without a GPU. They are means over calls: some depend
on arguments, and those of frames count to kernels of the same message."""

from __future__ import annotations

import csv
import functools
from fractions import Fraction
from pathlib import Path
from typing import Literal, get_args

from gcsim.compressors.kernels import KernelCost

Queued = Literal["kernel", "operator", "wait"]
"""A Triton launch, a torch operator that launches, or a wait for a value from the device."""
QUEUED: tuple[Queued, ...] = get_args(Queued)
Counts = tuple[Fraction, ...]
"""Number of calls of each kind, in the order of `QUEUED`."""

_NONE, _OPERATOR, _WAIT = ((Fraction(0), Fraction(n == 1), Fraction(n == 2)) for n in range(3))
_FACTORIZATION = (Fraction(0), Fraction(5), Fraction(0))
"""A factorization launches 18 kernels on an H100, in the time of about five operators (4 to 8 for
PowerSGD's stages in `analysis/validation/suites/gpu_hook/stages.csv`)."""


@functools.cache
def launches() -> dict[str, Counts]:
    """Return the launches by kernel and variant."""
    with Path(__file__).with_name("launches.csv").open(encoding="utf-8", newline="") as file:
        return {
            row["name"]: tuple(Fraction(row[what]) for what in QUEUED)
            for row in csv.DictReader(file)
        }


def variant(name: str) -> str:
    """Return the kernel's name without the range of its accesses (`kernels.spread`)."""
    return name.partition(":2^")[0]


def queued(cost: KernelCost) -> Counts:
    """Return the launches behind one metered launch; none if it has no name (code of others)."""
    if not cost.name:
        return _NONE
    if cost.kind == "host_sync":
        return _WAIT
    if cost.kind == "factorization":
        return _FACTORIZATION
    return _OPERATOR if cost.name.startswith("aten.") else _of_kernel(variant(cost.name))


@functools.cache
def _of_kernel(name: str) -> Counts:
    """Return the table's row, else the mean of the kernel's variants, or of the whole table."""
    table, base = launches(), name.partition(":")[0]
    alike = [counts for key, counts in table.items() if key.partition(":")[0] == base]
    rows = [table[name]] if name in table else alike or list(table.values())
    return tuple(sum(column, Fraction(0)) / len(rows) for column in zip(*rows, strict=True))
