"""Are Gloo's rings on many clusters at once what they are on each? `execute` is the oracle."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.collectives.rings.worlds import RingWorlds, prices_of_clusters
from gcsim.simulator.host import Host, Sums
from tests.simulator.test_predict import cluster

GLOO = Collectives(transport="gloo")


def clusters(nodes: int, devices: int, seed: int) -> list[Cluster]:
    """Prices are spread over a factor of ten each."""
    rng = np.random.default_rng(seed)

    def about(value: float) -> Fraction:
        return Fraction(f"{value * 10 ** rng.random():.5g}")

    stated = replace(cluster(nodes, devices=devices), collectives=GLOO)
    return [
        replace(
            stated,
            network=replace(stated.network, latency=about(3e-5), bandwidth=about(3e8)),
            intra_node=replace(stated.intra_node, latency=about(1e-6), bandwidth=about(3e9)),
            host=Host(
                cores=2,
                per_message=about(1e-5), per_byte=about(1e-10), per_call=about(1e-5),
                per_copied_byte=about(1e-10), per_received_byte=about(1e-9),
                dispatch=about(1e-4),
            ),
            sums=Sums(float32=about(1e9)),
        )
        for _ in range(3)
    ]  # fmt: skip


@given(
    nodes=st.integers(1, 6),
    devices=st.integers(1, 3),
    seed=st.integers(0, 1000),
    sizes=st.lists(st.integers(1, 5_000_000), min_size=1, max_size=2),
)
def test_gathering_takes_what_it_takes_on_each(
    nodes: int, devices: int, seed: int, sizes: list[int]
) -> None:
    compared = clusters(nodes, devices, seed)
    record = CollectiveRecord(kind="all_gather", sent=tuple(sizes))
    check(compared, record, 1e-6)


@given(
    nodes=st.integers(1, 6),
    devices=st.integers(1, 3),
    seed=st.integers(0, 1000),
    elements=st.integers(1, 5_000_000),
)
def test_reducing_takes_about_what_it_takes_on_each(
    nodes: int, devices: int, seed: int, elements: int
) -> None:
    """Segments are taken to be equal where they are 5 % too long at most, all together."""
    compared = clusters(nodes, devices, seed)
    record = CollectiveRecord(kind="all_reduce", sent=(4 * elements,), element=4)
    check(compared, record, 0.05)


def check(compared: list[Cluster], record: CollectiveRecord, apart: float) -> None:
    found = RingWorlds(compared[0], lambda: prices_of_clusters(compared))(record)
    together = np.zeros(compared[0].workers, dtype=np.int64)
    exact = [int(execute(record, together, one).max()) for one in compared]
    if compared[0].workers == 1:
        assert found is None
    else:
        assert found == pytest.approx(exact, rel=apart)


def test_what_is_no_ring_of_gloos_is_left_to_others() -> None:
    one = cluster(4)
    record = CollectiveRecord(kind="all_reduce", sent=(4000,), element=4)
    nccl = replace(one, collectives=Collectives(transport="nccl"))
    gloo = replace(one, collectives=GLOO)
    assert RingWorlds(nccl, lambda: prices_of_clusters([nccl]))(record) is None
    empty = replace(record, sent=(0,))
    assert RingWorlds(gloo, lambda: prices_of_clusters([gloo]))(empty) is None
