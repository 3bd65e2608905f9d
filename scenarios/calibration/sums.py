"""At which rate does this machine's Gloo add what it has received? By type of the elements.

A group of one process whose all-reduce has several vectors adds them with the function that it
would use for a received segment, and copies the sum back to each: k vectors take k - 1 additions
and k - 1 copies. So an addition is what each further vector costs, less a copy of it. Processor
time, the lowest of several; the group's thread is one, as in a collective of many processes.

A GPU's own additions are timed by its clock.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from typing import Any

from gcsim.compressors.lazy_torch import torch
from gcsim.simulator.host import DTYPES
from gcsim.traces.timing.clock import DeviceClock

NBYTES = 1 << 23
"""Of a vector: beyond a core's own caches, as a bucket is."""
NBYTES_ON_A_GPU = 1 << 27
_FEW, _MANY = 2, 5
"""Vectors."""


def time_sums(
    dtypes: Sequence[str] = DTYPES,
    *,
    nbytes: int = NBYTES,
    repeats: int = 7,
    group: Any = None,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Bytes of what is added, a second, by type; empty where torch was built without Gloo.

    A type whose additions drown in noise is left out.

    `group` is a process group of one process, by default a new one of Gloo's.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        return {}
    if group is None:
        store = distributed.HashStore()  # type: ignore[attr-defined]  # not in its list
        group = distributed.ProcessGroupGloo(store, 0, 1, datetime.timedelta(minutes=1))
    found: dict[str, float] = {}
    for dtype in dtypes:
        kind = getattr(torch, dtype)
        vectors = [torch.zeros(nbytes // kind.itemsize, dtype=kind) for _ in range(_MANY)]

        def reduce(count: int, own: Sequence[object] = vectors) -> None:
            group.allreduce(list(own[:count]), distributed.AllreduceOptions()).wait()

        few, many, copy = _lowest(
            (
                lambda: reduce(_FEW),
                lambda: reduce(_MANY),
                lambda: vectors[0].copy_(vectors[1]),  # noqa: B023 (called at once)
            ),
            repeats,
            clock,
        )
        each = (many - few) / (_MANY - _FEW)
        if each > 0:  # else another program's noise was longer than the additions
            found[dtype] = nbytes / max(each - copy, each / 4)  # a copy takes most of it, not all
    return found


def time_device_sums(
    clock: DeviceClock,
    dtypes: Sequence[str] = DTYPES,
    *,
    nbytes: int = NBYTES_ON_A_GPU,
    repeats: int = 30,
) -> dict[str, float]:
    """Bytes of what is added on the device, a second, by type: what NCCL or a server there does."""
    found = {}
    for dtype in dtypes:
        kind = getattr(torch, dtype)
        own, received = (
            torch.zeros(nbytes // kind.itemsize, dtype=kind, device=clock.device) for _ in range(2)
        )
        lowest = clock.time(lambda a=own, b=received: a.add_(b), repeats).lowest  # type: ignore[misc]
        found[dtype] = nbytes / lowest
    return found


def _lowest(
    runs: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> list[float]:
    """Of each run, by turns: a slow minute of the machine then meets all of them."""
    best = [float("inf")] * len(runs)
    for _ in range(repeats + 1):
        for place, run in enumerate(runs):
            begin = clock()
            run()
            best[place] = min(best[place], clock() - begin)
    return best
