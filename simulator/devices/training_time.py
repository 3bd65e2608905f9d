"""Times of forward and backward, and when each bucket's gradient is ready.

The user's own measurement takes precedence over the catalogue's step time (`step_time.py`), which
is split by the device's measured ratio of backward to forward; the optimiser counts as backward,
except what was measured after the last gradient: it waits for the exchanges.

A bucket is ready when its last gradient is. If that was not measured, the backward pass visits
layers in reverse order, each for a time in proportion to its FLOPs (or parameters, if the FLOPs are
unknown).
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
    backward: Picoseconds  # optimiser included, unless `optimizer` has it
    parts: tuple[Picoseconds, ...]
    """Time by bucket from when the previous one is ready (or the end of forward) until it is."""
    provenance: str
    optimizer: Picoseconds = 0
    """Time measured from the last gradient to the end of the iteration."""
    estimate: bool = False  # this model was not measured on this device, by user or catalogue
    figures: tuple[tuple[str, float], ...] = ()
    """The catalogue's coefficients that were used, by name with unit."""
    other_groups: tuple[ComputeTimes, ...] = ()
    """Passes on the devices of the cluster's other groups of nodes, in order."""

    def of_group(self, number: int) -> ComputeTimes:
        """Return the passes of a group of nodes; without groups those of all nodes."""
        if not self.other_groups:
            return self
        return self.other_groups[number - 1] if number else replace(self, other_groups=())

    @property
    def total(self) -> Picoseconds:
        """Duration of both passes and the optimizer."""
        return self.forward + self.backward + self.optimizer

    @property
    def rest(self) -> Picoseconds:
        """Rest of the backward pass after the last bucket."""
        return self.backward - sum(self.parts)

    def scaled(self, factor: Fraction) -> ComputeTimes:
        """Return passes that are `factor` times as long."""
        if factor == 1:
            return self
        ends = [round(end * factor) for end in accumulate(self.parts, initial=0)]
        return replace(
            self,
            forward=round(self.forward * factor),
            backward=round(self.backward * factor),
            optimizer=round(self.optimizer * factor),
            parts=tuple(end - start for start, end in pairwise(ends)),
        )

    def delayed(self, share: Fraction) -> ComputeTimes:
        """Delay each bucket by this share of the backward pass that follows it."""
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
    """Return forward and backward times of `model.samples_per_worker` samples, by bucket.
    `precision` selects the catalogue's times; `again`: share of the forward FLOPs that the backward
    pass repeats, added to the catalogue's times, not to `measured`. Errors as `step_time`."""
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
    # Buckets are sent in order, so none counts as ready before its predecessor.
    if measured is not None and measured.ready is not None:
        times = _measured_ready(buckets, measured.ready, backward)
    else:
        times = _ready(model, buckets, backward)
    ready = [0, *accumulate(times, max)]
    optimizer = 0 if measured is None or measured.ready is None else backward - ready[-1]
    return ComputeTimes(
        forward=forward,
        backward=backward - optimizer,
        optimizer=optimizer,
        parts=tuple(after - before for before, after in pairwise(ready)),
        provenance=provenance,
        estimate=estimate,
        figures=figures,
    )


def _measured_ready(
    buckets: Sequence[BucketLayout], ready: Sequence[float], backward: Picoseconds
) -> list[Picoseconds]:
    """Return the measured time of each bucket's last gradient."""
    return [
        min(backward, max((picoseconds(ready[piece.index]) for piece in layout.slices), default=0))
        for layout in buckets
    ]


def _ready(
    model: ModelFacts, buckets: Sequence[BucketLayout], backward: Picoseconds
) -> list[Picoseconds]:
    """Return the time from the start of backward until each bucket's last layer is done."""
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
