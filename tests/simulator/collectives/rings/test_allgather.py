"""Do the all-gather kernels agree with an event-by-event simulation of the same protocol?

Two oracles, written from the protocols and sharing no code with the kernels: whole blocks passed
on step by step, and pieces forwarded as they arrive. Both move real (origin, piece) items and
check that everybody ends up with everything. Comparisons are `==` in integer picoseconds.
"""

from collections.abc import Sequence

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from gcsim.simulator.collectives.rings.allgather import ring_allgather
from gcsim.simulator.collectives.rings.allreduce import ring_allreduce
from gcsim.simulator.collectives.rings.pipelined_allgatherv import PreparedPipeline
from gcsim.simulator.collectives.rings.synchronous_allgatherv import PreparedRounds
from gcsim.simulator.network.links import Link
from tests.simulator.collectives.rings.wire import Ring, Wire, entries_of, rows_of
from tests.simulator.links import KINDS
from tests.simulator.world import Wait, link, times


def step_by_step(
    starts: Sequence[int], sizes: Sequence[int], links: Sequence[Link], key: int = 0
) -> list[float]:
    """Each rank passes on, at each step, the block that the step before brought."""
    return Ring(starts, sizes, links, reduces=False, key=key).finishes


def on_arrival(
    starts: Sequence[int], sizes: Sequence[int], links: Sequence[Link], piece: int, key: int = 0
) -> list[float]:
    """Each rank sends its own pieces, then what comes in, first in first out."""
    env, p = simpy.Environment(), len(starts)
    cut = [[min(piece, size - start) for start in range(0, size, piece)] or [0] for size in sizes]
    inbox = [simpy.Store(env) for _ in range(p)]
    wires = [Wire(env, link, rank, key) for rank, link in enumerate(links)]
    outbox = [simpy.Store(env) for _ in range(p)]
    held = [{(rank, k) for k in range(len(cut[rank]))} for rank in range(p)]
    finishes: list[float] = [0] * p

    def fly(rank: int, item: tuple[int, int]) -> Wait:
        yield wires[rank].flight(cut[item[0]][item[1]])
        yield inbox[(rank + 1) % p].put(item)

    def send(rank: int) -> Wait:
        successor = (rank + 1) % p
        for _ in range(sum(len(cut[r]) for r in range(p) if r != successor)):
            item = yield outbox[rank].get()
            yield wires[rank].serialization(cut[item[0]][item[1]])
            env.process(fly(rank, item))
        finishes[rank] = max(finishes[rank], env.now)

    def receive(rank: int) -> Wait:
        yield env.timeout(starts[rank])
        for k in range(len(cut[rank])):
            yield outbox[rank].put((rank, k))
        for _ in range(sum(len(cut[r]) for r in range(p) if r != rank)):
            item = yield inbox[rank].get()
            held[rank].add(item)
            if item[0] != (rank + 1) % p:
                yield outbox[rank].put(item)
        finishes[rank] = max(finishes[rank], env.now)

    for rank in range(p):
        env.process(send(rank))
        env.process(receive(rank))
    env.run()
    assert held == [{(r, k) for r in range(p) for k in range(len(cut[r]))}] * p
    return finishes


@st.composite
def any_gather(draw: st.DrawFn) -> tuple[list[int], list[int], list[Link], int]:
    p = draw(st.sampled_from([1, 2, 3, 4, 5, 6, 9]))
    sizes = st.lists(st.integers(0, 25), min_size=p, max_size=p)
    equal = st.integers(0, 25).map(lambda size: [size] * p)
    two = st.integers(0, p).map(lambda more: [9] * more + [4] * (p - more))
    return (
        draw(entries_of(p)),
        draw(sizes | equal | two),
        draw(rows_of(p)),
        draw(st.integers(0, 2**63)),
    )


@given(gather=any_gather())
def test_any_gather_of_whole_blocks_is_the_simulation(
    gather: tuple[list[int], list[int], list[Link], int],
) -> None:
    starts, sizes, links, key = gather
    finishes = ring_allgather(sizes, links)(times(starts), key)
    assert finishes.tolist() == step_by_step(starts, sizes, links, key)


@given(gather=any_gather(), piece=st.integers(1, 9))
def test_any_gather_in_pieces_is_the_simulation(
    gather: tuple[list[int], list[int], list[Link], int], piece: int
) -> None:
    starts, sizes, links, key = gather
    finishes = PreparedPipeline(sizes, links, piece)(times(starts), key)
    assert finishes.tolist() == on_arrival(starts, sizes, links, piece, key)


@pytest.mark.parametrize("p", [2, 5, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_larger_gathers_over_any_links_are_the_simulation(p: int, kind: str) -> None:
    pool = KINDS[kind]
    links = [pool[r * r % len(pool)] for r in range(p)]
    starts, sizes = [1_003 * ((5 * r) % 7) for r in range(p)], [(7919 * r) % 31 for r in range(p)]
    whole = ring_allgather(sizes, links)(times(starts), 5)
    assert whole.tolist() == step_by_step(starts, sizes, links, key=5)
    pieces = PreparedPipeline(sizes, links, 8)(times(starts), 5)
    assert pieces.tolist() == on_arrival(starts, sizes, links, 8, key=5)


@pytest.mark.parametrize("ring", [PreparedPipeline, PreparedRounds])
@given(sizes=st.lists(st.integers(0, 400), min_size=2, max_size=9), piece=st.integers(1, 120))
def test_rings_in_pieces_keep_the_bound_of_traeff_et_al(
    ring: type[PreparedPipeline] | type[PreparedRounds], sizes: list[int], piece: int
) -> None:
    # T <= (sum n_i + (p - 1) m) beta at zero latency; one byte takes 1 ns, nothing is rounded
    p = len(sizes)
    finishes = ring(sizes, [link(10**9)] * p, piece)(times([0] * p))
    assert finishes.max() <= (sum(sizes) + (p - 1) * piece) * 1000
    assert finishes.max() >= (sum(sizes) - min(sizes)) * 1000  # some rank must receive all others'


@pytest.mark.parametrize("p", [4, 8, 16, 32])
@pytest.mark.parametrize("ratio", [10, 40])
def test_times_of_the_variance_paper_follow_from_the_kernels(p: int, ratio: int) -> None:
    # Tsuzuku et al. 2018, sec. 5: T_r = 2(p-1) N s beta / p; T_v <= (sum ceil(n_i / m) + p - 1)
    # m beta, so T_r / T_v >= 2(p-1)c / p^2 for small m: break-even at c = p^2 / (2(p-1)).
    dense, piece, network = 32 * 10 * 40 * 1000, 1000, [link(10**9)] * p
    t_r = int(ring_allreduce(dense, network)(times([0] * p)).max())
    assert t_r == 2 * (p - 1) * dense * 1000 // p
    sent = dense // ratio
    t_v = int(PreparedPipeline([sent] * p, network, piece)(times([0] * p)).max())
    bound = (p * sent // piece + p - 1) * piece * 1000
    assert t_v <= bound
    assert t_r / bound == pytest.approx(2 * (p - 1) * ratio / p**2, rel=p * piece / sent)
    assert t_r / t_v == pytest.approx(2 * ratio / p, rel=1e-9)  # equal sizes: p - 1, not p
    if ratio >= p**2 / (2 * (p - 1)):
        assert t_v <= t_r
