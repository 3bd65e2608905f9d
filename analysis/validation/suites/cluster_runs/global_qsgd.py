"""Global-QSGD's hook on four A100 of one server: peer to peer, and through the host's memory.

All gradients, the dense one too, are reduced by a tree of messages between the GPUs (gqsgd's
allreduce.py, `tree_allreduce`; ddphook.py, `default_hook`), which the stream of the backward pass
waits for: nothing overlaps, and a bucket's exchange begins when that of the one before is decoded.
A model is as many equal layers as its gradient has buckets: what its layers are is not in the logs.
What the hooks compute is kernel after kernel of torch (`HOOKS`), at the catalogue's prices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from gcsim.analysis.validation.suite import (
    DENSE,
    Bound,
    Excluded,
    Factor,
    Findings,
    Point,
    Suite,
    given_step,
    one_step,
)
from gcsim.analysis.validation.suites.cluster_runs.runs import Run, runs
from gcsim.analysis.validation.suites.other_clusters.prediction import (
    cluster_of,
    iteration,
    nearest,
)
from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios import catalog
from gcsim.simulator.cluster import Collectives
from gcsim.simulator.network.links import Link
from gcsim.simulator.training import Training
from gcsim.traces.buckets import CAP_BYTES, bucket_layouts
from gcsim.traces.profile import Compute, Exchange, Layer, ModelFacts, TrafficProfile

GPUS = 4
PEER, LINKS, OF = "nvlink3", 4, 12
"""The catalogue's link, and how many of its NVLinks join two of four GPUs: an assumption, the
source does not say NVLink or PCIe; over PCIe the dense tree alone takes the whole iteration."""
BITS = {"none": 32, "linear_8bit": 8, "linear_4bit": 4, "exponential_8bit": 8}
DEVICE = "a100_sxm_80gb"
"""The source says A100; NVLink, which is assumed too, is on these boards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Of a stretch of a hook."""

    launches: int
    streamed: float
    """Bytes an element that element-wise kernels read and write."""
    drawn: int = 0
    """Bytes an element of random numbers."""
    reduced: int = 0
    """Bytes an element that a reduction reads."""


HOOKS = {
    "none": (Kernels(launches=5, streamed=48), Kernels(launches=1, streamed=8)),
    "linear_8bit": (
        Kernels(launches=9, streamed=43, drawn=4, reduced=4),
        Kernels(launches=3, streamed=15),
    ),
    "linear_4bit": (
        Kernels(launches=61, streamed=117, drawn=8, reduced=4),
        Kernels(launches=13, streamed=37),
    ),
    "exponential_8bit": (
        Kernels(launches=10, streamed=41, drawn=12, reduced=4),
        Kernels(launches=2, streamed=7),
    ),
}
"""Before and after the exchange. Dense: div_, two clones, two additions of the tree; a copy. 8 bit:
abs, max, div_, rand, rounding, to(int8), then as dense, a byte an element; to(float32), mul_. 4
bit: the same and packing, and for a sum of packed bytes 15 kernels at the first level, 33 at the
second (shifts, masks, remainders, random rounding in float32; `add_packed_4bits`). Exponential:
abs, max, one kernel with its own draws, one for each addition. Additions stand before the exchange
and not in it, which is the same for a tree whose ranks wait."""


_TITLES = {"wide_resnet101_2": "Wide ResNet-101", "transformer_xl": "Transformer-XL"}
_WAYS = {"p2p": "peer to peer", "shm": "host memory"}
_TREE = Collectives(
    transport="custom", all_reduce="binomial_tree", all_gather="ring", host_staging=False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """What is fitted."""

    steps: dict[str, float]
    """By model: seconds of an iteration of one GPU."""
    memory: float
    """Bytes a second between two GPUs through the host's memory."""


def predicted(run: Run, step: float, memory: float) -> float:
    """Seconds of an iteration."""
    peer, host = catalog.link(PEER), catalog.link("host_memory")
    link = Link(name="NVLink", bandwidth=peer.rate * LINKS / OF, latency=peer.latency)
    if run.library == "shm":
        link = Link(name="memory", bandwidth=Fraction(round(memory)), latency=host.latency)
    cluster = replace(cluster_of(1, GPUS, link, link, _TREE), device=catalog.device(DEVICE))
    return iteration(
        _profile(run), cluster, step, Training(overlap="none", encode_on="communicator")
    )


def _profile(run: Run) -> TrafficProfile:
    elements = run.nbytes // 4
    count = math.ceil(run.nbytes / CAP_BYTES)
    sizes = [elements * (n + 1) // count - elements * n // count for n in range(count)]
    layers = tuple(
        Layer(name=str(n), parameters=(n,), forward_flops=1_000_000) for n in range(count)
    )
    facts = ModelFacts(
        name=run.task, parameters=elements, layers=layers, samples_per_worker=run.batch, tokens=0
    )
    parameters = [(str(n), (size,)) for n, size in enumerate(sizes)]
    buckets = bucket_layouts(parameters, first=1, cap=1)
    bits = BITS[run.method]
    exchanges = [
        Exchange(
            computes=(
                _computed("encode", HOOKS[run.method][0], bucket.numel),
                _computed("decode", HOOKS[run.method][1], bucket.numel),
            ),
            collectives=(
                CollectiveRecord(
                    kind="all_reduce",
                    sent=(math.ceil(bucket.numel * bits / 8),),
                    element=max(1, bits // 8),
                ),
            ),
        )
        for bucket in buckets
    ]
    return one_step(run.method, facts, buckets, exchanges)


def _computed(stage: Literal["encode", "decode"], kernels: Kernels, elements: int) -> Compute:
    parts: tuple[tuple[KernelClass, int, float], ...] = (
        ("streaming", kernels.launches, kernels.streamed),
        ("random", 0, kernels.drawn),
        ("reduction", 0, kernels.reduced),
    )
    return Compute(
        stage=stage,
        fixed=tuple(
            KernelCost(
                kind=kind, launches=launches, elements=elements, nbytes=math.ceil(elements * each)
            )
            for kind, launches, each in parts
            if each
        ),
    )


def fitted(own: Sequence[Run]) -> Factors:
    """Steps: at which a dense iteration, peer to peer, takes what was measured. The memory's rate:
    least squares of logarithms of both models' dense iterations."""
    dense = [run for run in own if run.method == "none"]
    steps = {
        run.task: 1
        / nearest(
            lambda rate, run=run: [predicted(run, 1 / rate, 1.0)],  # type: ignore[misc]
            [run.seconds],
            0.1 / run.seconds,
            100 / run.seconds,
        )
        for run in dense
        if run.library == "p2p"
    }
    slow = [run for run in dense if run.library == "shm"]
    memory = nearest(
        lambda rate: [predicted(run, steps[run.task], rate) for run in slow],
        [run.seconds for run in slow],
        0.3e9,
        30e9,
    )
    return Factors(steps=steps, memory=memory)


def find() -> Findings:
    """The two models whose iterations were timed."""
    own = [run for run in runs("gqsgd") if run.task in _TITLES]
    factors = fitted(own)
    points = tuple(
        Point(
            name=f"{_TITLES[run.task]}, {run.method.replace('_', ' ')}, {_WAYS[run.library]}",
            series=f"{_TITLES[run.task]}, {_WAYS[run.library]}",
            unit="s",
            measured=run.seconds,
            predicted=predicted(run, factors.steps[run.task], factors.memory),
            unfitted=None,
            fitted=run.method == "none",
            source=run.source,
            workers=GPUS,
            setting=f"{_TITLES[run.task]}, {_WAYS[run.library]}",
            method=DENSE if run.method == "none" else run.method,
        )
        for run in own
    )
    memory: Link = catalog.link("host_memory")
    return Findings(
        points=points,
        factors=(
            *(
                given_step(_TITLES[task], "step of one GPU", step)
                for task, step in factors.steps.items()
            ),
            Factor(
                series="host memory",
                name="rate between two GPUs",
                value=factors.memory,
                unit="bytes/s",
                points=2,
                catalogue=float(memory.bandwidth * memory.efficiency),
            ),
        ),
        excluded=(
            Excluded("epochs of DeepLight", 11, "how many iterations they have is not printed"),
        ),
    )


SUITE = Suite(
    name="global-qsgd",
    title="Global-QSGD on four A100 of one server",
    about=(
        "Logs of Xin et al., Global-QSGD (ECAI 2025): Wide ResNet-101 and Transformer-XL under DDP "
        "with their own hook, dense, linear dithering of 8 and 4 bit, exponential dithering of 8; "
        "four A100 that reach each other directly or (NCCL_P2P_DISABLE) through the host's memory."
    ),
    fitted_on=(
        "each model's step, by its dense row peer to peer (its own measurement of a GPU); the "
        "memory's rate, by both dense rows through it. Nothing without a fit: the catalogue does "
        "not know these models."
    ),
    missing=(
        "Exponential dithering's kernels take powers and logarithms in double precision, two or "
        "three an element, and wait for the device four times a bucket: 9 to 25 ms an iteration, "
        "which no price of the catalogue stands for."
    ),
    bounds=(
        Bound("Wide ResNet-101, peer to peer", ("Wide ResNet-101, peer to peer",), limit=0.12),
        Bound("Transformer-XL, peer to peer", ("Transformer-XL, peer to peer",), limit=0.12),
        Bound(
            "through the host's memory",
            tuple(f"{title}, host memory" for title in _TITLES.values()),
            limit=0.12,
        ),
        Bound("which method is faster than dense", statistic="decisions", limit=0.8),
    ),
    find=find,
)
