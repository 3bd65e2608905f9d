"""Evidence that a model trains with a method, and in how many times dense training's steps.

`catalog/published_training.csv` has published results: methods, the parameters shown or harder
ones, the field, the finding. Without one, a shipped training of the field's task with just these
parameters counts, if every seed reaches the target. Only the field must match the user's model: a
result on one network says that a method can train, not that it trains every network.
"""

from __future__ import annotations

import csv
import functools
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gcsim.compressors.registry import REGISTRY, check_parameters
from gcsim.scenarios.catalog.rates import FOLDER
from gcsim.scenarios.findings import Evidence
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.shipped_tasks import on_shipped_task

Field = Literal["images", "text"]
_TASKS: dict[Field, str] = {"images": "digits_8", "text": "characters_8"}
PUBLISHED = FOLDER / "published_training.csv"  # table of published results
_CONDITION = re.compile(r"(\w+)(>=|<=)([\d.]+)")
_HOLDS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Published:
    """One row of the table."""

    methods: tuple[str, ...]
    conditions: tuple[tuple[str, str, float], ...]
    field: Field
    optimizer: str
    """Kind of optimizer: "plain SGD", "momentum SGD", "Adam"; "": several, or not stated."""
    evidence: Evidence

    def covers(self, kind: str, parameters: Mapping[str, Any], field: Field) -> bool:
        """Whether a method with these parameters is at most as harsh as what was shown."""
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
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
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


def evidence(kind: str, given: Mapping[str, Any], field: Field | None) -> Evidence | None:
    """Evidence for a method in a field, or the weaker one of all fields; None without any."""
    if kind not in REGISTRY:
        return None
    parameters = check_parameters(kind, given).model_dump()
    fields: tuple[Field, ...] = ("images", "text") if field is None else (field,)
    found = [_in_field(kind, parameters, one) for one in fields]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    return max(known, key=lambda one: one.steps_vs_dense)


def evidence_of(scenario: Scenario, labels: Collection[str]) -> dict[str, Evidence]:
    """Evidence for some of a scenario's methods, by label."""
    field = field_of(scenario)
    found = {
        choice.label: evidence(choice.kind, choice.parameters, field)
        for choice in scenario.compressors
        if choice.label in labels
    }
    return {label: one for label, one in found.items() if one is not None}


def field_of(scenario: Scenario) -> Field | None:
    """Field of a scenario's model by a sample's shape; None if neither."""
    if scenario.model.input == "tokens":
        return "text"
    return "images" if len(scenario.model.input_shape) == len("CHW") else None


def _in_field(kind: str, parameters: Mapping[str, Any], field: Field) -> Evidence | None:
    for row in published():
        if row.covers(kind, parameters, field):
            return row.evidence
    ended = on_shipped_task(_TASKS[field], kind, [parameters])
    if ended is None or ended.steps_vs_dense is None or ended.reached < ended.seeds:
        return None
    return Evidence(
        steps_vs_dense=max(1.0, ended.steps_vs_dense),
        words=f"{ended.task}: {ended.target} with {ended.seeds} of {ended.seeds} seeds",
        source=f"gcsim train {ended.task}",
    )
