"""Measurements on the other clusters, and the gradients of their models.

The measurements, their sources and the layers of the models are package data (`data/`); dense
traffic profiles are made of the layers, as stage 1 would make them of the shipped models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from gcsim.analysis.validation.data_files import data_rows, data_values, sources
from gcsim.analysis.validation.suite import Unit, bare_exchange, one_step
from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.profile import Layer, ModelFacts, TrafficProfile

FLOAT32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A measurement, as published."""

    id: str
    key: str
    """Of its source."""
    model: str
    """gcsim's name of it; "" where no model ran."""
    batch: int
    """Samples a GPU; 0 where it is not stated."""
    precision: str
    gpus: int
    nodes: int
    method: str
    """What the source calls the system, the library or the compressor."""
    nbytes: int
    """Of the reduced vector; 0 for training."""
    metric: str
    value: float
    unit: str
    """As published."""
    source: str
    """Citation, and where in it."""

    @property
    def seconds(self) -> float:
        """Of one iteration, or of one collective."""
        if self.unit == "ms":
            return self.value / 1000
        if self.unit == "s":
            return self.value
        return self.samples / self.value

    @property
    def samples(self) -> int:
        """An iteration of all GPUs; of one where the rate is stated for one."""
        return self.batch * (1 if self.metric == "throughput_per_gpu" else self.gpus)

    def published(self, seconds: float) -> tuple[float, Unit]:
        """Seconds of an iteration in the source's own terms."""
        if self.unit in {"ms", "s"}:
            return seconds, "s"
        return self.samples / seconds, "samples/s"


@cache
def runs(source: str) -> tuple[Run, ...]:
    """The measurements of a source, by its key, in the order of the file."""
    return tuple(run for run in _runs() if run.key == source)


@cache
def _runs() -> tuple[Run, ...]:
    return tuple(
        data_values(
            "other_clusters", Run, key="source", nbytes="bytes",
            nodes=lambda row: int(row["nodes"] or 1), source=sources("other_clusters_sources"),
        )
    )  # fmt: skip


@cache
def _layers() -> dict[str, list[tuple[tuple[int, ...], int]]]:
    """By model: elements of each layer's tensors, and its forward FLOPs."""
    found: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    shared = [row for row in data_rows("ddl_benchmarks_layers") if row["model"] == "resnet50"]
    for row in (*data_rows("other_clusters_layers"), *shared):
        elements = tuple(map(int, row["elements"].replace("+", " ").split()))
        found.setdefault(row["model"], []).append((elements, int(row["forward_flops"])))
    return found


def tensor_sizes(model: str) -> list[int]:
    """Elements of the parameter tensors, in forward order."""
    return [size for elements, _ in _layers()[model] for size in elements]


def gradient_bytes(model: str) -> int:
    """Of float32."""
    return FLOAT32 * sum(tensor_sizes(model))


@cache
def facts(model: str, batch: int) -> ModelFacts:
    """Of a model, with so many samples a worker."""
    layers: list[Layer] = []
    tensors = 0
    for number, (elements, flops) in enumerate(_layers()[model]):
        numbers = tuple(range(tensors, tensors + len(elements)))
        layers.append(Layer(name=str(number), parameters=numbers, forward_flops=flops))
        tensors += len(elements)
    return ModelFacts(
        name=model,
        parameters=sum(tensor_sizes(model)),
        layers=tuple(layers),
        samples_per_worker=batch,
        tokens=128 if model.startswith("bert") else 0,
    )


def bucketed(model: str, first: int, cap: int) -> tuple[BucketLayout, ...]:
    """DDP's buckets of at least so many bytes."""
    parameters = [(str(n), (size,)) for n, size in enumerate(tensor_sizes(model))]
    return bucket_layouts(parameters, first=first, cap=cap)


def grouped(model: str, groups: Sequence[Sequence[int]]) -> tuple[BucketLayout, ...]:
    """Buckets of stated tensors. Raises `InternalError` unless each tensor is in one of them."""
    sizes = tensor_sizes(model)
    if sorted(n for group in groups for n in group) != list(range(len(sizes))):
        raise InternalError(f"the buckets of {model} do not hold each tensor once")
    layouts = []
    for index, group in enumerate(groups):
        offset, slices = 0, []
        for n in group:
            slices.append(TensorSlice(name=str(n), shape=(sizes[n],), offset=offset, index=n))
            offset += sizes[n]
        layouts.append(BucketLayout(index=index, slices=tuple(slices)))
    return tuple(layouts)


def all_reduced(
    model: str, batch: int, buckets: tuple[BucketLayout, ...], width: int = FLOAT32
) -> TrafficProfile:
    """The dense gradient by all-reduce, bucket by bucket, `width` bytes an element."""
    exchanges = [
        bare_exchange(
            CollectiveRecord(kind="all_reduce", sent=(layout.numel * width,), element=width)
        )
        for layout in buckets
    ]
    return one_step("none", facts(model, batch), buckets, exchanges)


def served(
    model: str, batch: int, buckets: tuple[BucketLayout, ...], servers: int
) -> TrafficProfile:
    """The dense gradient by TensorFlow's parameter servers, which hold whole variables.

    Gradients are pushed as they become ready; variables are read when the next step begins, when
    all have been updated: the last bucket pulls everything.

    Each variable, in forward order, goes to the server that holds the fewest bytes
    (`GreedyLoadBalancingStrategy`, `byte_size_load_fn` in tf_cnn_benchmarks' variable_mgr.py). The
    exchange is over when the server with the most has all of its own: what a worker sends to
    servers that share evenly counts as many times as the busiest holds more than its even share.
    """
    held = [0] * servers
    for size in tensor_sizes(model):
        held[held.index(min(held))] += size
    unevenness = Fraction(max(held) * servers, sum(held))
    pushed = [math.ceil(FLOAT32 * layout.numel * unevenness) for layout in buckets]
    pulled = [0] * (len(buckets) - 1) + [sum(pushed)]
    exchanges = [
        bare_exchange(CollectiveRecord(kind="push_pull", sent=(push,), pulled=pull))
        for push, pull in zip(pushed, pulled, strict=True)
    ]
    return one_step("none", facts(model, batch), buckets, exchanges)
