"""Predicted rows of ddl-benchmarks: what each scheduler exchanges, clusters, and seconds.

Horovod's schedulers: flat NCCL collectives over all devices, node by node, one after another.
Merging copies gradients into a buffer, averaging divides the result: both on the compute stream.

BytePS, several nodes: the devices of a node scatter their sum among themselves, copy a share each
to host memory, a node pushes to as many dedicated servers as there are nodes and pulls, and back.
A node is one worker of a parameter server here; what happens inside it is priced by the simulator's
own all-gather (a reduce-scatter takes as long) and copies on the links of a node, on a stream
beside the backward pass. The server has summed when the last push is there. One message is
exchanged at a time, so that a NIC never pushes and pulls at once; latencies of BytePS's messages,
of which all that are ready are under way, hide each other (latency 0). With as many servers as
nodes, all NICs are then equally busy whatever their number: two nodes are simulated. On one node
there is no server: BytePS's messages are NCCL all-reduces.

| scheduler | a group | a message |
|---|---|---|
| BSP-A2A, BSP-PS | all tensors (threshold 512 Mi elements) | all-reduce; parts of 4,096,000 bytes |
| WFBP-A2A | one tensor (Horovod without fusion) | an all-reduce each |
| MG-WFBP | what its rule merges (below) | an all-reduce each |
| ByteScheduler-A2A | one tensor | all-reduces of 4,000,000 elements at most |
| WFBP-PS, ByteScheduler-PS | one tensor | parts of 4,096,000 bytes at most |

MG-WFBP postpones a message until the next tensor is there when the exchange before it still runs
then, or when waiting costs less than a message's start-up, and whenever it has fewer than 8192
elements (Shi et al., "MG-WFBP", INFOCOM 2019, algorithm 1, as mgwfbp/hv_distributed_optimizer.py
does it). It expects a + b n seconds of n bytes, by the constants of that file, which are not of the
cluster that was measured.

Source of thresholds and partitions: benchmarks.py, byteps/launch.sh, bytescheduler/
horovod_mpi_cj.sh of the repository.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np

from gcsim.analysis.validation.interval import Drawing, StepIntervals, passes_of
from gcsim.analysis.validation.suite import one_step
from gcsim.analysis.validation.suites.ddl_benchmarks.models import (
    Model,
    Optimizer,
    Passes,
    model,
    own_optimizer,
    passes,
    streaming,
)
from gcsim.analysis.validation.suites.ddl_benchmarks.rows import SERVED, Network, Row, Scheduler
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios import catalog
from gcsim.scenarios.catalog import loops
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.collectives.staging import copy_time
from gcsim.simulator.devices.device import Curve, Device
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.network.links import Link
from gcsim.simulator.predict import predict
from gcsim.simulator.steps.averages import Averager
from gcsim.simulator.training import Interference, Training
from gcsim.traces.profile import Compute, Costs, Exchange, TrafficProfile

DEVICES = 4
"""A node."""
LINKS: dict[Network, str] = {"10GbE": "10gbe", "100GbE": "100gbe", "100Gb IB": "100gb_infiniband"}
"""Names in the catalogue."""
INSIDE = "pcie3_x16"
_SERVED_NODES = 2
_TO_NODE, _FROM_NODE = "node.reduce", "node.broadcast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """What is fitted; nothing set: the catalogue's values alone."""

    alone: Mapping[str, float] = field(default_factory=dict)
    """By model: measured seconds of an iteration on one device."""
    bus: float | None = None
    """Bytes a second between two devices of a node."""
    between: float | None = None
    """The same in a ring that leaves the node: three hops share the host, and not four."""
    beside: float | None = None
    """As `bus`, while the devices compute; `between` then falls as much."""
    rate: Mapping[Network, float] = field(default_factory=dict)
    """Bytes a second that NCCL gets from a NIC."""
    served: Mapping[Network, float] = field(default_factory=dict)
    """Bytes a second that BytePS gets from a NIC, push after pull; NCCL's where unset."""


Key = tuple[str, str, str, int]


def key(row: Row) -> Key:
    """Rows of one key are one prediction: on one node the network is idle, and BytePS's scheduler
    on the servers changes nothing that is modelled; through servers two nodes stand for all."""
    scheduler = "WFBP-PS" if row.scheduler == "ByteScheduler-PS" else row.scheduler
    workers = row.workers
    if row.scheduler in SERVED and row.nodes > 1:
        workers = _SERVED_NODES * DEVICES
    return row.model, scheduler, row.network if row.nodes > 1 else "", workers


def device() -> Device:
    """The cluster's, of the catalogue."""
    return catalog.device("v100_pcie")


def piece(row: Row) -> float:
    """Bytes of gradient in a message, the mean of an iteration's."""
    of = model(row.model, row.batch)
    times = _passes(row.model, row.batch, own_optimizer(row.model), None)
    sizes = [size for _, size in of.tensors]
    found = groups(row.scheduler, row.network, row.workers, sizes, times.ready)
    return 4 * sum(sizes) / sum(len(group.messages) for group in found)


def seconds(row: Row, factors: Factors) -> float:
    """Predicted time of an iteration."""
    if row.workers == 1:
        times = _times(row, factors)
        return (times.forward + times.backward + times.optimizer) / PS_PER_SECOND
    asked, averager = job(row, factors), None
    on = asked.cluster
    if not (row.scheduler in SERVED and row.nodes > 1):
        averager = _averager(row.nodes, on.network, on.intra_node, asked.training.interference)
    return predict(
        asked.traffic, on, asked.compute, training=asked.training, spans=False, averager=averager
    ).iteration


def unfitted_drawings(rows: Sequence[Row], exact: Mapping[Key, float]) -> dict[Key, Drawing]:
    """Iterations without a fit, which take `exact` seconds as stated, in all drawn worlds; rows of
    one cluster share what its collectives take."""
    found: dict[Key, Drawing] = {}
    jobs = {key(row): (row, job(row, Factors())) for row in rows if row.workers > 1}
    alike: dict[object, list[Key]] = {}
    for name, (row, _) in jobs.items():
        served = row.scheduler in SERVED and row.nodes > 1
        alike.setdefault(name if served else (row.network, row.nodes), []).append(name)
    for names in alike.values():
        first = jobs[names[0]][1]
        drawn = StepIntervals(
            first.cluster, first.training, [jobs[name][1].traffic for name in names]
        )
        for name in names:
            row, asked = jobs[name]
            passes = passes_of(asked.compute, model(row.model, row.batch).facts, device())
            found[name] = drawn.draw(asked.traffic, passes, exact[name], asked.training)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is simulated for a row."""

    traffic: TrafficProfile
    cluster: Cluster
    compute: ComputeTimes
    training: Training


def _times(row: Row, factors: Factors) -> Passes:
    optimizer: Optimizer = "sgd" if row.scheduler in SERVED else own_optimizer(row.model)
    return _passes(row.model, row.batch, optimizer, factors.alone.get(row.model))


def job(row: Row, factors: Factors) -> Job:
    """Of a row of several workers."""
    of, times = model(row.model, row.batch), _times(row, factors)
    found = groups(
        row.scheduler, row.network, row.workers, [size for _, size in of.tensors], times.ready
    )
    served = row.scheduler in SERVED and row.nodes > 1
    training = Training(
        overlap="ddp",
        interference=_interference(factors),
        noise=loops.workers() if not factors.alone else None,
        encode_on="side" if served else "compute",
        optimizer=Fraction(times.optimizer, PS_PER_SECOND),
    )
    return Job(
        traffic=_traffic(row, of, found, inside=served),
        cluster=_served_cluster(row, factors, found) if served else _flat_cluster(row, factors),
        compute=_compute(times, found),
        training=training,
    )


@cache
def _passes(name: str, batch: int, optimizer: Optimizer, alone: float | None) -> Passes:
    return passes(model(name, batch), device(), optimizer, alone)


def _bus(factors: Factors, nodes: int = 1) -> Link:
    link = catalog.link(INSIDE, "nccl")
    rate = factors.between if nodes > 1 and factors.between else factors.bus
    return link if rate is None else link.exactly(efficiency=round(rate) / link.bandwidth)


def _interference(factors: Factors) -> Interference:
    """NCCL's: of the bus as fitted, of nothing else; without any fit as the catalogue has it."""
    if factors.bus is None:
        return loops.interference("nccl")
    if factors.beside is None:
        return Interference()
    return Interference(bus=max(Fraction(0), Fraction(factors.bus / factors.beside) - 1))


def _network(row: Row, factors: Factors) -> Link:
    link = catalog.link(LINKS[row.network], "nccl")
    if row.network in factors.rate:
        link = link.exactly(efficiency=round(factors.rate[row.network]) / link.bandwidth)
    return link


def _flat_cluster(row: Row, factors: Factors) -> Cluster:
    return _flat(row.nodes, _network(row, factors), _bus(factors, row.nodes))


def _flat(nodes: int, network: Link, bus: Link) -> Cluster:
    return Cluster(
        nodes=nodes,
        devices_per_node=DEVICES,
        device=device(),
        network=network,
        intra_node=bus,
        collectives=Collectives(transport="nccl"),
    )


@lru_cache(maxsize=32)
def _averager(nodes: int, network: Link, bus: Link, interference: Interference) -> Averager:
    """Of all models and schedulers there: what a collective takes is worked out once."""
    return Averager(_flat(nodes, network, bus), Training(interference=interference), 0)


def _served_cluster(row: Row, factors: Factors, found: list[_Group]) -> Cluster:
    link = _network(row, factors).exactly(latency=Fraction(0))
    if row.network in factors.served:
        link = link.exactly(efficiency=round(factors.served[row.network]) / link.bandwidth)
    inside = _inside(row, factors, {size for group in found for size in group.messages})
    copies = {_TO_NODE: inside, _FROM_NODE: inside}
    return Cluster(
        nodes=_SERVED_NODES,
        devices_per_node=1,
        device=replace(device(), primitives=copies, host={}),  # BytePS queues them, not gcsim
        network=link,
        intra_node=_bus(factors),
        collectives=Collectives(
            all_reduce="parameter_server", servers=_SERVED_NODES, server_hosts="dedicated"
        ),
    )


def _inside(row: Row, factors: Factors, sizes: set[int]) -> Curve:
    """Seconds of a node's reduce-scatter and copies to the host, or of the way back, by bytes."""
    node = _flat_cluster(replace(row, nodes=1), factors)
    points: list[tuple[int, float]] = []
    longest = 0  # NCCL's choice of a protocol leaves some sizes slower than larger ones
    for size in sorted(sizes):
        share = -(-size // DEVICES)
        gathered = execute(
            CollectiveRecord(kind="all_gather", sent=(share,)), np.zeros(DEVICES, np.int64), node
        )
        longest = max(longest, int(gathered.max()) + copy_time(share, node.intra_node))
        points.append((size, longest / PS_PER_SECOND))
    return tuple(points)


def _traffic(row: Row, of: Model, found: list[_Group], *, inside: bool) -> TrafficProfile:
    """An exchange a message."""
    exchanges = [
        _exchange(nbytes, _copied(group) if place == 0 else None, inside)
        for group in found
        for place, nbytes in enumerate(group.messages)
    ]
    return one_step(row.scheduler, of.facts, (), exchanges)


def _copied(group: _Group) -> KernelCost | None:
    """Gradients into the buffer that is exchanged in their place."""
    return streaming(group.tensors, 8 * group.elements) if group.merged else None


@cache
def _exchange(nbytes: int, copies: KernelCost | None, inside: bool) -> Exchange:
    """Of one message: what is computed before, the sum, and what is computed after."""
    before: Costs = () if copies is None else (copies,)
    after: Costs = (streaming(1, 2 * nbytes),)
    if inside:
        before = (*before, replace(streaming(1, nbytes), name=_TO_NODE))
        after = (replace(streaming(1, nbytes), name=_FROM_NODE),)
    return Exchange(
        computes=(Compute(stage="encode", fixed=before), Compute(stage="decode", fixed=after)),
        collectives=(CollectiveRecord(kind="all_reduce", sent=(nbytes,), element=4),),
    )


def _compute(times: Passes, found: list[_Group]) -> ComputeTimes:
    """The first message of a group is ready with its last tensor, the others at once."""
    parts, before = [], 0
    for group in found:
        parts += [group.ready - before, *[0] * (len(group.messages) - 1)]
        before = group.ready
    return ComputeTimes(
        forward=times.forward,
        backward=times.backward,
        parts=tuple(parts),
        provenance="ddl-benchmarks",
    )


PARTITION = 4_096_000
"""Bytes: BYTEPS_PARTITION_BYTES."""
SCHEDULED = 4_000_000
"""Elements: BYTESCHEDULER_PARTITION."""
SMALL = 8192
"""Elements that MG-WFBP never sends alone."""
_EXPECTED: dict[bool, dict[int, tuple[float, float]]] = {
    False: {
        4: (4.204298980348825e-05, 2.0589360830118177e-10),
        8: (0.0005230272768511732, 8.570746975492128e-10),
        16: (0.0009080981007148093, 7.395651186836712e-10),
        32: (0.0013476410788581382 * 3, 8.643300782166769e-10),
    },
    True: {
        4: (4.204298980348825e-05, 2.0589360830118177e-10),
        8: (9.75367204301171e-05, 3.0568230536676206e-10),
        16: (0.00023583677659915685 * 3, 4.0594787739537565e-10),
        32: (0.00040632079996292579, 1.5 * 3.2713239529771973e-10),
    },
}
"""By whether the flag for fast networks is set (it is for both of 100 Gbit/s), and by workers:
seconds, and seconds a byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Tensors that are exchanged together."""

    tensors: int
    elements: int
    ready: Picoseconds
    """From the start of the backward pass: when its last tensor is there."""
    messages: tuple[int, ...]
    """Bytes."""
    merged: bool
    """Tensors are copied into a buffer."""


def groups(
    scheduler: Scheduler,
    network: Network,
    workers: int,
    elements: Sequence[int],
    ready: Sequence[Picoseconds],
) -> list[_Group]:
    """In the order of the backward pass; `elements` and `ready` by tensor, in that order."""
    if scheduler in {"BSP-A2A", "BSP-PS"}:
        ends = [len(elements)]
    elif scheduler == "MG-WFBP":
        expected = _EXPECTED[network != "10GbE"][workers]
        ends = merged_ends(elements, ready, *expected)
    else:
        ends = list(range(1, len(elements) + 1))
    most = None
    if scheduler in SERVED:
        most = PARTITION
    elif scheduler == "ByteScheduler-A2A":
        most = 4 * SCHEDULED
    found = []
    for start, end in zip([0, *ends], ends, strict=False):
        nbytes = 4 * sum(elements[start:end])
        found.append(
            _Group(
                tensors=end - start,
                elements=nbytes // 4,
                ready=ready[end - 1],
                messages=_cut(nbytes, most),
                merged=scheduler in {"BSP-A2A", "BSP-PS", "MG-WFBP"},
            )
        )
    return found


def merged_ends(
    elements: Sequence[int], ready: Sequence[Picoseconds], start_up: float, per_byte: float
) -> list[int]:
    """Behind which tensors MG-WFBP sends; the last one is always among them."""
    ends, free, size = [], 0.0, 0
    last = len(elements) - 1
    for place in range(last):
        size += elements[place]
        start = max(free, ready[place] / PS_PER_SECOND)
        end = start + start_up + 4 * per_byte * size
        following = ready[place + 1] / PS_PER_SECOND
        waits = following < end and following - start < start_up
        if not waits and size >= SMALL:
            ends.append(place + 1)
            free, size = end, 0
    return [*ends, last + 1]


def _cut(nbytes: int, most: int | None) -> tuple[int, ...]:
    """A message, in parts of `most` bytes at most."""
    if most is None:
        return (nbytes,)
    whole, rest = divmod(nbytes, most)
    return (most,) * whole + ((rest,) if rest else ())
