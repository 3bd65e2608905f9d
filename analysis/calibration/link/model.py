"""Simulated time of a measured collective over the link to be fitted.

All ranks of a homogeneous cluster enter at once. The link is the network, or on a single machine
the link between its devices; nothing is copied through the host. A reduce-scatter counts as an
all-gather, whose p - 1 steps of n / p bytes it makes in reverse, and with Gloo as the all-reduce
that PyTorch runs instead. A single message takes the link's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from gcsim.analysis.calibration.measurements.collectives import Collective, Measurement
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InputError, did_you_mean
from gcsim.simulator import cluster
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.collectives.dispatch import CollectiveMemo
from gcsim.simulator.collectives.rings.gloo_allreduce import segments
from gcsim.simulator.devices.device import Device
from gcsim.simulator.host import Sums
from gcsim.simulator.network.links import Link

TRANSPORTS = tuple(name for name in get_args(cluster.TransportName) if name != "custom")
_ALL_REDUCE = get_args(cluster.AllReduceAlgorithm)
_ALL_GATHER = get_args(cluster.AllGatherAlgorithm)
Times = np.ndarray[Any, np.dtype[np.float64]]
_NONE = Device(name="none", title="none", kernels={}, effective_flop_rate=1.0, source="")


def check_algorithm(algorithm: str, collectives: Iterable[Collective]) -> None:
    """Raise `InputError` unless `algorithm` (or transport) can carry out these collectives."""
    kinds = {_kind(collective, algorithm) for collective in collectives}
    known: set[str] = set(TRANSPORTS)
    for kind, names in (("all_reduce", _ALL_REDUCE), ("all_gather", _ALL_GATHER)):
        if kind in kinds and algorithm not in TRANSPORTS and algorithm not in names:
            hint = did_you_mean(algorithm, known | set(names) - {"auto"})
            message = f"{algorithm!r} does not implement {kind}"
            raise InputError(message, place="--algorithm", hint=hint)


def _kind(collective: Collective, algorithm: str) -> str:
    if collective == "reduce_scatter":
        return "all_reduce" if algorithm in {"gloo", "gloo_ring"} else "all_gather"
    return collective


@dataclass(frozen=True, slots=True)
class Model:
    """Predicted times of the measurements over any link."""

    measurements: Sequence[Measurement]
    inside: Link  # between a machine's devices, if the network is fitted
    sums: Sums = Sums()  # noqa: RUF009 (frozen)
    """Costs of additions; none if the goodput includes them."""
    _known: dict[Link, Times] = field(init=False, default_factory=dict)
    """Times by link, cached because a solver revisits links."""

    def seconds(self, link: Link) -> Times:
        """Return the times `[n]` in seconds of the `n` measurements over `link`."""
        if link not in self._known:
            self._known[link] = self._seconds(link)
        return self._known[link]

    def _seconds(self, link: Link) -> Times:
        memos: dict[tuple[int, int, str], CollectiveMemo] = {}
        times = np.empty(len(self.measurements))
        for number, point in enumerate(self.measurements):
            record = _record(point)
            if record is None:
                picoseconds = link.serialization(point.nbytes) + link.latency_for(point.nbytes)
            else:
                name = point.ranks, point.devices_per_node, point.algorithm
                memo = memos.get(name)
                if memo is None:
                    memo = memos[name] = CollectiveMemo(self._cluster(point, link))
                entry = np.zeros(point.ranks, dtype=np.int64)
                picoseconds = int(memo(record, entry).max())
            times[number] = picoseconds / PS_PER_SECOND
        return times

    def _cluster(self, point: Measurement, link: Link) -> cluster.Cluster:
        alone = point.devices_per_node == point.ranks
        return cluster.Cluster(
            nodes=point.ranks // point.devices_per_node,
            devices_per_node=point.devices_per_node,
            device=_NONE,
            network=link,
            intra_node=link if alone else self.inside,
            collectives=_collectives(point.algorithm),
            sums=self.sums,
        )


def _collectives(algorithm: str) -> cluster.Collectives:
    if algorithm in TRANSPORTS:
        return cluster.Collectives(transport=algorithm, host_staging=False)  # type: ignore[arg-type]
    return cluster.Collectives(
        all_reduce=algorithm if algorithm in _ALL_REDUCE else "ring",  # type: ignore[arg-type]
        all_gather=algorithm if algorithm in _ALL_GATHER else "ring",  # type: ignore[arg-type]
        host_staging=False,
    )


def _record(point: Measurement) -> CollectiveRecord | None:
    kind = _kind(point.collective, point.algorithm)
    if kind == "send":
        return None
    if kind == "all_reduce":
        return CollectiveRecord(
            kind="all_reduce", sent=(point.nbytes,), element=point.element, dtype=point.dtype
        )
    if kind == "all_to_all":
        return CollectiveRecord(kind="all_to_all", sent=(point.nbytes,))
    return CollectiveRecord(kind="all_gather", sent=(-(-point.nbytes // point.ranks),))


def message_bytes(point: Measurement) -> int:
    """Return the approximate size of a collective's messages, for size factors: a ring's chunk or
    block, or Gloo's segment; if there are several sizes, the chunk."""
    if point.collective == "send":
        return point.nbytes
    if _kind(point.collective, point.algorithm) == "all_reduce":
        if point.algorithm in {"gloo", "gloo_ring"}:
            return segments(point.nbytes, point.ranks, point.element)[1]
        if point.algorithm in {"binomial_tree", "recursive_doubling"}:
            return point.nbytes
    return -(-point.nbytes // point.ranks)
