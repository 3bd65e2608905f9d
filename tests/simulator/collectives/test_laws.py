"""Laws of every collective: entries shift and delay exits, rates scale, the clock has an end."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InputError
from gcsim.simulator.cluster import Cluster, Racks, bundle
from gcsim.simulator.collectives.dispatch import execute
from tests.simulator.collectives.test_topology import everything
from tests.simulator.links import KINDS, RANDOM
from tests.simulator.world import BUS, NETWORK, cluster, link, times


@given(
    shape=st.sampled_from([(3, 1), (5, 1), (3, 2)]),
    kind=st.sampled_from(sorted(KINDS)),
    starts=st.lists(st.integers(0, 40) | st.integers(0, 10**6), min_size=6, max_size=6),
    late=st.integers(1, 10**7),
    data=st.data(),
)
def test_times_shift_with_the_entries_and_grow_with_them(
    shape: tuple[int, int], kind: str, starts: list[int], late: int, data: st.DataObject
) -> None:
    links = data.draw(st.lists(st.sampled_from(KINDS[kind]), min_size=3, max_size=3))
    on = cluster(*shape, network=links[0], intra_node=links[1], nics={1: links[2]})
    entries = times(starts[: on.workers])
    delayed = entries.copy()
    delayed[data.draw(st.integers(0, on.workers - 1))] += late
    for record, where in everything(on, part=250):
        base = execute(record, entries, where, key=7)
        if not where.collectives.names_servers:  # fair shares: who comes later leaves others more
            assert (execute(record, delayed, where, key=7) >= base).all(), where.collectives
        if not any(link.timed for link in links):
            shifted = execute(record, entries + late, where, key=7)
            assert (shifted == base + late).all(), where.collectives


@given(
    shape=st.sampled_from([(3, 1), (5, 2), (6, 2)]),
    cards=st.integers(1, 8),
    uplinks=st.integers(1, 8),
    rate=st.integers(1, 40),
    what=st.sampled_from(["card", "uplink", "pod's uplink"]),
    starts=st.lists(st.integers(0, 40) | st.integers(0, 10**8), min_size=12, max_size=12),
)
def test_another_card_or_uplink_delays_nobody(
    shape: tuple[int, int], cards: int, uplinks: int, rate: int, what: str, starts: list[int]
) -> None:
    up = link(rate * 10**8, 1e-6)
    racks = Racks(nodes=2, uplink=up, uplinks=uplinks, pod=2, pod_uplink=up, pod_uplinks=uplinks)

    def having(cards: int, racks: Racks) -> Cluster:
        bus = replace(BUS, name="nvlink", switch_adds=Fraction(1, 2))
        network = bundle(replace(NETWORK, switch_adds=Fraction(1, 2)), cards)
        return cluster(*shape, network=network, intra_node=bus, nics_per_node=cards, racks=racks)

    more = replace(
        racks, uplinks=uplinks + (what == "uplink"), pod_uplinks=uplinks + (what == "pod's uplink")
    )
    better = having(cards + (what == "card"), more)
    entries = times(starts[: better.workers])
    pairs = zip(everything(having(cards, racks)), everything(better), strict=True)
    for (record, on), (_, faster) in pairs:
        if not on.collectives.names_servers:  # fair shares: room for one flow may take another's
            slow, fast = execute(record, entries, on), execute(record, entries, faster)
            assert (fast <= slow).all(), on.collectives


@pytest.mark.parametrize("cards", range(1, 16))
def test_another_fast_card_delays_nobody(cards: int) -> None:
    """Also beyond what LL reaches between nodes, 20 GB/s."""

    def having(cards: int) -> Cluster:
        network = bundle(link(50 * 10**9, 2e-6), cards)
        return cluster(5, 4, network=network, intra_node=link(4 * 10**11), nics_per_node=cards)

    entries = times([0] * 20)
    pairs = zip(everything(having(cards)), everything(having(cards + 1)), strict=True)
    for (record, on), (_, faster) in pairs:
        slow, fast = execute(record, entries, on), execute(record, entries, faster)
        assert (fast <= slow).all(), on.collectives


def test_doubling_all_rates_without_latency_halves_the_time() -> None:
    one, two = (cluster(6, 2, network=link(n * 10**9), intra_node=link(n * 10**10)) for n in (1, 2))
    starts = times([0] * 12)
    for (record, slow), (_, fast) in zip(everything(one), everything(two), strict=True):
        if "nccl" not in slow.collectives.all_reduce + slow.collectives.all_gather:  # base latency
            halved = 2 * execute(record, starts, fast)
            assert abs(execute(record, starts, slow) - halved).max() <= 24, slow.collectives


def test_times_beyond_the_clock_are_refused() -> None:
    slow = link(1e-6)
    for record, where in everything(cluster(4, network=slow, intra_node=slow)):
        with pytest.raises(InputError, match="clock"):
            execute(record, times([0] * 4), where)


@pytest.mark.parametrize("together", [1, 7, 60])
def test_delays_drawn_in_portions_are_those_drawn_at_once(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    # also of few ranks an all-to-all is carried out step by step, and not as rounds
    monkeypatch.setattr("gcsim.simulator.collectives.rounds.direct_exchange._WORTH_ITS_MEMORY", 0)
    on = cluster(7, nics={node: RANDOM[node % 5] for node in range(7)}, pipeline_block=8)
    starts = times([rank * 5 for rank in range(7)])
    asked = [*everything(on), *everything(cluster(7, network=RANDOM[0]))]
    whole = [execute(record, starts, where, key=3).tolist() for record, where in asked]
    for module in (
        "rings.announced", "rings.pipelined_allgatherv", "rings.recurrence",
        "rings.synchronous_allgatherv", "rounds.direct_exchange",
    ):  # fmt: skip
        name = f"gcsim.simulator.collectives.{module}.DRAWN_AT_A_TIME"
        monkeypatch.setattr(name, together)
    assert whole == [execute(record, starts, where, key=3).tolist() for record, where in asked]
