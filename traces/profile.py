"""The traffic profile: what one compressor sent for one model's gradients, as plain data.

It is the only thing that passes from the first stage (real compressors, torch) to the second
(the simulated cluster, no tensor at all), and it is what the cache holds. No torch here.

    TrafficProfile
      model    : layers, parameters, FLOPs
      buckets  : DDP's layout of the gradient
      phases   : the kinds of step in a period, each with how often it occurs
        steps  : the steps that were really run
          exchanges (one a bucket): compute → collective → compute → … → compute
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord

Costs = tuple[KernelCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One module that owns parameters, in forward order."""

    name: str
    parameters: tuple[int, ...]
    """Indices into the model's parameters."""
    forward_flops: int
    """Per sample, 2 per multiply-add."""
    kind: str = ""
    """What arithmetic it does, one of `layer_kinds.KINDS`; "" where that is not known."""
    outputs: int = 0
    """Elements of its output, per sample; 0 where they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the simulator must know of the model."""

    name: str
    parameters: int
    """Number of scalar parameters."""
    layers: tuple[Layer, ...]
    samples_per_worker: int
    """The mini-batch that the gradients were made with."""
    tokens: int = 0
    """Length of a sample; 0 where samples are no sequences of tokens."""
    ready_order: tuple[int, ...] = ()
    """Numbers of the parameters in the order in which their gradients become ready; empty where
    that is not known."""

    @property
    def gradient_bytes(self) -> int:
        """Of the dense float32 gradient."""
        return 4 * self.parameters

    @property
    def forward_flops(self) -> int:
        """Per sample."""
        return sum(layer.forward_flops for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """A stretch of one worker's computation between two collectives (mean over workers)."""

    stage: Literal["moments", "encode", "decode", "server"]
    """moments: second moments of the samples' gradients, made during the backward pass."""
    fixed: Costs
    per_payload: Costs = ()
    """Spent once for each payload received: for each worker of the simulated cluster."""
    per_part: Costs = ()
    """For the parts of one whole: launches of one part, bytes and FLOPs of all together."""
    striped: bool = False
    """Each of p workers does this for a stripe of 1 / p: all launches, that part of the bytes and
    FLOPs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One bucket's exchange. `computes` has one entry more than `collectives`:
    computes[0], collectives[0], computes[1], …, computes[-1] (the decode)."""

    computes: tuple[Compute, ...]
    collectives: tuple[CollectiveRecord, ...]
    moments: Compute | None = None
    """Work before the exchange that the gradients needed for this compressor."""
    servers: tuple[Compute | None, ...] = ()
    """By collective: the parameter server's computation, or that of one merge of two payloads;
    empty where no collective has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step's exchanges, one a bucket, in bucket order."""

    number: int
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A kind of step: how often it occurs in a period, and the examples that were run."""

    name: str
    count: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How near the update is to what dense training would have applied.

    nmse = |update - dense|^2 / |dense|^2, and the cosine between the two; means over the steps
    that were run, weighted by how often each phase occurs in a period.
    """

    nmse: float
    cosine_similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficProfile:
    """Everything the second stage needs to know of one compressor."""

    compressor: str
    parameters: dict[str, object]
    """The compressor's parameters, defaults filled in."""
    model: ModelFacts
    buckets: tuple[BucketLayout, ...]
    workers: int
    """Virtual workers that were run."""
    period: int
    phases: tuple[Phase, ...]
    quality: Quality
    gradients: dict[str, object] = field(default_factory=dict)
    """Where the gradients came from: plain values for the report."""
    order: tuple[int, ...] = ()
    """By place in the period: the number of its phase; empty: one phase after the other, each as
    often as it occurs. The first place is that of the first step that was run."""

    @property
    def wire_bytes_per_worker(self) -> float:
        """`wire_bytes` with as many workers as were run."""
        return self.wire_bytes(self.workers)

    def wire_bytes(self, workers: int) -> float:
        """Bytes that one of `workers` hands to its collectives in a step: mean over workers, over
        the steps of each phase, and over a whole period."""
        sums = 0.0
        for phase in self.phases:
            sent = [
                sum(record.sent) / (workers if record.part else len(record.sent))
                for step in phase.steps
                for exchange in step.exchanges
                for record in exchange.collectives
            ]
            sums += phase.count * sum(sent) / len(phase.steps)
        return sums / self.period
