"""From a scenario file to a `Scenario`: read, changed by options, checked, built, resolved.

Every problem of a file is reported at once, with its line and column. A setting that changes
nothing is a warning, through `logging`: on stderr where nobody asked for anything else. Nothing is
run and torch is not imported: `gcsim check` and a run from the cache start at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from gcsim.compressors.registry import check_parameters
from gcsim.errors import InputError, InternalError, Problem, did_you_mean
from gcsim.scenarios import catalog
from gcsim.scenarios.checking import check
from gcsim.scenarios.document import Document, Keys, read_file
from gcsim.scenarios.overrides import apply
from gcsim.scenarios.resolve import resolved
from gcsim.scenarios.scenario import (
    CompressorChoice,
    DdpBuckets,
    LiveGradients,
    MeasuredCompute,
    RecordedGradients,
    Scenario,
)
from gcsim.scenarios.schema import (
    PER_NODE,
    ClusterSection,
    CollectivesSection,
    Gradients,
    LinkSection,
    OwnModel,
    ScenarioFile,
)
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.device import Device
from gcsim.simulator.links import Link

DEFAULT_LIVE_WORKERS = 2
_LOG = logging.getLogger(__name__)


def shipped_scenarios() -> dict[str, Path]:
    """The scenarios that come with gcsim, by name."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}


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
    path, name = _find(os.fspath(path_or_name))
    document = read_file(path, name)
    if not isinstance(document.data, dict):
        place = document.place(())
        raise InputError(Problem(place=place, message="a scenario is a mapping (key: value)"))
    problems = apply(document, overrides)
    if seed is not None:
        document.data["seed"] = seed
        document.keys[("seed",)] = document.values[("seed",)] = "--seed"
    file, faults = check(ScenarioFile, document)
    compressors, mistakes = _compressors(document)
    problems += faults + mistakes
    if file is not None:
        problems += _missing_trace(document, file, path)
    if problems:
        raise InputError(document.sorted(problems))
    if file is None:
        raise InternalError("a scenario without problems was not read")
    for idle in _idle(document, file.cluster.collectives):
        _LOG.warning("%s: warning: %s; %s", idle.place, idle.message, idle.hint)
    return _build(document, file, compressors, path)


def _find(wanted: str) -> tuple[Path, str]:
    path = Path(wanted)
    shipped = shipped_scenarios()
    if path.is_file() or (
        wanted not in shipped and (path.exists() or path.suffix or os.sep in wanted)
    ):
        return path, wanted  # reading it says what is wrong with it
    if wanted in shipped:
        return shipped[wanted], _relative(shipped[wanted])
    message = f"no scenario {wanted!r}: neither a file nor a shipped scenario"
    raise InputError(Problem(message=message, hint=did_you_mean(wanted, shipped)))


def _relative(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


# --- compressors ---------------------------------------------------------------------------------


def _compressors(document: Document) -> tuple[tuple[CompressorChoice, ...], list[Problem]]:
    entries = document.data.get("compressors")
    choices: list[CompressorChoice] = []
    problems: list[Problem] = []
    labels: dict[str, str] = {}
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        way: Keys = ("compressors", number)
        given = {"kind": entry} if isinstance(entry, str) else entry
        if not isinstance(given, dict) or not isinstance(given.get("kind"), str):
            continue  # the schema says so
        parameters = {key: value for key, value in given.items() if key not in ("kind", "label")}
        kind, label = given["kind"], given.get("label")
        label = kind if label is None else label
        try:
            checked = check_parameters(kind, parameters)
        except InputError as error:
            problems += [_in_place(document, way, problem) for problem in error.problems]
            continue
        if str(label) in labels:
            place = document.place((*way, "label"))
            message = f"two compressors are labelled {label!r}"
            hint = f"first at {labels[label]}; give one a `label:` of its own"
            problems.append(Problem(place=place, message=message, hint=hint))
        labels[str(label)] = document.place(way)
        values = checked.model_dump()
        choices.append(CompressorChoice(kind=kind, label=str(label), parameters=values))
    return tuple(choices), problems


def _in_place(document: Document, way: Keys, problem: Problem) -> Problem:
    inner = tuple(problem.place.split(".")) if problem.place else ("kind",)
    place = document.place_of_key if "has no parameter" in problem.message else document.place
    return Problem(place=place((*way, *inner)), message=problem.message, hint=problem.hint)


def _idle(document: Document, section: CollectivesSection) -> list[Problem]:
    """Settings that change nothing beside the others."""
    way = ("cluster", "collectives")
    named = "auto" not in (section.all_reduce, section.all_gather)
    found = []
    if section.transport in {"nccl", "mpich"} and named:
        found.append(
            Problem(
                place=document.place((*way, "transport")),
                message=f"cluster.collectives.transport = {section.transport!r} has no effect: "
                "all_reduce and all_gather name their algorithms",
                hint="leave them out, or write auto",
            )
        )
    default = CollectivesSection.model_fields["pipeline_block"].default
    cut = (
        section.all_gather == "pipelined_ring"
        or section.all_reduce == "double_tree"
        or (section.transport, section.all_gather) == ("mpich", "auto")
    )
    if section.pipeline_block != default and not cut:
        found.append(
            Problem(
                place=document.place((*way, "pipeline_block")),
                message="cluster.collectives.pipeline_block has no effect with transport "
                f"{section.transport!r}, all_reduce {section.all_reduce!r} and all_gather "
                f"{section.all_gather!r}",
                hint="only all_gather: pipelined_ring and all_reduce: double_tree cut messages so",
            )
        )
    return found


# --- the scenario --------------------------------------------------------------------------------


def _build(
    document: Document, file: ScenarioFile, compressors: tuple[CompressorChoice, ...], path: Path
) -> Scenario:
    own = file.model if isinstance(file.model, OwnModel) else None
    if own is None and ":" in str(file.model):
        own = OwnModel(build=str(file.model))
    compute = file.compute
    scenario = Scenario(
        name=file.name or path.stem,
        model=own.build if own else str(file.model),
        batch_size=file.batch_size,
        input_shape=tuple(own.input_shape) if own else None,
        classes=own.classes if own else None,
        gradients=_gradients(document, file.gradients, path),
        cluster=_cluster(file.cluster),
        node_counts=_node_counts(file.cluster),
        compressors=compressors,
        buckets=DdpBuckets(first=file.ddp.first_bucket, cap=file.ddp.bucket),
        compute=None
        if compute is None
        else MeasuredCompute(forward=float(compute.forward), backward=float(compute.backward)),
        seed=file.seed,
        resolved={},
        server_per_node=file.cluster.collectives.servers == PER_NODE,
    )
    return replace(scenario, resolved=resolved(scenario, file.description))


def _trace(document: Document, gradients: Gradients, path: Path) -> Path:
    """A path in the file counts from the file's folder, one of an option from where one is."""
    way = ("gradients", "trace")
    from_option = document.values.get(way, "").startswith("--set")
    folder = Path.cwd() if from_option else path.resolve().parent
    return (folder / str(gradients.trace)).resolve()


def _missing_trace(document: Document, file: ScenarioFile, path: Path) -> list[Problem]:
    if file.gradients.source != "recorded":
        return []
    trace = _trace(document, file.gradients, path)
    if trace.exists():
        return []
    place = document.place(("gradients", "trace"))
    message = f"gradients.trace: there is no {_relative(trace)}"
    return [Problem(place=place, message=message, hint="record one with: gcsim record")]


def _gradients(
    document: Document, section: Gradients, path: Path
) -> LiveGradients | RecordedGradients:
    if section.source == "recorded":
        return RecordedGradients(trace=_trace(document, section, path), workers=section.workers)
    return LiveGradients(
        workers=section.workers or DEFAULT_LIVE_WORKERS,
        warmup_steps=section.warmup_steps,
        iterations=section.iterations,
        learning_rate=section.learning_rate,
        momentum=section.momentum,
        device=section.device,
    )


def _node_counts(section: ClusterSection) -> tuple[int, ...]:
    return tuple(section.nodes) if isinstance(section.nodes, list) else (section.nodes,)


def _cluster(section: ClusterSection) -> Cluster:
    largest = _node_counts(section)[-1]
    chosen = section.collectives
    return Cluster(
        nodes=largest,
        devices_per_node=section.devices_per_node,
        device=_device(section),
        network=_link(section.network),
        intra_node=_link(section.intra_node),
        collectives=Collectives(
            transport=chosen.transport,
            all_reduce=chosen.all_reduce,
            all_gather=chosen.all_gather,
            pipeline_block=chosen.pipeline_block,
            servers=chosen.servers if isinstance(chosen.servers, int) else largest,
        ),
    )


def _device(section: ClusterSection) -> Device:
    name = section.device if isinstance(section.device, str) else section.device.name
    return catalog.device(name)


def _link(section: str | LinkSection) -> Link:
    if isinstance(section, str):
        return catalog.link(section)
    base = catalog.link(section.like) if section.like else None
    changed = section.model_fields_set - {"like"}
    if base and not changed:
        return base
    source = "given in the scenario"
    if base:
        stated = ", ".join(sorted(changed & {"bandwidth", "latency", "efficiency"}))
        source = (
            f"{stated or 'name'} stated in the scenario, the rest as {base.name}: {base.source}"
        )
    return Link(
        name=section.name or (f"{base.name}, changed" if base else "custom"),
        bandwidth=_given(section.bandwidth, base.bandwidth if base else None),
        latency=_given(section.latency, base.latency if base else None),
        efficiency=_given(section.efficiency, base.efficiency if base else Fraction(1)),
        source=source if section.source is None else section.source,
        estimate=_remains_estimate(section, base) if section.estimate is None else section.estimate,
    )


def _remains_estimate(section: LinkSection, base: Link | None) -> bool:
    """Whether a figure of an estimated link is still in use; what the user states is none."""
    stated = {"bandwidth", "latency", "efficiency"} <= section.model_fields_set
    return base is not None and base.estimate and not stated


def _given(value: Fraction | None, otherwise: Fraction | None) -> Fraction:
    found = otherwise if value is None else value
    if found is None:
        raise InternalError("a link without bandwidth or latency passed the schema")
    return found
