"""Times of forward and backward, and when each bucket's gradient is ready.

The user's own measurement comes before the catalogue's (`step_time.py`), which is split by the
device's measured ratio; the optimiser counts as backward.

A bucket is ready with its last gradient, as measured; otherwise the backward pass visits layers in
reverse order, each in proportion to its FLOPs (parameters where no FLOPs are known), and a bucket
is ready when all its layers are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise

from gcsim.compressors.bucket import BucketLayout
from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, picoseconds
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.step_time import step_time
from gcsim.simulator.devices.training_rates import PRODUCTS, Precision
from gcsim.traces.profile import ModelFacts, PassTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTimes:
    """A worker's forward and backward pass."""

    forward: Picoseconds
    backward: Picoseconds  # optimiser included
    parts: tuple[Picoseconds, ...]
    """Time by bucket, from the previous one's readiness (or the end of forward) to its own."""
    provenance: str
    estimate: bool = False  # this model was not measured on this device, by the user or the source
    figures: tuple[tuple[str, float], ...] = ()
    """The catalogue's coefficients behind it, by name with unit."""
    other_groups: tuple[ComputeTimes, ...] = ()
    """Passes on the devices of the cluster's other groups, in order."""

    def of_group(self, number: int) -> ComputeTimes:
        """Passes of a group of nodes; without groups, of all."""
        if not self.other_groups:
            return self
        return self.other_groups[number - 1] if number else replace(self, other_groups=())

    @property
    def total(self) -> Picoseconds:
        """Iteration of one device on its own."""
        return self.forward + self.backward

    @property
    def rest(self) -> Picoseconds:
        """Backward work after the last bucket."""
        return self.backward - sum(self.parts)

    def scaled(self, factor: Fraction) -> ComputeTimes:
        """The passes `factor` times as long."""
        if factor == 1:
            return self
        ends = [round(end * factor) for end in accumulate(self.parts, initial=0)]
        return replace(
            self,
            forward=round(self.forward * factor),
            backward=round(self.backward * factor),
            parts=tuple(end - start for start, end in pairwise(ends)),
        )

    def delayed(self, share: Fraction) -> ComputeTimes:
        """The passes with each bucket delayed by this share of the rest of the backward pass."""
        if not share:
            return self
        ready = [round(one + (self.backward - one) * share) for one in accumulate(self.parts)]
        return replace(self, parts=tuple(b - a for a, b in pairwise([0, *ready])))


def training_times(
    model: ModelFacts,
    buckets: Sequence[BucketLayout],
    device: Device,
    measured: PassTimes | None = None,
    precision: Precision = "fp32",
    *,
    again: Fraction = Fraction(0),
) -> ComputeTimes:
    """Forward and backward times of `model.samples_per_worker` samples, split over the buckets.
    `precision` selects the catalogue's times, not `measured`; `again`: forward FLOPs that the
    backward pass repeats, as a share, added to the catalogue's. Errors as `step_time`."""
    figures: tuple[tuple[str, float], ...] = ()
    if measured is not None:
        forward, backward = picoseconds(measured.forward), picoseconds(measured.backward)
        provenance, estimate = f"measured: {measured.source}", False
    else:
        step = step_time(model, device, precision)
        total = picoseconds(step.seconds)
        provenance, estimate, figures = step.provenance, step.estimate, step.figures
        forward = round(total / (1 + Fraction(device.backward_over_forward)))
        backward = total - forward + round(total * again / PRODUCTS)
    # Buckets leave in order, so that none is ready before the one in front of it.
    if measured is not None and measured.ready is not None:
        times = _measured_ready(buckets, measured.ready, backward)
    else:
        times = _ready(model, buckets, backward)
    ready = [0, *accumulate(times, max)]
    return ComputeTimes(
        forward=forward,
        backward=backward,
        parts=tuple(after - before for before, after in pairwise(ready)),
        provenance=provenance,
        estimate=estimate,
        figures=figures,
    )


def _measured_ready(
    buckets: Sequence[BucketLayout], ready: Sequence[float], backward: Picoseconds
) -> list[Picoseconds]:
    """Measured time of each bucket's last gradient."""
    return [
        min(backward, max((picoseconds(ready[piece.index]) for piece in layout.slices), default=0))
        for layout in buckets
    ]


def _ready(
    model: ModelFacts, buckets: Sequence[BucketLayout], backward: Picoseconds
) -> list[Picoseconds]:
    """Time from the start of the backward pass until each bucket's last layer is done."""
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
