"""A plan: points of the Pareto front in drawn worlds, the choice, and the best measurement.

The choice is the cheapest point (with only a budget, the fastest) that meets deadline and budget in
a share `SURE` of the drawn worlds, or else the point that does so most often. Without either it is
the cheapest. Among points that meet them, those that surely fit in memory come first.

The best measurement is of an uncertain input for which the fast or the slow third of the drawn
worlds leads to another choice. Points with that input (of the same device or link) are judged in
these worlds, others in all. Of several inputs, the one with the largest gain is chosen: probability
times the share of money (with only a budget, of time) that is saved. The input must change the time
of one of both choices (rank correlation `_MOVES`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.checks.fits import Misfit
from gcsim.scenarios.planning.offers import Offer, read_offers
from gcsim.scenarios.planning.search import Job, Point, Search, undominated
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.result import UncertainInput
from gcsim.scenarios.uncertainty.ranges import interval
from gcsim.simulator.luck import as_probability

SURE = 0.8  # share of drawn worlds in which the choice meets deadline and budget, if any point does
_MOVES = 0.2
_THIRDS = (1 / 3, 2 / 3)
_LEAST_GAIN = 0.02
Worlds = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPoint:
    """A point of the Pareto front in the drawn worlds."""

    point: Point  # hours and money are medians
    hours: Worlds  # hours by world
    inputs: tuple[UncertainInput, ...]

    @property
    def money(self) -> Worlds:
        """Money by world."""
        return self.hours * self.point.work.site.price

    @property
    def hours_range(self) -> tuple[float, float]:
        """10th and 90th percentile."""
        return interval(self.hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """An input whose measurement may change the choice."""

    name: str  # the input, and its device or link
    unit: str
    stated: float
    end: float  # value that separates the third of the drawn worlds with another choice
    below: bool  # whether this third is below the value
    instead: DrawnPoint
    command: str  # command or key that narrows it


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Answer of `gcsim plan`."""

    job: Job
    a_sample: int
    deadline: float | None  # hours
    budget: float | None
    front: tuple[DrawnPoint, ...]  # fastest first
    unfit: tuple[tuple[Offer, Misfit], ...]  # offers on which nothing fits
    left_out: tuple[tuple[Offer, str], ...]  # offers that are not simulated, and why
    settings: int  # number of fitting settings: offer, nodes, micro-batch, checkpointing, method
    simulated: int
    supposed: tuple[str, ...] = ()  # overrides that are assumed because nothing is stated
    unproven: frozenset[str] = frozenset()
    """Methods assumed to take as many steps as dense training, without evidence."""

    @property
    def drawn(self) -> bool:
        """Whether worlds are drawn; without, the stated inputs are the only one."""
        return any(len(one.hours) > 1 for one in self.front)

    def probabilities(self, one: DrawnPoint) -> tuple[float | None, float | None]:
        """Return the probabilities of meeting deadline and budget; None for one that is not set,
        and without drawn worlds."""
        limits = ((one.hours, self.deadline), (one.money, self.budget))
        deadline, budget = (
            None if limit is None or not self.drawn else as_probability((values <= limit).mean())
            for values, limit in limits
        )
        return deadline, budget

    @property
    def choice(self) -> DrawnPoint | None:
        """Point to choose; None if none fits."""
        return self._chosen(lambda _: None)

    def _chosen(self, among: Callable[[DrawnPoint], Mask | None]) -> DrawnPoint | None:
        """Return the point to choose if each point is judged in the worlds `among(point)`."""
        return min(self.front, key=lambda one: self._rank(one, among(one)), default=None)

    def _rank(self, one: DrawnPoint, among: Mask | None) -> tuple[float, bool, float]:
        met, unsure = self.met(one, among), not one.point.work.sure
        return (-SURE, unsure, self._cost(one, among)) if met >= SURE else (-met, unsure, 0.0)

    def met(self, one: DrawnPoint, among: Mask | None = None) -> float:
        """Return the share of worlds in which deadline and budget are met."""
        here = slice(None) if among is None else among
        deadline = math.inf if self.deadline is None else self.deadline
        budget = math.inf if self.budget is None else self.budget
        return float(((one.hours <= deadline) & (one.money <= budget))[here].mean())

    def _cost(self, one: DrawnPoint, among: Mask | None) -> float:
        """Return the mean of the quantity that the choice minimises."""
        fast = self.budget is not None and self.deadline is None
        values = one.hours if fast else one.money
        return float(values[slice(None) if among is None else among].mean())

    @property
    def measure(self) -> Measurement | None:
        """Measurement that may change the choice; None if no single one does."""
        chosen = self.choice
        if chosen is None or len(self.front) == 1:
            return None
        found: list[tuple[float, Measurement]] = []
        seen: set[tuple[str, str]] = set()
        for one in self.front:
            for given in one.inputs:
                subject = _subject(one, given)
                if (given.name, subject) not in seen:
                    seen.add((given.name, subject))
                    found += self._changes(chosen, given, subject)
        return max(found, key=lambda pair: pair[0], default=(0.0, None))[1]

    def _changes(
        self, chosen: DrawnPoint, given: UncertainInput, subject: str
    ) -> list[tuple[float, Measurement]]:
        """Return gain and measurement for each third of an input's worlds with another choice."""
        found = []
        alike = {
            id(one): np.array(own.draws)
            for one in self.front
            for own in one.inputs
            if own.name == given.name and _subject(one, own) == subject
        }
        for third in _THIRDS:
            masks = {name: _beyond(values, third) for name, values in alike.items()}
            end = float(np.percentile(given.draws, 100 * third))
            instead = self._chosen(lambda one, masks=masks: masks.get(id(one)))  # type: ignore[misc]
            if instead is None or instead is chosen:
                continue
            here, there = masks.get(id(chosen)), masks.get(id(instead))
            gain = self.met(instead, there) - self.met(chosen, here)
            gain += 1 - self._cost(instead, there) / self._cost(chosen, here)
            moved = any(_moves(one, given.name) for one in (chosen, instead) if id(one) in masks)
            if moved and gain >= _LEAST_GAIN:
                measurement = Measurement(
                    name=f"{given.name} ({subject})", unit=given.unit, stated=given.stated,
                    end=end, below=third < 0.5, instead=instead, command=given.measure,
                )  # fmt: skip
                found.append((gain, measurement))
        return found


def _subject(one: DrawnPoint, given: UncertainInput) -> str:
    """Return the device or link that an input belongs to, or the user's code."""
    cluster = one.point.work.site.scenario.cluster
    name = given.name
    if name.startswith("the network's"):
        return cluster.network.name
    if name.startswith("the links' inside a node"):
        return cluster.intra_node.name
    own = ("the device's", "the host's", "the time of forward", "measured ")
    return cluster.device.name if name.startswith(own) else "your code"


def _beyond(values: Worlds, third: float) -> Mask:
    """Return the worlds in the lowest, or highest, third of the values."""
    end = np.percentile(values, 100 * third)
    return values <= end if third < 0.5 else values >= end


def _moves(one: DrawnPoint, name: str) -> bool:
    """Whether the input changes the point's time."""
    own = next((i for i in one.inputs if i.name == name), None)
    if own is None or len(set(own.draws)) < 2:
        return False
    draws, hours = (np.argsort(np.argsort(values)) for values in (own.draws, one.hours))
    return abs(float(np.corrcoef(draws, hours)[0, 1])) >= _MOVES


def planned(
    job: Job,
    offers: Path | Sequence[Offer],
    *,
    deadline: float | None = None,
    budget: float | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Plan a training; `deadline` in hours, `budget` in the prices' currency. Raises `InputError`
    for a mistake in the offers or in the job."""
    watcher = progress or SilentProgress()
    known = read_offers(offers) if isinstance(offers, Path) else tuple(offers)
    search = Search(job=job, offers=known, progress=watcher, tell=tell)
    front = search.front()
    simulated = search.simulated
    drawn = []
    with watcher.task("front", len(front)) as task:
        for point in front:
            with search.left_out(point.work):
                drawn.append(_drawn(search, point))
            task.advance(note=point.work.site.offer.name)
    best = undominated([one.point for one in drawn])
    unfit: list[tuple[Offer, Misfit]] = []
    left_out = [pair for pair in search.too_long.items() if pair[0] not in search.served]
    for offer in known:
        at = [site for site in search.sites if site.offer is offer]
        if any(map(search.works, at)):
            continue
        if found := [one for site in at if (one := search.misfit(site))]:
            unfit.append((offer, found[-1]))
        else:
            few = f"{offer.gpus} GPUs per node, but {search.samples:,} samples per step"
            left_out.append((offer, f"{few}; would help: --batch"))
    return Plan(
        job=job,
        a_sample=search.a_sample,
        deadline=deadline,
        budget=budget,
        front=tuple(next(d for d in drawn if d.point is point) for point in best),
        unfit=tuple(unfit),
        left_out=tuple(left_out),
        settings=sum(len(w.choices) for site in search.sites for w in search.works(site)),
        simulated=simulated,
        supposed=search.supposed,
        unproven=search.unproven,
    )


def _drawn(search: Search, point: Point) -> DrawnPoint:
    """Return the point in the scenario's drawn worlds."""
    work = replace(point.work, choices=(point.choice,))
    result = search.result(work, draws=work.site.scenario.draws)
    (row,) = result.rows
    hours = search.hours(work, row)
    times = np.array(row.iteration_draws_s or (row.iteration_s,))
    median = replace(point, row=row, hours=hours, money=hours * work.site.price)
    return DrawnPoint(point=median, hours=times * (hours / row.iteration_s), inputs=result.inputs)
