"""Links of every kind to try collectives on: constant, by size, random, changing over time."""

from fractions import Fraction

from gcsim.simulator.network.links import Jitter, Link, Loss, SizeFactor
from gcsim.simulator.network.rate_trace import RateTrace
from tests.simulator.world import PS, link


def _with(bandwidth: int, latency: int, **more: object) -> Link:
    return link(bandwidth, latency * PS, **more)


TAILS = Loss(rate=Fraction(1, 8), model="sampled", segment=10)
CONSTANT = [
    link(10**12, 3 * PS),
    link(10**12 // 7, 1 * PS),
    link(5 * 10**11, Fraction(1, 10**6)),
    link(10**12, 40 * PS),
    link(Fraction(10**12, 3) * Fraction(1538, 1448), 40 * PS),
]
SIZED = [
    _with(
        10**12,
        30,
        factors=(
            SizeFactor(from_bytes=4, bandwidth=Fraction(1, 3), latency=Fraction(1, 10)),
            SizeFactor(from_bytes=9, bandwidth=Fraction(2, 3), latency=Fraction(5, 2)),
        ),
    ),
    _with(
        10**12, 200, overhead=5 * PS, factors=(SizeFactor(from_bytes=1, latency=Fraction(1, 9)),)
    ),
]
RANDOM = [
    _with(10**12, 3, jitter=(Jitter(distribution="exponential", mean=20 * PS),)),
    _with(10**12 // 7, 9, jitter=(Jitter(distribution="uniform", mean=50 * PS),)),
    _with(
        10**12,
        1,
        jitter=(
            Jitter(distribution="lognormal", mean=9 * PS),
            Jitter(
                distribution="pareto",
                mean=90 * PS,
                shape=Fraction(3, 2),
                probability=Fraction(1, 4),
            ),
        ),
    ),
    _with(10**12, 40, loss=TAILS),
    _with(
        10**12,
        400,
        loss=TAILS,
        factors=(SizeFactor(from_bytes=3, latency=Fraction(1, 20)),),
        jitter=(Jitter(distribution="exponential", mean=3 * PS),),
    ),
]
_TRACE = RateTrace(
    times=(Fraction(0), 20 * PS, 45 * PS),
    rates=(Fraction(10**12), Fraction(0), Fraction(10**12, 3)),
    duration=80 * PS,
    after="repeat",
)
TIMED = [
    _with(10**12, 4, trace=_TRACE),
    _with(10**12, 4, grant=25 * PS),
    _with(
        10**12,
        60,
        trace=_TRACE,
        grant=30 * PS,
        overhead=2 * PS,
        jitter=(Jitter(distribution="exponential", mean=20 * PS),),
        factors=(SizeFactor(from_bytes=5, bandwidth=Fraction(1, 2), latency=Fraction(1, 6)),),
    ),
]
KINDS = {
    "constant": CONSTANT,
    "sized": [*SIZED, CONSTANT[0]],
    "random": [*RANDOM, CONSTANT[0]],
    "timed": [*TIMED, CONSTANT[0], RANDOM[3]],
}
"""Pools to draw from."""
