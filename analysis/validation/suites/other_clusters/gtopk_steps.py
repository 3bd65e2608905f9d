"""How long does an iteration of gTop-k's code take? One vector, exchanged after the backward pass.

Everything is a kernel or a collective of the simulator: the selection of the k largest, what the
host does for each element of the dense gradient, and an all-gather (top-k) or a tree (gTop-k) of
values and indices from host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from gcsim.analysis.validation.interval import Interval, StepIntervals, passes_of
from gcsim.analysis.validation.step_profiles import bare_exchange, one_step
from gcsim.analysis.validation.suite import DENSE
from gcsim.analysis.validation.suites.other_clusters.prediction import backward_of
from gcsim.analysis.validation.suites.other_clusters.runs import FLOAT32, Run, bucketed, facts, runs
from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios import catalog
from gcsim.scenarios.catalog import loops
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.devices.device import Device, KernelRate
from gcsim.simulator.devices.training_time import ComputeTimes, training_times
from gcsim.simulator.network.links import Link
from gcsim.simulator.predict import predict
from gcsim.simulator.training import Training
from gcsim.traces.passes import PassTimes
from gcsim.traces.profile import Compute, Exchange, TrafficProfile

GPU = "gtx_1080_ti"
"""Of the catalogue, for the prediction without a fit: the P102-100 is a GP102, as it is."""
DENSITY = 1000
WORD = 4
"""Bytes of an index, and of a value."""
PCIE = Fraction(10**9)
"""Bytes a second of four lanes of PCIe 1, as a P102-100 has them (Inno3D's listing, reported by
bto-pc-fan.com, 2018): 2.5 GT/s each, 8 bits in 10."""
_WHOLE = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds an element of the dense gradient."""

    selection: float
    host: float


def network() -> Link:
    """As the authors measured it, message by message."""
    found = {run.metric: Fraction(str(run.value)) for run in runs("gtopk_p2p")}
    return Link(
        name="1 GbE, as measured", bandwidth=1 / found["p2p_beta"], latency=found["p2p_alpha"]
    )


def seconds(run: Run, step: float, link: Link, costs: Costs | None) -> float:
    """Of an iteration; without costs a selection takes what the catalogue's GPU needs."""
    traffic, cluster, times = _simulated(run, step, link, costs)
    return predict(traffic, cluster, times, spans=False).iteration


def bare_interval(
    run: Run, step: float, link: Link, published: Callable[[float], float]
) -> Interval | None:
    """Of what is published of an iteration without costs."""
    traffic, cluster, times = _simulated(run, step, link, None)
    training = Training(overlap="none", noise=loops.workers())
    passes = passes_of(times, traffic.model, cluster.device)
    drawn = StepIntervals(cluster, training, [traffic])
    exact = seconds(run, step, link, None)
    return drawn.draw(traffic, passes, exact).interval(published)


def _simulated(
    run: Run, step: float, link: Link, costs: Costs | None
) -> tuple[TrafficProfile, Cluster, ComputeTimes]:
    device = catalog.device(GPU) if costs is None else _device(costs)
    cluster = Cluster(
        nodes=run.gpus,
        devices_per_node=1,
        device=device,
        network=link,
        intra_node=Link(name="PCIe 1 x4", bandwidth=PCIE, latency=Fraction(10, 10**6)),
        collectives=Collectives(
            transport="custom", all_reduce="ring", all_gather="ring", host_staging=True
        ),
    )
    buckets = bucketed(run.model, _WHOLE, _WHOLE)
    traffic = one_step(run.method, facts(run.model, run.batch), buckets, [_exchange(run)])
    backward = backward_of(step)
    measured = PassTimes(forward=step - backward, backward=backward, source="measured")
    return traffic, cluster, training_times(traffic.model, buckets, device, measured)


def _device(costs: Costs) -> Device:
    return Device(
        name="p102_100",
        title="P102-100 and its host, as measured",
        kernels={"selection": _rate(costs.selection), "host_sync": _rate(costs.host)},
        effective_flop_rate=1.0,
        source="Shi et al. 2019",
    )


def _rate(an_element: float) -> KernelRate:
    bandwidth = FLOAT32 / an_element if an_element else None
    return KernelRate(launch=0.0, bandwidth=bandwidth, source="Shi et al. 2019")


def sent_bytes(run: Run) -> int:
    """That a worker hands to its collective: the gradient, or a share of it with indices."""
    elements = facts(run.model, run.batch).parameters
    return FLOAT32 * elements if run.method == DENSE else 2 * WORD * (elements // DENSITY)


def _exchange(run: Run) -> Exchange:
    elements, sent = facts(run.model, run.batch).parameters, sent_bytes(run)
    if run.method == DENSE:
        return bare_exchange(CollectiveRecord(kind="all_reduce", sent=(sent,), element=FLOAT32))
    record = CollectiveRecord(kind="all_gather", sent=(sent,))
    if run.method == "gtopk":
        record = CollectiveRecord(kind="tree_merge", sent=(sent,), pulled=sent)
    return Exchange(
        computes=(
            Compute(stage="encode", fixed=(_pass("selection", elements),)),
            Compute(stage="decode", fixed=(_pass("host_sync", elements),)),
        ),
        collectives=(record,),
        servers=(None,) if run.method == "gtopk" else (),
    )


def _pass(kind: KernelClass, elements: int) -> KernelCost:
    return KernelCost(kind=kind, launches=1, elements=elements, nbytes=FLOAT32 * elements)
