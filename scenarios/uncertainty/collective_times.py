"""Durations of collectives that all ranks enter together, in each of many worlds.

A collective is simulated in the stated world, in worlds with a single input at the end farther from
its stated value, and in some drawn worlds. The others are interpolated:

- While ranks compute, buses may be slower: collectives have a second set of worlds
  (`Drawn.with_slow_buses`), which share the simulations.
- Over worlds, the coordinates are the inputs that change the duration: times, and reciprocals of
  rates. While the critical path stays the same, the duration is linear in these. So a plane through
  the stated and single-input worlds is used if it predicts `PROBES` drawn worlds. Otherwise Gloo's
  rings are simulated in every world (`rings/worlds.py`), the others in up to `SUPPORT`, with a
  radial basis r and a linear tail (M. Buhmann 2003, "Radial basis functions", sec. 2.2).
- If NCCL chooses a ring in some worlds and a tree in others, both are evaluated, and each world has
  its own.
- Over sizes (except for Gloo's rings), up to `SIZES` per kind are evaluated in all worlds, by the
  algorithm of each size. Durations are linear in bytes between two of them, and scaled to the
  stated duration, which is simulated for every size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios.scenario import with_nodes
from gcsim.scenarios.uncertainty.drawn import Drawn
from gcsim.scenarios.uncertainty.figures import Column, Input, Rows
from gcsim.simulator.cluster import AllReduceAlgorithm, Cluster, Collectives, Racks
from gcsim.simulator.collectives.dispatch import CollectiveMemo, ring_or_tree
from gcsim.simulator.collectives.in_worlds import last_exits
from gcsim.simulator.collectives.rings.worlds import (
    RingWorlds,
    prices_in_worlds,
    prices_of_clusters,
)
from gcsim.simulator.fabric.in_worlds import PathsInWorlds, plain
from gcsim.simulator.network.links import Link, Uplink
from gcsim.simulator.steps.averages import KEPT_RANKS

SUPPORT = 32  # most drawn worlds that are simulated
PROBES = 12  # drawn worlds that the plane must predict
SIZES = 3  # most sizes of a kind that are simulated in drawn worlds
_MOVES = 1e-9
_IN_PLANE = 1e-6
_NOTHING = 1e-30  # picoseconds in place of 0, so that ratios are defined
Way = TypeVar("Way", Link, Uplink)
_Simulated = dict[tuple[CollectiveRecord, int, str], float]
"""Durations by record, server time and algorithm."""


class CollectiveTimes:
    """Durations on one cluster, in picoseconds."""

    def __init__(self, drawn: Drawn, nodes: int, records: Sequence[CollectiveRecord]) -> None:
        """`records`: all collectives that will be looked up."""
        cluster = with_nodes(drawn.cluster(0), nodes)
        inputs, first = drawn.inputs, len(drawn.worlds) - len(drawn.inputs)
        self._count = len(drawn.worlds)
        self._single = cluster.workers == 1
        if self._single:
            return
        drawn = drawn.with_slow_buses()
        self._worlds = worlds = drawn.worlds
        self._bus = drawn.bus.tolist()
        self._cluster_in = cache(lambda number: _steady(with_nodes(drawn.cluster(number), nodes)))
        self._inputs = [one for one in drawn.linked if _moves_collectives(one, cluster, records)]
        self._places = drawn.coordinates(self._inputs)
        self._alone = [first + inputs.index(one) for one in self._inputs]
        slowed = list(range(self._count, len(worlds)))  # while ranks compute
        if slowed:  # the bus is slowest in the stated world, or where its input is at its end
            self._alone.append(max((slowed[0], *slowed[first:]), key=self._bus.__getitem__))
        several = [*range(1, first), *slowed[1:first]]  # worlds in which several inputs may change
        distant = [several[place] for place in _far_apart(self._places[several], SUPPORT)]
        self._support = [0, *self._alone, *(distant if self._alone else [])]
        self._moved = [*range(first), *self._alone, *slowed]
        """Worlds that may differ from the stated one."""
        self._few = min(1 + len(self._alone) + PROBES, len(self._support))
        """Number of support points that are simulated to test for a plane."""
        self._is_plain = plain(cluster)
        self._supported = cache(
            lambda numbers: PathsInWorlds(
                cluster, lambda *of: drawn.figure(*of)[self._support[numbers.start : numbers.stop]]
            )
        )
        if self._is_plain:
            every = RingWorlds(
                cluster, lambda: prices_in_worlds(PathsInWorlds(cluster, drawn.figure))
            )
            self._rings_in: Callable[[list[int]], RingWorlds] = every.select
        else:
            self._rings_in = lambda numbers: RingWorlds(
                self._cluster_in(0),
                lambda: prices_of_clusters(list(map(self._cluster_in, numbers))),
            )
        self._few_rings = self._rings_in(self._support[: self._few])
        self._rings: RingWorlds | None = None
        self._memos: dict[tuple[int, str], CollectiveMemo] = {}
        self._tuners = np.full(len(worlds), float(cluster.collectives.ring_over_tree))
        for one in inputs:
            if one.main.field == "ring_over_tree":
                self._tuners = worlds.values([one])[0][0]
        if any(link.timed for link in cluster.links()):  # NCCL's tuner sees the rate change
            self._tuners = np.full(len(worlds), self._tuners[0])
        self._moving_names = {one.name for one in drawn.linked}
        self._simulated_on = _simulated_on(self._cluster_in(0).wiring)
        self._simulated_at: dict[int, _Simulated] = {}
        self._in_rings: dict[CollectiveRecord, Column | None] = {}
        self._together = np.zeros(cluster.workers, dtype=np.int64)
        self._weights: dict[tuple[int, ...], tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        """Support points whose coordinates differ, and their weights, by moving input."""
        self._of = cache(self._by)
        self._anchors = _anchors(records)

    def __call__(self, record: CollectiveRecord, server_time: int, more: Column) -> Rows:
        """Return durations by world `[2, worlds]`, alone and (not less) while all ranks compute;
        `more`: extra computation of the servers, by world."""
        if self._single:
            return np.full((2, self._count), _NOTHING)
        times = self._times(record, server_time, np.resize(more, len(self._worlds)))
        alone, *slow = times.reshape(-1, self._count)
        return np.stack([alone, np.maximum.reduce([alone, *slow])])

    def _times(self, record: CollectiveRecord, server_time: int, more: Column) -> Column:
        if record not in self._in_rings:
            self._in_rings[record] = self._ring(record)
        around = self._in_rings[record]
        if around is not None:
            return around
        choice = ring_or_tree(record, self._cluster_in(0))
        if choice is None:
            times = self._sized(record, server_time)
        else:
            ring, tree, border = choice
            rings, times = self._tuners < float(border), np.zeros(len(self._worlds))
            for name, worlds in ((ring, rings), (tree, ~rings)):
                if worlds.any():
                    times[worlds] = self._sized(record, server_time, name)[worlds]
        if server_time and more.any():
            alone = self._simulated(0, record, 0)
            served = (times[0] - alone) / server_time
            times = np.maximum(times + served * more, 0.0)
        return times

    def _sized(self, record: CollectiveRecord, server_time: int, algorithm: str = "") -> Column:
        """Interpolate durations with one algorithm ("": the cluster's choice) between anchors."""
        below, above = self._anchors[_kind(record)].neighbours(record)
        stated, low, high = _bytes(record), _bytes(below), _bytes(above)
        share = (stated - low) / (high - low) if high > low else 0.0
        found = self._of(below, server_time, algorithm)
        if share:
            found = (1 - share) * found + share * self._of(above, server_time, algorithm)
        times: Column = self._simulated(0, record, server_time, algorithm) * found / found[0]
        return times

    def _ring(self, record: CollectiveRecord) -> Column | None:
        """Return the durations of one of Gloo's rings; None for other collectives."""
        points = self._few_rings(record)
        if points is None:
            return None
        plane = self._plane(points, self._moving(points))
        if plane is not None:
            return plane
        self._rings = self._rings or self._rings_in(self._moved)
        everywhere = self._rings(record)
        if everywhere is None:
            return None
        times = np.full(len(self._worlds), everywhere[0])
        times[self._moved] = everywhere
        return times

    def _by(self, record: CollectiveRecord, server_time: int, algorithm: str) -> Column:
        """Return durations with one algorithm ("": the cluster's choice), by world."""

        def simulated(numbers: range) -> Column:
            if self._is_plain and numbers and not server_time:
                last = last_exits(record, self._supported(numbers), algorithm)
                if last is not None:
                    return np.maximum(last, _NOTHING)
            times = [self._simulated(n, record, server_time, algorithm) for n in numbers]
            return np.array(times)

        points = simulated(range(self._few))
        moving = self._moving(points)
        found = self._plane(points, moving)
        if found is None:
            rest = simulated(range(self._few, len(self._support)))
            found = self._between(np.concatenate([points, rest]), moving)
        return found

    def _moving(self, points: Column) -> tuple[int, ...]:
        """Return the inputs that change the duration."""
        alone = points[1 : 1 + len(self._alone)]
        return tuple(np.flatnonzero(abs(alone - points[0]) > _MOVES * points[0]).tolist())

    def _plane(self, points: Column, moving: tuple[int, ...]) -> Column | None:
        """Return durations by the plane of single-input worlds; None if it misses a point."""
        inputs, first = list(moving), 1 + len(self._alone)
        away = self._places[:, inputs] - self._places[0, inputs]
        far = away[[self._alone[number] for number in inputs]]
        slopes = np.linalg.solve(far, points[1:first][inputs] - points[0])
        found: Column = points[0] + away @ slopes
        expected = found[self._support[first : len(points)]]
        if (abs(expected - points[first:]) > _IN_PLANE * points[first:]).any():
            return None
        return np.maximum(found, _NOTHING)

    def _simulated(
        self, number: int, record: CollectiveRecord, server_time: int, algorithm: str = ""
    ) -> float:
        known = self._simulated_at.get(number)
        if known is None:
            slow = self._worlds[self._support[number]].items()
            moved = tuple((name, each) for name, each in slow if name in self._moving_names)
            world = self._bus[self._support[number]], moved
            known = self._simulated_at[number] = self._simulated_on.setdefault(world, {})
        name = record, server_time, algorithm
        if name not in known:
            if (number, algorithm) not in self._memos:  # few are needed if a plane fits
                cluster = self._cluster_in(self._support[number])
                if algorithm:
                    named = cast("AllReduceAlgorithm", algorithm)
                    chosen = replace(self._cluster_in(0).collectives, all_reduce=named)
                    cluster = replace(cluster, collectives=chosen)
                self._memos[number, algorithm] = CollectiveMemo.of(cluster)
            memo = self._memos[number, algorithm]
            known[name] = float(memo(record, self._together, server_time).max()) or _NOTHING
            if len(self._together) > KEPT_RANKS:  # prepared messages of dozens of worlds are large
                memo.forget()
        return known[name]

    def _between(self, points: Column, moving: tuple[int, ...]) -> Column:
        """Interpolate durations over all worlds."""
        if not moving:
            return np.full(len(self._places), points[0])
        if moving not in self._weights:
            places = self._places[:, list(moving)]
            support, used = np.unique(places[self._support], axis=0, return_index=True)
            self._weights[moving] = used, _interpolation(support, places)
        used, weights = self._weights[moving]
        found: Column = weights @ points[used]
        return np.maximum(found, _NOTHING)


@lru_cache(maxsize=32)
def _simulated_on(wiring: object) -> dict[object, _Simulated]:
    """Return a store of durations by world, shared by all methods on the same links."""
    return {}


def _far_apart(places: NDArray[np.float64], count: int) -> list[int]:
    """Choose `count` of the points `[places, coordinates]`, each as far as possible from the origin
    and the ones chosen before: critical paths change first at the rim."""
    apart = np.sqrt((places**2).sum(axis=1))
    found: list[int] = []
    for _ in range(min(count, len(places))):
        found.append(int(apart.argmax()))
        apart = np.minimum(apart, np.sqrt(((places - places[found[-1]]) ** 2).sum(axis=1)))
    return found


def _interpolation(
    support: NDArray[np.float64], places: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the weights `[places, support]` of the support points' values."""
    count = len(support)

    def rows(at: NDArray[np.float64]) -> NDArray[np.float64]:
        apart = np.sqrt(((at[:, None] - support[None]) ** 2).sum(axis=2))
        return np.hstack([apart, np.ones((len(at), 1)), at])

    known = rows(support)
    tail = known[:, count:]
    system = np.vstack([known, np.hstack([tail.T, np.zeros((tail.shape[1],) * 2)])])
    wanted = rows(places).T
    solved: NDArray[np.float64] = np.linalg.solve(system.T, wanted)
    return solved[:count].T


def _moves_collectives(one: Input, cluster: Cluster, records: Sequence[CollectiveRecord]) -> bool:
    """Whether collectives may depend on this input."""
    key_path = one.main.key_path
    if key_path == ("cluster", "network") and cluster.nodes == 1:
        return False
    return key_path != ("cluster", "sums") or one.main.field in {record.dtype for record in records}


class _Anchors:
    """Records of a kind that are simulated, by size."""

    def __init__(self, records: Sequence[CollectiveRecord]) -> None:
        by_size = sorted({_bytes(record): record for record in records}.items())
        low, high = (math.log1p(by_size[place][0]) for place in (0, -1))
        wanted = np.linspace(low, high, SIZES)
        nearest = {
            min(range(len(by_size)), key=lambda n: abs(math.log1p(by_size[n][0]) - at))
            for at in wanted.tolist()
        }
        self._records = [by_size[n][1] for n in sorted(nearest)]

    def neighbours(self, record: CollectiveRecord) -> tuple[CollectiveRecord, CollectiveRecord]:
        """Return the largest anchor not above and the smallest not below the record's size."""
        size = _bytes(record)
        below = [one for one in self._records if _bytes(one) <= size]
        above = [one for one in self._records if _bytes(one) >= size]
        return below[-1], above[0]


def _anchors(records: Sequence[CollectiveRecord]) -> dict[object, _Anchors]:
    kinds: dict[object, list[CollectiveRecord]] = {}
    for record in records:
        kinds.setdefault(_kind(record), []).append(record)
    return {kind: _Anchors(own) for kind, own in kinds.items()}


def _kind(record: CollectiveRecord) -> object:
    """Return the kind of a collective: everything except its bytes."""
    pulled = bool(record.pulled)
    return replace(record, sent=(), pulled=int(pulled))


def _bytes(record: CollectiveRecord) -> int:
    return sum(record.sent) + record.pulled


def _steady(cluster: Cluster) -> Cluster:
    """Return the cluster with links of constant rates and latencies, the long-run means."""
    return _evened(cluster) if any(link.timed for link in cluster.links()) else cluster


def _evened(value: Any) -> Any:
    """Return a part of a cluster with such links."""
    if isinstance(value, Link):
        return _even(value, value.efficiency, up=value.up and _even(value.up, value.efficiency))
    if isinstance(value, Mapping):
        return {key: _evened(each) for key, each in value.items()}
    if isinstance(value, Cluster | Racks | Collectives):
        parts = {one.name: _evened(getattr(value, one.name)) for one in fields(value)}
        return replace(value, **parts)
    return value


def _even(one: Way, efficiency: Fraction, **others: Any) -> Way:
    """Return a link or an uplink with its trace's mean rate and half a grant's period of extra
    latency."""
    rate = one.bandwidth if one.trace is None else one.trace.long_run / efficiency
    latency = one.latency + one.grant / 2
    return replace(one, trace=None, bandwidth=rate, latency=latency, grant=Fraction(0), **others)
