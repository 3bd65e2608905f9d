"""Times of a trajectory's steps on every cluster of a scenario.

Stage 2 prices a window of a trajectory as any traffic profile (`Trajectory.profile`), on each size,
as stated and in each drawn world. Of a method's windows whose bytes differ by less than 5 %, the
most typical one is priced: constant traffic costs what it does in `gcsim run`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.progress import Progress
from gcsim.scenarios.running.installed import as_installed
from gcsim.scenarios.running.simulate import (
    Simulated,
    Stage2,
    compute_times,
    simulate,
    with_batches_by_speed,
)
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.passes import measured_passes
from gcsim.scenarios.trained.search import MethodTraining
from gcsim.simulator.as_trained import as_trained
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.push_pull import as_collectives
from gcsim.traces.training.trajectory import Trajectory, Window

ALIKE = 0.05  # relative difference of bytes below which windows are priced as one
Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Step times of a method on one cluster, by window of its trajectories."""

    priced: Mapping[Hashable, Simulated]  # simulated steps by kind of window

    def elapsed(self, trajectory: Trajectory, *, widened_draws: bool = False) -> Seconds:
        """Return seconds from the first step to each evaluation, `[evaluations, worlds]` (without
        ranges only the stated world); `widened_draws`: use `Simulated.widened_draws`."""
        ends = np.array([one.step for one in trajectory.evaluations], dtype=float)
        windows = trajectory.windows
        if not windows:
            return np.zeros((len(ends), 1))
        starts = np.array([float(window.first) for window in windows])
        steps = np.array([float(window.steps) for window in windows])
        each = [self.priced[kind_of(trajectory, window)] for window in windows]
        worlds = [one.widened_draws if widened_draws else one.draws for one in each]
        stated = [(one.prediction.iteration,) for one in each]
        seconds = np.array([a or b for a, b in zip(worlds, stated, strict=True)])
        taken = np.clip(ends[:, None] - starts, 0.0, steps)  # steps before the evaluation
        return np.asarray(taken @ seconds)

    def mean(self, trajectory: Trajectory) -> Seconds:
        """Return the mean seconds per step over all windows, by drawn world."""
        steps = sum(window.steps for window in trajectory.windows)
        found: Seconds = self.elapsed(trajectory)[-1] / steps
        return found


def kind_of(trajectory: Trajectory, window: Window) -> Hashable:
    """Return the kind of a window; each kind is priced once."""
    sent = window.wire_bytes_per_worker
    size = round(math.log(sent) / math.log1p(ALIKE)) if sent else None
    return (trajectory.compressor, str(trajectory.parameters), window.order, size)


def _typical(windows: Sequence[tuple[Trajectory, Window]]) -> tuple[Trajectory, Window]:
    """Return the window whose bytes are nearest to the mean over all steps, the last of equals: the
    first one also makes the method's state."""
    steps = sum(window.steps for _, window in windows)
    mean = sum(window.steps * window.wire_bytes_per_worker for _, window in windows) / steps
    return min(reversed(windows), key=lambda one: abs(one[1].wire_bytes_per_worker - mean))


def clocks(
    scenario: Scenario,
    tried: Sequence[MethodTraining],
    progress: Progress,
    prices: PriceList | None = None,
) -> list[list[Clock]]:
    """Return clocks by method and cluster size; `prices` of the device are used if given."""
    alike: dict[tuple[int, Hashable], list[tuple[Trajectory, Window]]] = {}
    for number, one in enumerate(tried):
        for trajectory in one.trajectories:
            for window in trajectory.windows:
                kind = number, kind_of(trajectory, window)
                alike.setdefault(kind, []).append((trajectory, window))
    named = tuple(scenario.compressors[number] for number, _ in alike)
    typical = [_typical(windows) for windows in alike.values()]
    asked, profiles = as_installed(
        replace(scenario, compressors=named),
        [trajectory.profile(window) for trajectory, window in typical],
    )
    cluster = asked.cluster
    profiles = [
        as_collectives(as_trained(one, asked.training, cluster), cluster) for one in profiles
    ]
    first = profiles[0]
    passes = measured_passes(scenario, first)
    asked = with_batches_by_speed(asked, first.model)
    times, prices = compute_times(asked, first, passes), prices or PriceList(cluster.device)
    found, _ = simulate(Stage2(asked, profiles, times, prices), progress, spans=False)
    return [
        [
            Clock(
                priced={
                    kind: of_sizes[size]
                    for (owner, kind), of_sizes in zip(alike, found, strict=True)
                    if owner == number
                }
            )
            for size in range(len(scenario.node_counts))
        ]
        for number in range(len(tried))
    ]
