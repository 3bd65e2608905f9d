"""Time of a training step on a device.

Sources in order of preference: a rate in the device's own entry; a measurement at this batch and
precision; the curve through measured batches; the layer model (FLOPs by kind of layer, outputs,
tensors); three times the forward FLOPs at the effective rate. The last two, and batches far from
measured ones, are estimates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction

from gcsim.errors import InputError
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.training_rates import (
    PRECISIONS,
    PRODUCTS,
    LayerTimes,
    MeasuredTimes,
    Precision,
    has_kinds,
)
from gcsim.traces.profile import ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Duration of a whole step of one worker."""

    seconds: Fraction
    provenance: str
    estimate: bool  # this model was not measured on this device near this batch
    figures: tuple[tuple[str, float], ...] = ()  # coefficients used, by name with unit


def step_time(model: ModelFacts, device: Device, precision: Precision = "fp32") -> StepTime:
    """Return the time of `model.samples_per_worker` samples. Raises `InputError`, which lists the
    known models, if no source has a time at this precision."""
    batch = model.samples_per_worker
    stated = device.training.get(model.name)
    if stated is not None and precision == "fp32":
        return StepTime(
            seconds=Fraction(stated.fixed) + batch * Fraction(stated.per_sample),
            provenance=f"T({batch}) of {model.name} on {device.title}: {stated.source}",
            estimate=stated.estimate,
            figures=(("fixed_s", stated.fixed), ("per_sample_s", stated.per_sample)),
        )
    shape = device.layer_times.get(precision) if has_kinds(model) else None
    measured = device.measured.get((model.name, precision, model.tokens))
    if measured is not None:
        return _measured(model, device, measured, shape)
    if shape is not None:
        return _layers(model, device, precision, shape)
    if precision == "fp32" and model.forward_flops:
        flops = PRODUCTS * model.forward_flops * batch
        return StepTime(
            seconds=flops / Fraction(device.effective_flop_rate),
            provenance=f"{PRODUCTS} x the forward FLOPs of {model.name}, batch {batch}, at "
            f"{device.effective_flop_rate / 1e12:.3g} TFLOP/s ({device.title}): {device.source}",
            estimate=True,
            figures=(("effective_flop_rate_per_s", device.effective_flop_rate),),
        )
    raise _unknown(model, device, precision)


def _measured(
    model: ModelFacts, device: Device, measured: MeasuredTimes, shape: LayerTimes | None
) -> StepTime:
    batch = model.samples_per_worker
    slowdown = 1.0 if device.training_end is None else measured.at(device.training_end, batch)
    batches = ", ".join(str(step.batch) for step in measured.steps)
    cited = [source for step in measured.nearest(batch) for source in step.sources]
    how = {
        "measured": "measured at this batch",
        "between": f"on the line between measured batches ({batches})",
        "beyond": f"from measured batches ({batches}) with the shape of the layer model"
        if shape is not None
        else f"from measured batches ({batches}) in proportion",
    }[measured.place(batch)]
    return StepTime(
        seconds=Fraction(measured.seconds(batch, shape, model) * slowdown),
        provenance=f"T({batch}) of {model.name} on {device.title}, {measured.precision}, {how}: "
        + "; ".join(dict.fromkeys(cited)),
        estimate=measured.estimate or measured.place(batch) == "beyond",
        figures=tuple((f"batch_{step.batch}_s", step.seconds) for step in measured.steps),
    )


def _layers(model: ModelFacts, device: Device, precision: Precision, shape: LayerTimes) -> StepTime:
    batch = model.samples_per_worker
    range_ = None if shape.end else shape.range_of(model)
    error = "" if range_ is None else f", {range_[0]:.2f} to {range_[1]:.2f} times that"
    own = (
        f"scaled by {shape.factor:.2f}, the median of {shape.models} models measured on it"
        if shape.models
        else "no model was measured on it"
    )
    return StepTime(
        seconds=Fraction(shape.seconds(model, batch)),
        provenance=f"layer model of {model.name}, batch {batch}, {precision}, on {device.title} "
        f"({own}){error}: {shape.source}",
        estimate=True,
        figures=(
            *((f"layer_{name}", value) for name, value in asdict(shape.costs).items()),
            ("layer_factor", shape.factor),
            ("matmul_flop_rate_per_s", shape.flop_rate),
            ("copy_bandwidth_bytes_per_s", shape.bandwidth),
        ),
    )


def _unknown(model: ModelFacts, device: Device, precision: Precision) -> InputError:
    if model.forward_flops == 0:
        missing = f"the FLOPs of model {model.name!r}"
    elif precision not in device.layer_times:
        missing = f"anything that a device does at {precision}"
    else:
        missing = f"the kinds of the layers of {model.name!r}"
    return InputError(
        f"neither a measured rate of {model.name!r} on {device.name!r} at {precision} "
        f"nor {missing} is known",
        place="compute",
        hint="state the measured forward and backward times under `compute`; known on this "
        f"device: {'; '.join(_known(device))}",
    )


def _known(device: Device) -> Iterator[str]:
    """Describe the training rates of a device, by precision."""
    for precision in PRECISIONS:
        models = sorted({name for name, kind, _ in device.measured if kind == precision})
        if precision == "fp32":
            models = sorted({*models, *device.training})
        parts = [", ".join(models)] if models else []
        if precision in device.layer_times:
            parts.append("any model by its layers")
        elif precision == "fp32":
            parts.append("any model by its FLOPs")
        if parts:
            yield f"{precision}: {', '.join(parts)}"
