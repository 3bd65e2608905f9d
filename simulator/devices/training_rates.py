"""Rates of training steps, from measurements of the model or from its layers.

`MeasuredTimes`: one model's measured steps on one device, exact at a measured batch, linear between
two batches, and extrapolated with the layer model. `LayerTimes`: the layer model, for all others:

    T(n) = factor * (launch * tensors + n * (conv3x3 * 3 F33 / R + other * 3 F / R
                                             + outputs * 4 A / B))

with a sample's forward FLOPs in 3 x 3 convolutions of stride 1 (F33, which Winograd's algorithm
speeds up) and in other layers (F), each three times (backward has two products per forward one);
the rate R of large matrix products, the bandwidth B of a copy, and the number A of elements that
layers output (which norms, activations and backward read again). A processor family shares the
coefficients; `factor` is the device's. Networks with only large products (`large_products`:
language decoders, whose code is tuned and fuses attention) have two separate coefficients in 16
bits on Ampere and later devices, without a device factor. `tests/benchmarks/layer_model_fit.py`
fits all coefficients (errors: `docs/devices.md`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

from gcsim.fields import Limits
from gcsim.simulator.devices.ranges import End, Range, Time, time_at
from gcsim.traces.profile import ModelFacts

Precision = Literal["fp32", "tf32", "fp16"]
"""fp16: mixed, products in half precision or bfloat16 with float32 weights."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

PRODUCTS = 3  # products of a training step per forward product
_WIDTH = 4  # bytes per output at any precision; the coefficient absorbs the difference
_WINOGRAD = "conv3x3"
_NO_PRODUCTS = {"conv3x3", "conv", "grouped", "recurrent"}
LARGE = 2_500
"""Least forward FLOPs per output of large products: decoders have 3,000 (125 M parameters) to
19,000 (70 B), BERT-Large has 2,200."""
_Coefficient = Annotated[float, Limits(least=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """Coefficients of the layer model for a family of devices."""

    launch: Time  # seconds per parameter tensor: host, kernels, optimiser
    conv3x3: _Coefficient  # factor on the FLOPs' time at the rate of large matrix products
    other: _Coefficient
    outputs: _Coefficient  # factor on the time to copy the outputs as float32


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeCosts:
    """Coefficients for networks of large products."""

    other: _Coefficient  # as in `LayerCosts`
    outputs: _Coefficient
    time_range: Range  # lowest and highest factor on a time


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Layer model of one device at one precision."""

    costs: LayerCosts
    large: LargeCosts | None = None
    flop_rate: float  # FLOP per second of large matrix products at this precision
    bandwidth: float  # bytes per second of a copy, read plus written
    factor: float = 1.0  # median of measured over predicted on this device; 1 without measurements
    models: int = 0
    time_range: Range | None = None  # lowest and highest factor on a time, by cross-validation
    strange_range: Range | None = None
    """Range for models that are not in `known_models`; None: `time_range`."""
    known_models: tuple[str, ...] = ()  # models measured on any device
    end: End | None = None  # end of the range at which times are evaluated; None: as fitted
    source: str

    def range_of(self, model: ModelFacts) -> Range | None:
        """Return the lowest and highest factor on the times of a model."""
        if (large := self._large(model)) is not None:
            return large.time_range
        strange = self.strange_range is not None and model.name not in self.known_models
        return self.strange_range if strange else self.time_range

    def _large(self, model: ModelFacts) -> LargeCosts | None:
        return self.large if self.large is not None and large_products(model) else None

    def seconds(self, model: ModelFacts, batch: int) -> float:
        """Return the seconds of a step with `batch` samples."""
        terms = layer_terms(model, batch, flop_rate=self.flop_rate, bandwidth=self.bandwidth)
        costs = (self.costs.launch, self.costs.conv3x3, self.costs.other, self.costs.outputs)
        own = self.factor
        if (large := self._large(model)) is not None:
            costs, own = (0.0, 0.0, large.other, large.outputs), 1.0
        factor = own * (1 if self.end is None else time_at(self.range_of(model), self.end))
        return factor * sum(cost * term for cost, term in zip(costs, terms, strict=True))

    def at(self, end: End) -> LayerTimes:
        """Return the layer model at one end of its range."""
        return replace(self, end=end)


def layer_terms(
    model: ModelFacts, batch: int, *, flop_rate: float, bandwidth: float
) -> tuple[float, float, float, float]:
    """Return the terms of the fit: tensors; seconds of 3 x 3 products, other products, outputs."""
    tensors = sum(len(layer.parameters) for layer in model.layers)
    winograd = sum(layer.forward_flops for layer in model.layers if layer.kind == _WINOGRAD)
    outputs = sum(layer.outputs for layer in model.layers)
    product = PRODUCTS * batch / flop_rate
    return (
        float(tensors),
        product * winograd,
        product * (model.forward_flops - winograd),
        _WIDTH * batch * outputs / bandwidth,
    )


def large_products(model: ModelFacts) -> bool:
    """Whether a network has only large matrix products; the inner dimension is half the FLOPs per
    output."""
    outputs = sum(layer.outputs for layer in model.layers)
    others = any(layer.kind in _NO_PRODUCTS and layer.forward_flops for layer in model.layers)
    return not others and model.forward_flops >= LARGE * max(1, outputs)


def has_kinds(model: ModelFacts) -> bool:
    """Whether the layers are known well enough for the layer model."""
    return model.forward_flops > 0 and any(layer.outputs for layer in model.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Measurement at one batch size."""

    batch: int
    seconds: float
    spread: Range | None = None  # fastest and slowest over the median; None for a single one
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """Measured steps of a model on a device at one precision, ascending in batch and time."""

    model: str
    precision: Precision
    steps: tuple[MeasuredStep, ...]
    source: str
    estimate: bool = False  # the steps are another device's, scaled
    time_range: Range | None = None
    """Lowest and highest factor on a measured batch's time, in addition to its spread."""
    between: Range | None = None  # the same between two measured batches, by cross-validation
    beyond: Range | None = None  # the same outside the measured batches
    elsewhere: Range | None = None  # the same on a machine other than the measured one

    def place(self, batch: int) -> Literal["measured", "between", "beyond"]:
        """Return the position of a batch relative to the measured ones."""
        if any(step.batch == batch for step in self.steps):
            return "measured"
        return "between" if self.steps[0].batch < batch < self.steps[-1].batch else "beyond"

    def nearest(self, batch: int) -> tuple[MeasuredStep, ...]:
        """Return the measured batch itself, its two neighbours, or the one at the edge."""
        batches = [step.batch for step in self.steps]
        right = bisect_left(batches, batch)
        if right < len(batches) and (right == 0 or batches[right] == batch):
            return (self.steps[right],)
        return self.steps[right - 1 : right + 1]

    def seconds(self, batch: int, shape: LayerTimes | None, model: ModelFacts) -> float:
        """Return the seconds of a step with `batch` samples, extrapolated by `shape`, or without
        one in proportion to the batch."""
        edge, *above = self.nearest(batch)
        if edge.batch == batch:
            return edge.seconds
        if above:
            share = (batch - edge.batch) / (above[0].batch - edge.batch)
            return edge.seconds + (above[0].seconds - edge.seconds) * share
        if shape is None:
            return edge.seconds * batch / edge.batch
        return edge.seconds * shape.seconds(model, batch) / shape.seconds(model, edge.batch)

    def at(self, end: End, batch: int) -> float:
        """Return the factor on a step of `batch` samples at one end of its range."""
        factor = time_at(self.time_range, end)
        place = self.place(batch)
        if place == "measured":
            here = next(step.spread for step in self.steps if step.batch == batch)
        else:
            here = self.between if place == "between" else self.beyond
        farther = max if end == "slowest" else min
        return factor * farther(time_at(here, end), time_at(self.elsewhere, end))


def curve(measured: Sequence[tuple[int, float, str]]) -> tuple[tuple[MeasuredStep, ...], list[int]]:
    """Return the median step by batch, ascending in batch and time, and the batches left out: those
    slower than a larger one (frameworks use slow kernels when memory runs out). `measured`:
    batches, seconds and citations in any order."""
    by_batch: dict[int, list[float]] = {}
    cited: dict[int, dict[str, None]] = {}
    for batch, seconds, citation in measured:
        by_batch.setdefault(batch, []).append(seconds)
        cited.setdefault(batch, {})[citation] = None
    steps: list[MeasuredStep] = []
    left_out = []
    for batch in sorted(by_batch, reverse=True):
        times = sorted(by_batch[batch])
        middle = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
        if steps and middle >= steps[-1].seconds:
            left_out.append(batch)
            continue
        spread = (times[0] / middle, times[-1] / middle) if len(times) > 1 else None
        steps.append(
            MeasuredStep(batch=batch, seconds=middle, spread=spread, sources=tuple(cited[batch]))
        )
    return tuple(reversed(steps)), left_out
