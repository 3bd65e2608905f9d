"""Lists of compressors, scenarios, models, tasks, traces, devices and links.

Each kind has two functions: one for all entries in short, one for a single entry in full. The text
is made from the values that `--json` gives. Only `gcsim fit`, at the end, imports torch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcsim.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from gcsim.scenarios.progress import Progress
    from gcsim.simulator.devices.device import Device
    from gcsim.simulator.network.links import Link, Range
    from gcsim.traces.synthetic.fit_file import ModelFit


Entry = dict[str, Any]


class Kind(StrEnum):
    """Kinds of lists."""

    compressors = "compressors"
    scenarios = "scenarios"
    models = "models"
    tasks = "tasks"
    traces = "traces"
    devices = "devices"
    links = "links"
    papers = "papers"


def entries(kind: Kind) -> list[Entry]:
    """Return all entries of a kind in short, in their own order."""
    return [details(kind, name, full=False) for name in _names(kind)]


def details(kind: Kind, name: str, *, full: bool = True) -> Entry:
    """Return one entry; raises `InputError` with a suggestion for an unknown name."""
    describe = _KINDS[kind][1]
    if kind in {Kind.devices, Kind.links} and _names_a_file(name):
        return {**describe(name, full), "file": name}
    known, singular = _names(kind), kind.value.removesuffix("s")
    if kind is Kind.compressors:
        from gcsim.compressors.named import method_named

        name = method_named(name)[0]
    elif kind in {Kind.devices, Kind.links, Kind.models} and name not in known:
        name = getattr(import_module("gcsim.scenarios.catalog"), singular)(name).name
    if name not in known and not (kind is Kind.compressors and ":" in name):
        raise InputError(f"unknown {singular} {name!r}", hint=did_you_mean(name, known))
    return describe(name, full)


def _names(kind: Kind) -> list[str]:
    module, _, attribute = _KINDS[kind][0].partition(":")
    found = getattr(import_module(module), attribute)
    return list(found() if callable(found) else found)


def _names_a_file(name: str) -> bool:
    from gcsim.scenarios.sections.named_files import names_a_file

    return names_a_file(name)


# --- compressors ---------------------------------------------------------------------------------


def _compressor(name: str, full: bool) -> Entry:
    from gcsim.compressors.registry import compressor_class

    found = compressor_class(name)
    about = asdict(found.about)
    entry = {"name": name, **about}
    if full:
        entry["module"] = found.__module__
        entry["summary"] = inspect.cleandoc(sys.modules[found.__module__].__doc__ or "")
        entry["requires"] = sorted(found.requires)
        schema = found.Parameters.model_json_schema()
        entry["parameters"] = [
            {
                "name": key,
                "default": rule.get("default"),
                "required": key in schema.get("required", ()),
                "range": accepted(rule),
                "meaning": rule.get("description", ""),
            }
            for key, rule in schema.get("properties", {}).items()
        ]
    return entry


def accepted(rule: Mapping[str, Any]) -> str:
    """Return the values that a JSON schema accepts: "integer >= 1", "number in (0, 1]"."""
    if "anyOf" in rule:
        return " or ".join(dict.fromkeys(accepted(choice) for choice in rule["anyOf"]))
    if "enum" in rule:
        return " | ".join(str(value) for value in rule["enum"])
    if "const" in rule:
        return str(rule["const"])
    name = "mapping" if "$ref" in rule else str(rule.get("type", "any"))
    words = {"null": "null", "boolean": "true | false", "string": "text"}
    return words.get(name, name) + _bounds(rule)


def _bounds(rule: Mapping[str, Any]) -> str:
    low, above = rule.get("minimum"), rule.get("exclusiveMinimum")
    high, below = rule.get("maximum"), rule.get("exclusiveMaximum")
    lower = f"[{_number(low)}" if low is not None else f"({_number(above)}" * (above is not None)
    upper = f"{_number(high)}]" if high is not None else f"{_number(below)})" * (below is not None)
    if lower and upper:
        return f" in {lower}, {upper}"
    if lower:
        return (" >= " if lower[0] == "[" else " > ") + lower[1:]
    return (" <= " if upper[-1] == "]" else " < ") + upper[:-1] if upper else ""


def _number(value: float | None) -> str:
    return str(value) if isinstance(value, int) else f"{value or 0:g}"


# --- scenarios and models ------------------------------------------------------------------------


def _scenario(name: str, full: bool) -> Entry:
    from gcsim.scenarios.load import load_scenario, shipped_scenarios

    path = shipped_scenarios()[name]
    scenario = load_scenario(path)
    entry: Entry = {
        "name": name,
        "description": scenario.resolved.get("description", ""),
        "path": str(path),
    }
    return {**entry, "resolved": scenario.resolved} if full else entry


def scenario_text(name: str) -> str:
    """Return the file of a shipped scenario, to be copied and changed."""
    return Path(details(Kind.scenarios, name)["path"]).read_text(encoding="utf-8")


def _model(name: str, full: bool) -> Entry:
    from gcsim.traces.models.registry import MODELS

    entry = asdict(MODELS[name])
    del entry["table"], entry["transformer"]
    if full:
        entry["layers"] = [asdict(row) for row in MODELS[name].layers]  # hundreds, by formula
    return {**entry, "input_shape": list(entry["input_shape"])}


def _task(name: str, full: bool) -> Entry:
    from gcsim.traces.models.registry import MODELS
    from gcsim.traces.tasks.registry import TASKS

    found = TASKS[name]
    return {
        "name": found.name,
        "title": found.title,
        "input": found.input,
        "default_of": [model.name for model in MODELS.values() if model.task == name],
    }


def _trace(name: str, full: bool) -> Entry:
    from gcsim.traces.storage.manifest import read_manifest
    from gcsim.traces.storage.store import shipped_traces

    folder = shipped_traces()[name]
    held = read_manifest(folder)
    losses: Any = held.source["losses"]
    entry: Entry = {
        "name": name,
        "model": held.facts.name,
        "parameters": held.facts.parameters,
        "batch_size": held.facts.samples_per_worker,
        "workers": held.workers,
        "iterations": held.iterations,
        "dtype": held.dtype,
        "bytes": sum(stored.nbytes for stored in held.files.values()),
        "data": held.source["data"],
        "warmup_steps": held.source["warmup_steps"],
        "loss": sum(losses) / len(losses),
        "path": str(folder),
    }
    return {**entry, "source": held.source} if full else entry


# --- devices and links ---------------------------------------------------------------------------


def _device(name: str, full: bool) -> Entry:
    from gcsim.scenarios.catalog import device
    from gcsim.scenarios.reading.values import text_of
    from gcsim.scenarios.sections.named_files import read_device

    found = read_device(name, Path.cwd())[0] if _names_a_file(name) else device(name)
    entry: Entry = {
        "name": found.name,
        "title": found.title,
        "effective_flops": found.effective_flop_rate,
        "effective_flops_range": found.effective_flop_rate_range,
        "models": _measured_models(found),
        "precisions": list(found.layer_times),
        "bus": found.bus,
        "estimated_kernels": [kind for kind, rate in found.kernels.items() if rate.estimate],
        "source": found.source,
    }
    if full:
        entry["section"] = text_of(found)
        entry["measured"] = [
            {"tokens": key[2], **asdict(times)} for key, times in found.measured.items()
        ]
        entry["layer_model"] = {key: asdict(times) for key, times in found.layer_times.items()}
    return entry


def _measured_models(device: Device) -> list[str]:
    """Return the measured models by name, with precisions other than fp32 and a mark on
    estimates."""
    found: dict[str, tuple[list[str], bool]] = {
        model: (["fp32"], rate.estimate) for model, rate in device.training.items()
    }
    for (model, precision, _), times in device.measured.items():
        precisions, _estimate = found.setdefault(model, ([], times.estimate))
        if precision not in precisions:
            precisions.append(precision)
    return [
        model
        + ("" if precisions == ["fp32"] else f" ({', '.join(sorted(precisions))})")
        + (" (estimate)" if estimate else "")
        for model, (precisions, estimate) in found.items()
    ]


def _link(name: str, full: bool) -> Entry:
    from gcsim.scenarios.catalog import link, own_figures
    from gcsim.scenarios.sections.link import calibration, plain_link
    from gcsim.scenarios.sections.named_files import read_link

    found = read_link(name, Path.cwd())[0] if _names_a_file(name) else link(name)
    up = found.up
    entry: Entry = {
        "name": found.name,
        "calibration": calibration(found),
        "bandwidth_bytes_per_s": float(found.bandwidth),
        **_figures(found),
        "transports": {
            transport: {**_figures(own := link(name, transport)), "source": own.source}
            for transport in own_figures().get(name, ())
        },
        "up": None
        if up is None
        else {
            "bandwidth_bytes_per_s": float(up.bandwidth),
            "latency_s": float(up.latency),
            "grant_s": float(up.grant),
        },
        "shared": found.shared,
        "by_size": bool(found.factors),
        "estimate": found.estimate,
        "source": found.source,
    }
    return {**entry, "section": plain_link(found)} if full else entry


def _figures(link: Link) -> Entry:
    goodput = link.rate * (link.factors[-1].bandwidth if link.factors else 1)
    return {
        "efficiency": float(link.efficiency),
        "efficiency_range": _floats(link.efficiency_range),
        "goodput_bytes_per_s": float(goodput),
        "latency_s": float(link.latency),
        "latency_range_s": _floats(link.latency_range),
        "overhead_s": float(link.overhead),
        "overhead_range_s": _floats(link.overhead_range),
    }


def _floats(bounds: Range | None) -> list[float] | None:
    return None if bounds is None else [float(end) for end in bounds]


# --- papers --------------------------------------------------------------------------------------


def _paper(name: str, full: bool) -> Entry:
    from gcsim.scenarios.papers.preset import preset, printed

    found = preset(name)
    entry: Entry = {"name": name, "title": found.title, "source": found.source}
    if full:
        entry["about"] = inspect.cleandoc(found.obtain.__doc__ or "")
        entry["printed"] = [
            {"row": row, "column": column, "value": value}
            for (row, column), value in printed(name).items()
        ]
    return entry


_KINDS: dict[Kind, tuple[str, Callable[[str, bool], Entry]]] = {
    Kind.compressors: ("gcsim.compressors.registry:REGISTRY", _compressor),
    Kind.scenarios: ("gcsim.scenarios.load:shipped_scenarios", _scenario),
    Kind.models: ("gcsim.traces.models.registry:MODELS", _model),
    Kind.tasks: ("gcsim.traces.tasks.registry:TASKS", _task),
    Kind.traces: ("gcsim.traces.storage.store:shipped_traces", _trace),
    Kind.devices: ("gcsim.scenarios.catalog:devices", _device),
    Kind.links: ("gcsim.scenarios.catalog:links", _link),
    Kind.papers: ("gcsim.scenarios.papers.preset:PRESETS", _paper),
}
"""Source of the names, imported on demand, and the function that describes an entry."""


ABOUT_MODELS = ("One model with its paper: gcsim list models NAME.",)
"""Notes below the tables."""


def model_tables(
    entries: Sequence[Entry],
) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Yield title, headings and rows of models of images, models of tokens, and layer tables."""
    headings = ("name", "parameters", "sample", "what it is")
    kinds = {
        "Images": [e for e in entries if e["build"] and e["input"] == "samples"],
        "Sequences of tokens": [e for e in entries if e["build"] and e["input"] == "tokens"],
        "Tables of layers: nothing to train, synthetic gradients only": [
            e for e in entries if not e["build"]
        ],
    }
    for title, members in kinds.items():
        if members:
            yield title, headings, [_row(entry) for entry in members]


def model_details(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield label and text of each known fact about a model."""
    from gcsim.traces.tasks.registry import TASKS

    count = entry["parameters"]
    if count is not None:
        yield "parameters", f"{count:,}; gradients of {4 * count / 1e6:,.4g} MB in float32"
    yield "sample", _sample(entry, " x ")
    yield (
        "output",
        f"{entry['classes']:,} "
        + ("classes" if entry["input"] == "samples" else "kinds of tokens"),
    )
    if entry["auxiliary_weight"]:
        yield (
            "loss",
            "that of the last classifier and "
            f"{entry['auxiliary_weight']:g} times that of each one inside the network",
        )
    if entry["build"]:
        task = TASKS.get(entry["task"])
        yield "task", entry["task"] + (f": {task.title}" if task else "")
        yield "built by", entry["build"]
    else:
        forward = sum(layer["forward_flops"] for layer in entry["layers"])
        yield "layers", f"{len(entry['layers'])}, forward {forward:,} FLOPs per sample"
    if entry["paper"]:
        yield "paper", entry["paper"]


def _row(entry: Entry) -> tuple[str, ...]:
    count = entry["parameters"]
    size = "" if count is None else f"{count:,}"
    return entry["name"], f"{size:>11}", _sample(entry, "x"), entry["title"]


def _sample(entry: Entry, times: str) -> str:
    if entry["input"] == "tokens":
        return f"{entry['input_shape'][0]} tokens"
    return times.join(map(str, entry["input_shape"]))


def fit_traces(folders: list[Path], output: Path, progress: Progress) -> tuple[ModelFit, ...]:
    """Fit the traces and write one file for all. If it raises `InputError`, no file is left."""
    from gcsim.traces.storage.store import Trace
    from gcsim.traces.synthetic.fit_file import write_fits
    from gcsim.traces.synthetic.fitting import fit_trace

    traces = [Trace.open(folder) for folder in folders]
    names = [trace.facts.name for trace in traces]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        message = f"two traces of {twice[0]!r}: a file can hold only one fit per model"
        raise InputError(message, place="TRACE", hint="write their fits to two files")
    with progress.task("fit", sum(len(trace.parameters) for trace in traces)) as task:
        fits = tuple(fit_trace(trace, lambda name: task.advance(note=name)) for trace in traces)
    write_fits(output, fits)
    return fits


def fitted_lines(fits: tuple[ModelFit, ...], output: Path) -> list[str]:
    """Return lines that describe the fits, one per model."""
    from gcsim.analysis.report.numbers import plural

    lines = [f"Written to {output}"]
    for fit in fits:
        elements = sum(tensor.numel for tensor in fit.tensors)
        common = sum(t.common * t.numel * t.rms**2 for t in fit.tensors)
        energy = sum(t.numel * t.rms**2 for t in fit.tensors) or 1.0
        lines.append(
            f"  {fit.model}: {plural(len(fit.tensors), 'tensor')}, {elements:,} elements, from "
            f"{plural(fit.iterations, 'iteration')} of {plural(fit.workers, 'worker')}; "
            f"{common / energy:.0%} of the gradients' energy is common to all workers, norms "
            f"vary by {fit.scatter:.2f} (standard deviation of the logarithm)"
        )
    return lines


def layers_text(kind: Kind, name: str | None) -> str:
    """Return the CSV of a model's layers. Raises `InputError` for anything but a model."""
    if kind is not Kind.models or name is None:
        message = "--layers needs the name of one model"
        hint = "write gcsim list models NAME --layers"
        raise InputError(message, place="--layers", hint=hint)
    from gcsim.traces.models.registry import shipped_model
    from gcsim.traces.models.table import table_text

    details(kind, name)  # raises with the known models
    return table_text(shipped_model(name))
