"""Collectives on many clusters at once are those on each: `execute` is the oracle."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives import double_tree_allreduce
from gcsim.simulator.collectives.dispatch import execute, ring_or_tree
from gcsim.simulator.collectives.in_worlds import last_exits
from gcsim.simulator.collectives.rings import recurrence
from gcsim.simulator.collectives.rings.worlds import RingWorlds, prices_in_worlds
from gcsim.simulator.fabric.in_worlds import Column, PathsInWorlds, plain
from gcsim.simulator.host import Host, Sums
from gcsim.simulator.network.links import Uplink
from tests.simulator.test_predict import cluster

GLOO, NCCL = (Collectives(transport=name) for name in ("gloo", "nccl"))


def clusters(stated: Cluster, seed: int) -> list[Cluster]:
    """The cluster, and others that are up to ten times as slow."""
    rng = np.random.default_rng(seed)

    def about(value: Fraction) -> Fraction:
        return Fraction(f"{float(value) * 10 ** rng.random():.5g}")

    def slower(one: Cluster) -> Cluster:
        network, bus = one.network, one.intra_node
        return replace(
            one,
            network=replace(
                network, latency=about(network.latency), efficiency=1 / about(Fraction(1))
            ),
            intra_node=replace(bus, latency=about(bus.latency), overhead=about(Fraction(1, 10**6))),
        )

    return [stated, *(slower(stated) for _ in range(3))]


def in_worlds(of: Sequence[Cluster]) -> PathsInWorlds:
    def figures(owner: Any, path: Sequence[str], field: str) -> Column:
        owners = [getattr(one, path[1]) for one in of]
        return np.array([0.0 if own is None else float(getattr(own, field)) for own in owners])

    return PathsInWorlds(of[0], figures)


@given(
    nodes=st.integers(2, 9),
    devices=st.integers(1, 3),
    shared=st.booleans(),
    seed=st.integers(0, 1000),
    nbytes=st.integers(1, 30_000_000),
    kind=st.sampled_from(["all_reduce", "all_gather"]),
    other=st.integers(0, 1000),
)
def test_rings_and_trees_of_nccl_take_what_they_take_on_each(
    nodes: int, devices: int, shared: bool, seed: int, nbytes: int, kind: Any, other: int
) -> None:
    stated = replace(cluster(nodes, devices=devices), collectives=NCCL, shared_bus=shared)
    sent = (nbytes,) if kind == "all_reduce" else (nbytes, nbytes + other)
    record = CollectiveRecord(kind=kind, sent=sent)
    compared = clusters(stated, seed)
    together = np.zeros(stated.workers, dtype=np.int64)
    choice = ring_or_tree(record, stated)
    for name in ("", *(choice[:2] if choice else ())):
        chosen = replace(NCCL, all_reduce=name) if name else NCCL
        exact = [
            int(execute(record, together, replace(one, collectives=chosen)).max())
            for one in compared
        ]
        found = last_exits(record, in_worlds(compared), name)
        assert found is not None
        assert found == pytest.approx(exact, rel=1e-6)  # ties of picoseconds
        assert len(set(exact)) > 1  # they differ


def test_exact_and_drawn_collectives_share_compiled_loops() -> None:
    """Arrays in another layout would be another signature, compiled for a second each."""
    for devices, name in itertools.product((1, 2), ("ring", "double_tree")):
        chosen = replace(NCCL, all_reduce=name)  # type: ignore[arg-type]
        stated = replace(cluster(6, devices=devices), collectives=chosen)
        record = CollectiveRecord(kind="all_reduce", sent=(1_000_003,))
        execute(record, np.arange(stated.workers), stated)
        last_exits(record, in_worlds(clusters(stated, 0)), name)
    loops: list[Any] = [recurrence._steps_of_ring, double_tree_allreduce._go_up]
    for compiled in (*loops, double_tree_allreduce._go_down):
        layouts = {
            each.layout for one in compiled.signatures for each in one if hasattr(each, "layout")
        }
        assert layouts == {"C"}


@given(nodes=st.integers(2, 6), devices=st.integers(1, 3), shared=st.booleans(),
       seed=st.integers(0, 1000), nbytes=st.integers(1, 5_000_000))  # fmt: skip
def test_rings_of_gloo_gather_as_on_each(
    nodes: int, devices: int, shared: bool, seed: int, nbytes: int
) -> None:
    stated = replace(
        cluster(nodes, devices=devices), collectives=GLOO, shared_bus=shared,
        host=Host(dispatch=Fraction(1, 10_000)), sums=Sums(float32=Fraction(10**9)),
    )  # fmt: skip
    record = CollectiveRecord(kind="all_gather", sent=(nbytes, 2 * nbytes))
    compared = clusters(stated, seed)
    found = RingWorlds(stated, lambda: prices_in_worlds(in_worlds(compared)))(record)
    together = np.zeros(stated.workers, dtype=np.int64)
    exact = [int(execute(record, together, one).max()) for one in compared]
    assert found == pytest.approx(exact, rel=1e-6)


def test_links_with_more_to_them_than_a_rate_and_a_latency_are_not_plain() -> None:
    one = cluster(4)
    up = Uplink(bandwidth=Fraction(10**8), latency=Fraction(1, 1000))
    assert plain(one)
    assert not plain(replace(one, network=replace(one.network, up=up)))
    assert not plain(replace(one, nics={1: replace(one.network, latency=Fraction(1))}))


def test_other_collectives_are_left_to_the_simulation_of_each() -> None:
    record = CollectiveRecord(kind="all_reduce", sent=(4000,), element=4)
    for chosen in (GLOO, Collectives(transport="mpich"), replace(NCCL, host_staging=True)):
        one = replace(cluster(4), collectives=chosen)
        assert last_exits(record, in_worlds([one])) is None
    alone = replace(cluster(1, devices=4), collectives=NCCL)
    assert last_exits(record, in_worlds([alone])) is None
    nodes = replace(cluster(4, devices=2), collectives=NCCL)
    assert last_exits(replace(record, scope="nodes"), in_worlds([nodes])) is None
