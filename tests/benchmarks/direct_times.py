"""How long do a compressor's encoding and decoding really take here, and what was metered of them?

One worker exchanges one matrix with itself; nothing is counted while it is timed. The same steps
are run several times from the start, and the lowest time of each step counts; the second step of a
kind is what is compared, because the first one sets memory up. What the meter leaves out by
decision (checksums, checks of what arrives: `unpriced`) is left out of the time, and noted.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.lockstep import Observer, lockstep
from gcsim.compressors.meter import Meter, segment
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.compressors.streams import Clock
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.profile import Exchange
from gcsim.traces.stage1.metered import metered_exchange
from gcsim.traces.timing.kernels import matrix_bucket, steps_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Seconds of encoding (all before the last collective) and of decoding one payload."""

    encode: float
    decode: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """One kind of step of one compressor."""

    compressor: str
    phase: str
    elements: int
    measured: Stage
    left_out: float
    """Seconds of what is unpriced, beside `measured`."""
    metered: Exchange

    def priced(self, prices: PriceList) -> Stage:
        """What the meter's counts cost with these prices."""
        times = [float(prices.compute_time(c, 1)) / 1e12 for c in self.metered.computes]
        return Stage(encode=sum(times[:-1]), decode=times[-1])


class _Watch(Observer):
    """An observer of one exchange of one worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.stretches: list[float] = []
        self.left_out = 0.0

    @contextmanager
    def compute(self, rank: int) -> Iterator[None]:
        started = self._clock()
        with segment(self._clock, counting=False) as recorder:
            yield
        self.stretches.append(self._clock() - started - recorder.left_out)
        self.left_out += recorder.left_out


def direct_times(
    name: str,
    gradient: torch.Tensor,
    clock: Clock,
    *,
    rounds: int,
    layout: BucketLayout | None = None,
    seconds: float = math.inf,
    **given: Any,
) -> list[Direct]:
    """Every kind of step of one compressor, on `gradient` (float32 `[n]`): a matrix, or `layout`.

    No more rounds than `seconds` of the clock allow, but two.
    """
    cls, parameters = compressor_class(name), check_parameters(name, given)
    bucket = matrix_bucket(gradient, second_moments=bool(cls.requires))
    bucket = replace(bucket, layout=layout or bucket.layout)
    steps = steps_of(cls, parameters)
    lowest: dict[int, list[float]] = {}
    exchanges: dict[int, Exchange] = {}
    begun = clock()
    with torch.no_grad():
        member = cls(Worker(rank=0, count=1, seed=0), parameters)
        for step in steps:
            meter = Meter(1)
            lockstep([member.exchange(bucket, step)], meter)
            exchanges[step] = metered_exchange(meter, None)
        for turn in range(rounds):
            if turn >= 2 and clock() - begun > seconds:
                break
            member = cls(Worker(rank=0, count=1, seed=0), parameters)
            for step in steps:
                watch = _Watch(clock)
                lockstep([member.exchange(bucket, step)], watch)
                *before, after = watch.stretches
                now = [sum(before), after, watch.left_out]
                lowest[step] = [min(*pair) for pair in zip(lowest.get(step, now), now, strict=True)]
    warmup_steps = {cls.phase(parameters, step): step for step in steps}  # the last of each kind
    return [
        Direct(
            compressor=name,
            phase=phase,
            elements=gradient.numel(),
            measured=Stage(encode=lowest[step][0], decode=lowest[step][1]),
            left_out=lowest[step][2],
            metered=exchanges[step],
        )
        for phase, step in warmup_steps.items()
    ]
