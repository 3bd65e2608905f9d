"""Evidence that models train with a method, and how many more steps than dense training they need.

`catalog/published_training.csv` has published results: methods, their parameters, the field, the
optimizer, the finding. A published loss of accuracy (`inf` steps; more than 1 % in most settings)
outweighs shipped trainings. Without a published result, shipped trainings count if they are tasks
of the field with exactly these parameters and the same kind of optimizer: for the method if every
seed of every task that is long enough reaches the target, against it if no seed does. Only field
and optimizer must match the user's training: a result on one network shows that the method can
train, not that it trains every network. Error feedback that works with plain SGD may fail with
Adam, whose step is not linear in the gradient (H. Tang et al., ICML 2021, arXiv:2102.02888).
"""

from __future__ import annotations

import csv
import functools
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gcsim.compressors.options.method import method_of
from gcsim.compressors.registry import REGISTRY
from gcsim.scenarios.catalog.rates import FOLDER
from gcsim.scenarios.findings import Evidence
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.shipped_tasks import Field, field_of, kind_of, on_shipped_tasks

_USUAL: dict[Field, str] = {"images": "momentum SGD", "text": "Adam"}
"""Optimizer that is assumed for a field if the training states none."""
_STATED = {"adam": "Adam", "momentum": "momentum SGD", "none": "plain SGD"}
"""Optimizer by `Training.optimizer_state`."""
_PUBLISHED = FOLDER / "published_training.csv"  # table of published results
_CONDITION = re.compile(r"(\w+)(>=|<=)([\d.]+)")
_HOLDS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Published:
    """A row of the table."""

    methods: tuple[str, ...]
    conditions: tuple[tuple[str, str, float], ...]
    field: Field
    optimizer: str
    """Kind of optimizer: "plain SGD", "momentum SGD", "Adam"; "": several, or not stated."""
    evidence: Evidence

    def covers(self, kind: str, parameters: Mapping[str, Any], field: Field) -> bool:
        """Whether the result holds for a method with these parameters."""
        return (
            kind in self.methods
            and field == self.field
            and all(
                parameters.get(name) is not None and _HOLDS[sign](parameters[name], end)
                for name, sign, end in self.conditions
            )
        )


@functools.cache
def published() -> tuple[Published, ...]:
    """The table, in file order."""
    with _PUBLISHED.open(encoding="utf-8", newline="") as file:
        return tuple(map(_row, csv.DictReader(file)))


def _row(row: dict[str, Any]) -> Published:
    conditions = (_CONDITION.fullmatch(one) for one in row["parameters"].split())
    return Published(
        methods=tuple(row["methods"].split()),
        conditions=tuple((one[1], one[2], float(one[3])) for one in conditions if one),
        field=row["field"],
        optimizer=row["optimizer"],
        evidence=Evidence(
            steps_vs_dense=float(row["steps_vs_dense"]),
            words=f"{', '.join(filter(None, (row['setting'], row['optimizer'])))}: {row['shown']}",
            source=row["source"],
        ),
    )


def evidence(
    kind: str, given: Mapping[str, Any], field: Field | None, optimizer: str = ""
) -> Evidence | None:
    """Return the evidence for or against a method in a field with a kind of optimizer ("": the
    field's usual one), or without a field the weakest of all fields; None if there is none."""
    if kind not in REGISTRY:
        return None
    parameters = method_of(kind, given).parameters.model_dump()
    fields: tuple[Field, ...] = ("images", "text") if field is None else (field,)
    found = [_in_field(kind, parameters, one, optimizer or _USUAL[one]) for one in fields]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    return max(known, key=lambda one: one.steps_vs_dense)


def evidence_of(scenario: Scenario, labels: Collection[str]) -> dict[str, Evidence]:
    """Return the evidence for the methods that are known to train, by label."""
    return for_and_against(scenario, labels)[0]


def for_and_against(
    scenario: Scenario, labels: Collection[str]
) -> tuple[dict[str, Evidence], dict[str, str]]:
    """Return `evidence_of`, and the evidence against other methods in words, both by label. Under
    `training.local_steps` nothing is known: all results are of an exchange in every step."""
    if scenario.training.local_steps > 1:
        return {}, {}
    field, optimizer = field_of(scenario), optimizer_of(scenario)
    known, missed = {}, {}
    for choice in scenario.compressors:
        if choice.label not in labels:
            continue
        found = evidence(choice.kind, choice.parameters, field, optimizer)
        if found is not None and math.isfinite(found.steps_vs_dense):
            known[choice.label] = found
        elif found is not None:
            missed[choice.label] = found.words
    return known, missed


def optimizer_of(scenario: Scenario) -> str:
    """Return the kind of a scenario's optimizer, stated or usual; "" if unknown."""
    if scenario.train is not None:
        return kind_of(scenario.train.optimizer)
    stated, field = scenario.training.optimizer_state, field_of(scenario)
    return _STATED[stated] if stated else "" if field is None else _USUAL[field]


def _in_field(
    kind: str, parameters: Mapping[str, Any], field: Field, optimizer: str
) -> Evidence | None:
    for row in published():
        if row.optimizer in ("", optimizer) and row.covers(kind, parameters, field):
            return row.evidence
    every = [
        one
        for one in on_shipped_tasks(kind, parameters)
        if one.same and (one.field, one.optimizer) == (field, optimizer)
    ]
    if every and not any(one.reached for one in every):
        ended = ((one, "inconclusive" if one.too_short else "missed the target") for one in every)
        return Evidence(
            steps_vs_dense=math.inf,
            words="; ".join(f"{end} in {one.task}" for one, end in ended),
            source=" and ".join(f"gcsim train {one.task}" for one in every),
        )
    tasks = [one for one in every if not one.too_short]
    if not tasks or any(one.steps_vs_dense is None or one.reached < one.seeds for one in tasks):
        return None
    slowest = max(tasks, key=lambda one: one.steps_vs_dense or 0.0)
    return Evidence(
        steps_vs_dense=max(1.0, slowest.steps_vs_dense or 0.0),
        words=f"{slowest.task}, {optimizer}: {slowest.target} with {slowest.seeds} of "
        f"{slowest.seeds} seeds",
        source=f"gcsim train {slowest.task}",
    )
