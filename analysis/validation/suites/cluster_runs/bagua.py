"""BERT-Large and VGG-16 on up to 128 V100: dense, 8-bit and 1-bit, from 1 to 100 Gbit/s.

Bagua's methods are hierarchical: the GPUs of a node reduce to one of them over NVLink, which
compresses and exchanges stripes with those of the other nodes, all to all, sums them, compresses
again, and gathers; then it spreads the sum in its node. All of that runs in one stream, a bucket
after the other (`training.encode_on: communicator`). The reduction and its spreading inside a node
together are priced as NCCL's all-reduce there; kernels as the catalogue has them. NCCL reduces the
dense gradient by rings over all GPUs.

Slower networks than the card's own 100 Gbit/s are shaped. From 1 to 16 Gbit/s dense iterations take
what the wire alone needs, and not a forward pass more: while a device computes, the shaper saves up
(a token bucket that is deep enough for it). An iteration takes the longer of both, what it takes
on the card and what its bytes take at the shaper's rate.

QAdam is said to send 1 bit an element. The released code compresses its moments to 8 bits, as
ByteGrad does (q_adam.py, "MinMaxUInt8"), and VGG-16 takes what 8 bits do; BERT-Large's epochs of an
earlier page take far less: there it is 1 bit.

Source of the algorithms: BaguaSys/bagua, bagua/torch_api/algorithms (bytegrad.py, q_adam.py,
gradient_allreduce.py; buckets of 10 MiB, `hierarchical=True` but for the dense one) and
rust/bagua-core (centralized_low_precision_synchronous.rs, communicators/mod.rs, bagua_kernels.cu).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, partial
from statistics import median

import numpy as np

from gcsim.analysis.validation.interval import Interval, ends
from gcsim.analysis.validation.suite import (
    DENSE,
    Bound,
    Excluded,
    Factor,
    Findings,
    Point,
    Suite,
    Unit,
)
from gcsim.analysis.validation.suites.cluster_runs.runs import Run, runs
from gcsim.analysis.validation.suites.cluster_runs.training import (
    bare,
    catalogue_step,
    job,
    reduced,
    scattered,
)
from gcsim.analysis.validation.suites.cluster_runs.training import model as model_of
from gcsim.analysis.validation.suites.other_clusters.prediction import (
    KNOWN,
    NCCL_RINGS,
    Job,
    cluster_of,
    nearest,
)
from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios import catalog
from gcsim.scenarios.sections.transports import GROUPED
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import carry_out
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.network.links import Link
from gcsim.traces.profile import Compute, Exchange

EXAMPLES = 87_599
"""Of SQuAD 1.1 for training (Rajpurkar et al. 2016): an epoch, each of them once."""
BUCKET = 10 * 2**20
TOKENS = 384
"""Of a sequence: the default of BaguaSys/examples, squad/main.py."""
INSIDE, DEVICE = "nvlink2", "v100"
GPUS = 8
"""A node."""
DENSE_BITS = 32
OLDER = "vgg16_scaling"
"""The older benchmark."""
TCP_FROM = 40.0
"""Gbit/s from which on TCP's work on the hosts limits a card, and not its shaper."""
NO_STEP = 1e-9
"""Seconds."""
_FITTED_NODES = (1, 2, 16)
_NODES = Collectives(transport="nccl", host_staging=False, grouped=GROUPED["nccl"][0])
_TASKS = {"bert_large": "BERT-Large", "vgg16": "VGG-16", "vgg16_scaling": "VGG-16 2021"}
_TITLES = {"none": "dense", "8bit": "8 bit", "1bit": "1 bit"}
"""As published."""
_LIBRARIES = {
    "horovod": "Horovod",
    "pytorch_ddp": "DDP",
    "bagua_allreduce": "Bagua",
    "bagua_bytegrad": "ByteGrad",
    "bagua_qadam": "QAdam",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """What is fitted."""

    steps: Mapping[str, float]
    """By task: seconds of an iteration of a GPU that waits for nobody."""
    tcp: Mapping[str, float] = field(default_factory=dict)
    """By benchmark: bytes a second that rings over all GPUs get from a card; none, and where one
    GPU of a node exchanges: the catalogue's."""


def benchmark(run: Run) -> str:
    """Rows of one cluster at one time."""
    return OLDER if run.task == OLDER else "newer"


def bits(run: Run) -> int:
    """That are sent of an element."""
    if run.method == "none":
        return DENSE_BITS
    return 1 if run.method == "1bit" and run.task == "bert_large" else 8


def iterations(run: Run) -> float:
    """That the measured time is of."""
    return EXAMPLES / (run.batch * run.gpus) if run.unit == "s" else 1.0


def card(tcp: float | None) -> Link:
    """A node's, as TCP finds it; None: the catalogue's."""
    known = catalog.link("100gbe", "nccl")
    if tcp is None:
        return known
    return Link(name="TCP", bandwidth=Fraction(round(tcp)), latency=known.latency)


def shaped(rate_gbit: float) -> Link:
    """What a node's shaper lets through on average."""
    known = catalog.link("10gbe", "nccl").exactly(latency=Fraction(0))
    rate = Fraction(rate_gbit) * 10**9 / 8
    return replace(known, name=f"{rate_gbit:g} Gbit/s", bandwidth=rate)


def predicted(run: Run, factors: Factors) -> float:
    """Seconds of an iteration."""
    taken, wire = asked(run, factors)
    return taken.seconds if wire is None else max(taken.seconds, wire.seconds)


def unfitted(run: Run, factors: Factors) -> list[Job]:
    """What it waits for, with the catalogue's factors: the longest decides."""
    code = "pytorch" if run.library == "pytorch_ddp" else "none"
    return [one.unfitted(DEVICE, code) for one in asked(run, factors) if one is not None]


def bare_interval(run: Run, jobs: Sequence[Job]) -> Interval | None:
    """Of what is published of the longest."""
    drawn = [one.drawing for one in jobs]
    longest = max(drawn, key=lambda one: float(one.seconds.mean()))
    seconds = np.max([one.seconds for one in drawn], axis=0)
    return replace(longest, seconds=seconds).interval(partial(_published, run))


def asked(run: Run, factors: Factors) -> tuple[Job, Job | None]:
    """Its iteration, and the exchange alone where a shaper limits it."""
    of = _MODELS[run.task], run.batch, run.gpus, run.nodes, bits(run)
    of_rings = factors.tcp.get(benchmark(run)) if run.method == "none" else None
    tcp = card(of_rings)
    taken = _iteration(*of, run.library == "bagua_qadam", factors.steps[run.task], tcp)
    return taken, _wire(*of, shaped(run.rate_gbit)) if run.rate_gbit < TCP_FROM else None


@cache
def _wire(  # noqa: PLR0917
    name: str, batch: int, gpus: int, nodes: int, bits: int, network: Link
) -> Job:
    """The exchange alone, which keeps the network busy."""
    inside = catalog.link(INSIDE)
    if bits == DENSE_BITS:
        cluster: Cluster = cluster_of(nodes, gpus, network, inside, NCCL_RINGS)
        return job(name, batch, bare(reduced()), cluster, NO_STEP)
    cluster = cluster_of(nodes, nodes, network, inside, _NODES)
    of_bucket = bare(scattered(bits, nodes))
    return job(name, batch, of_bucket, cluster, NO_STEP, first=BUCKET, cap=BUCKET)


@cache
def _iteration(  # noqa: PLR0917
    name: str,
    batch: int,
    gpus: int,
    nodes: int,
    bits: int,
    moments: bool,
    step: float,
    network: Link,
) -> Job:
    inside = catalog.link(INSIDE)
    if bits == DENSE_BITS or nodes == 1:
        cluster: Cluster = cluster_of(nodes, gpus, network, inside, NCCL_RINGS)
        return job(name, batch, bare(reduced()), cluster, step)
    cluster = cluster_of(nodes, nodes, network, inside, _NODES)
    cluster = replace(cluster, device=catalog.device(DEVICE))
    training = replace(
        KNOWN, encode_on="communicator", optimizer=_update(name) if moments else Fraction()
    )
    exchanges = partial(compressed, bits=bits, nodes=nodes, moments=moments)
    return job(name, batch, exchanges, cluster, step, first=BUCKET, cap=BUCKET, training=training)


def compressed(elements: int, *, bits: int, nodes: int, moments: bool) -> Exchange:
    """A bucket, as the GPU sees it that exchanges for its node. Two kernels for each of a smallest
    and a largest value of each of `nodes` stripes, then one each to compress, to decompress, to sum
    stripes, to compress the sum and to decompress all."""
    stripe = -(-elements // nodes)
    extremes = _kernels("reduction", 4 * nodes, 8 * elements)
    first = [extremes, _kernels("streaming", 1, 5 * elements), *_inside_a_node(elements)]
    if moments:  # mul_, add_
        first.append(_kernels("streaming", 2, 20 * elements))
    summed = [
        _kernels("streaming", 3, 9 * elements + 9 * stripe),
        _kernels("reduction", 4, 8 * stripe),
    ]
    return Exchange(
        computes=(
            Compute(stage="encode", fixed=tuple(first)),
            Compute(stage="encode", fixed=tuple(summed)),
            Compute(stage="decode", fixed=(_kernels("streaming", 1, 5 * elements),)),
        ),
        collectives=scattered(bits, nodes)(elements),
    )


def _kernels(kind: KernelClass, launches: int, nbytes: int) -> KernelCost:
    return KernelCost(kind=kind, launches=launches, elements=nbytes // 4, nbytes=nbytes)


@cache
def _inside_a_node(elements: int) -> tuple[KernelCost, ...]:
    """NCCL's all-reduce of the bucket, as copies that take as long."""
    node = cluster_of(1, GPUS, catalog.link(INSIDE), catalog.link(INSIDE), _NODES)
    record = CollectiveRecord(kind="all_reduce", sent=(4 * elements,), element=4)
    taken = carry_out(record, np.zeros(GPUS, dtype=np.int64), node).max() / PS_PER_SECOND
    rate = catalog.device(DEVICE).kernels["streaming"].bandwidth
    return (_kernels("streaming", 0, round(taken * rate)),)


def _update(name: str) -> Fraction:
    """Seconds of QAdamOptimizer.step, which fuses nothing: sqrt, division, add_, division, product,
    add_, a tensor at a time. What the optimiser of asynchronous training took is not taken off."""
    _, sizes = model_of(name, 1)
    cost = _kernels("streaming", 6 * len(sizes), 52 * sum(sizes))
    prices = PriceList(catalog.device(DEVICE))
    return Fraction(prices.compute_time(Compute(stage="decode", fixed=(cost,)), 1), PS_PER_SECOND)


def serves(run: Run) -> bool:
    """Whether a factor is fitted on it: DDP and Horovod on VGG-16 at 100 Gbit/s, in the older
    benchmark DDP on one, two and sixteen nodes."""
    if run.task == OLDER:
        return run.library == "pytorch_ddp" and run.nodes in _FITTED_NODES
    fast = run.task == "vgg16" and run.rate_gbit > TCP_FROM
    return fast and run.library in {"horovod", "pytorch_ddp"}


def fitted(own: Sequence[Run]) -> Factors:
    """Steps: of asynchronous training, which waits for nobody, in the older benchmark of one node.
    TCP's rate: least squares of logarithms."""
    free = [run for run in runs("bagua") if run.method == "async" and not run.delay_ms]
    steps = {
        task: median(
            run.seconds / iterations(run) for run in free if run.task.removesuffix("_delay") == task
        )
        for task in ("bert_large", "vgg16")
    }
    served = [run for run in own if serves(run)]
    steps[OLDER] = next(run.seconds for run in served if run.nodes == 1)
    tcp = {
        name: _tcp([run for run in served if benchmark(run) == name and run.nodes > 1], steps)
        for name in ("newer", OLDER)
    }
    return Factors(steps=steps, tcp=tcp)


def _tcp(served: Sequence[Run], steps: Mapping[str, float]) -> float:
    def with_rate(rate: float) -> list[float]:
        factors = Factors(steps=steps, tcp={benchmark(served[0]): rate})
        return [predicted(run, factors) for run in served]

    return nearest(with_rate, [run.seconds for run in served], 0.5e9, 12.5e9)


def find() -> Findings:
    """All rows that are compared."""
    own = [run for run in runs("bagua") if run.task in _TASKS and run.method in _TITLES]
    factors = fitted(own)
    known = {
        name: catalogue_step(name, batch, DEVICE, TOKENS if name == "bert_large" else None)
        for name, batch in _BATCHES.items()
    }
    known_steps = Factors(steps={task: known[_MODELS[task]] or 0.0 for task in _TASKS})
    points = []
    for run in own:
        alone = unfitted(run, known_steps) if known_steps.steps[run.task] else []
        points.append(
            Point(
                name=_name(run),
                series=series(run),
                unit=_unit(run),
                measured=run.value,
                predicted=_published(run, predicted(run, factors)),
                unfitted=_published(run, max(one.seconds for one in alone)) if alone else None,
                **ends(bare_interval(run, alone) if alone else None),
                fitted=serves(run),
                source=run.source,
                workers=run.gpus,
                setting=f"{_TASKS[run.task]}, {run.gpus} GPUs, {run.rate_gbit:g} Gbit/s",
                method=DENSE if run.method == "none" else run.method,
                panel=_TASKS[run.task],
                curve=_LIBRARIES[run.library],
                x=run.gpus if run.task == "vgg16_scaling" else run.rate_gbit,
            )
        )
    return Findings(
        points=_one_dense(points), factors=tuple(_factors(factors, known_steps)), excluded=EXCLUDED
    )


_SLOW = 3.0
_MODELS = {"bert_large": "bert_large", "vgg16": "vgg16", "vgg16_scaling": "vgg16"}
_BATCHES = {"bert_large": 6, "vgg16": 32}


def _one_dense(points: list[Point]) -> tuple[Point, ...]:
    """Of a setting's dense rows one is what the methods are compared with: the first."""
    seen: set[str] = set()
    found = []
    for point in points:
        if point.method == DENSE:
            if point.setting in seen:
                point = replace(point, setting="", method="")  # noqa: PLW2901
            else:
                seen.add(point.setting)
        found.append(point)
    return tuple(found)


def series(run: Run) -> str:
    """By model and method, and by whether the rate or TCP limits the card."""
    title = f"{_TASKS[run.task]}, {_TITLES[run.method]}"
    if run.task == "bert_large" and run.method == "none":
        return f"{title}, {'64' if run.rate_gbit > TCP_FROM else '1 to 16'} Gbit/s"
    if run.task == "bert_large":
        return f"{title}, {'1 and 2' if run.rate_gbit < _SLOW else '4 to 64'} Gbit/s"
    return title


def _name(run: Run) -> str:
    what = f"{run.gpus} GPUs" if run.task == "vgg16_scaling" else f"{run.rate_gbit:g} Gbit/s"
    return f"{_TASKS[run.task]}, {_LIBRARIES[run.library]}, {what}"


def _unit(run: Run) -> Unit:
    return "s" if run.unit == "s" else "samples/s"


def _published(run: Run, iteration: float) -> float:
    if run.unit == "s":
        return iteration * iterations(run)
    return run.batch * run.gpus / iteration


def _factors(factors: Factors, bare: Factors) -> list[Factor]:
    found = [
        Factor(
            series=_TASKS[task],
            name="step of a GPU that waits for nobody",
            value=step,
            unit="s",
            points=1 if task == OLDER else 2,
            given=True,
            catalogue=bare.steps[task] or None,
        )
        for task, step in factors.steps.items()
    ]
    rate = catalog.link("100gbe", "nccl")
    return found + [
        Factor(
            series=f"64 and 100 Gbit/s, {'older' if name == OLDER else name} benchmark",
            name="what rings get from a card by TCP",
            value=tcp,
            unit="bytes/s",
            points=2,
            catalogue=float(rate.bandwidth * rate.efficiency),
        )
        for name, tcp in factors.tcp.items()
    ]


EXCLUDED = (
    Excluded(
        "rows of BytePS, of decentralised methods and of Bagua-Net",
        49,
        "BytePS's servers are not stated; models, not gradients, are averaged with "
        "neighbours; the batch of Bagua-Net's rows is not printed",
    ),
    Excluded(
        "rows with added latency", 17, "whether it is one way or there and back is not stated"
    ),
    Excluded(
        "rows of asynchronous training",
        9,
        "they wait for nobody: four of them are the steps of a GPU",
    ),
)

SUITE = Suite(
    name="bagua",
    title="BERT-Large and VGG-16 on 128 V100, dense, 8 and 1 bit",
    about=(
        "Bagua's benchmark: up to 16 nodes of eight V100 with NVLink; TCP. An epoch of BERT-Large "
        "on SQuAD at 1 to 64 Gbit/s, VGG-16 at 10 and 100 Gbit/s, and an older one of VGG-16 on 8 "
        "to 128 GPUs. PyTorch's DDP, Horovod, Bagua's all-reduce, ByteGrad (8 bit) and QAdam (1 "
        "bit; on VGG-16 the 8 bit of the released code). Read off charts (1 to 10 %); precision "
        "and the number of an epoch's iterations are not stated: float32, and each example once."
    ),
    fitted_on=(
        "Steps: asynchronous training at full rate (two runs a model), DDP on one node in the "
        "older benchmark. What rings over all GPUs get from a card by TCP: DDP and Horovod on "
        "VGG-16 at 100 Gbit/s; in the older benchmark DDP on two and sixteen nodes. One GPU a node "
        "gets what the catalogue says: chosen on the older benchmark, judged on the newer. That a "
        "shaper saves up was chosen on BERT-Large's dense rows, and judged on all others."
    ),
    missing=(
        "QAdam on BERT-Large takes 90 ms longer behind a shaper of 2, 4 and 8 Gbit/s than without "
        "one, the same at each, where its bytes need 40 to 330 ms: not explained. VGG-16 with 8 "
        "bit at 10 Gbit/s takes 208 ms, and its bytes alone 207 at the full line rate. QAdam's "
        "warm-up is not known. Bagua's own all-reduce at 100 Gbit/s is a third faster than DDP's "
        "and Horovod's. The two benchmarks of VGG-16 differ by a third for DDP on 128 GPUs, and "
        "rings on two nodes get more of a card than on sixteen. From the catalogue, BERT-Large's "
        "dense epochs at 64 Gbit/s are too slow by a third: rings over eight GPUs a node reach 22 "
        "to 38 Gbit/s here, and 18 are stated. Of the rows with added latency, which are left out, "
        "DDP's are predicted a third too fast with the delay taken as one way, 8 and 1 bit two to "
        "six times too slow: NCCL's groups seem not to wait for a delay in each of their rounds "
        "there, where the tc cluster's do, or buckets are larger than 10 MiB."
    ),
    bounds=(
        Bound(
            "BERT-Large, dense, 1 to 16 Gbit/s", ("BERT-Large, dense, 1 to 16 Gbit/s",), limit=0.12
        ),
        Bound(
            "VGG-16 dense, BERT-Large dense at 64 Gbit/s",
            ("VGG-16, dense", "BERT-Large, dense, 64 Gbit/s"),
            limit=0.12,
        ),
        Bound("VGG-16, dense, 2021 (regression)", ("VGG-16 2021, dense",), limit=0.2),
        Bound(
            "BERT-Large, 8 and 1 bit, 1 and 2 Gbit/s",
            (
                "BERT-Large, 8 bit, 1 and 2 Gbit/s",
                "BERT-Large, 1 bit, 1 and 2 Gbit/s",
            ),
            limit=0.12,
        ),
        Bound(
            "BERT-Large, 8 and 1 bit, 4 to 64 Gbit/s",
            (
                "BERT-Large, 8 bit, 4 to 64 Gbit/s",
                "BERT-Large, 1 bit, 4 to 64 Gbit/s",
            ),
            limit=0.12,
        ),
        Bound("VGG-16, 8 bit", ("VGG-16, 8 bit", "VGG-16 2021, 8 bit"), limit=0.12),
        Bound("VGG-16, 1 bit", ("VGG-16, 1 bit",), limit=0.12),
        Bound("which method is faster than dense", (), statistic="decisions", limit=0.8),
    ),
    find=find,
    figure_x="Gbit/s, or GPUs",
)
