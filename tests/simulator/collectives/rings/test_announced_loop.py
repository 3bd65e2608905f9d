"""Are long Gloo rings, of which only the ranks without a pace are computed, those of all ranks?

The oracles: the event by event simulation of `test_gloo_ring.py`, and the loop over all ranks,
which that file compares with it.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.simulator.clock import Times
from gcsim.simulator.collectives.rings import announced
from gcsim.simulator.collectives.rings.gloo_allreduce import gloo_ring_allreduce
from gcsim.simulator.network.links import Link
from tests.simulator.collectives.rings.test_gloo_ring import POOL, allreduce_oracle, to_predecessors
from tests.simulator.world import link, times

ALWAYS, NEVER = 2, 1 << 40


@given(
    starts=st.lists(st.integers(0, 60), min_size=3, max_size=9),
    hop=st.sampled_from(POOL),
    elements=st.integers(1, 90),
    element=st.sampled_from([1, 4]),
    gamma=st.sampled_from([0, 2]),
    largest=st.sampled_from([1, 5, 1 << 20]),
)
def test_any_ring_of_equal_links_is_the_simulation(
    starts: list[int], hop: Link, elements: int, element: int, gamma: int, largest: int
) -> None:
    hops, cost = [hop] * len(starts), Fraction(gamma, 10**12)
    nbytes = elements * element
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(announced, "_LONG", ALWAYS)
        finishes = gloo_ring_allreduce(
            nbytes, to_predecessors(hops), element=element, gamma=cost, largest=largest
        )(times(starts))
    assert finishes.tolist() == allreduce_oracle(starts, nbytes, hops, element, cost, largest)


@pytest.mark.parametrize("nbytes", [4, 400, 2832, 246_824, 999_996, 1_000_003])
@pytest.mark.parametrize("ranks", [150, 211])
@pytest.mark.parametrize("gamma", [0, 10**3, 10**6])
def test_long_rings_are_those_of_all_ranks(
    nbytes: int, ranks: int, gamma: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few, many and all segments full; entries together, as the ring before left them, at random,
    one late."""
    hops = [link(125_000_000, Fraction(50, 10**6))] * ranks
    element = 4 if nbytes % 4 == 0 else 1
    ring = gloo_ring_allreduce(nbytes, hops, element=element, gamma=Fraction(gamma, 10**15))
    entries = [np.zeros(ranks, dtype=np.int64)]

    def finishes(starts: Times, long: int) -> Times:
        monkeypatch.setattr(announced, "_LONG", long)
        return ring(starts)

    entries.append(finishes(entries[0], NEVER))
    entries.append(finishes(entries[1], NEVER))
    entries.append(np.random.default_rng(0).integers(0, 10**9, ranks))
    entries.append(np.where(np.arange(ranks) == 7, 10**9, 0))
    for starts in entries:
        assert (finishes(starts, ALWAYS) == finishes(starts, NEVER)).all()
