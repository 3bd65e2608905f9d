"""The 80 % interval of a prediction by the catalogue alone.

All figures that have a range are drawn together, as `gcsim run` draws them
(`scenarios/uncertainty/worlds.py`), and the 10th and 90th percentile of the predictions are taken.
An input's draws depend on its name alone, so that points are wrong together as in one run.

Collectives alone are simulated in every world. A training step is the exact one as stated, times
what `scenarios/uncertainty/approximation.py` says of the world, which is what `gcsim run` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.result import HIGH, LOW
from gcsim.scenarios.uncertainty.approximation import Approximation, Drawn, records_of
from gcsim.scenarios.uncertainty.collective_times import CollectiveTimes
from gcsim.scenarios.uncertainty.figures import PASSES, Input, uncertain_inputs
from gcsim.scenarios.uncertainty.worlds import STATED, World, alone, cluster_in, draw
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.step_time import step_time
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.push_pull import as_collectives
from gcsim.simulator.training import Training
from gcsim.traces.profile import ModelFacts, TrafficProfile

DRAWS = 10
_SEED = 0
_NO_PASSES = ComputeTimes(forward=0, backward=0, parts=(), provenance="none")
_KINDS = {
    "device": "kernels",
    "intra_node": "bus",
    "sums": "additions",
    "host": "host",
    "interference": "interference",
    "reducer": "framework",
    "hook": "framework",
    "noise": "skew",
    "code": "passes",
}
_TRANSPORTS = {"gloo": "Gloo", "nccl": "NCCL", "mpich": "MPI"}


@dataclass(frozen=True, slots=True)
class Interval:
    """Interval of one prediction, in its unit."""

    low: float
    high: float
    kind: str
    """Kind of the input that most of its width comes from."""
    draws: tuple[float, ...] = ()
    """The prediction in each world."""


def ends(found: Interval | None) -> dict[str, Any]:
    """The interval as fields of a `Point`."""
    return {} if found is None else asdict(found)


def intervals(
    cluster: Cluster, predict: Callable[[Cluster], Sequence[float]]
) -> list[Interval | None]:
    """The interval of each prediction that `predict` makes for a cluster.

    None for those that no range moves.
    """
    inputs = [
        one
        for one in uncertain_inputs(cluster, Training(), {"stated": _NO_PASSES})
        if one.main.key_path[0] == "cluster"
    ]
    worlds = draw(inputs, DRAWS, _SEED)
    if not inputs:
        return [None] * len(predict(cluster))
    times = np.array([predict(cluster_in(world, cluster, inputs)) for world in worlds])
    return [interval(column, cluster, inputs, worlds) for column in times.T]


def interval(
    values: NDArray[np.float64], cluster: Cluster, inputs: Sequence[Input], worlds: Sequence[World]
) -> Interval | None:
    """The interval of values in the worlds; None where they are all alike."""
    # Hazen's: draw k of n stands for the middle of its n-th, as in a Latin hypercube.
    low, high = np.percentile(values, (LOW, HIGH), method="hazen").tolist()
    if not low < high:
        return None
    ranks = np.argsort(np.argsort(values))
    places = np.array([[world.slowness[one.name] for world in worlds] for one in inputs])
    order = np.argsort(np.argsort(places, axis=1), axis=1)
    together = [abs(float(np.corrcoef(own, ranks)[0, 1])) for own in order]
    kind = kind_of(inputs[int(np.argmax(together))], cluster)
    return Interval(low, high, kind, tuple(values.tolist()))


def kind_of(one: Input, cluster: Cluster) -> str:
    """An input's kind, in a word or two."""
    key_path, chosen = one.main.key_path, cluster.collectives
    if key_path == PASSES:
        return "passes"
    if one.main.field == "exposed":
        return "overlap"
    if one.main.field == "ring_over_tree":
        return "NCCL's choice"
    part = str(key_path[1])
    if part in _KINDS and not (part == "intra_node" and cluster.nodes == cluster.workers):
        return _KINDS[part]
    if cluster.nodes == 1:
        return "bus"
    nccl = chosen.transport == "custom" and chosen.all_reduce.startswith("nccl")
    title = "NCCL" if nccl else _TRANSPORTS.get(chosen.transport, "others")
    return f"{one.main.field} under {title}"


_HELD: dict[object, CollectiveTimes] = {}
"""Times by cluster, records and inputs: several suites' points ask for the same collectives."""


class StepIntervals:
    """Intervals of steps on clusters of one size, device, links and training."""

    def __init__(
        self, cluster: Cluster, training: Training, profiles: Sequence[TrafficProfile]
    ) -> None:
        """`profiles` are all that will be asked for."""
        self._cluster, self._training = cluster, training
        self._prices = PriceList(cluster.device)
        self._profiles = {id(one): as_collectives(one, cluster) for one in profiles}
        records = frozenset(records_of(self._profiles.values()))
        self._place = (
            cluster.nodes, cluster.devices_per_node, cluster.network, cluster.intra_node,
            cluster.collectives, cluster.sums, cluster.host, records,
        )  # fmt: skip

    def draw(
        self,
        profile: TrafficProfile,
        compute: Mapping[str, ComputeTimes],
        exact: float,
        training: Training | None = None,
    ) -> Drawing:
        """Draw a step that takes `exact` seconds as stated; `compute` as of `uncertain_inputs`,
        `training` where it differs in what has no range."""
        inputs = uncertain_inputs(self._cluster, self._training, compute)
        worlds = draw(inputs, DRAWS, _SEED)
        key = self._place, tuple(one.name for one in inputs)
        drawn = Drawn(self._cluster, self._training, inputs, [STATED, *worlds, *alone(inputs)])
        about = Approximation(
            drawn, self._cluster.nodes, training or self._training, compute["stated"],
            list(self._profiles.values()), prices=self._prices, seed=_SEED,
            held=_HELD.get(key),
        )  # fmt: skip
        _HELD[key] = about.held
        times = about.iteration(self._profiles[id(profile)])
        seconds = exact * times[1 : 1 + DRAWS] / times[0]
        return Drawing(self._cluster, inputs, worlds, seconds)


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A step in all worlds."""

    cluster: Cluster
    inputs: Sequence[Input]
    worlds: Sequence[World]
    seconds: NDArray[np.float64]

    def interval(self, published: Callable[[float], float] = float) -> Interval | None:
        """The interval of the number that is published of it."""
        if not self.inputs:
            return None
        values = np.array([published(seconds) for seconds in self.seconds.tolist()])
        return interval(values, self.cluster, self.inputs, self.worlds)


def passes_of(compute: ComputeTimes, facts: ModelFacts, device: Device) -> dict[str, ComputeTimes]:
    """The passes as the catalogue states them, and at the ends of the device's ranges."""
    stated = float(step_time(facts, device, "fp32").seconds)
    found = {"stated": compute}
    for end in ("fastest", "slowest"):
        other = device.at(kernels="fastest", training=end)
        share = float(step_time(facts, other, "fp32").seconds) / stated
        found[end] = compute.times(Fraction(share).limit_denominator(10**6))
    return found
