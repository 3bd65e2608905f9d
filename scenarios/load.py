"""Loading of a scenario file: reading, overrides, checks, and the resulting `Scenario`.

All problems are reported together, each with its place; a setting without effect is a warning
(`logging`, by default stderr). No method is run and torch is not imported, so `gcsim check` and
cached runs start quickly. A method without a label is named by its kind and the parameters that
differ (`_labelled`): `[none, {kind: powersgd, rank: 1}, {kind: powersgd, rank: 4}]` are "dense",
"powersgd rank 1" and "powersgd rank 4".
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gcsim.compressors.named import method_named
from gcsim.compressors.options.method import OPTIONS, Options, method_of
from gcsim.compressors.registry import compressor_class
from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.scenarios.catalog import implementations
from gcsim.scenarios.checks.conflicts import contradictions, unshardable
from gcsim.scenarios.checks.doubtful import doubtful
from gcsim.scenarios.checks.fits import DoesNotFitError, left_out, misfits
from gcsim.scenarios.links.csv_table import shown
from gcsim.scenarios.links.rate_trace import read_traces
from gcsim.scenarios.reading.checking import check, known_keys
from gcsim.scenarios.reading.document import Document, Keys, dotted, read_file
from gcsim.scenarios.reading.overrides import apply
from gcsim.scenarios.reading.types import per_cent
from gcsim.scenarios.scenario import CompressorChoice, DdpBuckets, Scenario
from gcsim.scenarios.sections import workload
from gcsim.scenarios.sections.cluster import build_cluster
from gcsim.scenarios.sections.file import (
    FILE_NAME,
    ScenarioFile,
    buckets_of,
    build_plan,
    build_training,
)
from gcsim.scenarios.sections.groups import bring_to_form, cost_of_node
from gcsim.scenarios.sections.model_table import untrainable
from gcsim.scenarios.sections.named_files import insert_files
from gcsim.scenarios.sections.recorded import without_a_trace
from gcsim.scenarios.sections.resolve import resolved
from gcsim.simulator.training import DENSE
from gcsim.traces.models.registry import MODELS

_LOG = logging.getLogger(__name__)


@functools.cache
def shipped_scenarios() -> Mapping[str, Path]:
    """Shipped scenarios by name."""
    return MappingProxyType(
        {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}
    )


def load_scenario(
    path_or_name: str | os.PathLike[str],
    overrides: Mapping[str, str] | Sequence[str] = (),
    seed: int | None = None,
) -> Scenario:
    """Load a scenario file, or a shipped scenario by its name.

    Parameters
    ----------
    path_or_name
        A YAML file, or a name of `shipped_scenarios`.
    overrides
        Changes to the file as `{"cluster.nodes": "8"}` or `["cluster.nodes=8"]`; values are YAML.
    seed
        In the place of the file's.

    Raises
    ------
    InputError
        With every problem of the file and of the options, each with its place.
    """
    return scenario_of(*read_scenario(path_or_name), overrides, seed)


def loaded(scenario: str | os.PathLike[str] | Scenario) -> Scenario:
    """Return a scenario unchanged, or load it from a file or shipped name, as `load_scenario`."""
    return scenario if isinstance(scenario, Scenario) else load_scenario(scenario)


def read_scenario(path_or_name: str | os.PathLike[str]) -> tuple[Document, Path]:
    """Return a scenario file's contents, unchecked, and its path; raises as `load_scenario`."""
    path, name = _find(os.fspath(path_or_name))
    if path.suffix == ".py":
        hint = f"write your own compressor as {path.stem}:CLASS"
        raise InputError("is Python, not a scenario", place=name, hint=hint)
    try:
        document = read_file(path, name)
    except InputError as error:
        if path.suffix in (".yaml", ".yml", "") or not path.is_file():
            raise
        raise InputError("is not a scenario, which is a YAML file", place=name) from error
    if not isinstance(document.data, dict):
        place = document.place(())
        table = path.suffix == ".csv"
        hint = f"name a table of layers in a scenario: model: {{layers: {name}}}" if table else ""
        raise InputError("a scenario is a mapping (key: value)", place=place, hint=hint)
    return document, path


def scenario_of(
    document: Document,
    path: Path,
    overrides: Mapping[str, str] | Sequence[str] = (),
    seed: int | None = None,
    *,
    warn: bool = True,
    fitting: bool = True,
) -> Scenario:
    """Build the scenario of a document, to which the overrides are applied in place. Paths of other
    files are relative to the folder of `path`. `warn`: log settings without effect; `fitting`: drop
    methods that do not fit in the devices' memory. Raises as `load_scenario`."""
    problems = apply(document, overrides)
    bring_to_form(document)
    if seed is not None:
        document.data["seed"] = seed
        document.keys[("seed",)] = document.values[("seed",)] = "--seed"
    files, unreadable = insert_files(document, path)
    problems += unreadable
    file, faults = check(ScenarioFile, document)
    compressors, mistakes = _compressors(document)
    problems += faults + mistakes
    if file is not None:
        problems += workload.missing_files(document, file, path)
        problems += without_a_trace(document, file)
        unread = read_traces(file.cluster, document, path, ("cluster",))
        problems += unread
        if not unread:
            cluster = build_cluster(file.cluster, file.batch_size)
            training = build_training(file.training, cluster, measured=file.compute is not None)
            problems += contradictions(document, cluster, training, file.cluster.sizes, file.train)
        model, mistakes = workload.model_of(document, file, path)
        problems += mistakes
        task = workload.task_of(document, file, path)
        if model is not None:
            problems += workload.misfit_of_task(document, task, model)
            problems += untrainable(document, model, file.gradients.source, compressors)
            if not problems:
                model, mistakes = workload.by_formula(document, model, training)
                problems += mistakes
    if file is not None and file.name is None and not FILE_NAME.fullmatch(path.stem):
        message = f"the file's name {path.stem!r} cannot be the name of the results folder"
        problems.append(
            Problem(place=document.name, message=message, hint=f"state name: {_named(path)}")
        )
    if problems or file is None or model is None:
        raise InputError(document.sorted(problems))
    buckets = _buckets(file)
    given = document, file, cluster, training
    found = doubtful(*given, model=model, buckets=buckets, compressors=compressors) if warn else ()
    for warning in found:
        _LOG.warning("%s: warning: %s; %s", warning.place, warning.message, warning.hint)
    scenario = Scenario(
        name=file.name or path.stem,
        model=model,
        batch_size=file.batch_size,
        gradients=workload.gradients_of(document, file, path),
        cluster=cluster,
        training=training,
        node_counts=file.cluster.sizes,
        compressors=compressors,
        buckets=buckets,
        compute=workload.compute_of(document, file.compute, path),
        draws=file.uncertainty.draws,
        discrepancy=file.uncertainty.discrepancy,
        seed=file.seed,
        by_speed=file.cluster.batch == "by_speed",
        train=None if file.train is None else build_plan(file.train),
        train_task=task,
        train_loss="" if file.train is None else file.train.loss or "",
        cost_per_hour=cost_of_node(file.cluster, None if file.cost is None else file.cost.per_hour),
        resolved={},
        files=files,
    )
    if training.strategy != "ddp":
        scenario = _sharding(document, scenario, warn)
    if fitting:
        scenario = _fitting(document, scenario, warn)
    return replace(scenario, resolved=resolved(scenario, file.description))


def _sharding(document: Document, scenario: Scenario, warn: bool) -> Scenario:
    """Drop the methods that the strategy cannot shard; `InputError` if none is left, with the first
    one's line."""
    strategy = scenario.training.strategy
    why = [unshardable(choice, strategy) for choice in scenario.compressors]
    methods = list(zip(scenario.compressors, why, strict=True))
    texts = []
    for reason in dict.fromkeys(filter(None, why)):
        named = [choice.label for choice, its in methods if its == reason]
        what = f"training.strategy={strategy} cannot shard {'its' if len(named) == 1 else 'their'}"
        texts.append(f"{', '.join(named)}: {what} {reason}")
    kept = tuple(choice for choice, its in methods if its is None)
    if texts and (warn or not kept):
        first = next(number for number, its in enumerate(why) if its is not None)
        place = document.place(("compressors", first))
        if not kept:
            hint = "leave training.strategy out, or add none"
            raise InputError("; ".join(texts), place=place, hint=hint)
        _LOG.warning("%s: warning: %s; left out", place, "; ".join(texts))
    return replace(scenario, compressors=kept, left_out=tuple(texts))


def _fitting(document: Document, scenario: Scenario, warn: bool) -> Scenario:
    """Drop the methods that do not fit in the devices; `DoesNotFitError` if none is left."""
    found = misfits(scenario)
    out = {label for one in found for label in one.labels}
    left = tuple(choice for choice in scenario.compressors if choice.label not in out)
    if found and not left:
        misfit = min(found, key=lambda one: one.memory.low)
        place = document.place(("cluster", "device"))
        raise DoesNotFitError(misfit, scenario.model.name, place)
    labels = [choice.label for choice in scenario.compressors]
    for one in found if warn else ():
        place = document.place(("compressors", labels.index(one.labels[0])))
        _LOG.warning("%s: warning: %s; left out", place, one.message())
    out_too = (*scenario.left_out, *left_out(found))
    return replace(scenario, compressors=left, left_out=out_too)


def _buckets(file: ScenarioFile) -> DdpBuckets:
    """Return the bucket limits; a limit of one byte gives a bucket per tensor."""
    by_tensor = file.training.overlap == "by_tensor"
    return DdpBuckets(first=1, cap=1) if by_tensor else buckets_of(file.ddp)


def _named(path: Path) -> str:
    return re.sub(r"[^\w.-]+", "_", path.stem).lstrip("_.-") or "mine"


def _find(wanted: str) -> tuple[Path, str]:
    path = Path(wanted)
    shipped = shipped_scenarios()
    if path.is_file() or (
        wanted not in shipped and (path.exists() or path.suffix or os.sep in wanted)
    ):
        return path, wanted  # reading it says what is wrong with it
    if wanted in shipped:
        return shipped[wanted], shown(shipped[wanted])
    message = f"no scenario {wanted!r}: neither a file nor a shipped scenario"
    hint = did_you_mean(wanted, shipped)
    if wanted in MODELS:
        hint = f"it is a model: gcsim advise {wanted} --device v100 --nodes 8 --network 10gbe"
    raise InputError(message, hint=hint)


# --- compressors ---------------------------------------------------------------------------------


def _compressors(document: Document) -> tuple[tuple[CompressorChoice, ...], list[Problem]]:
    entries = document.data.get("compressors")
    choices: dict[Keys, CompressorChoice] = {}
    problems: list[Problem] = []
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        key_path: Keys = ("compressors", number)
        given = {"kind": entry} if isinstance(entry, str) else entry
        if not isinstance(given, dict) or not isinstance(given.get("kind"), str):
            continue  # the schema reports it
        parameters = {
            key: value if (share := per_cent(value)) is None else float(share)
            for key, value in implementations.parameters(given).items()
        }
        code = given.get(implementations.KEY)
        code = code if isinstance(code, str) and code != implementations.OWN else ""
        try:
            kind, in_name = method_named(given["kind"])
            kind, stated = implementations.installed(kind, code, {**in_name, **parameters})
            checked = method_of(kind, stated).parameters
        except InputError as error:
            problems += [_in_place(document, key_path, problem) for problem in error.problems]
            continue
        label = given.get("label", given["kind"] if in_name else None)
        if label == "":  # the schema reports it
            continue
        choices[key_path] = CompressorChoice(
            kind=kind,
            label="" if label is None else str(label),
            parameters=checked.model_dump(),
            implementation=code,
        )
    first: dict[str, str] = {}
    labelled = _labelled(tuple(choices.values()))
    for key_path, choice in zip(choices, labelled, strict=True):
        if choice.label in first:
            place = document.place((*key_path, "label"))
            stated = document.data["compressors"][key_path[1]]
            named_as = (stated if isinstance(stated, dict) else {}).get("label", choice.label)
            message = f"two compressors are labelled {named_as!r}"
            hint = f"first at {first[choice.label]}; give one its own `label:`"
            problems.append(Problem(place=place, message=message, hint=hint))
        first.setdefault(choice.label, document.place(key_path))
    return labelled, problems


def _in_place(document: Document, key_path: Keys, problem: Problem) -> Problem:
    if re.search(r":\d+$", problem.place):  # a line in the user's compressor
        return problem
    inner = tuple(problem.place.split(".")) if problem.place else ("kind",)
    kind, unknown, _ = problem.message.partition(" has no parameter")
    place = document.location_of_key if unknown else document.place
    found = replace(problem, place=place((*key_path, *inner)))
    if unknown and (above := inner[:-1]):
        holder = Options if above[0] in OPTIONS else compressor_class(kind).Parameters
        found = replace(found, hint=f"{dotted(above)} has {', '.join(known_keys(holder, above))}")
    return found


_LONGEST = 40  # characters of a parameter's value


def _labelled(choices: Sequence[CompressorChoice]) -> tuple[CompressorChoice, ...]:
    """Fill in empty labels, which are unique unless a method is listed twice."""
    unnamed = [choice for choice in choices if not choice.label]
    return tuple(
        choice if choice.label else replace(choice, label=_label(choice, unnamed))
        for choice in choices
    )


def _label(choice: CompressorChoice, others: Sequence[CompressorChoice]) -> str:
    code = choice.implementation
    alike = [other for other in others if (other.kind, other.implementation) == (choice.kind, code)]
    like = [other.parameters for other in alike]
    kind = "dense" if choice.kind == DENSE else choice.kind
    _, _, own = kind.rpartition(":")  # a user's class
    if all(other.kind == kind or other.kind.rpartition(":")[2] != own for other in others):
        kind = own
    if code and (entry := implementations.of(kind, code)):
        kind = f"{entry.method} {code}"
    return " ".join((kind, *_differing(choice.parameters, like)))


def _differing(own: Mapping[str, Any], like: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the name and value of each parameter that differs."""
    for name, value in own.items():
        if any(other.get(name) != value for other in like):
            yield f"{name.replace('_', ' ')} {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
