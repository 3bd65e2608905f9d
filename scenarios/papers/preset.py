"""Experiments of papers in miniature, and what came of them.

A paper is one file, and a preset one value in it: it loads its scenarios (beside it, in
`scenarios/`), runs them by the public pieces (`train`, `run`, `lockstep`), and says for each
statement of the paper whether the same came out. Printed numbers stand in `printed.csv`, each with
its table or figure. Accuracies and times of other data and other machines are not compared; orders
and shapes are.

One more preset is a value in the file of its paper, named after its table or figure, and a line in
`PRESETS`.
"""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from gcsim.errors import InputError, did_you_mean
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.result import Result
from gcsim.scenarios.run import run
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.result import TrainingResult
from gcsim.scenarios.trained.study import train

SCHEMA = "gcsim reproduction 1"
_HERE = Path(__file__).parent

Agrees = Literal["agrees", "in part", "disagrees", "open"]
"""open: the seeds, or the width of a tie, do not tell what is compared apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A statement of the paper, and whether it came out."""

    claim: str
    where: str
    """The table, figure or section that makes it."""
    printed: str
    here: str
    agrees: Agrees


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A number of a table."""

    row: str
    column: str
    printed: float | None
    """None: the paper shows it in a picture, or not at all."""
    here: tuple[float, ...]
    """Values by seed; one where nothing is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a picture, or its points."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    """Median over seeds."""
    low: tuple[float, ...] = ()
    """Lowest seed; empty where there is one alone."""
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A pair of axes."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False
    points: bool = False
    """Points, not lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a preset."""

    cells: tuple[Cell, ...]
    """Row after row."""
    verdicts: tuple[Verdict, ...]
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()
    """Differences from the paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """An outcome with what it is of."""

    name: str
    title: str
    source: str
    quick: bool
    scenarios: tuple[dict[str, object], ...]
    """Scenarios as resolved."""
    outcome: Outcome

    def to_json(self) -> str:
        """`reproduction.json`: the same bytes for the same preset."""
        document: dict[str, Any] = {"schema": SCHEMA, **asdict(self)}
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(slots=True, kw_only=True)
class Study:
    """Tools with which a preset runs its scenarios; notes those that it loads."""

    overrides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings of the reduced size, by scenario; empty: the full one."""
    jobs: int | None = None
    progress: Progress = field(default_factory=SilentProgress)
    loaded: list[Scenario] = field(default_factory=list)

    def scenario(self, name: str, changes: Mapping[str, str] | None = None) -> Scenario:
        """The scenario of that name in `scenarios/papers/scenarios`, or a shipped one."""
        changed = {**(changes or {}), **self.overrides.get(name, {})}
        own = _HERE / "scenarios" / f"{name}.yaml"
        found = load_scenario(own if own.exists() else name, changed)
        self.loaded.append(found)
        return found

    def train(self, scenario: Scenario) -> TrainingResult:
        """All its methods, really; what was trained is kept."""
        return train(scenario, jobs=self.jobs, progress=self.progress)

    def run(self, scenario: Scenario) -> Result:
        """Its cluster at every size."""
        return run(scenario, progress=self.progress)


Printed = Mapping[tuple[str, str], float]
"""Numbers that the paper prints, by row and column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A table or figure of a paper."""

    name: str
    title: str
    source: str
    """The paper, and which of its tables or figures."""
    obtain: Callable[[Study, Printed], Outcome]
    quick: Mapping[str, Mapping[str, str]]
    """Changes that make a scenario small, by scenario."""


def preset_of(
    *, title: str, source: str, quick: Mapping[str, Mapping[str, str]]
) -> Callable[[Callable[[Study, Printed], Outcome]], Preset]:
    """Make a function a preset, named after the paper's file and the function."""
    return lambda obtain: Preset(
        name=f"{obtain.__module__.rpartition('.')[2]}_{obtain.__name__}",
        title=title,
        source=source,
        obtain=obtain,
        quick=quick,
    )


def reproduce(
    preset: Preset,
    *,
    quick: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Reproduction:
    """Run a preset; `quick` the reduced size, whose verdicts say little.

    `jobs` are processes that train side by side, as in `train`. Raises `InputError` as `train` and
    `run` do.
    """
    study = Study(
        overrides=preset.quick if quick else {}, jobs=jobs, progress=progress or SilentProgress()
    )
    outcome = preset.obtain(study, printed(preset.name))
    return Reproduction(
        name=preset.name,
        title=preset.title,
        source=preset.source,
        quick=quick,
        scenarios=tuple(scenario.resolved for scenario in study.loaded),
        outcome=outcome,
    )


def printed(preset: str) -> dict[tuple[str, str], float]:
    """Numbers that the paper prints: (row, column) to number, in the file's order."""
    with (_HERE / "printed.csv").open(encoding="utf-8", newline="") as file:
        return {
            (line["row"], line["column"]): float(line["value"])
            for line in csv.DictReader(file)
            if line["preset"] == preset
        }


def column(values: Printed, name: str) -> dict[str, float]:
    """One column of what is printed, by row."""
    return {row: value for (row, of), value in values.items() if of == name}


def cells(here: Mapping[str, Mapping[str, Sequence[float]]], shown: Printed) -> tuple[Cell, ...]:
    """A table: by row, by column, what came out by seed."""
    return tuple(
        Cell(row=row, column=name, printed=shown.get((row, name)), here=tuple(map(float, values)))
        for row, of_row in here.items()
        for name, values in of_row.items()
    )


PRESETS = (
    "sampling_fig3",
    "sampling_table1",
    "sampling_fig5a",
    "sampling_fig5b",
    "orq_fig1",
    "orq_fig2",
    "orq_table2",
    "variance_table1",
    "variance_table2",
    "ce_sgd_fig3",
    "ce_sgd_table1",
    "ce_sgd_fig4",
)


def preset(name: str) -> Preset:
    """The preset of a name. Raises `InputError` with a suggestion where there is none."""
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}", hint=did_you_mean(name, PRESETS))
    paper, _, experiment = name.rpartition("_")
    found: Preset = getattr(importlib.import_module(f"{__package__}.{paper}"), experiment)
    return found
