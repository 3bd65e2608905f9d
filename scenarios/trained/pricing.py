"""Times of a trajectory's steps on every cluster of a scenario.

A window of a trajectory is a traffic profile like any other (`Trajectory.profile`): stage 2 prices
it on each size, as stated and in each drawn world. Windows of one method whose bytes differ by less
than 2 % are priced once, so methods that always send alike are as dear as in `gcsim run`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.progress import Progress
from gcsim.scenarios.running.simulate import Simulated, compute_times, simulate
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.passes import measured_passes
from gcsim.scenarios.trained.search import Tried
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.push_pull import as_collectives
from gcsim.traces.profile import TrafficProfile
from gcsim.traces.training.trajectory import Trajectory, Window

ALIKE = 0.02
"""Windows whose bytes differ by less are priced as one."""
Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Times of a method's steps on one cluster."""

    priced: Mapping[Hashable, Simulated]
    """Simulated steps by kind of window."""

    def elapsed(self, trajectory: Trajectory, *, widened: bool = False) -> Seconds:
        """Seconds of each evaluation since the first step in each drawn world: `[evaluations,
        worlds]` (one world, as stated, where nothing has a range); the worlds of estimates, or
        those of ranges."""
        ends = np.array([one.step for one in trajectory.evaluations], dtype=float)
        windows = trajectory.windows
        if not windows:
            return np.zeros((len(ends), 1))
        starts = np.array([float(window.first) for window in windows])
        steps = np.array([float(window.steps) for window in windows])
        each = [self.priced[kind_of(trajectory, window)] for window in windows]
        worlds = [one.widened if widened else one.draws for one in each]
        stated = [(one.prediction.iteration,) for one in each]
        seconds = np.array([a or b for a, b in zip(worlds, stated, strict=True)])
        taken = np.clip(ends[:, None] - starts, 0.0, steps)  # steps of a window until then
        return np.asarray(taken @ seconds)

    def mean(self, trajectory: Trajectory) -> Seconds:
        """Seconds a step, over all windows (of which there is one at least), by drawn world."""
        steps = sum(window.steps for window in trajectory.windows)
        found: Seconds = self.elapsed(trajectory)[-1] / steps
        return found


def kind_of(trajectory: Trajectory, window: Window) -> Hashable:
    """Windows of one kind are priced once."""
    sent = window.wire_bytes_per_worker
    size = round(math.log(sent) / math.log1p(ALIKE)) if sent else None
    return (trajectory.compressor, str(trajectory.parameters), window.order, size)


def clocks(scenario: Scenario, tried: Sequence[Tried], progress: Progress) -> list[list[Clock]]:
    """Clocks by method, then by size of the cluster."""
    profiles: dict[Hashable, TrafficProfile] = {}
    owners: dict[Hashable, int] = {}
    for number, one in enumerate(tried):
        for trajectory in one.trajectories:
            for window in trajectory.windows:
                kind = kind_of(trajectory, window)
                if kind not in profiles:
                    profile = trajectory.profile(window)
                    profiles[kind] = as_collectives(profile, scenario.cluster)
                    owners[kind] = number
    kinds = list(profiles)
    first = profiles[kinds[0]]
    passes = measured_passes(scenario, first)
    asked = replace(
        scenario, compressors=tuple(scenario.compressors[owners[kind]] for kind in kinds)
    )
    found, _ = simulate(
        asked,
        [profiles[kind] for kind in kinds],
        compute_times(scenario, first, passes),
        PriceList(scenario.cluster.device),
        progress,
        spans=False,
    )
    return [
        [
            Clock(
                priced={
                    kind: of_sizes[size]
                    for kind, of_sizes in zip(kinds, found, strict=True)
                    if owners[kind] == number
                }
            )
            for size in range(len(scenario.node_counts))
        ]
        for number in range(len(tried))
    ]
