"""Model, gradients and measured times that a checked scenario file names.

Shipped ones have names, the user's have paths: relative to the file's folder, or in options to the
working directory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.scenarios import scenario
from gcsim.scenarios.links.csv_table import shown
from gcsim.scenarios.reading.document import Document, Keys
from gcsim.scenarios.sections.file import (
    RECORDED,
    ComputeSection,
    ModelTable,
    OwnModel,
    ScenarioFile,
)
from gcsim.scenarios.sections.model_table import inline_model, tabled_model
from gcsim.scenarios.sections.named_files import folder_of
from gcsim.scenarios.sections.recorded import recorded_model
from gcsim.simulator.training import Training
from gcsim.traces.models.registry import (
    MODELS,
    ModelEntry,
    at_sequence,
    own_model,
    shipped_model,
    trained_on,
)
from gcsim.traces.profile import PassTimes
from gcsim.traces.storage.store import shipped_traces
from gcsim.traces.tasks.folder import PREFIX, fault


def model_of(
    document: Document, file: ScenarioFile, path: Path
) -> tuple[ModelEntry | None, list[Problem]]:
    """Return the model with its task, or its problems."""
    chosen = file.model
    if isinstance(chosen, ModelTable):
        return _table(document, chosen, path)
    if chosen == RECORDED:
        if file.gradients.trace is None:
            return None, []  # `without_a_trace` says so
        trace = _trace(document, file.gradients.trace, path)
        return recorded_model(trace) if trace.exists() else (None, [])  # `missing_files` says so
    if isinstance(chosen, str) and ":" not in chosen:
        return trained_on(shipped_model(chosen), file.gradients.task), []
    own = chosen if isinstance(chosen, OwnModel) else OwnModel(build=str(chosen))
    try:
        entry = own_model(
            own.build,
            tuple(own.input_shape),
            own.classes,
            input_kind=own.input,
            auxiliary_weight=own.auxiliary_weight,
        )
    except InputError as error:
        return None, [
            replace(problem, place=document.place(("model", problem.place)))
            for problem in error.problems
        ]
    return trained_on(entry, file.gradients.task), []


def by_formula(
    document: Document, model: ModelEntry, training: Training
) -> tuple[ModelEntry, list[Problem]]:
    """Return the model at the training's sequence; problems of settings only for formula models."""
    if model.transformer is not None:
        tokens = training.sequence
        return (model if tokens is None else at_sequence(model, tokens)), []
    return model, [
        document.problem(
            ("training", key),
            f" = {getattr(training, key)!r}: {model.name!r} has its own layers, not a formula",
            f"leave it out, or use a model with one: {', '.join(_BY_FORMULA[:_SOME])}, ...",
        )
        for key in ("sequence", "checkpointing", "flash_attention")
        if getattr(training, key) != getattr(Training(), key)
    ]


_BY_FORMULA = [name for name, model in MODELS.items() if model.transformer]
_SOME = 4  # number of models in a hint


def _table(
    document: Document, chosen: ModelTable, path: Path
) -> tuple[ModelEntry | None, list[Problem]]:
    if isinstance(chosen.layers, list):
        return inline_model(document, chosen.layers, chosen.name)
    table = _named_path(document, ("model", "layers"), chosen.layers, path)
    return tabled_model(document, table, chosen.name)


def gradients_of(
    document: Document, file: ScenarioFile, path: Path
) -> scenario.LiveGradients | scenario.RecordedGradients | scenario.SyntheticGradients:
    """Return the source of the gradients, whose files `missing_files` checks."""
    section = file.gradients
    if section.trace is not None:
        trace = _trace(document, section.trace, path)
        return scenario.RecordedGradients(trace=trace, workers=section.workers)
    workers = section.workers or scenario.LiveGradients().workers
    if section.source == "synthetic":
        key_path = ("gradients", "fit")
        return scenario.SyntheticGradients(
            fit=None if section.fit is None else _named_path(document, key_path, section.fit, path),
            workers=workers,
            iterations=section.iterations,
        )
    return section.value(scenario.LiveGradients, workers=workers)


def compute_of(
    document: Document, section: ComputeSection | None, path: Path
) -> PassTimes | scenario.ProfiledCompute | scenario.RecordedCompute | None:
    """Return the source of forward and backward times; None: the catalogue."""
    if section is None:
        return None
    if section.profile is not None:
        key_path = ("compute", "profile")
        return scenario.ProfiledCompute(
            profile=_named_path(document, key_path, section.profile, path)
        )
    if section.forward is None or section.backward is None:
        return scenario.RecordedCompute()
    return PassTimes(
        forward=float(section.forward),
        backward=float(section.backward),
        source="stated by the user",
    )


def task_of(document: Document, file: ScenarioFile, path: Path) -> str:
    """Return the task of `gcsim train`, a folder with its whole path; "" for the model's own."""
    task = "" if file.train is None else file.train.task or ""
    if not task.startswith(PREFIX):
        return task
    written = task.removeprefix(PREFIX)
    return f"{PREFIX}{_named_path(document, ('train', 'task'), written, path)}"


def misfit_of_task(document: Document, task: str, model: ModelEntry) -> list[Problem]:
    """Return mismatches between a folder of images and the model."""
    wrong = task.startswith(PREFIX) and fault(Path(task.removeprefix(PREFIX)), model)
    return [document.problem(("train", "task"), f": {wrong[0]}", wrong[1])] if wrong else []


def _trace(document: Document, written: str, path: Path) -> Path:
    """Return the folder of a trace, by path or by a shipped trace's name."""
    found = _named_path(document, ("gradients", "trace"), written, path)
    return found if found.exists() else shipped_traces().get(written, found)


def _named_path(document: Document, key_path: Keys, written: str, path: Path) -> Path:
    return (folder_of(document, key_path, path) / written).resolve()


def missing_files(document: Document, file: ScenarioFile, path: Path) -> list[Problem]:
    """Return problems of named traces, fits and profiles that do not exist."""
    compute, gradients = file.compute, file.gradients
    named: list[tuple[Keys, str | None, str]] = [
        (("gradients", "fit"), gradients.fit, "fit one with: gcsim fit TRACE -o FILE"),
        (
            ("compute", "profile"),
            None if compute is None else compute.profile,
            "export one with torch.profiler's export_chrome_trace",
        ),
    ]
    wanted = [
        (key_path, _named_path(document, key_path, written, path), hint)
        for key_path, written, hint in named
        if written is not None
    ]
    if gradients.trace is not None:
        hint = did_you_mean(gradients.trace, shipped_traces())
        hint = f"{hint} (or record one with: gcsim record)"
        wanted.append((("gradients", "trace"), _trace(document, gradients.trace, path), hint))
    return [
        document.problem(key_path, f": there is no {shown(found)}", hint)
        for key_path, found, hint in wanted
        if not found.exists()
    ]
