import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from gcsim.errors import InternalError
from gcsim.simulator.network import jitter_draws
from gcsim.simulator.network.jitter import JitterDraws, collective_key, draw_jitter
from gcsim.simulator.network.links import Jitter, Link, Loss
from tests.compressors.shared import split_mix

MS = Fraction(1, 1000)
PLAIN = Link(name="plain", bandwidth=Fraction(10**9), latency=50 * MS)
EXPONENTIAL = Jitter(distribution="exponential", mean=MS)
UNIFORM = Jitter(distribution="uniform", mean=MS)
LOGNORMAL = Jitter(distribution="lognormal", mean=MS, shape=Fraction(3, 4))
PARETO = Jitter(distribution="pareto", mean=MS, shape=Fraction(7, 2))
LOSS = Loss(rate=Fraction(1, 50), model="sampled", recovery="timeout")
N = 200_000


def link(*jitter: Jitter, loss: Loss | None = None) -> Link:
    return replace(PLAIN, jitter=jitter, loss=loss)


def drawn(one: Link, *, nbytes: int = 1000, key: int = 0, rank: int = 0) -> NDArray[np.float64]:
    """In milliseconds, of messages 0 to N - 1."""
    message = np.arange(N)
    found = draw_jitter([one], np.zeros(N, np.int64), nbytes, key=key, message=message, rank=rank)
    return found / 1e9


# ---- one after the other, in plain Python, from the description


def expected(one: Link, nbytes: int, key: int, message: int, rank: int) -> float:
    """Seconds, with the machine's functions and scipy's normal quantile."""

    def fraction(purpose: int) -> float:
        return (split_mix(split_mix(key, 2**16 * rank + purpose), message) >> 11) / 2**53

    late = 0.0
    for i, jitter in enumerate(one.jitter):
        if fraction(2 * i + 1) >= jitter.probability and jitter.probability < 1:
            continue
        u, mean, shape = fraction(2 * i), float(jitter.mean), float(jitter.shape or 0)
        if jitter.distribution == "exponential":
            late -= mean * math.log(1 - u)
        elif jitter.distribution == "uniform":
            late += 2 * mean * u
        elif jitter.distribution == "lognormal":
            late += math.exp(math.log(mean) - shape**2 / 2 + shape * stats.norm.ppf(u))
        else:
            late += mean * (1 - 1 / shape) * (1 - u) ** (-1 / shape)
    if one.loss is not None:
        rate, packets = float(one.loss.rate), max(1, -(-nbytes // one.loss.segment))
        place = 2 * len(one.jitter)
        if fraction(place) < 1 - (1 - rate) ** packets:
            waits = 1
            while waits < 10 and fraction(place + 1) < rate**waits:
                waits += 1
            late += float(one.loss.timeout) * (2**waits - 1)
    return late


ALL = link(
    EXPONENTIAL,
    replace(UNIFORM, probability=Fraction(1, 3)),
    LOGNORMAL,
    replace(PARETO, probability=Fraction(1, 2)),
    loss=replace(LOSS, rate=Fraction(2, 5)),
)


@pytest.mark.parametrize(
    "one",
    [link(EXPONENTIAL), link(UNIFORM), link(LOGNORMAL), link(PARETO), link(loss=LOSS), ALL],
    ids=["exponential", "uniform", "lognormal", "pareto", "loss", "all"],
)
def test_delays_are_those_of_the_description(one: Link) -> None:
    for key in (0, 7, 2**64 - 1):
        for message in (*range(40), 10**9):
            for rank, nbytes in ((0, 0), (5, 1448), (5000, 1449), (3, 10**8)):
                found = int(
                    draw_jitter([one], np.array(0), nbytes, key=key, message=message, rank=rank)
                )
                seconds = expected(one, nbytes, key, message, rank)
                assert found == pytest.approx(seconds * 1e12, rel=1e-6, abs=0.6)


def test_equal_arguments_give_equal_bits_whatever_their_shape() -> None:
    rack, fast = (replace(LOSS, recovery=how) for how in ("rack", "fast_retransmit"))
    links = [PLAIN, ALL, link(LOGNORMAL), link(loss=fast), link(UNIFORM, UNIFORM, loss=rack)]
    rng = np.random.default_rng(1)
    for length in range(1, 71):
        kinds, nbytes = rng.integers(0, 5, length), rng.integers(0, 10**6, length)
        message, rank = rng.integers(0, 10**5, length), rng.integers(0, 10**4, length)
        together = draw_jitter(links, kinds, nbytes, key=9, message=message, rank=rank)
        assert together.dtype == np.int64
        alone = [
            int(draw_jitter(links, k, n, key=9, message=int(m), rank=r))
            for k, n, m, r in zip(kinds, nbytes, message, rank, strict=True)
        ]
        assert together.tolist() == alone
        backwards = draw_jitter(
            links, kinds[::-1], nbytes[::-1], key=9, message=message[::-1], rank=rank[::-1]
        )
        assert backwards[::-1].tolist() == alone


def test_one_source_of_delay_is_drawn_as_among_others() -> None:
    rng = np.random.default_rng(2)
    message, rank = rng.integers(0, 10**5, 1000), rng.integers(0, 10**4, 1000)
    kinds = np.zeros(1000, np.int64)
    for jitter in (EXPONENTIAL, replace(EXPONENTIAL, probability=Fraction(1, 3)), UNIFORM):
        alone, among = [link(jitter)], [link(jitter), PLAIN]
        one = draw_jitter(alone, kinds, 10, key=3, message=message, rank=rank)
        other = draw_jitter(among, kinds, 10, key=3, message=message, rank=rank)
        assert one.any()
        assert one.tolist() == other.tolist()
    for wrong in (-1, 1):
        kinds[500] = wrong
        with pytest.raises(InternalError, match="of 1 links"):
            draw_jitter([link(EXPONENTIAL)], kinds, 10, key=3, message=message, rank=rank)


def test_shapes_are_broadcast() -> None:
    links = [link(EXPONENTIAL), link(UNIFORM)]
    kinds, rank, message = np.array([0, 1, 0]), np.arange(3), np.arange(4)[:, None]
    grid = draw_jitter(links, kinds, 10, key=1, message=message, rank=rank)
    assert grid.shape == (4, 3)
    for m in range(4):
        assert (draw_jitter(links, kinds, 10, key=1, message=m, rank=rank) == grid[m]).all()
    one = draw_jitter(links, kinds[:1], 10, key=1, message=np.arange(4), rank=np.array([0]))
    assert (one == grid[:, 0]).all()
    still = np.broadcast_to(np.int64(2), 4)
    column = draw_jitter(links, np.zeros(4, np.int64), 10, key=1, message=np.arange(4), rank=still)
    assert (column == grid[:, 2]).all()
    frozen = np.arange(3)
    frozen.setflags(write=False)
    assert (draw_jitter(links, kinds, 10, key=1, message=2, rank=frozen) == grid[2]).all()
    assert draw_jitter(links, np.zeros(0, np.int64), 10, key=1, message=0, rank=0).shape == (0,)
    assert draw_jitter(links, np.zeros((2, 0), np.int64), 10, key=1, message=0, rank=0).shape == (
        2,
        0,
    )


def test_all_arguments_are_drawn_for_by_one_compiled_loop() -> None:
    test_shapes_are_broadcast()
    assert len(jitter_draws.draw.signatures) == 1  # type: ignore[attr-defined]


def test_logarithm_exponential_and_quantile_are_as_precise_as_they_say() -> None:
    rng = np.random.default_rng(3)
    small = 1 - np.array([0, 1, 2, 3, 1000]) * 2.0**-53
    for x in (*rng.random(3000).tolist(), *small.tolist(), *(2.0 ** -rng.integers(1, 54, 50))):
        assert abs(jitter_draws.ln(x) - math.log(x)) <= math.ulp(math.log(x))
    for x in (*rng.uniform(-50, 50, 3000).tolist(), 0.0, 690.0, -690.0):
        assert abs(jitter_draws._exp(x) - math.exp(x)) <= math.ulp(math.exp(x))
    for power in np.arange(0.31, 53, 0.0625):
        u = 2.0**-power
        for x in (u, 1 - u):
            assert jitter_draws._normal_quantile(x) == pytest.approx(stats.norm.ppf(x), rel=2e-7)


# ---- distributions: within five standard errors


def near(found: float, wanted: float, error: float) -> None:
    assert abs(found - wanted) < 5 * error, (found, wanted, error)


def cumulative(jitter: Jitter) -> object:
    mean, shape = 1.0, float(jitter.shape or 1)
    return {
        "exponential": stats.expon(scale=mean),
        "uniform": stats.uniform(0, 2 * mean),
        "lognormal": stats.lognorm(s=shape, scale=mean * math.exp(-(shape**2) / 2)),
        "pareto": stats.pareto(shape, scale=mean * (1 - 1 / shape)),
    }[jitter.distribution]


@pytest.mark.parametrize("jitter", [EXPONENTIAL, UNIFORM, LOGNORMAL, PARETO])
def test_delays_are_distributed_as_said(jitter: Jitter) -> None:
    found = drawn(link(jitter), key=collective_key(1, 2, 3, 4))
    wanted: stats.rv_frozen = cumulative(jitter)
    near(found.mean(), 1, wanted.std() / math.sqrt(N))
    assert stats.kstest(found, wanted.cdf).pvalue > 1e-4
    for tail in (1e-2, 1e-3, 1e-4):
        share = (found > wanted.isf(tail)).mean()
        near(share, tail, math.sqrt(tail * (1 - tail) / N))


@pytest.mark.parametrize(("nbytes", "packets"), [(0, 1), (1448, 1), (1449, 2), (14_480, 10)])
def test_messages_wait_for_time_outs(nbytes: int, packets: int) -> None:
    rate = 0.3
    found = drawn(link(loss=replace(LOSS, rate=Fraction(3, 10))), nbytes=nbytes) / 200
    late = 1 - (1 - rate) ** packets
    for waits in range(1, 6):
        share, wanted = (found >= 2**waits - 1).mean(), late * rate ** (waits - 1)
        near(share, wanted, math.sqrt(wanted * (1 - wanted) / N))
    assert {math.log2(value + 1) for value in set(found.tolist())} <= set(map(float, range(11)))


def test_no_delay_is_longer_than_a_day() -> None:
    wild = replace(PARETO, mean=Fraction(10**6), shape=Fraction(101, 100))
    assert drawn(link(wild, wild)).max() == 86_400_000
    late = replace(LOGNORMAL, mean=Fraction(10**30), shape=Fraction(3))
    assert drawn(link(late)).max() == 86_400_000


# ---- independence: the correlation of N independent pairs is within 5 / sqrt(N)


def uncorrelated(one: NDArray[np.float64], other: NDArray[np.float64]) -> None:
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(len(one))
    assert abs(
        np.corrcoef(one > one.mean(), np.roll(other, 1) > other.mean())[0, 1]
    ) < 5 / math.sqrt(len(one))


def test_messages_ranks_keys_and_purposes_are_independent() -> None:
    one = link(UNIFORM)
    found = drawn(one)
    for lag in (1, 2, 3, 7, 64, 1024, 65_536):
        uncorrelated(found[lag:], found[:-lag])
    for rank in (1, 2, 64, 2**10, 2**20):
        uncorrelated(found, drawn(one, rank=rank))
    for key in (1, 2, 2**16, 2**32, 2**63, 0x9E3779B97F4A7C15):
        uncorrelated(found, drawn(one, key=key))
    both = drawn(link(UNIFORM, UNIFORM))
    uncorrelated(found, both - found)
    half = replace(UNIFORM, probability=Fraction(1, 2))
    delayed = drawn(link(half))
    uncorrelated(found, (delayed > 0).astype(np.float64))


def test_ranks_are_independent_in_each_message() -> None:
    ranks, messages = np.arange(2000), np.arange(50)[:, None]
    zeros = np.zeros((50, 2000), np.int64)
    grid = draw_jitter([link(UNIFORM)], zeros, 0, key=0, message=messages, rank=ranks) / 2e9
    assert stats.kstest(grid.ravel(), stats.uniform.cdf).pvalue > 1e-4
    for lag in (1, 2, 16, 256):
        uncorrelated(grid[:, lag:].ravel() * 2, grid[:, :-lag].ravel() * 2)
    latest = grid.max(axis=1)  # the maximum over ranks is what a ring waits for
    assert stats.kstest(latest**2000, stats.uniform.cdf).pvalue > 1e-4


def test_keys_of_collectives_are_distinct_and_below_two_to_the_64() -> None:
    keys = {
        collective_key(seed, iteration, bucket, index)
        for seed in (0, 1, -1, 2**70)
        for iteration in range(20)
        for bucket in range(12)
        for index in range(3)
    }
    assert len(keys) == 4 * 20 * 12 * 3
    assert max(keys) < 2**64
    assert min(keys) >= 0
    assert collective_key(1, 23, 4, 5) != collective_key(12, 3, 4, 5)
    assert collective_key(0, 0, 0, 0) == 11_900_830_991_740_532_060, "equal on every machine"


# ---- what costs nothing


def test_links_that_are_not_random_are_never_late() -> None:
    capped = link(loss=replace(LOSS, model="capped", recovery=None))
    draws = JitterDraws([PLAIN, capped])
    assert not draws.any
    assert draws.kinds == [False, False]
    assert not draws(np.array([0, 1]), 10**9, key=1, message=3, rank=np.arange(2)).any()
    mixed = JitterDraws([PLAIN, link(EXPONENTIAL), capped])
    assert mixed.kinds == [False, True, False]
    found = mixed(np.array([0, 1, 2]), 10**9, key=1, message=3, rank=np.arange(3))
    assert [value > 0 for value in found.tolist()] == [False, True, False]


@pytest.mark.parametrize("kind", [-1, 2])
def test_an_unknown_kind_is_our_own_mistake(kind: int) -> None:
    links: Sequence[Link] = [PLAIN, link(EXPONENTIAL)]
    with pytest.raises(InternalError, match="of 2 links"):
        draw_jitter(links, np.array([0, kind]), 0, key=0, message=0, rank=np.arange(2))
