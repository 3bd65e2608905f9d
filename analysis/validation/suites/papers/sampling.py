"""The 2.5x of gradient sampling on AlexNet: where it may come from on that cluster.

The paper prints neither iteration times nor latencies nor how images were loaded. Its bytes alone
would give a far larger speedup: something took time that compression does not shorten. Three
values, each for itself, would explain it, and are found at run time; no prediction uses them.

Source: L. Song, K. Zhao, P. Pan, Y. Liu, Y. Zhang, Y. Xu, R. Jin, "Communication efficient SGD via
gradient sampling with Bayes prior", CVPR 2021, doi 10.1109/CVPR46437.2021.01189, section 4.
Loading: TensorFlow, docs_src/performance/benchmarks.md@5984ffef, DGX-1 (P100), AlexNet at batch
512 on 4 GPUs: 10,509 images/s of synthetic data, 7,105 of real data.

The sampling of the paper's section 4: in one step of 100 the whole gradient in half precision, in
the others 1 % of every tensor, both by all-reduce, without indices. Which coordinates are drawn
does not matter to a network, and how many are drawn varies around the mean that stands here.
Kernels of the compressor are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from gcsim.analysis.validation.data_files import data_rows
from gcsim.analysis.validation.suite import Factor, Findings, Point, Statement, bare_exchange
from gcsim.analysis.validation.suites.papers.ring import FLOAT32, ideal_link
from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios.load import load_scenario
from gcsim.simulator.clock import seconds
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.devices.training_time import ComputeTimes, training_times
from gcsim.simulator.host import Sums
from gcsim.simulator.predict import predict
from gcsim.simulator.training import InputLoading, Training
from gcsim.traces.buckets import CAP_BYTES, FIRST_BYTES, bucket_layouts
from gcsim.traces.models.registry import ModelEntry, TableLayer
from gcsim.traces.models.table import table_entry, table_facts, table_parameters
from gcsim.traces.profile import Phase, Quality, Step, TrafficProfile

MEASURED = 2.5
"""Times as fast as dense training, on 64 GPUs."""

_SOURCE = "Song et al., CVPR 2021, doi 10.1109/CVPR46437.2021.01189, sec. 4.4 (AlexNet, ImageNet)"
_NODES = 32
_REAL_IMAGES_PER_SECOND = Fraction(7105, 4)
"""That TensorFlow's reader brought to each of four P100s; without a reader they took 2,627."""
_MOST_TRIALS, _CLOSE = 20, 1e-3
"""The latter of the inverse speedup, relative."""
_MOST_LATENCY, _MOST_LOADING = Fraction(2, 1000), Fraction(1)
"""Seconds between which and the catalogue's values an explanation is looked for."""

SERIES = "2.5x of gradient sampling"
BARE_SERIES = "2.5x, by its bytes alone"


def findings() -> Findings:
    """The measured speedup beside three predictions, what would explain it, and its 1 %."""
    cluster = load_scenario("alexnet_32node").cluster_at(_NODES)
    layouts = buckets()
    training = training_times(dense(layouts).model, layouts, cluster.device)
    loading = Training(input=InputLoading(batch=_BATCH / _REAL_IMAGES_PER_SECOND))
    bare = _Bare(cluster)
    return Findings(
        points=(
            _point("10GbE, Gloo", SERIES, speedup(cluster, training), cluster),
            _point("and images loaded", SERIES, speedup(cluster, training, loading), cluster),
            _point("ring of 32, line rate", BARE_SERIES, bare.speedup, cluster),
        ),
        statements=(_one_per_cent(),),
        factors=tuple(_explanations(cluster, training, loading, bare)),
    )


def speedup(cluster: Cluster, compute: ComputeTimes, training: Training = Training()) -> float:  # noqa: B008 (frozen)
    """Iteration of dense training over that with gradient sampling."""
    layouts = buckets()
    whole, few = (
        predict(profile, cluster, compute, training=training, spans=False).iteration
        for profile in (dense(layouts), sampled(layouts))
    )
    return whole / few


class _Bare:
    """What is left without a library: one ring over the machines' NICs, after the backward pass.

    No latency, no framing, nothing between the devices of a machine, nothing hidden.
    """

    def __init__(self, cluster: Cluster) -> None:
        link = ideal_link("10 Gbit/s")
        self._cluster = replace(
            cluster, devices_per_node=1, network=link, intra_node=link, collectives=Collectives(),
            host=None, sums=Sums(),
        )  # fmt: skip
        self._whole = buckets(first=1 << 62)
        catalogue = training_times(dense(self._whole).model, self._whole, cluster.device)
        self.step = catalogue.total
        """Forward and backward, picoseconds."""
        self.speedup = self._dense(catalogue) / self._sampled(catalogue)
        none = ComputeTimes(forward=0, backward=0, parts=(0,), provenance="")
        self.needed = (self._dense(none) - MEASURED * self._sampled(none)) / (MEASURED - 1)
        """Seconds beside the network with which the bytes would make the measured speedup."""

    def _dense(self, compute: ComputeTimes) -> float:
        return predict(dense(self._whole), self._cluster, compute, spans=False).iteration

    def _sampled(self, compute: ComputeTimes) -> float:
        return predict(sampled(self._whole), self._cluster, compute, spans=False).iteration


def _point(name: str, series: str, predicted: float, cluster: Cluster) -> Point:
    return Point(
        name=f"2.5x on AlexNet: {name}",
        series=series,
        unit="x",
        measured=MEASURED,
        predicted=predicted,
        unfitted=predicted,
        source=_SOURCE,
        workers=cluster.workers,
    )


def _explanations(
    cluster: Cluster, compute: ComputeTimes, loading: Training, bare: _Bare
) -> Iterable[Factor]:
    """One value at a time that would make the measurement; each speedup falls with its value."""
    network = cluster.network

    def with_latency(latency: Fraction) -> float:
        return speedup(replace(cluster, network=network.exactly(latency=latency)), compute)

    def with_loading(batch: Fraction) -> float:
        return speedup(cluster, compute, Training(input=InputLoading(batch=batch)))

    published = loading.input.batch if loading.input else Fraction(0)
    for name, value, catalogue in (
        (
            "would explain it: latency, one way",
            _where(with_latency, network.latency, _MOST_LATENCY),
            float(network.latency),
        ),
        (
            f"would explain it: loading {_BATCH} images",
            _where(with_loading, published, _MOST_LOADING),
            float(published),
        ),
        ("would explain it: beside bare bytes", bare.needed, seconds(bare.step)),
    ):
        yield Factor("no prediction", name, value, "s", 1, catalogue=catalogue)


def _where(found: Callable[[Fraction], float], low: Fraction, high: Fraction) -> float:
    """The value between these two at which a falling function passes the measured speedup.

    By false position on the inverse speedups, which are nearly linear in the value; an end that
    stays for a second time counts half (the Illinois rule).
    """
    below, above = (1 / found(end) - 1 / MEASURED for end in (low, high))
    middle, last = low, 0.0
    for _ in range(_MOST_TRIALS):
        share = Fraction(below / (below - above)).limit_denominator(10**6)
        middle = low + (high - low) * share
        miss = 1 / found(middle) - 1 / MEASURED
        if abs(miss) * MEASURED < _CLOSE:
            break
        if miss < 0:
            low, below, above = middle, miss, above / (2 if last < 0 else 1)
        else:
            high, above, below = middle, miss, below / (2 if last > 0 else 1)
        last = miss
    return float(middle)


def _one_per_cent() -> Statement:
    layouts = buckets()
    whole, few = dense(layouts), sampled(layouts)
    elements = sum(layout.numel for layout in layouts)
    kept = sum(drawn(layout) for layout in layouts)
    return Statement(
        name="1 % in all, a whole gradient in 100 steps",
        source="Song et al., CVPR 2021, sec. 4",
        unit="%",
        stated=1,
        digit=0.1,
        computed=100 * few.wire_bytes(1) / whole.wire_bytes(1),
        formula=float(
            100
            * Fraction(_FLOAT16 * (elements + (_PERIOD - 1) * kept), _PERIOD * FLOAT32 * elements)
        ),
        note="half of it is the whole gradient of every hundredth step",
    )


_FLOAT16 = 2
_PERIOD = 100
"""Steps from one whole gradient to the next (tau)."""
_RATIO = 0.01
"""Of the coordinates in the other steps."""
_BATCH = 32
"""Images a GPU: 2048 on 64."""


def alexnet() -> ModelEntry:
    """The network as a table of its layers."""
    return table_entry(
        "alexnet",
        [
            TableLayer(
                name=row["name"],
                shape=tuple(int(size) for size in row["shape"].split("x")),
                forward_flops=int(row["forward_flops"]),
            )
            for row in data_rows("papers_alexnet")
        ],
    )


def buckets(*, first: int = FIRST_BYTES) -> tuple[BucketLayout, ...]:
    """DDP's layout of its gradient."""
    return bucket_layouts(table_parameters(alexnet()), first=first, cap=CAP_BYTES)


def dense(layouts: Sequence[BucketLayout]) -> TrafficProfile:
    """Every gradient as float32."""
    whole = _step(0, [FLOAT32 * layout.numel for layout in layouts], FLOAT32)
    return _profile("none", layouts, Phase(name="every step", count=1, steps=(whole,)))


def sampled(layouts: Sequence[BucketLayout]) -> TrafficProfile:
    """Gradient sampling, whose values travel as float16."""
    whole = _step(0, [_FLOAT16 * layout.numel for layout in layouts], _FLOAT16)
    few = _step(1, [_FLOAT16 * drawn(layout) for layout in layouts], _FLOAT16)
    return _profile(
        "gradient_sampling_bayes",
        layouts,
        Phase(name="synchronisation", count=1, steps=(whole,)),
        Phase(name="sampled", count=_PERIOD - 1, steps=(few,)),
    )


def drawn(layout: BucketLayout) -> int:
    """Coordinates of a bucket in a step that samples: a share of each tensor, at least one."""
    return sum(max(1, round(_RATIO * piece.numel)) for piece in layout.slices)


def _step(number: int, sizes: Sequence[int], element: int) -> Step:
    """An all-reduce a bucket, of these bytes."""
    return Step(
        number=number,
        exchanges=tuple(
            bare_exchange(
                CollectiveRecord(
                    kind="all_reduce",
                    sent=(size,),
                    element=element,
                    dtype="float16" if element == _FLOAT16 else "float32",
                )
            )
            for size in sizes
        ),
    )


def _profile(compressor: str, layouts: Sequence[BucketLayout], *phases: Phase) -> TrafficProfile:
    return TrafficProfile(
        compressor=compressor,
        parameters={},
        model=table_facts(alexnet(), _BATCH),
        buckets=tuple(layouts),
        workers=1,
        period=sum(phase.count for phase in phases),
        phases=phases,
        quality=Quality(nmse=float("nan"), cosine_similarity=float("nan")),
    )
