"""Input figures of the drawn worlds, as arrays by world, at any number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gcsim.scenarios.uncertainty.figures import Column, Input, device_path, kinds_of_devices
from gcsim.scenarios.uncertainty.kernel_use import COEFFICIENTS, Figure
from gcsim.scenarios.uncertainty.worlds import Worlds, alone, cluster_in, moves_links, training_in
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.training import DENSE, Training

_INTERFERENCE = ("training", "interference")


class Drawn:
    """Figures by world, and their differences from the stated ones."""

    def __init__(
        self, cluster: Cluster, training: Training, inputs: Sequence[Input], worlds: Worlds
    ) -> None:
        """`worlds`: result of `Worlds.with_stated`."""
        self.inputs, self.worlds, self._cluster = inputs, worlds, cluster
        self._linked = [one for one in inputs if moves_links(one) and cluster.workers > 1]
        self._names = {one.name for one in self._linked}
        self._clusters: dict[int, Cluster] = {}
        self._values = {
            (figure.key_path, figure.field): column
            for one, columns in zip(inputs, worlds.values(inputs), strict=True)
            for figure, column in zip(one.figures, columns, strict=True)
        }
        kinds = kinds_of_devices(cluster)
        of = [device for _, _, device in cluster.kinds]
        self._kind = [next(k for k in kinds if of[k] is device) for device in of]
        self._passes = {kind: worlds.passes(inputs, kind) for kind in kinds}
        fields = ("per_tensor", "per_bucket", "per_step", "passes")
        self.exchange_code = {
            named: np.array(
                [self.figure(training.exchange_code(named), key_path, each) for each in fields]
            )
            for named, *key_path in (
                (DENSE, "training", "reducer"),
                ("", "training", "hook"),
                *((other, "training", "others", other) for other in training.others),
            )
        }
        """`[4, worlds]` by method ("": all others): cost of the code around an exchange per tensor,
        bucket, step and pass."""
        self.loading = self.figure(training.input, ("training", "input"), "batch") * PS_PER_SECOND
        """Picoseconds to load a batch, by world."""
        self.waits = self.figure(training, ("training",), "exposed")
        """Share of the remaining backward pass that exchanges wait for, by world."""
        if training.overlap == "none":
            self.waits = np.ones(len(worlds))
        self.interferences = [
            (
                training_in(world, training, (one,)).interference,
                worlds.coordinates((one,))[:, 0] * (1 - self.waits),
            )
            for one in inputs
            if one.main.key_path == _INTERFERENCE
            for world in alone((one,))
        ]
        """Interference with a single figure at its end, and the share of that by world."""
        self._slower: dict[int, dict[Figure, Column]] = {kind: {} for kind in kinds}
        for kind in kinds:
            owner = device_path(kind)
            for (key_path, field), values in self._values.items():
                if key_path[: len(owner)] == owner:
                    known = (*of[kind].kernels, *of[kind].host)
                    name = next(k for k in known if k == key_path[len(owner) + 1])
                    times = values if field == next(iter(COEFFICIENTS)) else 1 / values
                    self._slower[kind][name, field] = (times - times[0]) * PS_PER_SECOND

    def passes(self, group: int) -> Column:
        """Return the factor on the stated forward and backward passes of a group."""
        return self._passes[self._kind[group]]

    def kernel_extras(self, group: int) -> dict[Figure, Column]:
        """Return extra picoseconds per launch, byte or FLOP, by coefficient of a kernel class."""
        return self._slower[self._kind[group]]

    def figure(self, owner: Any, key_path: Sequence[str], field: str) -> Column:
        """Return a field of `owner` by world; 0 if `owner` is None."""
        known = self._values.get((tuple(key_path), field))
        if known is not None:
            return known
        return np.full(len(self.worlds), 0.0 if owner is None else float(getattr(owner, field)))

    def cluster(self, number: int) -> Cluster:
        """Return the cluster in a world, with the stated device; the stated object if unchanged."""
        world = self.worlds[number]
        if self._names.isdisjoint(world.slowness):
            return self._cluster
        if number not in self._clusters:
            self._clusters[number] = cluster_in(world, self._cluster, self._linked)
        return self._clusters[number]
