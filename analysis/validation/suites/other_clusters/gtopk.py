"""Top-k and gTop-k on a slow network, beside dense training.

Shi et al. (ICDCS 2019): four models on up to 32 machines with one P102-100 each, 1-Gbit/s Ethernet,
PyTorch 0.4; dense, top-k and gTop-k with a thousandth of the gradient. Nothing is overlapped: the
gradient is one vector, exchanged over MPI from host memory after the backward pass.

Taken as the user's own measurements: the rate of one GPU, the authors' fit of the network (latency
and bandwidth of one message), and how long they say their selection takes. The NIC has four lanes
of PCIe 1, 1 GB/s. What the sparse methods' code does on the host in Python (dense arrays are made,
cleared, scaled, and copied to the device) costs some time for each element of the dense gradient:
fitted, one figure a method, by the rows of four workers (median over the models).

Dense training is compared on 4 and 8 workers only.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from gcsim.analysis.report.numbers import plural
from gcsim.analysis.validation.interval import Interval, StepIntervals, ends, passes_of
from gcsim.analysis.validation.suite import (
    DENSE,
    Excluded,
    Factor,
    Findings,
    Point,
    bare_exchange,
    one_step,
)
from gcsim.analysis.validation.suites.other_clusters.prediction import (
    backward_of,
    catalogue_seconds,
)
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
from gcsim.traces.profile import Compute, Exchange, PassTimes, TrafficProfile

FITTED_WORKERS = 4
USABLE_DENSE = (4, 8)
CHOICE_WORKERS = 8
"""Where dense is measured and nothing is fitted."""
MODELS = {
    "vgg16_bn_cifar10": "VGG-16 CIFAR",
    "resnet20_cifar10": "ResNet-20 CIFAR",
    "alexnet": "AlexNet",
    "resnet50": "ResNet-50",
}
METHODS = {DENSE: "dense", "topk": "top-k", "gtopk": "gTop-k"}
SERIES = tuple(f"1 GbE, P102-100, {title}" for title in METHODS.values())


def findings() -> Findings:
    """Three methods, four models."""
    chosen = [run for run in runs("gtopk") if run.batch]
    usable = [run for run in chosen if run.method != DENSE or run.gpus in (1, *USABLE_DENSE)]
    steps = {run.model: run.seconds for run in usable if run.gpus == 1}
    selection = _selection()
    host = {method: _host(method, usable, steps, selection) for method in ("topk", "gtopk")}
    return Findings(
        points=tuple(_points(usable, steps, selection, host)),
        factors=tuple(_factors(usable, selection, host)),
        excluded=(
            Excluded(
                "dense rows of gTop-k's cluster on 16 and 32 workers",
                len(chosen) - len(usable),
                "their exchanges take 3.8 and 12.8 times as long as an ideal ring at the line "
                "rate (median of the models), on 4 and 8 workers 1.4 and 1.5 times: the network "
                "collapses",
            ),
            Excluded(
                "rows of gTop-k's LSTM", len(runs("gtopk")) - len(chosen), "the batch is not stated"
            ),
        ),
    )


def _factors(usable: list[Run], selection: float, host: dict[str, float]) -> Iterator[Factor]:
    for run in usable:
        if run.gpus == 1:
            name = f"step of {MODELS[run.model]} on one GPU"
            known = catalogue_seconds(_GPU, run.model, run.batch)
            yield _given(DENSE, name, run.seconds, "s", 1, known)
    own, stated = network(), catalog.link("1gbe")
    latency = "latency, the authors' fit"
    yield _given(DENSE, latency, float(own.latency), "s", 1, float(stated.latency))
    goodput = "goodput, the authors' fit"
    yield _given(DENSE, goodput, float(own.rate), "bytes/s", 1, float(stated.rate))
    for method, cost in host.items():
        name = "selection an element, the authors' word"
        yield _given(method, name, selection, "s", len(MODELS))
        name = "host's work for an element of the gradient"
        served = sum(_fits(run, method) for run in usable)
        yield replace(_given(method, name, cost, "s", served), given=False)


def _given(  # noqa: PLR0917 - a row of a table
    method: str, name: str, value: float, unit: str, points: int, catalogue: float | None = None
) -> Factor:
    return Factor(_series(method), name, value, unit, points, catalogue=catalogue, given=True)


def _selection() -> float:
    """Seconds an element, as the authors' breakdown has it: median over the models."""
    return statistics.median(
        run.seconds / facts(run.model, run.batch).parameters
        for run in runs("gtopk_parts")
        if run.metric == "compression_time_per_iter"
    )


def _fits(run: Run, method: str) -> bool:
    return run.method == method and run.gpus == FITTED_WORKERS


def _host(method: str, usable: list[Run], steps: dict[str, float], selection: float) -> float:
    """What is missing without it, an element."""
    free = Costs(selection=selection, host=0.0)
    return max(
        0.0,
        statistics.median(
            (run.seconds - seconds(run, steps[run.model], network(), free))
            / facts(run.model, run.batch).parameters
            for run in usable
            if _fits(run, method)
        ),
    )


def _points(
    usable: list[Run], steps: dict[str, float], selection: float, host: dict[str, float]
) -> Iterator[Point]:
    for run in usable:
        costs = Costs(selection=selection, host=host.get(run.method, 0.0))
        known = catalogue_seconds(_GPU, run.model, run.batch)
        bare = None if known is None else seconds(run, known, catalog.link("1gbe"), None)
        within = None
        if known is not None and run.gpus > 1:
            within = _bare_interval(
                run,
                known,
                catalog.link("1gbe"),
                lambda time, run=run: run.gpus * run.published(time)[0],  # type: ignore[misc]
            )
        predicted = seconds(run, steps[run.model], network(), costs)
        yield Point(
            name=f"{MODELS[run.model]}, {METHODS[run.method]}, {plural(run.gpus, 'worker')}",
            series=_series(run.method),
            unit="samples/s",
            # published is one worker's rate
            measured=run.gpus * run.value,
            predicted=run.gpus * run.published(predicted)[0],
            unfitted=None if bare is None else run.gpus * run.published(bare)[0],
            fitted=run.gpus == 1 or (run.method != DENSE and _fits(run, run.method)),
            source=run.source,
            workers=run.gpus,
            nbytes=_sent_bytes(run),
            setting=f"gTop-k {run.model}" if run.gpus == CHOICE_WORKERS else "",
            method=run.method if run.gpus == CHOICE_WORKERS else "",
            panel=f"{MODELS[run.model]}, 1 GbE",
            curve=METHODS[run.method],
            x=run.gpus,
            **ends(within),
        )


def _series(method: str) -> str:
    return SERIES[list(METHODS).index(method)]


_GPU = "gtx_1080_ti"
"""Of the catalogue, for the prediction without a fit: the P102-100 is a GP102, as it is."""
_DENSITY = 1000
_WORD = 4
"""Bytes of an index, and of a value."""
_PCIE = Fraction(10**9)
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


def _bare_interval(
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
    device = catalog.device(_GPU) if costs is None else _device(costs)
    cluster = Cluster(
        nodes=run.gpus,
        devices_per_node=1,
        device=device,
        network=link,
        intra_node=Link(name="PCIe 1 x4", bandwidth=_PCIE, latency=Fraction(10, 10**6)),
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


def _sent_bytes(run: Run) -> int:
    """That a worker hands to its collective: the gradient, or a share of it with indices."""
    elements = facts(run.model, run.batch).parameters
    return FLOAT32 * elements if run.method == DENSE else 2 * _WORD * (elements // _DENSITY)


def _exchange(run: Run) -> Exchange:
    elements, sent = facts(run.model, run.batch).parameters, _sent_bytes(run)
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
