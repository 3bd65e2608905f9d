"""Times of a compressor's own kernels on this device, measured where they occur.

Workers exchange one bucket as in stage 1, with the meter's clock around every kernel: operands are
the method's real ones (selected share, distribution of codes, cache state), every compressor is
covered without a table, and bytes are counted by the same meter. The gradients are heavy-tailed,
like real ones: N(0, 1) exp(0.8 N(0, 1)) 1e-3, a different one per worker. A call's time is the
lowest of its repeats over steps and workers, because disturbances only add time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gcsim.compressors.base import Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.kernels import TimedKernel
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import Meter, Recorder
from gcsim.compressors.streams import Clock
from gcsim.traces.models.torch_generator import keyed_generator
from gcsim.traces.timing.allocator import keep_freed_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One call of a kernel in one kind of step: its cost and lowest time."""

    compressor: str
    elements: int
    """Elements of the bucket."""
    timed: TimedKernel


def gradient(elements: int, seed: int) -> Tensor:
    """Draw a heavy-tailed float32 `[elements]`."""
    with keyed_generator(seed, "gradient for timing"):
        spread = torch.randn(elements).mul_(0.8).exp_()
        return torch.randn(elements).mul_(spread).mul_(1e-3)


def matrix_bucket(gradient: Tensor, *, second_moments: bool) -> Bucket:
    """Return a bucket with one matrix, as square as its number of elements allows."""
    elements = gradient.numel()
    columns = next(c for c in range(int(elements**0.5), 0, -1) if elements % c == 0)
    return Bucket(
        layout=BucketLayout.behind(0, [("weight", 0, (elements // columns, columns))]),
        gradient=gradient,
        second_moment=gradient.square() * 2 if second_moments else None,
    )


STEPS = 2
"""Steps of each kind; the first one allocates memory."""


def steps_of(cls: type[Compressor], parameters: CompressorParameters) -> list[int]:
    """Return `STEPS` steps of each kind, the kinds in turn; further steps of a kind are skipped."""
    first, period = cls.warmup_steps(parameters), cls.period(parameters)
    phases = [cls.phase(parameters, first + n) for n in range(period)]
    places = sorted(phases.index(name) for name in set(phases))
    return [first + turn * period + place for turn in range(STEPS) for place in places]


def time_kernels(
    name: str,
    cls: type[Compressor],
    parameters: CompressorParameters,
    gradients: Sequence[Tensor],
    *,
    rounds: int,
    clock: Clock = time.perf_counter,
) -> list[Site]:
    """Time the kernels of two steps of each kind; one gradient per worker, on `clock`'s device.

    The same steps run `rounds` times from the start, and the lowest time of each call counts.
    Kernels that run only in the first step of a kind (setup) are left out; so are loops in host
    memory on a GPU. Compile the loops first, by timing a short gradient. Freed memory is kept.
    """
    keep_freed_memory()
    buckets = [matrix_bucket(g, second_moments=bool(cls.requires)) for g in gradients]
    lowest: dict[tuple[object, ...], dict[int, TimedKernel]] = {}
    steps = steps_of(cls, parameters)
    for _ in range(rounds):
        team = [
            cls(Worker(rank=rank, count=len(gradients), seed=0), parameters)
            for rank in range(len(gradients))
        ]
        for step in steps:
            meter = Meter(len(team), clock)
            with torch.no_grad():
                exchanges = [w.exchange(b, step) for w, b in zip(team, buckets, strict=True)]
                lockstep(exchanges, meter)
            phase = cls.phase(parameters, step)
            for place, timed in _calls(meter):
                known = lowest.setdefault((phase, *place), {})
                if step not in known or timed.seconds < known[step].seconds:
                    known[step] = timed
    elements = gradients[0].numel()
    return [
        Site(compressor=name, elements=elements, timed=timed)
        for at in lowest.values()
        if len(at) > 1 or steps[0] not in at
        for timed in at.values()
    ]


def _calls(meter: Meter) -> Iterator[tuple[tuple[object, ...], TimedKernel]]:
    """Yield each kernel with its place: worker, stretch, name, index among those so named."""
    stretches: list[tuple[object, Recorder]] = [
        ((rank, position), recorder)
        for rank, recorders in enumerate(meter.segments)
        for position, recorder in enumerate(recorders)
    ]
    stretches += [
        (("server", position, turn), recorder)
        for position, recorders in enumerate(meter.servers)
        for turn, recorder in enumerate(recorders)
    ]
    for where, recorder in stretches:
        seen: Counter[str] = Counter()
        for one in recorder.timed:
            yield (where, one.cost.name, seen[one.cost.name]), one
            seen[one.cost.name] += 1
