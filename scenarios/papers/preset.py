"""Experiments of papers in miniature, and their outcomes.

Each paper has one file, with one preset per table or figure, listed in `PRESETS`. A preset loads
its scenarios (`scenarios/`), runs them by `train`, `run` and `lockstep`, and judges each statement
of the paper. `printed.csv` has the printed numbers. Orders and shapes are compared, not accuracies
and times of other data and machines.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gcsim.errors import InputError, did_you_mean
from gcsim.files import json_text
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.result import Result
from gcsim.scenarios.run import run
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.result import TrainingResult
from gcsim.scenarios.trained.study import train
from gcsim.traces.tasks.folder import PREFIX

SCHEMA = "gcsim reproduction 1"
_HERE = Path(__file__).parent
_FOR_IMAGES = "resnet20_cifar10"
_EVALUATIONS = 20  # in a training of the user's length

Agrees = Literal["agrees", "in part", "disagrees", "open"]
"""open: the difference is not significant, or within a tie."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a statement of the paper."""

    claim: str
    where: str  # its table, figure or section
    printed: str
    here: str
    agrees: Agrees


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Cell of a table."""

    row: str
    column: str
    printed: float | None  # None: only in a picture, or not at all
    here: tuple[float, ...]  # values by seed; one where nothing is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Line or points of a figure."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]  # median over seeds
    low: tuple[float, ...] = ()  # lowest seed; empty for a single one
    high: tuple[float, ...] = ()
    stopped: bool = False  # whether it ends where a seed's run ends early


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Pair of axes."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False
    points: bool = False  # points, not lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a preset."""

    cells: Sequence[Cell]  # row after row
    verdicts: Sequence[Verdict]
    panels: Sequence[Panel]
    notes: Sequence[str] = ()  # differences from the paper
    draws: str = "seed"  # origin of a cell's several values


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """An outcome and its subject."""

    name: str
    title: str
    source: str
    quick: bool
    scenarios: tuple[dict[str, object], ...]  # scenarios as resolved
    outcome: Outcome

    def to_json(self) -> str:
        """Return `reproduction.json`, the same bytes for the same preset."""
        document: dict[str, Any] = {"schema": SCHEMA, **asdict(self)}
        return json_text(document)


@dataclass(slots=True, kw_only=True)
class Study:
    """Runs a preset's scenarios, and records them."""

    overrides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings of the reduced size by scenario; empty: full size."""
    data: Mapping[str, str] = field(default_factory=dict)
    """The user's data, for scenarios that train."""
    steps: Mapping[str, str] = field(default_factory=dict)
    """The user's steps, for scenarios that train."""
    jobs: int | None = None
    progress: Progress = field(default_factory=SilentProgress)
    loaded: list[Scenario] = field(default_factory=list)

    def scenario(self, name: str, changes: Mapping[str, str] | None = None) -> Scenario:
        """Load a scenario of `scenarios/papers/scenarios`, or a shipped one."""
        changed = {**(changes or {}), **self.overrides.get(name, {})}
        if (self.data or self.steps) and _trains(name):
            changed = {**self.data, **changed, **self.steps}
        found = load_scenario(_file(name), changed)
        self.loaded.append(found)
        return found

    def train(self, scenario: Scenario) -> TrainingResult:
        """Train all methods; trajectories are cached."""
        return train(scenario, jobs=self.jobs, progress=self.progress)

    def run(self, scenario: Scenario) -> Result:
        """Simulate the cluster at every size."""
        return run(scenario, progress=self.progress)


def _file(name: str) -> Path | str:
    own = _HERE / "scenarios" / f"{name}.yaml"
    return own if own.exists() else name


def _trains(name: str) -> bool:
    return load_scenario(_file(name)).train is not None


Printed = Mapping[tuple[str, str], float]  # printed numbers by row and column


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Table or figure of a paper."""

    name: str
    title: str
    about: str
    source: str  # paper, and its table or figure
    obtain: Callable[[Study, Printed], Outcome]
    quick: Mapping[str, Mapping[str, str]]  # changes for the reduced size, by scenario


def preset_of(
    *, source: str, quick: Mapping[str, Mapping[str, str]]
) -> Callable[[Callable[[Study, Printed], Outcome]], Preset]:
    """Make a function a preset, named after its file and itself; the first line of its description
    is the title."""

    def made(obtain: Callable[[Study, Printed], Outcome]) -> Preset:
        name = f"{obtain.__module__.rpartition('.')[2]}_{obtain.__name__}"
        title, _, about = inspect.cleandoc(obtain.__doc__ or "").partition(".\n")
        return Preset(name=name, title=title.rstrip("."), about=about.lstrip(), source=source,
                      obtain=obtain, quick=quick)  # fmt: skip

    return made


def reproduce(
    preset: Preset,
    *,
    quick: bool = False,
    data: Path | None = None,
    steps: int | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Reproduction:
    """Run a preset.

    `quick`: the reduced size, whose verdicts mean little; none with another model. `data`: a folder
    of images with at most ten classes (`task: folder:PATH`), for ResNet-20 instead of the preset's
    data and model. `steps`: per training. `jobs`: concurrent training processes. Raises
    `InputError` as `train` and `run` do, and for data or steps of a preset without training.
    """
    if (data or steps) and not any(map(_trains, preset.quick)):
        raise InputError(f"{preset.name} trains nothing: it takes neither data nor steps",
                         hint="presets with accuracies do: gcsim list papers")  # fmt: skip
    study = Study(overrides=preset.quick if quick else {}, jobs=jobs,
                  progress=progress or SilentProgress())  # fmt: skip
    if data:
        task = json.dumps(f"{PREFIX}{data.resolve()}", ensure_ascii=False)
        study.data = {"model": _FOR_IMAGES, "train.task": task}
    if steps:
        every = max(1, steps // _EVALUATIONS)
        study.steps = {"train.steps": f"{steps}", "train.evaluate_every": f"{every}"}
    outcome = preset.obtain(study, printed(preset.name))
    if data:
        said = f"{_FOR_IMAGES} on {data} instead of the preset's model and data."
        outcome = replace(outcome, notes=(said, *outcome.notes))
    if quick and any("model" in changed for changed in preset.quick.values()):
        outcome = replace(outcome, verdicts=())
    return Reproduction(
        name=preset.name,
        title=preset.title,
        source=preset.source,
        quick=quick,
        scenarios=tuple(scenario.resolved for scenario in study.loaded),
        outcome=outcome,
    )


def printed(preset: str) -> dict[tuple[str, str], float]:
    """Return the printed numbers by (row, column), in file order."""
    with (_HERE / "printed.csv").open(encoding="utf-8", newline="") as file:
        return {
            (line["row"], line["column"]): float(line["value"])
            for line in csv.DictReader(file)
            if line["preset"] == preset
        }


def column(values: Printed, name: str) -> dict[str, float]:
    """Return a printed column, by row."""
    return {row: value for (row, of), value in values.items() if of == name}


def cells(here: Mapping[str, Mapping[str, Sequence[float]]], shown: Printed) -> tuple[Cell, ...]:
    """Return a table by row and column, with results by seed."""
    return tuple(
        Cell(row=row, column=name, printed=shown.get((row, name)), here=tuple(map(float, values)))
        for row, of_row in here.items()
        for name, values in of_row.items()
    )


PRESETS = (
    "sampling_fig3",
    "sampling_visits",
    "sampling_table1",
    "sampling_fig5a",
    "sampling_fig5b",
    "orq_fig1",
    "orq_fig2",
    "orq_table2",
    "orq_table3",
    "orq_table4",
    "variance_table1",
    "variance_table2",
    "ce_sgd_fig3",
    "ce_sgd_table1",
    "ce_sgd_table2",
    "ce_sgd_fig4",
)


def preset(name: str) -> Preset:
    """Return the preset of a name; `InputError` with a suggestion if there is none."""
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}", hint=did_you_mean(name, PRESETS))
    paper, _, experiment = name.rpartition("_")
    found: Preset = getattr(importlib.import_module(f"{__package__}.{paper}"), experiment)
    return found
