"""Plain data from stage 1, without torch: a compressor's traffic profile, which the cache stores
and stage 2 (the simulated cluster) reads, and measured pass times of a model.

    TrafficProfile
      model    : layers, parameters, FLOPs
      buckets  : DDP's layout of the gradient
      phases   : the kinds of step in a period, each with how often it occurs
        steps  : the steps that were really run
          exchanges (one a bucket): compute → collective → compute → … → compute
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict

from gcsim.compressors.bucket import MOST_ELEMENTS, BucketLayout
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.fields import Count, Limits, Text, Whole

Costs = tuple[KernelCost, ...]

AS_WRITTEN = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)
"""Rules for reading gcsim's JSON: no conversions, no unknown keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A module that owns parameters; layers are in forward order."""

    name: str
    parameters: tuple[Whole, ...]
    """Indices into the model's parameters."""
    forward_flops: Whole
    """Per sample, 2 per multiply-add."""
    kind: str = ""
    """Kind of arithmetic, one of `layer_kinds.KINDS`; "" if unknown."""
    outputs: Whole = 0
    """Elements of its output, per sample; 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about the model that the simulator needs."""

    name: Text
    parameters: Annotated[int, Limits(least=1, most=MOST_ELEMENTS)]
    """Number of scalar parameters."""
    layers: Annotated[tuple[Layer, ...], Limits(least=1)]
    samples_per_worker: Count
    """Samples per worker in the mini-batch of the gradients."""
    tokens: Whole = 0
    """Length of a sample in tokens; 0 if samples are not token sequences."""
    ready_order: tuple[Whole, ...] = ()
    """Parameter indices in the order in which gradients become ready; empty: unknown."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the dense float32 gradient."""
        return 4 * self.parameters

    @property
    def forward_flops(self) -> int:
        """Forward FLOPs per sample."""
        return sum(layer.forward_flops for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """A stretch of a worker's computation between two collectives (mean over workers)."""

    stage: Literal["moments", "encode", "decode", "server"]
    """moments: second moments of the samples' gradients, computed during the backward pass."""
    fixed: Costs
    per_payload: Costs = ()
    """Cost per payload received, that is per worker of the simulated cluster."""
    per_part: Costs = ()
    """Cost for the parts of one whole: launches of one part, bytes and FLOPs of all parts."""
    striped: bool = False
    """Whether each of p workers does this for 1 / p of the bytes and FLOPs (all launches)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One bucket's exchange: computes[0], collectives[0], computes[1], …, computes[-1] (the
    decode)."""

    computes: Annotated[tuple[Compute, ...], Limits(least=1)]
    collectives: tuple[CollectiveRecord, ...]
    moments: Compute | None = None
    """Work that this compressor's gradients need before the exchange."""
    servers: tuple[Compute | None, ...] = ()
    """The server's computation by collective, or that of one merge of two payloads; empty if there
    is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step: its exchanges in bucket order."""

    number: Whole
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A kind of step: how often it occurs per period, and the measured examples."""

    name: str
    count: Count
    steps: Annotated[tuple[Step, ...], Limits(least=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Distance between the update and dense training's: nmse = |update - dense|^2 / |dense|^2 and
    the cosine, means over the measured steps, weighted by each phase's frequency in a period."""

    nmse: Annotated[float, Limits(least=0)]
    cosine_similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficProfile:
    """All that stage 2 needs to know about a compressor."""

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    compressor: str
    parameters: dict[str, object]
    """The compressor's parameters, including defaults."""
    model: ModelFacts
    buckets: Annotated[tuple[BucketLayout, ...], Limits(least=1)]
    workers: Count
    """Number of virtual workers that were run."""
    period: Count
    phases: Annotated[tuple[Phase, ...], Limits(least=1)]
    quality: Quality
    gradients: dict[str, object] = field(default_factory=dict)
    """Source of the gradients: plain values for the report."""
    order: tuple[Whole, ...] = ()
    """Index of the phase at each place of the period, from the first measured step; empty: one
    phase after another, each as often as it occurs."""

    @property
    def wire_bytes_per_worker(self) -> float:
        """`wire_bytes` for the number of workers that were run."""
        return self.wire_bytes(self.workers)

    def wire_bytes(self, workers: int) -> float:
        """Return the bytes that one of `workers` sends per step, apart from sums within a node or
        rack: mean over workers, over the steps of each phase, and over a whole period."""
        sums = 0.0
        for phase in self.phases:
            sent = [
                sum(record.sent) / (workers if record.part else len(record.sent))
                for step in phase.steps
                for exchange in step.exchanges
                for record in exchange.collectives
                if record.scope not in {"node", "rack"}
            ]
            sums += phase.count * sum(sent) / len(phase.steps)
        return sums / self.period


def weighted(profile: TrafficProfile) -> Iterator[tuple[Fraction, int, Exchange]]:
    """Yield each exchange of a mean iteration: (how often it occurs, its bucket, the exchange)."""
    for phase in profile.phases:
        weight = Fraction(phase.count, profile.period * len(phase.steps))
        for step in phase.steps:
            for bucket, exchange in enumerate(step.exchanges):
                yield weight, bucket, exchange


def holds_together(profile: TrafficProfile) -> bool:
    """Whether the profile's lengths and indices are consistent."""
    pieces = [piece for layout in profile.buckets for piece in layout.slices]
    owned = {number for layer in profile.model.layers for number in layer.parameters}
    return (
        sum(phase.count for phase in profile.phases) == profile.period
        and len(profile.order) in (0, profile.period)
        and all(number < len(profile.phases) for number in profile.order)
        and sorted(piece.index for piece in pieces) == list(range(len(pieces)))
        and owned == set(range(len(pieces)))
        and sum(piece.numel for piece in pieces) == profile.model.parameters
        and all(
            len(step.exchanges) == len(profile.buckets)
            for phase in profile.phases
            for step in phase.steps
        )
        and all(
            len(exchange.computes) == len(exchange.collectives) + 1
            and len(exchange.servers) in (0, len(exchange.collectives))
            and all(len(record.sent) == profile.workers for record in exchange.collectives)
            for _, _, exchange in weighted(profile)
        )
    )


def every(profile: TrafficProfile, steps: int) -> TrafficProfile:
    """Return the profile if workers take `steps` local steps and exchange only in the last one."""
    if steps == 1:
        return profile
    alone = Exchange(computes=(Compute(stage="encode", fixed=()),), collectives=())
    buckets = len(profile.phases[0].steps[0].exchanges)
    local = Phase(
        name="local steps",
        count=profile.period * (steps - 1),
        steps=(Step(number=0, exchanges=(alone,) * buckets),),
    )
    turns = profile.order or [n for n, one in enumerate(profile.phases) for _ in range(one.count)]
    own = len(profile.phases)
    return replace(
        profile,
        period=profile.period * steps,
        phases=(*profile.phases, local),
        order=tuple(turn for exchanged in turns for turn in (*[own] * (steps - 1), exchanged)),
    )


_PassSeconds = Annotated[float, Limits(least=0, most=1_000_000)]
"""At most eleven days, which the simulated clock can represent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Measured times of one iteration of one worker, in seconds."""

    forward: _PassSeconds
    """Seconds of the forward pass."""
    backward: _PassSeconds
    """From the end of the forward pass to the end of the iteration, with the optimiser step."""
    ready: tuple[_PassSeconds, ...] | None = None
    """Seconds from the start of the backward pass until a gradient is ready, by trained parameter
    in the model's order, at most `backward`; None if only the totals are known."""
    processor: Literal["gpu", "cpu"] | None = None
    """Kind of processor; None if unknown."""
    source: str
    """Source and method of the measurement, as text."""
