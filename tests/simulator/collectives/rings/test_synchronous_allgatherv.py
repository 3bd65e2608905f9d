"""Does the all-gatherv in synchronous rounds agree with a simulation of MPICH's loop?

The oracle goes through the loop of `allgatherv_intra_ring.c` with real blocks and offsets, a
process a rank, and checks that everybody has everything. Comparisons are `==` in picoseconds.
"""

from collections.abc import Sequence

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from gcsim.simulator.collectives.rings.allgather import ring_allgather
from gcsim.simulator.collectives.rings.synchronous_allgatherv import PreparedRounds, block_size
from gcsim.simulator.network.links import Link
from tests.simulator.collectives.rings.wire import Wire, entries_of, rows_of
from tests.simulator.links import KINDS
from tests.simulator.world import NETWORK, SLOW, Wait, link, times


def in_rounds(
    starts: Sequence[int], sizes: Sequence[int], links: Sequence[Link], block: int, key: int = 0
) -> list[int]:
    """MPICH's loop, in which a call to send and receive returns when both are done."""
    env, p, total = simpy.Environment(), len(starts), sum(sizes)
    wires = [Wire(env, link, rank, key) for rank, link in enumerate(links)]
    inbox = [simpy.Store(env) for _ in range(p)]
    held = [{(r, k) for k in range(sizes[r])} for r in range(p)]
    finishes = [0] * p

    def fly(rank: int, content: list[tuple[int, int]]) -> Wait:
        yield wires[rank].flight(len(content))
        yield inbox[(rank + 1) % p].put(content)

    def send(rank: int, content: list[tuple[int, int]]) -> Wait:
        assert set(content) <= held[rank], "sends what it does not have"
        yield wires[rank].serialization(len(content))
        env.process(fly(rank, content))

    def live(rank: int) -> Wait:
        yield env.timeout(starts[rank])
        to_send, to_receive = total - sizes[(rank + 1) % p], total - sizes[rank]
        mine, theirs, sent, received = rank, (rank - 1) % p, 0, 0
        while to_send or to_receive:
            now = min(sizes[mine] - sent, block) if to_send else 0
            then = min(sizes[theirs] - received, block) if to_receive else 0
            both: list[simpy.Event] = []
            if now:
                content = [(mine, k) for k in range(sent, sent + now)]
                both.append(env.process(send(rank, content)))
            if then:
                both.append(inbox[rank].get())
            yield simpy.AllOf(env, both)
            if then:
                came = both[-1].value
                assert came == [(theirs, k) for k in range(received, received + then)]
                held[rank] |= set(came)
            to_send, to_receive = to_send - now, to_receive - then
            sent, received = sent + now, received + then
            if sent == sizes[mine]:
                mine, sent = (mine - 1) % p, 0
            if received == sizes[theirs]:
                theirs, received = (theirs - 1) % p, 0
        finishes[rank] = int(env.now)

    for rank in range(p):
        env.process(live(rank))
    env.run()
    everything = {(r, k) for r in range(p) for k in range(sizes[r])}
    assert held == [everything] * p
    return [max(time, *starts) for time in finishes]


@st.composite
def any_gather(draw: st.DrawFn) -> tuple[list[int], list[int], list[Link], int]:
    p = draw(st.sampled_from([2, 3, 4, 5, 6, 9]))
    some = st.lists(st.integers(0, 25) | st.just(0), min_size=p, max_size=p)
    equal = st.integers(0, 25).map(lambda size: [size] * p)
    return draw(entries_of(p)), draw(some | equal), draw(rows_of(p)), draw(st.integers(0, 2**63))


@given(gather=any_gather(), block=st.integers(1, 9))
def test_any_gather_is_the_simulation(
    gather: tuple[list[int], list[int], list[Link], int], block: int
) -> None:
    starts, sizes, links, key = gather
    finishes = PreparedRounds(sizes, links, block)(times(starts), key)
    assert finishes.tolist() == in_rounds(starts, sizes, links, block, key)


@pytest.mark.parametrize("p", [2, 3, 8, 64])
@pytest.mark.parametrize("kind", ["equal", "mixed", *KINDS])
def test_larger_gathers_are_the_simulation(p: int, kind: str) -> None:
    pool = {"equal": [NETWORK], "mixed": [NETWORK, SLOW]}.get(kind) or KINDS[kind]
    links = [pool[r * r % len(pool)] for r in range(p)]
    sizes = [(7919 * r) % 101 * (r % 5 > 0) for r in range(p)]
    starts = [37_003 * ((5 * r) % 7) for r in range(p)]
    finishes = PreparedRounds(sizes, links, 32)(times(starts), 7)
    assert finishes.tolist() == in_rounds(starts, sizes, links, 32, key=7)


def test_blocks_are_as_large_as_the_smallest_contribution_or_32_kib() -> None:
    assert block_size([100_000, 50_000]) == 50_000
    assert block_size([100_000, 5_000]) == 32_768
    assert block_size([100_000, 0]) == 32_768
    assert block_size([9, 8], pipeline=4) == 8
    assert block_size([0, 0], pipeline=0) == 1


@pytest.mark.parametrize("nbytes", [1, 40_000, 1_000_000])
def test_equal_contributions_take_the_ring_of_whole_blocks(nbytes: int) -> None:
    sizes, links = [nbytes] * 12, [SLOW if r == 5 else NETWORK for r in range(12)]
    starts = times([r * 1_000_003 for r in range(12)])
    block = block_size(sizes)
    rounds = PreparedRounds(sizes, links, block)(starts)
    assert (rounds == ring_allgather(sizes, links)(starts)).all()


def test_a_rank_that_waits_for_nobody_leaves_when_all_have_entered() -> None:
    starts, sizes = [0, 0, 9_000_000, 0], [0, 1000, 0, 0]
    finishes = PreparedRounds(sizes, [link(10**9)] * 4, 32_768)(times(starts))
    assert finishes.tolist() == [11_000_000, 9_000_000, 10_000_000, 11_000_000]
    nothing = PreparedRounds([0] * 4, [NETWORK] * 4, 32_768)(times(starts))
    assert nothing.tolist() == [9_000_000] * 4
