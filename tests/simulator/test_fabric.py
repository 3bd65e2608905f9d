"""Do messages take what their links say, and do the devices of a node share its card?"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from gcsim.simulator.collectives.fabric import Fabric, scaled
from gcsim.simulator.links import Link

FAST = Link(name="fast", bandwidth=Fraction(10**10), latency=Fraction(3, 10**12))
SLOW = Link(name="slow", bandwidth=Fraction(10**9), latency=Fraction(7, 10**12))
BUS = Link(name="bus", bandwidth=Fraction(10**11), latency=Fraction(1, 10**12))


def ranks(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


@given(
    values=st.lists(st.integers(0, 10**15), min_size=1, max_size=8),
    over=st.integers(1, 2**70),
    under=st.integers(1, 2**70),
)
@example(values=[1, 3, 5, 7], over=1, under=2)
@example(values=[0], over=2**70, under=1)
@example(values=[10**15], over=2**70, under=2**70 - 1)
def test_whole_numbers_are_scaled_as_python_rounds_fractions(
    values: list[int], over: int, under: int
) -> None:
    exact = [round(Fraction(value * over, under)) for value in values]
    if max(exact) < 2**62:
        assert scaled(ranks(*values), over, under).tolist() == exact
        each = np.array([over] * len(values)), np.array([under] * len(values))
        assert scaled(ranks(*values), *each).tolist() == exact


@given(
    nbytes=st.integers(0, 10**12),
    bandwidth=st.floats(1e6, 1e12),
    efficiency=st.sampled_from([Fraction(1), Fraction(1448, 1538)]),
)
def test_a_message_takes_what_its_link_says(
    nbytes: int, bandwidth: float, efficiency: Fraction
) -> None:
    odd = Link(
        name="odd", bandwidth=Fraction(bandwidth), latency=Fraction(0), efficiency=efficiency
    )
    fabric = Fabric(nodes=2, devices=1, cards=[odd, FAST], buses=[BUS])
    busy, latency = fabric.messages(ranks(0, 1), ranks(1, 0), ranks(nbytes, nbytes))
    assert busy.tolist() == [odd.serialization(nbytes), FAST.serialization(nbytes)]
    assert latency.tolist() == [0, 3]
    same, _ = fabric.messages(ranks(0, 1), ranks(1, 0), nbytes)
    assert same.tolist() == busy.tolist()


def test_messages_share_the_card_of_their_node_and_nothing_else() -> None:
    # Nodes of three: ranks 0 and 1 cross node 0's card, 2 stays inside, 3 alone crosses node 1's.
    fabric = Fabric(nodes=2, devices=3, cards=[FAST, SLOW], buses=[BUS])
    busy, latency = fabric.messages(ranks(0, 1, 2, 3), ranks(3, 4, 0, 2), 10**6)
    assert busy.tolist() == [2 * 10**8, 2 * 10**8, 10**7, 10**9]
    assert latency.tolist() == [3, 3, 1, 7]


def test_several_messages_of_one_rank_share_its_outlets_one_by_one() -> None:
    fabric = Fabric(nodes=2, devices=3, cards=[FAST], buses=[BUS])
    busy, _ = fabric.messages(ranks(0, 0, 0, 1), ranks(1, 2, 3, 2), 10**6)
    assert busy.tolist() == [2 * 10**7, 2 * 10**7, 10**8, 10**7]


def test_a_rank_is_ready_when_its_message_has_left_and_the_other_was_added() -> None:
    fabric = Fabric(nodes=3, devices=1, cards=[FAST], buses=[BUS])
    cost = Fraction(5, 10**12)  # 100 ps a byte on the link, 5 ps to add
    ready = fabric.exchange(ranks(0, 50, 9), ranks(0, 1), ranks(1, 0), ranks(10, 1), cost)
    assert ready.tolist() == [max(1000, 153) + 5, max(150, 1003) + 50, 9]


def test_a_ring_takes_the_bus_inside_a_node_and_the_card_between_nodes() -> None:
    fabric = Fabric(nodes=2, devices=2, cards=[FAST, SLOW], buses=[BUS])
    assert fabric.ring_links() == [BUS, FAST, BUS, SLOW]
