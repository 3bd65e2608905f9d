"""Iterations of GRACE's runs: the traffic of a worker, and the simulated time.

The link is the catalogue's Ethernet of that rate; tensors are copied to host memory and back over
PCIe 3, all-reduces are rings (Open MPI's choice from 10 KB on), all-gathers what MPICH chooses, and
one thread of the host carries the messages, one after the other (`simulator/host.py` with one in
flight). Runs with NCCL have NCCL's own choice, and neither copies nor that thread.

Kernels are the catalogue's V100, but for the selection of the k largest, which is the one of the
time: one block of threads that reads everything many times (`p100_pcie_pytorch1`).

Assumptions: MPICH's choice of all-gathers stands for Open MPI's, which moves the same bytes.
TensorFlow's selection was as slow as PyTorch's.

Source: open-mpi/ompi ompi/mca/coll/tuned/coll_tuned_decision_fixed.c (10,000 bytes).

Traffic is a profile of plain data, with the payloads of `grace/payloads.py` and the kernels of
`grace/arithmetic.py`:

As plain data, with the payloads of `grace/payloads.py` and the kernels of `grace/arithmetic.py`:

- Dense training (Horovod's own path) exchanges during the backward pass: one all-reduce for the
  tensors whose gradients become ready within one cycle of Horovod's thread, 5 ms.
- GRACE's methods exchange after it. That is what the runs show: from 10 to 1 Gbit/s an iteration of
  ResNet-50 with random-k of 10 % grows by as much as the bytes take (141 ms), where the backward
  pass would hide all of them. Horovod packs up to 64 MiB into a collective.

Assumption: sizes of payloads that differ are not gathered (4 bytes each).

Source: Horovod, docs/tensor-fusion.rst (64 MB); its changelog, 0.21.0: "default cycle time from 5ms
to 1ms" (GRACE has 0.18.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby, pairwise, zip_longest
from types import MappingProxyType

from gcsim.analysis.validation.interval import Interval, StepIntervals, passes_of
from gcsim.analysis.validation.suite import bare_exchange, one_step
from gcsim.analysis.validation.suites.grace.arithmetic import work
from gcsim.analysis.validation.suites.grace.models import Network, Tensor
from gcsim.analysis.validation.suites.grace.payloads import Method, Sent, sent
from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.kernels import by_class
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios import catalog
from gcsim.scenarios.catalog import loops
from gcsim.simulator.clock import picoseconds
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.step_time import step_time
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.host import Host
from gcsim.simulator.predict import predict
from gcsim.simulator.steps.averages import Averager
from gcsim.simulator.training import Training
from gcsim.traces.profile import Compute, Exchange, Layer, ModelFacts, TrafficProfile

LINKS = {1: "1gbe", 10: "10gbe"}
"""The catalogue's, by Gbit/s."""
_ALONE = Training(overlap="ddp")
"""GRACE's own code, whose groups are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The cluster of a run."""

    workers: int
    gbit: int
    library: str
    """mpi or nccl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What may be fitted."""

    compute: float
    """Seconds of forward and backward pass, alone."""
    beside: float = 0.0
    """Seconds of an iteration of several workers that neither passes nor exchange account for."""
    per_byte: float = 0.0
    """Seconds of the host's thread a byte of a message, at both ends together."""


class Steps:
    """Simulates iterations of one model; what comes again is not computed again."""

    def __init__(self, name: str, network: Network) -> None:
        self.network = network
        self._device = _device()
        self._known = catalog.device("v100_tensorflow1")
        self._facts = _facts(name, network)
        self._averagers: dict[tuple[Place, Rates], Averager] = {}
        self._profiles: dict[tuple[Method, tuple[int, ...]], TrafficProfile] = {}

    def catalogue(self) -> Rates:
        """The rates without any fit."""
        return Rates(compute=float(step_time(self._facts, self._device, "fp32").seconds))

    def unfitted(self, place: Place, method: Method) -> float:
        """Seconds of an iteration by the catalogue alone."""
        rates = self.catalogue()
        if place.workers == 1:
            return rates.compute
        profile, compute = self._profile(method, rates.compute)
        cluster, training = self._bare(place, rates)
        return predict(profile, cluster, compute, training=training, spans=False).iteration

    def seconds(
        self,
        place: Place,
        method: Method,
        rates: Rates,
        slower: Mapping[str, float] = MappingProxyType({}),
    ) -> float:
        """Of an iteration; kernels of a class take `slower` times what the catalogue says (1)."""
        if place.workers == 1:
            return rates.compute
        profile, compute = self._profile(method, rates.compute)
        cluster = _cluster(place, rates, _slowed(self._device, slower))
        training = replace(_ALONE, optimizer=Fraction(rates.beside))
        averager = self._averagers.get((place, rates))
        if averager is None:
            averager = self._averagers[place, rates] = Averager(cluster, training, 0)
        found = predict(
            profile, cluster, compute, training=training, spans=False, averager=averager
        )
        return found.iteration

    def interval(
        self, place: Place, method: Method, published: Callable[[float], float]
    ) -> Interval | None:
        """Of what is published of an iteration without any fit."""
        rates = self.catalogue()
        if place.workers == 1:
            return None
        profile, compute = self._profile(method, rates.compute)
        cluster, training = self._bare(place, rates)
        drawn = StepIntervals(cluster, training, [profile])
        passes = passes_of(compute, self._facts, self._device)
        exact = self.unfitted(place, method)
        return drawn.draw(profile, passes, exact).interval(published)

    def _bare(self, place: Place, rates: Rates) -> tuple[Cluster, Training]:
        beside = loops.interference(place.library)
        training = replace(_ALONE, noise=loops.workers(), interference=beside)
        return _cluster(place, rates, self._known), training

    def _profile(self, method: Method, compute: float) -> tuple[TrafficProfile, ComputeTimes]:
        ratio = Fraction(self._device.backward_over_forward)
        total = picoseconds(compute)
        backward = round(total * ratio / (1 + ratio))
        groups = tuple(_grouped(self.network, method, backward))
        ready = [0, *(ready for ready, _ in groups)]
        if self.network.sparse_bytes:
            ready.append(backward)
        times = ComputeTimes(
            forward=total - backward,
            backward=backward,
            parts=tuple(after - before for before, after in pairwise(ready)),
            provenance="one worker alone",
        )
        key = method, tuple(len(tensors) for _, tensors in groups)
        if key not in self._profiles:
            exchanges = [_exchange(method, tensors) for _, tensors in groups]
            if self.network.sparse_bytes:
                exchanges.append(_sparse(self.network.sparse_bytes))
            self._profiles[key] = _traffic(self._facts, method, exchanges)
        return self._profiles[key], times


def _facts(name: str, network: Network) -> ModelFacts:
    layers = [
        Layer(name="", parameters=(index,), forward_flops=tensor.forward_flops)
        for index, tensor in enumerate(network.tensors)
    ]
    return ModelFacts(
        name=name,
        parameters=network.elements,
        layers=tuple(layers),
        samples_per_worker=network.batch or 1,
    )


def _cluster(place: Place, rates: Rates, device: Device) -> Cluster:
    mpi = place.library == "mpi"
    thread = Host(cores=1, per_message=Fraction(0), per_byte=Fraction(rates.per_byte), in_flight=1)
    return Cluster(
        nodes=place.workers,
        devices_per_node=1,
        device=device,
        network=catalog.link(LINKS[place.gbit]),
        intra_node=catalog.link("pcie3_x16"),
        collectives=Collectives(
            transport="mpich" if mpi else "nccl",
            all_reduce="ring" if mpi else "auto",
            all_gather="auto",
            host_staging=mpi,
        ),
        host=thread if mpi and rates.per_byte else None,
    )


def _device() -> Device:
    """A V100 whose selection is that of the time: one block of threads, on every device."""
    found = catalog.device("v100")
    old = catalog.device("p100_pcie_pytorch1").kernels["selection"]
    return replace(found, kernels={**found.kernels, "selection": old})


def _slowed(device: Device, factors: Mapping[str, float]) -> Device:
    kernels = {
        kind: replace(
            rate,
            launch=rate.launch * factor,
            bandwidth=rate.bandwidth and rate.bandwidth / factor,
            flop_rate=rate.flop_rate and rate.flop_rate / factor,
        )
        for kind, rate in device.kernels.items()
        for factor in [factors.get(kind, 1.0)]
    }
    return replace(device, kernels=kernels)


_CYCLE = 0.005
"""Seconds between two rounds of Horovod's background thread."""
_FUSION = 64 * 2**20
"""Bytes that Horovod packs into a collective at most."""


def _grouped(
    network: Network, method: Method, backward: int
) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """When tensors are exchanged together, in picoseconds of the backward pass, and which."""
    order = tuple(reversed(network.tensors))
    if method.compressor != "none":
        filled = 0
        keys = []
        for tensor in order:
            keys.append(filled // _FUSION)
            filled += sum(payload.nbytes for payload in sent(method, tensor))
        for _, own in groupby(zip(keys, order, strict=True), key=lambda pair: pair[0]):
            yield backward, tuple(tensor for _, tensor in own)
        return
    total = sum(tensor.forward_flops for tensor in order)
    spent = 0
    ready = []
    for tensor in order:
        spent += tensor.forward_flops
        ready.append((round(Fraction(backward * spent, total)), tensor))
    cycle = picoseconds(_CYCLE)
    for _, own in groupby(ready, key=lambda pair: pair[0] // cycle):
        members = list(own)
        yield members[-1][0], tuple(tensor for _, tensor in members)


def _traffic(facts: ModelFacts, method: Method, exchanges: Sequence[Exchange]) -> TrafficProfile:
    """The profile of one step, an exchange a bucket."""
    layouts = [BucketLayout(index=index, slices=()) for index in range(len(exchanges))]
    return one_step(method.compressor, facts, layouts, exchanges)


def _exchange(method: Method, tensors: Sequence[Tensor]) -> Exchange:
    """First payloads of all tensors in one collective, then the second ones."""
    rounds = zip_longest(*([s for s in sent(method, t) if s.counted] for t in tensors))
    records = tuple(_record([one for one in each if one is not None]) for each in rounds)
    works = [work(method, tensor) for tensor in tensors]
    encode = by_class(cost for one in works for cost in one.encode)
    decode = Compute(
        stage="decode",
        fixed=by_class(cost for one in works for cost in one.decode),
        per_payload=by_class(cost for one in works for cost in one.per_payload),
    )
    between = (Compute(stage="encode", fixed=()),) * (len(records) - 1)
    first = Compute(stage="encode", fixed=encode)
    return Exchange(computes=(first, *between, decode), collectives=records)


def _record(payloads: Sequence[Sent]) -> CollectiveRecord:
    total = sum(payload.nbytes for payload in payloads)
    return CollectiveRecord(kind=payloads[0].kind, sent=(total,), element=4)


def _sparse(nbytes: int) -> Exchange:
    """Rows of an embedding, as they are."""
    return bare_exchange(CollectiveRecord(kind="all_gather", sent=(nbytes,)))
