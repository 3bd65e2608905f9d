"""What may be said of a link's size factors, jitter, losses and uplink, and within what limits?

The keys are the fields of the classes of `gcsim.simulator.network.links`, with units; a size
factor's `from_bytes` is written `from`. What a section says is checked here; what it means is said
there.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from gcsim import units
from gcsim.errors import InputError, InternalError
from gcsim.fields import Limits
from gcsim.scenarios.links.rate_trace import TraceSection
from gcsim.scenarios.reading.checking import Section, check_range, refuse
from gcsim.scenarios.reading.types import (
    TWO,
    Bandwidth,
    Duration,
    Factor,
    PositiveDuration,
    Size,
    number,
)
from gcsim.simulator.network.impairments import Recovery
from gcsim.simulator.network.links import Jitter, Loss, Range, Uplink

_USUAL = Loss(rate=Fraction(0), model="capped")
FALLBACK = "write it, or `like:` with a link of the catalogue"

Multiple = Factor
_Shape = Annotated[Fraction, *number(Limits(least=0, most=1_000_000))]
_Probability = Annotated[Fraction, *number(Limits(least=0, most=1))]
Part = Annotated[Fraction, *number(Limits(least=0, below=1))]


def _size(text: Any) -> int:
    try:
        return units.parse_bytes(text)
    except InputError as error:
        raise refuse(error.problems[0].message, error.problems[0].hint) from error


class FactorSection(Section):
    """What messages from a size on see of the link."""

    model_config = ConfigDict(populate_by_name=True)

    from_bytes: Annotated[
        int,
        Field(alias="from"),
        PlainValidator(_size),
        WithJsonSchema({"type": "string", "examples": ["64 KiB"]}),
    ]
    bandwidth: Multiple = Fraction(1)
    latency: Multiple = Fraction(1)


class JitterSection(Section):
    """Random extra latency of each message."""

    distribution: Literal["exponential", "uniform", "lognormal", "pareto"]
    mean: Duration
    shape: _Shape | None = None
    probability: _Probability = Fraction(1)

    @model_validator(mode="after")
    def _shape_belongs(self) -> JitterSection:
        if self.distribution == "pareto" and (self.shape is None or self.shape <= 1):
            seen = "is not given" if self.shape is None else f"is {float(self.shape):g}"
            raise refuse(
                f"`shape`, the exponent of the Pareto distribution's tail, {seen}",
                "write it, more than 1; the nearer to 1, the longer the tail",
            )
        if self.distribution in {"exponential", "uniform"} and self.shape is not None:
            raise refuse(f"`shape` would have no effect, {self.distribution} has none", "remove it")
        return self

    @property
    def jitter(self) -> Jitter:
        """As the simulator has it."""
        return Jitter(
            distribution=self.distribution,
            mean=self.mean,
            shape=Fraction(1) if self.shape is None else self.shape,
            probability=self.probability,
        )


class LossSection(Section):
    """Packets that are lost and sent again."""

    rate: Part
    model: Literal["capped", "sampled"] | None = None
    timeout: PositiveDuration = _USUAL.timeout
    segment: Size = _USUAL.segment
    recovery: Recovery = _USUAL.recovery

    @model_validator(mode="after")
    def _model_given(self) -> LossSection:
        if self.model is None:
            raise refuse(
                "`model` is missing",
                "capped (the rate is what TCP reaches at steady state with such losses) or sampled "
                "(a message that loses a packet is late until that is repaired)",
            )
        if self.model == "capped" and "recovery" in self.model_fields_set:
            raise refuse(
                "`recovery` would have no effect on capped losses, whose formula has its own",
                "remove it, or write model: sampled",
            )
        return self

    @property
    def loss(self) -> Loss:
        """As the simulator has it."""
        if self.model is None:
            raise InternalError("a loss without a model passed its check")
        return Loss(
            rate=self.rate,
            model=self.model,
            timeout=self.timeout,
            segment=self.segment,
            recovery=self.recovery,
        )


class UplinkSection(Section):
    """The direction away from the node."""

    bandwidth: Bandwidth | None = None
    bandwidth_range: Annotated[list[Bandwidth], TWO] | None = None
    latency: Duration
    latency_range: Annotated[list[Duration], TWO] | None = None
    trace: TraceSection | None = None
    grant: Duration = Fraction(0)

    @model_validator(mode="after")
    def _one_rate(self) -> UplinkSection:
        check_rate(self, self.bandwidth, self.trace)
        if self.bandwidth is not None:
            check_range("bandwidth", self.bandwidth, self.bandwidth_range)
        check_range("latency", self.latency, self.latency_range)
        return self

    @property
    def uplink(self) -> Uplink:
        """As the simulator has it."""
        rates = None if self.trace is None else self.trace.rates
        return Uplink(
            bandwidth=given(self.bandwidth) if rates is None else rates.long_run,
            latency=self.latency,
            trace=rates,
            grant=self.grant,
            bandwidth_range=None if rates is not None else pair(self.bandwidth_range),
            latency_range=pair(self.latency_range),
        )


def pair(bounds: list[Fraction] | None) -> Range | None:
    """Both ends of a range, as the simulator has it."""
    return None if bounds is None else (bounds[0], bounds[1])


def check_rate(section: Section, bandwidth: Fraction | None, trace: TraceSection | None) -> None:
    """Raise pydantic's error unless a section says its rate, and says it once."""
    if trace is None:
        if bandwidth is None:
            raise refuse("key 'bandwidth' is missing", FALLBACK)
        return
    idle = sorted(section.model_fields_set & {"bandwidth", "efficiency", "efficiency_range"})
    if idle:
        names = " and ".join(f"`{name}`" for name in idle)
        raise refuse(
            f"{names} would have no effect beside `trace`, which is the goodput over time",
            "remove one of them",
        )


def given(value: Fraction | None) -> Fraction:
    """What a check saw to."""
    if value is None:
        raise InternalError("a link without bandwidth or latency passed its check")
    return value
