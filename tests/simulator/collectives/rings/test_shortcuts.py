"""Do a ring's shortcuts give what going through all of its steps gives?

Closed forms, the jump to the end once a step shifts all times by a constant, runs of equal blocks,
ranks that stand for others: all against the recurrence, written out step by step. Comparisons are
`==` in picoseconds.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InputError
from gcsim.simulator.clock import Times
from gcsim.simulator.collectives.rings.allreduce import chunks, ring_allreduce
from gcsim.simulator.collectives.rings.messages import Blocks
from gcsim.simulator.collectives.rings.recurrence import PreparedRing
from gcsim.simulator.network.links import Jitter, Link, Loss
from tests.simulator.links import CONSTANT, RANDOM, SIZED, TIMED
from tests.simulator.world import NETWORK, PS, link, times

POOL = [*CONSTANT, *SIZED]


def step_by_step(
    starts: Sequence[int],
    blocks: Sequence[int],
    links: Sequence[Link],
    steps: int,
    gamma: int = 0,
    reducing: int = 0,
) -> list[int]:
    """The recurrence as it stands in the book."""
    p = len(starts)
    sent, received = list(starts), list(starts)
    for step in range(steps):
        block = [blocks[(r - step) % p] for r in range(p)]
        sent = [max(sent[r], received[r]) + links[r].serialization(block[r]) for r in range(p)]
        arrived = [sent[r - 1] + links[r - 1].latency_for(block[r - 1]) for r in range(p)]
        received = [max(arrived[r], received[r]) for r in range(p)]
        if step < reducing:
            received = [received[r] + gamma * block[r - 1] for r in range(p)]
    return [max(sent[r], received[r]) for r in range(p)]


@st.composite
def skewed(draw: st.DrawFn, ranks: int) -> list[int]:
    """Entry times from ties to a rank that enters long after the others have stopped."""
    small = st.integers(0, 5) | st.integers(0, 500)
    starts = draw(st.lists(small, min_size=ranks, max_size=ranks))
    for rank in draw(st.lists(st.integers(0, ranks - 1), max_size=2)):
        starts[rank] += draw(st.sampled_from([50, 3_000, 10**7]))
    return starts


@st.composite
def patterned(draw: st.DrawFn) -> tuple[list[int], list[int], list[Link]]:
    """Rings with few distinct blocks and links: equal, in runs, repeating or mixed."""
    p = draw(st.integers(2, 24))
    one, other = draw(st.integers(0, 40)), draw(st.integers(0, 40))
    blocks = draw(
        st.integers(0, p).map(lambda more: [one] * more + [other] * (p - more))
        | st.lists(st.sampled_from([one, other, 7]), min_size=p, max_size=p)
        | st.just([one, other] * (p // 2) + [one] * (p % 2))
    )
    turn = draw(st.integers(0, p - 1))
    blocks = blocks[turn:] + blocks[:turn]
    few = draw(st.lists(st.sampled_from(POOL), min_size=1, max_size=2))
    links = draw(st.lists(st.sampled_from(few), min_size=p, max_size=p) | st.just(few[:1] * p))
    if p % 2 == 0 and draw(st.booleans()):
        links = [few[0], few[-1]] * (p // 2)
    return draw(skewed(p)), blocks, links


def ring(starts: Times, blocks: Sequence[int], links: Sequence[Link], **known: Any) -> Times:
    """Exit times of a ring that is prepared for one call."""
    return PreparedRing(Blocks.of(blocks), links, **known)(starts)


@given(shape=patterned(), more=st.integers(0, 70), gamma=st.integers(0, 3), data=st.data())
def test_any_patterned_ring_is_its_recurrence(
    shape: tuple[list[int], list[int], list[Link]], more: int, gamma: int, data: st.DataObject
) -> None:
    starts, blocks, links = shape
    steps = len(starts) - 1 + more
    reducing = data.draw(st.integers(0, steps))
    expected = step_by_step(starts, blocks, links, steps, gamma, reducing)
    finishes = ring(
        times(starts), blocks, links, steps=steps, gamma=gamma * PS, reducing_steps=reducing
    )
    assert finishes.tolist() == expected


@given(p=st.integers(2, 30), data=st.data())
def test_two_sizes_on_equal_links_are_the_recurrence(p: int, data: st.DataObject) -> None:
    # The closed form: either size may be the dearer one, wherever its run begins.
    alike = data.draw(st.sampled_from(POOL))
    one, other = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 12))
    many, turn = data.draw(st.integers(0, p)), data.draw(st.integers(0, p - 1))
    blocks = [one] * many + [other] * (p - many)
    blocks = blocks[turn:] + blocks[:turn]
    starts = data.draw(skewed(p))
    for steps in (p - 1, p, 2 * (p - 1), 5 * p + 1):
        finishes = ring(times(starts), blocks, [alike] * p, steps=steps)
        assert finishes.tolist() == step_by_step(starts, blocks, [alike] * p, steps)


@pytest.mark.parametrize("skew", [0, 1, 10**6, 10**10])
@pytest.mark.parametrize("kinds", [1, 2, 64])
@pytest.mark.parametrize("nbytes", [64 * 4096, 64 * 4096 + 4 * 7, 12, 64 * 4096 + 3])
@pytest.mark.parametrize("gamma", [0, 25])
def test_64_ranks_are_the_recurrence(skew: int, kinds: int, nbytes: int, gamma: int) -> None:
    pool = [link(10**9 + 10**7 * k, Fraction(30 + k, 10**6)) for k in range(kinds)]
    links = tuple(pool[(r * r) % kinds] for r in range(64))
    starts = [skew * ((7 * r) % 5) for r in range(64)]
    expected = step_by_step(starts, chunks(nbytes, 64, 4), links, 126, gamma, 63)
    for _ in range(2):
        finishes = ring_allreduce(nbytes, links, element=4, gamma=gamma * PS)(times(starts))
        assert finishes.tolist() == expected


SLOW_AND_FAST = [link(10**9, PS), link(10**8, PS)]


@pytest.mark.parametrize("gamma", [0, 2])
@pytest.mark.parametrize(
    ("blocks", "links"),
    [
        ([100] * 7, [SLOW_AND_FAST[r == 3] for r in range(7)]),
        ([100, 7, 7, 30, 7, 1, 5], SLOW_AND_FAST[:1] * 7),
        ([100, 7, 7, 30, 7, 1, 5], SLOW_AND_FAST[1:] * 7),
    ],
)
def test_steps_that_repeat_themselves_are_jumped_over(
    blocks: list[int], links: list[Link], gamma: int
) -> None:
    # Thousands of millions of steps: nobody would wait for them to be taken one by one.
    starts, few, period, laps = [0, 900, 3, 3, 10**5, 0, 1], 2000, 7, 10**9
    for reducing in (0, 1000, few + laps * period):
        before, after = (
            step_by_step(starts, blocks, links, steps, gamma, reducing)
            for steps in (few, few + period)
        )
        rise = after[0] - before[0]
        assert [time + rise for time in before] == after, "the example has settled"
        finishes = ring(
            times(starts),
            blocks,
            links,
            steps=few + laps * period,
            gamma=gamma * PS,
            reducing_steps=reducing,
        )
        assert finishes.tolist() == [time + laps * rise for time in before]


def test_chunks_are_those_of_a_list() -> None:
    for nbytes, parts, element in (
        (0, 3, 4),
        (12, 3, 4),
        (13, 3, 4),
        (17, 4, 4),
        (3, 2, 4),
        (9, 9, 1),
    ):
        blocks = Blocks.chunks(nbytes, parts, element)
        elements = nbytes // element
        expected = [
            elements // parts * element + element * (r < elements % parts) for r in range(parts)
        ]
        expected[-1] += nbytes % element
        assert blocks.tolist() == expected == chunks(nbytes, parts, element)
        assert len(set(blocks.sizes)) == len(blocks.sizes)


def jittery(mean: int) -> Link:
    late = Jitter(distribution="exponential", mean=Fraction(mean, 10**6))
    return replace(NETWORK, jitter=(late,))


def test_delays_are_drawn_again_for_each_key_and_only_add() -> None:
    links, starts = (jittery(100),) * 16, times([0] * 16)
    calm = ring_allreduce(10**6, (NETWORK,) * 16)(starts)
    one, two = (ring_allreduce(10**6, links)(starts, key) for key in (1, 2))
    assert (one != two).any()
    assert (one > calm).all()
    assert (one == ring_allreduce(10**6, links)(starts, 1)).all()
    shifted = ring_allreduce(10**6, links)(starts + 123_456, 1)
    assert (shifted == one + 123_456).all()


def test_a_ring_waits_for_the_latest_of_its_messages() -> None:
    # 200-ms time-outs of one message in a thousand: 8064 messages meet one, almost surely
    lossy = replace(NETWORK, loss=Loss(rate=Fraction(1, 1000), model="sampled", segment=10**9))
    finishes = ring_allreduce(25 << 20, (lossy,) * 64)(times([0] * 64), 11)
    assert finishes.min() > 200 * 10**9


def test_results_are_the_callers_to_change() -> None:
    links = (link(10**9, PS),) * 4
    for starts in (times([0, 0, 0, 0]), times([0, 5, 0, 0])):
        finishes = ring_allreduce(1000, links)(starts)
        kept = finishes.copy()
        finishes += 1
        assert (ring_allreduce(1000, links)(starts) == kept).all()
        assert starts.max() <= 5


def test_times_beyond_the_clock_are_refused_in_every_way() -> None:
    for one in (RANDOM[0], TIMED[0], TIMED[1], CONSTANT[0]):
        with pytest.raises(InputError, match="clock"):
            ring_allreduce(9, [one] * 3)(times([2**60] * 3))
    days = Jitter(distribution="uniform", mean=Fraction(10**6))
    late = link(10**9, jitter=(days,))
    with pytest.raises(InputError, match="clock"):
        ring_allreduce(64, [late] * 64)(times([0] * 64))


def test_prepared_rings_take_any_number_of_calls() -> None:
    links = [link(10**9, PS), link(10**8, PS), link(10**7, 3 * PS)]
    blocks = [5, 9, 1]
    prepared = PreparedRing(Blocks.of(blocks), links, steps=4)
    for starts in ([0, 0, 0], [5, 0, 100], [7, 7, 7], [10**9, 0, 0], [0, 0, 0]):
        assert prepared(times(starts)).tolist() == step_by_step(starts, blocks, links, 4)
