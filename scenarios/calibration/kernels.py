"""Costs of the compressors' own kernels on this device, from short buckets to long.

Kernels are timed inside methods (`traces/timing/kernels.py`), all methods at one size, then at the
next. Each size predicts the next: a method that would exceed its share of time is left out, and if
the rest would take too long, the size is halved and is the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from gcsim.compressors.registry import REGISTRY, check_parameters, compressor_class
from gcsim.compressors.streams import Clock
from gcsim.scenarios.catalog.this_machine import free_memory
from gcsim.scenarios.progress import Progress
from gcsim.traces.timing.allocator import give_back_freed_memory
from gcsim.traces.timing.kernels import Site, gradient, time_kernels

SIZES = tuple(side**2 for side in (95, 190, 375, 750, 1060, 1500, 3000, 6000))
"""Elements of a bucket, from within a core's own cache to larger than all caches. They are squares
of numbers other than powers of two, which would map a matrix's rows to the same cache lines."""
_SHARE = 0.08  # share of the whole time per method and size
_TOGETHER = 3_000_000
"""Largest bucket that two workers also exchange, for kernels that one worker never runs."""
_AT_ANY_PRICE = 1_000_000  # smaller sizes are always timed
_BYTES_AN_ELEMENT = 200  # most memory per element: gradient, state and temporaries


def time_compressors(
    progress: Progress,
    *,
    seconds: float,
    compressors: Sequence[str] = tuple(REGISTRY),
    sizes: Sequence[int] = SIZES,
    clock: Clock,
) -> list[Site]:
    """Time the kernels of compressors on a CPU, for about `seconds` of `clock`. The first size runs
    twice, because its first run compiles loops."""
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
    """Return the largest size up to `wanted` that fits in time and memory, and the methods that
    fit; none if the size is not worth it. `spent`: seconds of a round at the previous size."""
    elements = wanted
    while elements >= _AT_ANY_PRICE:
        factor = _rounds(elements) * elements / before if before else 0.0
        most = _SHARE * seconds
        chosen = [name for name, once in spent.items() if once * factor <= most]
        needed = factor * sum(spent[name] for name in chosen)
        if needed <= left and elements * _BYTES_AN_ELEMENT <= free_memory():
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
    """Time the kernels of each method; return them and the time of a round of each method."""
    give_back_freed_memory()  # blocks of the previous size
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
