"""How long do forward and backward take, and when is each bucket's gradient ready?

In order of preference: the user's own measurement; a measured rate of this model on this device,
T(batch) = fixed + per_sample * batch; three times the forward FLOPs at the device's effective
rate (a backward pass computes two products for each of the forward pass), an estimate. A total
is split forward : backward by the device's measured ratio. The optimiser counts as backward.

The backward pass visits the layers in reverse order and spends on each in proportion to its
FLOPs; a bucket is ready when all its layers are done. Where no FLOPs are known, parameters stand
in for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Protocol

from gcsim.compressors.bucket import BucketLayout
from gcsim.errors import InputError, InternalError, Problem
from gcsim.simulator.clock import Picoseconds, picoseconds
from gcsim.simulator.device import Device
from gcsim.traces.profile import ModelFacts

PASSES_PER_STEP = 3
"""Forward passes that a training step is worth; the convention of `effective_flop_rate`."""


class MeasuredPasses(Protocol):
    """The user's measurement, in seconds an iteration."""

    @property
    def forward(self) -> float:
        """Of the forward pass."""

    @property
    def backward(self) -> float:
        """Of the backward pass and the optimiser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTimes:
    """One worker's forward and backward pass."""

    forward: Picoseconds
    backward: Picoseconds
    """All of it, the optimiser included."""
    parts: tuple[Picoseconds, ...]
    """By bucket: from the bucket before (or the end of forward) until this one is ready."""
    provenance: str
    """Where the times come from, for people."""
    estimate: bool = False
    """True when this model was measured on this device neither by the user nor by the source."""

    @property
    def total(self) -> Picoseconds:
        """Forward and backward: an iteration of one device on its own."""
        return self.forward + self.backward

    @property
    def rest(self) -> Picoseconds:
        """Backward work after the last bucket is ready."""
        return self.backward - sum(self.parts)


def training_times(
    model: ModelFacts,
    buckets: Sequence[BucketLayout],
    device: Device,
    measured: MeasuredPasses | None = None,
) -> ComputeTimes:
    """Forward and backward times of `model.samples_per_worker` samples, split over the buckets.

    Raises `InputError` when the model's FLOPs are needed and are not known.
    """
    if measured is not None:
        forward, backward = picoseconds(measured.forward), picoseconds(measured.backward)
        provenance, estimate = "measured: stated by the user", False
    else:
        total, provenance, estimate = _catalogue(model, device)
        forward = round(total / (1 + Fraction(device.backward_over_forward)))
        backward = total - forward
    # Buckets leave in order, so that none is ready before the one in front of it.
    ready = [0, *accumulate(_ready(model, buckets, backward), max)]
    return ComputeTimes(
        forward=forward,
        backward=backward,
        parts=tuple(after - before for before, after in pairwise(ready)),
        provenance=provenance,
        estimate=estimate,
    )


def _catalogue(model: ModelFacts, device: Device) -> tuple[Picoseconds, str, bool]:
    """Forward and backward together, where that is from, and whether it is an estimate."""
    batch = model.samples_per_worker
    rate = device.training.get(model.name)
    if rate is not None:
        time = Fraction(rate.fixed) + batch * Fraction(rate.per_sample)
        provenance = f"T({batch}) of {model.name} on {device.title}: {rate.source}"
        return picoseconds(time), provenance, rate.estimate
    if model.forward_flops == 0:
        raise InputError(
            Problem(
                message=f"neither a measured rate on {device.name!r} nor the FLOPs of model "
                f"{model.name!r} are known",
                place="compute",
                hint="state the measured forward and backward times",
            )
        )
    time = PASSES_PER_STEP * model.forward_flops * batch / Fraction(device.effective_flop_rate)
    provenance = (
        f"{PASSES_PER_STEP} x the forward FLOPs of {model.name}, batch {batch}, at "
        f"{device.effective_flop_rate / 1e12:.3g} TFLOP/s ({device.title}): {device.source}"
    )
    return picoseconds(time), provenance, True


def _ready(
    model: ModelFacts, buckets: Sequence[BucketLayout], backward: Picoseconds
) -> list[Picoseconds]:
    """When each bucket's last layer is done, counted from the start of the backward pass."""
    elements = {piece.index: piece.numel for layout in buckets for piece in layout.slices}
    weights = [layer.forward_flops for layer in model.layers]
    if not any(weights):
        weights = [sum(elements.get(p, 0) for p in layer.parameters) for layer in model.layers]
    total = sum(weights)
    done: dict[int, Picoseconds] = {}
    spent = 0
    for layer, weight in zip(reversed(model.layers), reversed(weights), strict=True):
        spent += weight
        time = round(Fraction(backward * spent, total)) if total else backward
        done.update(dict.fromkeys(layer.parameters, time))  # a shared tensor: its last layer
    orphans = sorted(set(elements) - set(done))
    if orphans:
        raise InternalError(f"parameters {orphans} of {model.name!r} belong to no layer")
    return [max((done[piece.index] for piece in layout.slices), default=0) for layout in buckets]
