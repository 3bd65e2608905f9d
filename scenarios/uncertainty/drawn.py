"""Input figures of the drawn worlds, as arrays by world, at any number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from gcsim.scenarios.uncertainty.figures import Column, Input, Rows, device_path, kinds_of_devices
from gcsim.scenarios.uncertainty.kernel_use import COEFFICIENTS, Figure
from gcsim.scenarios.uncertainty.worlds import Worlds, cluster_in, moves_links, training_in
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.steps.events.even_cluster import slow_bus
from gcsim.simulator.training import DENSE, Interference, Training

_BUS = ("cluster", "intra_node", "efficiency")
_RATES_OF_BUSES = {
    (key, field) for key in ("intra_node", "buses") for field in ("bandwidth", "efficiency")
}
_INTERFERENCE = ("training", "interference")


class Drawn:
    """Figures by world, and their differences from the stated ones."""

    def __init__(
        self, cluster: Cluster, training: Training, inputs: Sequence[Input], worlds: Worlds
    ) -> None:
        """`worlds`: result of `Worlds.with_stated`."""
        self.inputs, self.worlds, self._cluster = inputs, worlds, cluster
        self._training = training
        self.bus = np.ones(len(worlds))
        """Factor on the times of a node's bus, by world."""
        self.linked = [one for one in inputs if moves_links(one) and cluster.workers > 1]
        """Inputs that may change collectives."""
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
        self.longer_computation = 1 + self.figure(
            training.interference, _INTERFERENCE, "computation"
        )
        """Factor on computations during a collective, by world."""
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
        found = self._values.get((tuple(key_path), field))
        if found is None:
            stated = 0.0 if owner is None else float(getattr(owner, field))
            found = np.full(len(self.worlds), stated)
        return found / self.bus if (*key_path, field) == _BUS else found

    def cluster(self, number: int) -> Cluster:
        """Return the cluster in a world, with the stated device; the stated object if unchanged."""
        world = self.worlds[number]
        slowed = self.bus[number] > 1
        if not slowed and all(one.name not in world for one in self.linked):
            return self._cluster
        if number not in self._clusters:
            found = cluster_in(world, self._cluster, self.linked)
            if slowed:
                there = training_in(world, self._training, self.inputs)
                found = slow_bus(found, there) or found
            self._clusters[number] = found
        return self._clusters[number]

    def with_slow_buses(self) -> Drawn:
        """Return the figures in all worlds, then in all worlds while ranks compute; these, if no
        collective takes longer then."""
        always = replace(self._training, interference=Interference(bus=Fraction(1)))
        slower = self.figure(self._training.interference, _INTERFERENCE, "bus")
        if not slower.any() or slow_bus(self._cluster, always) is None:
            return self
        found = copy(self)
        found.worlds, found.bus = self.worlds.twice(), np.concatenate([self.bus, 1 + slower])
        found._values = {name: np.tile(column, 2) for name, column in self._values.items()}
        found._clusters = {}
        return found

    def coordinates(self, inputs: Sequence[Input]) -> Rows:
        """Return the inputs' coordinates (`Worlds.coordinates`), of a bus's rate with its factor,
        and if the bus is slower in some worlds, that of the factor."""
        found = self.worlds.coordinates(inputs)
        if self.bus.max() == 1:
            return found
        for number, one in enumerate(inputs):
            if all((figure.key_path[1], figure.field) in _RATES_OF_BUSES for figure in one.figures):
                rate = one.main
                longer = float(rate.stated) / float(rate.exactly(rate.far)) - 1
                found[:, number] = self.bus * (found[:, number] + 1 / longer) - 1 / longer
        return np.column_stack([found, self.bus - 1])
