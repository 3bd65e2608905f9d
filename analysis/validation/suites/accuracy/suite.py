"""The suite `accuracy`: published accuracies of methods against training runs of small tasks.

`published.csv` has a method's figure in a setting of `settings.csv` (a model, data, workers, an
optimizer, methods that take plain SGD's steps instead); the figure `dense` means a finding in
words. Findings of `catalog/published_training.csv` count as well. A task is compared with the
settings of its own field and kind of optimizer (settings with several kinds, or none stated, count
for each), and with all settings. A method with its own optimizer (DGC, CSER) is compared in tasks
with an optimizer of that kind alone: in others, dense training has another one.

A pair of methods is judged if both sides separate it. Published figures must differ by more than
`APART` and, if a setting shows its own noise, by more than two standard deviations of a difference.
Methods that lose next to nothing show this noise (dense training, 8 bits, Top-k of a tenth or
more). gcsim's seeds separate two methods by the test of `gcsim reproduce`: a paired t-test with
Holm's correction for the pairs of the setting. A setting's order is compared if both sides have
one: most pairs of six methods differ in print, and the seeds agree on some order.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from gcsim.analysis.report.numbers import plural
from gcsim.analysis.validation import data_files
from gcsim.analysis.validation.folder import suite_of
from gcsim.analysis.validation.statistics import grouped
from gcsim.analysis.validation.suite import IN_ALL, Agreement, Findings, Pair, Verdict
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.papers.judge import LEVEL, significant_signs
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.trained import make_shipped
from gcsim.scenarios.trained.evidence import Published as Finding
from gcsim.scenarios.trained.evidence import published
from gcsim.scenarios.trained.runs import plan_of, takes_plain_steps
from gcsim.scenarios.trained.search import MethodTraining, known_of
from gcsim.scenarios.trained.shipped_tasks import field_of, kind_of
from gcsim.scenarios.trained.study import dense_level, ends_of, measured, mostly
from gcsim.simulator.training import DENSE
from gcsim.traces.training.plan import Plan

_HERE = Path(__file__).parent
APART = 0.01
"""Least relative difference of two published figures that counts; a method within it trains as well
as dense."""
SPANNING = 6  # least number of methods in a setting whose order is compared
_SPARED, _SPARING, _ENOUGH = (DENSE, "dynamic_8bit"), 0.1, 3
"""Methods that lose next to nothing, least ratio of Top-k among them, and least number of their
figures that shows a setting's noise."""
_NEAR = 2.0  # largest ratio of a published parameter to the trained one
_VERDICTS: Mapping[int, Verdict] = {1: "right", -1: "reversed", 0: "alike"}
_OWN_ADAM = ("onebit_adam",)  # methods with a momentum that is Adam's
_LESS = ("perplexity",)  # measures for which less is better


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published figure of a method in a setting."""

    setting: str
    source: str
    field: str
    optimizer: str
    """Kind of optimizer (`kind_of`); "": several, or not stated."""
    mirror: str
    """Scenario of `make_shipped.PAPERS` with the setting's workers, methods, optimizer and one rate
    for all; "" if there is none."""
    method: str
    kind: str
    parameters: Mapping[str, str]
    figure: float | None  # relative to dense, more is better; None: said to equal dense

    @property
    def dense(self) -> bool:
        """Whether it trains as well as dense training."""
        return self.figure is None or self.figure >= 1 - APART

    @property
    def spared(self) -> bool:
        """Whether its method loses next to nothing, so that its figure shows noise."""
        ratio = float(self.parameters.get("ratio", 0)) if self.kind == "topk" else 0.0
        return self.kind in _SPARED or ratio >= _SPARING


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task whose training runs ship with gcsim."""

    name: str
    """Scenario, with the width of its network, optimizer and steps."""
    field: str
    optimizer: str
    """Kind of optimizer (`kind_of`)."""

    def of(self, row: Published | Finding) -> bool:
        """Whether a published result has the task's field and, if stated, its optimizer."""
        return row.field == self.field and row.optimizer in ("", self.optimizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a task's training with a method."""

    kind: str
    label: str
    parameters: Mapping[str, Any]
    too_short: bool
    reached: bool  # whether more than half of the seeds reach the target
    scores: tuple[float, ...]
    """Measure on held-out samples at the end, less that of dense training, by seed; more is
    better."""


def find() -> Findings:
    """Return the agreement of every shipped task with the published figures."""
    rows = read()
    found = [one for task, outcomes in trainings() for one in agreements(task, outcomes, rows)]
    for mirror in make_shipped.PAPERS:
        own, scenario = [row for row in rows if row.mirror == mirror], make_shipped.of_paper(mirror)
        for task, outcomes in _outcomes(scenario, scenario.compressors):
            found.append(next(agreements(task, outcomes, own)))
    return Findings(agreements=tuple(found), cited=tuple(_citations()))


def _citations() -> Iterator[str]:
    """Yield each source with its settings and number of figures."""
    settings = data_files.read(_HERE / "settings.csv")
    names = {row["setting"]: row["source"] for row in settings}
    figures = Counter(names[row["setting"]] for row in data_files.read(_HERE / "published.csv"))
    for source in data_files.read(_HERE / "sources.csv"):
        own = [row for row in settings if row["source"] == source["key"]]
        where = (f"{one['where']}: {one['model']}, {one['data']}" for one in own)
        places = "; ".join(dict.fromkeys(where))
        yield f"{source['citation']} ({plural(figures[source['key']], 'figure')}; {places})"


@cache
def _cited() -> dict[str, str]:
    return {row["key"]: row["citation"] for row in data_files.read(_HERE / "sources.csv")}


@cache
def read() -> tuple[Published, ...]:
    """Return the published figures, in file order."""
    settings = {row["setting"]: row for row in data_files.read(_HERE / "settings.csv")}
    rows = data_files.read(_HERE / "published.csv")
    dense = {row["setting"]: row["value"] for row in rows if row["kind"] == DENSE}
    return tuple(
        Published(
            setting=row["setting"],
            source=settings[row["setting"]]["source"],
            field=settings[row["setting"]]["field"],
            optimizer=_optimizer(settings[row["setting"]], row["kind"]),
            mirror=settings[row["setting"]]["mirror"],
            method=row["method"],
            kind=row["kind"],
            parameters=dict(pair.split("=") for pair in row["parameters"].split()),
            figure=_ratio(row["value"], dense[row["setting"]], settings[row["setting"]]["measure"]),
        )
        for row in rows
    )


def _optimizer(setting: Mapping[str, str], kind: str) -> str:
    return "plain SGD" if kind in setting["plain_sgd"].split() else setting["optimizer"]


def _ratio(value: str, dense: str, measure: str) -> float | None:
    if value == "dense":
        return None
    ratio = float(value) / float(dense)
    return 1 / ratio if measure in _LESS else ratio


def trainings() -> Iterator[tuple[Task, list[Outcome]]]:
    """Yield the shipped tasks with the outcomes of their methods."""
    for scenario in (load_scenario(name) for name in make_shipped.SCENARIOS):
        yield from _outcomes(scenario, make_shipped.wanted(scenario))
    for scenario in (load_scenario(*one) for one in make_shipped.LONG):
        yield from _outcomes(scenario, scenario.compressors)


def _outcomes(
    scenario: Scenario, choices: Iterable[CompressorChoice]
) -> Iterator[tuple[Task, list[Outcome]]]:
    assert scenario.dense is not None  # noqa: S101
    dense = _most_seeds(scenario, scenario.compressors[scenario.dense])
    if dense is None:
        return
    plan, level = plan_of(scenario), dense_level(dense)
    base, optimizer = _final(plan, dense), kind_of(plan.optimizer)
    every = (_most_seeds(scenario, choice) for choice in choices)
    outcomes = [
        Outcome(
            kind=one.choice.kind,
            label=one.choice.label,
            parameters=one.choice.parameters,
            too_short=bool(one.too_short),
            reached=mostly(ends_of(plan, one, level)),
            scores=tuple(own - other for own, other in zip(_final(plan, one), base, strict=False)),
        )
        for one in every
        if one is not None and not one.untrained and optimizer_of(one.choice, plan) == optimizer
    ]
    _, wider, times = scenario.model.name.rpartition("_x")
    width = f" x{times}" if wider else ""
    name = f"{scenario.name}{width} ({optimizer}, {plan.steps:,} steps)"
    yield Task(name=name, field=field_of(scenario) or "", optimizer=optimizer), outcomes


def optimizer_of(choice: CompressorChoice, plan: Plan) -> str:
    """Return the kind of optimizer that a method trains with: its own, if it has one."""
    if not takes_plain_steps(choice):
        return kind_of(plan.optimizer)
    return "Adam" if choice.kind in _OWN_ADAM else "momentum SGD"


def _final(plan: Plan, tried: MethodTraining) -> list[float]:
    last = [each.evaluations[-1] for each in tried.trajectories]
    if measured(plan.target) == "loss":
        return [-each.loss for each in last]
    return [each.accuracy or 0.0 for each in last]


def _most_seeds(scenario: Scenario, choice: CompressorChoice) -> MethodTraining | None:
    """Return the training runs with the most seeds; long ones are stored seed by seed."""
    plan = plan_of(scenario)
    some = (
        known_of(replace(scenario, train=replace(plan, seeds=seeds)), choice)
        for seeds in range(plan.seeds, 0, -1)
    )
    return next((one for one in some if one is not None), None)


def matched(
    rows: Sequence[Published], outcomes: Sequence[Outcome]
) -> list[tuple[Published, Outcome]]:
    """Match each row of a setting to the training with the nearest parameters, one to one."""
    pairs = (
        (distance, number, row, one)
        for number, row in enumerate(rows)
        for one in outcomes
        if (distance := _distance(row, one)) is not None
    )
    taken: set[int] = set()
    found = {}
    for _, number, row, one in sorted(pairs, key=lambda pair: pair[:2]):
        if number not in found and id(one) not in taken:
            found[number] = row, one
            taken.add(id(one))
    return [found[number] for number in sorted(found)]


def _distance(row: Published, one: Outcome) -> float | None:
    """Return the sum of the log ratios of the parameters; None for another method."""
    if row.kind != one.kind:
        return None
    total = 0.0
    for name, text in row.parameters.items():
        own = one.parameters.get(name)
        if isinstance(own, bool) or own is None:
            if text != str(own).lower():
                return None
            continue
        try:
            ratio = float(text) / own
        except ValueError:
            return None
        if not 1 / _NEAR <= ratio <= _NEAR:
            return None
        total += abs(float(np.log(ratio)))
    return total


def reported_dense(
    rows: Sequence[Published], findings: Sequence[Finding], one: Outcome
) -> bool | None:
    """Whether most rows and findings say that a method trains as well as dense; None if none do."""
    said = [
        row.dense
        for own in grouped(rows, lambda row: row.setting).values()
        for row, _ in matched(own, [one])
    ]
    covering = (row for row in findings if row.covers(one.kind, one.parameters, row.field))
    said += [math.isfinite(row.evidence.steps_vs_dense) for row in covering]
    return None if not said else 2 * sum(said) >= len(said)


def agreements(
    task: Task, outcomes: Sequence[Outcome], rows: Sequence[Published]
) -> Iterator[Agreement]:
    """Yield a task's agreement with figures of its own field and optimizer, then with all; these
    say how a method trains if its own say nothing."""
    said: dict[int, bool | None] = {}
    for which in (task, None):
        counted = [row for row in rows if which is None or which.of(row)]
        findings = [row for row in published() if which is None or which.of(row)]
        said |= {
            id(one): reported_dense(counted, findings, one)
            for one in outcomes
            if said.get(id(one)) is None
        }
        dense = [one for one in outcomes if one.kind != DENSE and said[id(one)]]
        conclusive = [one for one in dense if not one.too_short]
        alarms = tuple(one.label for one in conclusive if not one.reached)
        pairs: list[Pair] = []
        spanning, ranks = 0, []
        figures = [row for row in counted if row.figure is not None]
        for own in grouped(figures, lambda row: row.setting).values():
            both, least = matched(own, outcomes), least_difference(own)
            found = [*compared(both, least)]
            pairs += found
            tells = [(row, one) for row, one in both if not one.too_short]
            differ = sum(pair.verdict != "too short" for pair in found)
            if len(tells) < SPANNING or 2 * differ <= math.comb(len(tells), 2):
                continue
            spanning += 1
            if ordered([one.scores for _, one in tells]):
                steps = [round((row.figure or 0.0) / least) for row, _ in tells]
                ranks.append(spearman(steps, [statistics.fmean(one.scores) for _, one in tells]))
        yield Agreement(
            task=task.name,
            compared=f"{task.field}, {task.optimizer}" if which else IN_ALL,
            reported=len(conclusive),
            alarms=alarms,
            reported_short=len(dense) - len(conclusive),
            pairs=tuple(pairs),
            spanning=spanning,
            ranks=tuple(ranks),
        )


def least_difference(own: Sequence[Published]) -> float:
    """Return the relative difference from which two figures of a setting count as different."""
    near = [row.figure for row in own if row.spared and row.figure is not None]
    noise = statistics.stdev(near) if len(near) >= _ENOUGH else 0.0
    return max(APART, 2 * math.sqrt(2) * noise)


def compared(both: Sequence[tuple[Published, Outcome]], least: float = APART) -> Iterator[Pair]:
    """Yield the pairs of a setting's methods whose figures differ by more than `least`."""
    ordered = sorted(both, key=lambda pair: -(pair[0].figure or 0.0))
    pairs = [
        (better, worse)
        for better, worse in combinations(ordered, 2)
        if (worse[0].figure or 0.0) < (1 - least) * (better[0].figure or 0.0)
    ]
    scores = {
        number: tuple(zip(*zip(one.scores, other.scores, strict=False), strict=True))
        for number, ((_, one), (_, other)) in enumerate(pairs)
        if not (one.too_short or other.too_short) and min(map(len, (one.scores, other.scores))) > 1
    }
    signs = dict(zip(scores, significant_signs([(a, b) for a, b in scores.values()]), strict=True))
    for number, ((row, one), (lower, other)) in enumerate(pairs):
        short = one.too_short or other.too_short
        yield Pair(
            setting=row.setting,
            field=row.field,
            source=_cited().get(row.source, row.source),
            better=row.method,
            worse=lower.method,
            published=(row.figure or 0.0, lower.figure or 0.0),
            here=(statistics.fmean(one.scores), statistics.fmean(other.scores)),
            verdict="too short" if short else _VERDICTS[signs.get(number, 0)],
        )


def ordered(scores: Sequence[Sequence[float]]) -> bool:
    """Whether seeds agree on an order of methods by M. Friedman's test ("The use of ranks to avoid
    the assumption of normality", JASA 32, 1937), over the seeds that all methods have."""
    from scipy.stats import friedmanchisquare  # the import takes half a second

    seeds = min(map(len, scores))
    own = [one[:seeds] for one in scores]
    return seeds > 1 and bool(np.ptp(own) and friedmanchisquare(*own).pvalue <= LEVEL)


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; ties share their mean rank."""
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic)


SUITE = suite_of(_HERE, "accuracy", find)
