"""Costs of the compressors' own kernels on this device: every method, from short buckets to long.

A compressor's kernels (and torch's inside it) are timed where they occur, see
`traces/timing/kernels.py`: all methods at one size, then at the next. What a size takes is known
from the one before: a method that would need more than its share is left out of it, and when the
time that is left is not enough for the others, the size is halved, and is the last one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from gcsim.compressors.registry import REGISTRY, check_parameters, compressor_class
from gcsim.compressors.streams import Clock
from gcsim.scenarios.progress import Progress
from gcsim.traces.timing.allocator import give_back_freed_memory
from gcsim.traces.timing.kernels import Site, gradient, time_kernels

SIZES = tuple(side**2 for side in (95, 190, 375, 750, 1060, 1500, 3000, 6000))
"""Elements of a bucket: from what fits into a core's own cache to what fits into none. Squares, of
sides that are no powers of two: those would map a matrix's rows to the same lines of a cache."""
_SHARE = 0.08
"""Share of the whole time, for one method at one size."""
_TOGETHER = 3_000_000
"""Buckets up to here are exchanged by two workers, too, for what one alone never does."""
_AT_ANY_PRICE = 1_000_000
"""Sizes below are timed however long it takes."""
_BYTES_AN_ELEMENT = 200
"""Bytes of memory for each element, at most: gradient, state and temporaries."""


def time_compressors(
    progress: Progress,
    *,
    seconds: float,
    compressors: Sequence[str] = tuple(REGISTRY),
    sizes: Sequence[int] = SIZES,
    clock: Clock,
) -> list[Site]:
    """Time the kernels of the named compressors on a CPU, for about `seconds` of `clock`.

    The first size is for compiling loops too; it counts when it is timed a second time.
    """
    at = partial(_at, progress, clock=clock)
    at("compile loops", compressors, elements=sizes[0], rounds=1)
    begun = clock()
    sites: list[Site] = []
    before, spent = 0, dict.fromkeys(compressors, 0.0)
    for wanted in sizes:
        left = seconds - (clock() - begun)
        elements, chosen = _possible(wanted, before, spent, left=left, seconds=seconds)
        if not chosen:
            break
        title = f"kernels, {elements:,} elements"
        found, took = at(title, chosen, elements=elements, rounds=_rounds(elements))
        sites += found
        before, spent = elements, took
        if elements < wanted:
            break
    return sites


def _possible(
    wanted: int, before: int, spent: Mapping[str, float], *, left: float, seconds: float
) -> tuple[int, list[str]]:
    """The size that fits into time and memory, at most `wanted`, and the methods that do.

    `spent` are seconds of a round at the size before. No methods when the size is not worth it.
    """
    elements = wanted
    while elements >= _AT_ANY_PRICE:
        factor = _rounds(elements) * elements / before if before else 0.0
        most = _SHARE * seconds
        chosen = [name for name, once in spent.items() if once * factor <= most]
        needed = factor * sum(spent[name] for name in chosen)
        if needed <= left and elements * _BYTES_AN_ELEMENT <= _memory():
            return elements, chosen if elements > 1.5 * before else []
        elements //= 2
    return elements, list(spent) if elements > 1.5 * before else []


def _at(
    progress: Progress,
    title: str,
    compressors: Sequence[str],
    *,
    elements: int,
    rounds: int,
    clock: Clock,
) -> tuple[list[Site], dict[str, float]]:
    """The kernels of each method, and what one of its rounds took."""
    give_back_freed_memory()  # blocks of the sizes that the last one needed
    gradients = [gradient(elements, seed) for seed in (1, 2)]
    sites: list[Site] = []
    took: dict[str, float] = {}
    with progress.task(title, len(compressors)) as task:
        for name in compressors:
            cls, parameters = compressor_class(name), check_parameters(name, {})
            started = clock()
            own = time_kernels(name, cls, parameters, gradients[:1], rounds=rounds, clock=clock)
            took[name] = (clock() - started) / rounds
            sites += own
            if elements <= _TOGETHER:
                known = {site.timed.cost.name.partition(":")[0] for site in own}
                pair = time_kernels(name, cls, parameters, gradients, rounds=2, clock=clock)
                sites += [s for s in pair if s.timed.cost.name.partition(":")[0] not in known]
            task.advance(note=name)
    return sites, took


def _rounds(elements: int) -> int:
    if elements <= 3_000_000:
        return 4
    return 3 if elements <= 10_000_000 else 2


def _memory() -> int:
    """Free bytes, as far as the system says."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return 1024 * int(free)
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 1 << 62
