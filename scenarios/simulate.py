"""How long does every method take at every size, on the device as stated and on what it may be?

The device as stated is predicted exactly. The corners of its ranges (`corners.py`) need less: only
the mean iteration, roughly (`Averager.rough_average`), with what the prediction has prepared of the
same cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gcsim.scenarios.corners import Corner, Use, favouring, use
from gcsim.scenarios.progress import Progress
from gcsim.scenarios.scenario import Scenario
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.plans import Planner
from gcsim.simulator.predict import Prediction, predict, rough_iteration, schedule_of_period
from gcsim.simulator.steps.averages import Averager
from gcsim.traces.profile import TrafficProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One method at one size."""

    prediction: Prediction
    """On the device as stated."""
    at_corners: tuple[float, ...] = ()
    """Seconds an iteration, by corner."""
    over_fastest: float | None = None
    """Iteration over that of the size's fastest method: the smallest on any device that was tried.
    None of the fastest itself, and without corners."""

    @property
    def iterations(self) -> tuple[float, ...]:
        """Seconds, on the device as stated and by corner."""
        return (self.prediction.iteration, *self.at_corners)


def simulate(
    scenario: Scenario,
    profiles: Sequence[TrafficProfile],
    compute: ComputeTimes,
    corners: Sequence[Corner],
    progress: Progress,
) -> list[list[Simulated]]:
    """Stage 2: by compressor, then by cluster size."""
    steps = len(profiles) * (1 + len(corners)) + (1 if corners else 0)
    prices = _price_lists(scenario.cluster.device, corners)
    with progress.task("cluster sizes", len(scenario.node_counts) * steps) as task:
        of_sizes = []
        for nodes in scenario.node_counts:
            one = _OneSize(scenario, profiles, compute, corners, prices, nodes=nodes)
            found = []
            for number in range(len(profiles)):
                prediction = one.predicted(number)
                task.advance()
                at_corners = []
                for corner in range(len(corners)):
                    at_corners.append(one.at_corner(number, corner))
                    task.advance()
                found.append(Simulated(prediction=prediction, at_corners=tuple(at_corners)))
            if corners:
                found = one.compared(found)
                task.advance()
            of_sizes.append(found)
    return [list(of_method) for of_method in zip(*of_sizes, strict=True)]


def _price_lists(stated: Device, corners: Sequence[Corner]) -> dict[str | None, PriceList]:
    """By end of the kernels' ranges, None as stated: a stretch is priced once for all sizes."""
    lists: dict[str | None, PriceList] = {None: PriceList(stated)}
    for corner in corners:
        if corner.kernels not in lists:
            lists[corner.kernels] = PriceList(corner.device)
    return lists


class _OneSize:
    """All methods on one cluster, which share what does not depend on the device."""

    def __init__(
        self,
        scenario: Scenario,
        profiles: Sequence[TrafficProfile],
        compute: ComputeTimes,
        corners: Sequence[Corner],
        prices: dict[str | None, PriceList],
        *,
        nodes: int,
    ) -> None:
        self._prices = prices
        self._profiles, self._compute, self._corners = profiles, compute, corners
        self._spans = nodes == scenario.node_counts[-1]  # the only timeline that is kept
        self._seed, self._training = scenario.seed, scenario.training_at(nodes)
        self._cluster = scenario.cluster_at(nodes)
        self._averager = Averager(self._cluster, self._training, self._seed)
        stated = Planner(self._cluster, compute, self._training, prices[None])
        self._schedules = [schedule_of_period(p, stated) for p in profiles] if corners else []

    def predicted(self, number: int) -> Prediction:
        """A method on the device as stated."""
        return predict(
            self._profiles[number],
            self._cluster,
            self._compute,
            training=self._training,
            seed=self._seed,
            spans=self._spans,
            averager=self._averager,
            prices=self._prices[None],
        )

    def at_corner(self, number: int, corner: int) -> float:
        """Seconds an iteration of a method at a corner."""
        chosen = self._corners[corner]
        return self._iteration(number, chosen.device, chosen.compute, self._prices[chosen.kernels])

    def _iteration(
        self, number: int, device: Device, compute: ComputeTimes, prices: PriceList
    ) -> float:
        cluster = replace(self._cluster, device=device)
        planner = Planner(cluster, compute, self._training, prices)
        schedule = schedule_of_period(self._profiles[number], planner)
        return rough_iteration(schedule, self._schedules[number], self._averager)

    def compared(self, found: Sequence[Simulated]) -> list[Simulated]:
        """The same with `over_fastest`."""
        first = min(range(len(found)), key=lambda number: found[number].prediction.iteration)
        uses = [use(p, self._cluster.device, self._cluster.workers) for p in self._profiles]
        return [
            one
            if number == first
            else replace(one, over_fastest=self._over(number, first, found, uses))
            for number, one in enumerate(found)
        ]

    def _over(
        self, number: int, first: int, found: Sequence[Simulated], uses: Sequence[Use]
    ) -> float:
        """The smallest ratio of two methods' iterations: at the corners, and, where they are not
        far apart, on the devices that favour the one."""
        pairs = zip(found[number].iterations, found[first].iterations, strict=True)
        ratios = [one / other for one, other in pairs]
        device = favouring(self._cluster.device, uses[number], uses[first])
        prices: PriceList | None = None
        for training, compute in {c.training: c.compute for c in self._corners}.items():
            places = [n for n, c in enumerate(self._corners) if c.training == training]
            if self._far_apart(found[number], found[first], places):
                continue
            prices = prices or PriceList(device)
            ratios.append(
                self._iteration(number, device, compute, prices)
                / self._iteration(first, device, compute, prices)
            )
        return min(ratios)

    @staticmethod
    def _far_apart(one: Simulated, other: Simulated, places: Sequence[int]) -> bool:
        """Whether a method's shortest iteration at these corners exceeds the other's longest."""
        return min(one.at_corners[n] for n in places) > max(other.at_corners[n] for n in places)
