"""Measured times of forward and backward that a scenario provides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gcsim.compressors.bucket import BucketLayout
from gcsim.errors import InternalError
from gcsim.scenarios.scenario import ProfiledCompute, RecordedCompute, RecordedGradients, Scenario
from gcsim.scenarios.sections.model_table import known_parameters
from gcsim.scenarios.sections.recorded import micro_batches, warn_once
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.kineto.iterations import check_profile, examine_profile
from gcsim.traces.profile import PassTimes, TrafficProfile
from gcsim.traces.storage.manifest import read_manifest
from gcsim.traces.storage.store import recorded_passes

_ELEMENT = 4  # bytes of a float32


def measured_passes(scenario: Scenario, profile: TrafficProfile) -> PassTimes | None:
    """Return the times that the scenario states, reads from a profiler's trace, or replays; None:
    the catalogue's are used. Warns of CPU times for a GPU. Raises `InputError` for a profiler's
    trace that is unreadable or of another model, or recorded gradients without times."""
    found = _passes(scenario, profile)
    device = scenario.cluster.device
    measured_on = None if found is None else found.processor
    if found is not None and measured_on and device.processor not in {None, measured_on}:
        warn_once(
            Path(scenario.name),
            f"forward and backward were measured on a {measured_on.upper()} ({found.source}), but "
            f"cluster.device is {device.name}; leave `compute` out for that device's own times, "
            "or name the device that was measured",
        )
    return found


def _passes(scenario: Scenario, profile: TrafficProfile) -> PassTimes | None:
    compute = scenario.compute
    if isinstance(compute, ProfiledCompute):
        pieces = sorted(
            (piece for layout in profile.buckets for piece in layout.slices),
            key=lambda piece: piece.index,
        )
        parameters = [(piece.name, piece.shape) for piece in pieces]
        return _profiled(scenario, compute.profile, parameters, profile.buckets)
    if isinstance(compute, RecordedCompute):
        if not isinstance(scenario.gradients, RecordedGradients):
            raise InternalError("recorded times are wanted of gradients that are not recorded")
        return recorded_passes(scenario.gradients.trace)
    return compute


def check_passes(scenario: Scenario) -> None:
    """Raise `InputError` for named times that are unusable, as far as is known without the model;
    warn of a trace of one worker, or of other buckets or micro-batches than simulated."""
    compute, gradients = scenario.compute, scenario.gradients
    if isinstance(gradients, RecordedGradients):
        manifest = read_manifest(gradients.trace)
        layouts = bucket_layouts(
            manifest.parameters,
            manifest.facts.ready_order,
            first=scenario.buckets.first,
            cap=scenario.buckets.cap,
        )
        if manifest.workers == 1 and scenario.cluster.workers > 1:
            warn_once(
                gradients.trace,
                "holds the gradients of one worker: errors (NMSE) are those of a single worker's "
                "update, not of the mean over workers; record several with workers=N, or under "
                "DistributedDataParallel",
            )
        if (summed := micro_batches(manifest)) > 1 == scenario.training.accumulation:
            warn_once(
                gradients.trace,
                f"each gradient is the sum of {summed} micro-batches, but training.accumulation is "
                f"1; set training.accumulation={summed}",
            )
        if manifest.buckets is not None:
            _compare(gradients.trace, _elements(manifest.parameters, manifest.buckets), layouts)
        if isinstance(compute, ProfiledCompute):
            _profiled(scenario, compute.profile, manifest.parameters, layouts)
        if isinstance(compute, RecordedCompute):
            recorded_passes(gradients.trace)
    elif isinstance(compute, ProfiledCompute):
        check_profile(compute.profile)
        known = known_parameters(scenario.model)
        if known is not None:
            examine_profile(compute.profile, known)


def _profiled(
    scenario: Scenario,
    path: Path,
    parameters: Sequence[tuple[str, tuple[int, ...]]],
    layouts: Sequence[BucketLayout],
) -> PassTimes:
    found = examine_profile(path, parameters)
    if found.buckets:
        _compare(path, found.buckets, layouts)
    if found.batch_size not in {None, scenario.batch_size}:
        warn_once(
            path,
            f"most layers got {found.batch_size} samples in the profile, but batch_size is "
            f"{scenario.batch_size}; set batch_size: {found.batch_size}, or profile again",
        )
    return found.times


def _elements(
    parameters: Sequence[tuple[str, tuple[int, ...]]], buckets: Sequence[Sequence[str]]
) -> list[int]:
    (layout,) = bucket_layouts(parameters, first=1 << 62)
    sizes = {piece.name: piece.numel for piece in layout.slices}
    return [sum(sizes.get(name, 0) for name in bucket) for bucket in buckets]


def _compare(path: Path, seen: Sequence[int], layouts: Sequence[BucketLayout]) -> None:
    made = [layout.numel for layout in layouts]
    if list(seen) != made:
        warn_once(
            path,
            f"has its gradients in {_sizes(seen)}, but `ddp` makes {_sizes(made)}; set "
            "ddp: {bucket: ...} to the limit that was used (bucket_cap_mb, in MiB)",
        )


def _sizes(elements: Sequence[int]) -> str:
    count = f"{len(elements)} bucket" + ("s" if len(elements) > 1 else "")
    shown = ", ".join(f"{_ELEMENT * n / 1e6:.3g}" for n in elements[:4])
    return f"{count} ({shown}{', ...' if len(elements) > 4 else ''} MB)"
