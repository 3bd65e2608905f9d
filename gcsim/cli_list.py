"""What is there to choose from? Compressors, scenarios, models, devices and links, as plain data.

Each kind has two functions: all entries in short, and one entry in full. What a person reads is
written from the same values that `--json` gives. Nothing here imports torch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcsim.errors import InputError, Problem, did_you_mean

if TYPE_CHECKING:
    from gcsim.simulator.device import Device
    from gcsim.simulator.links import Link

Entry = dict[str, Any]


class Kind(StrEnum):
    """What can be listed."""

    compressors = "compressors"
    scenarios = "scenarios"
    models = "models"
    devices = "devices"
    links = "links"


def entries(kind: Kind) -> list[Entry]:
    """All of a kind, in short, in their own order."""
    names, _ = _KINDS[kind]
    return [details(kind, name, full=False) for name in names()]


def details(kind: Kind, name: str, *, full: bool = True) -> Entry:
    """One entry. Raises `InputError` with a suggestion when there is none of that name."""
    names, describe = _KINDS[kind]
    known = list(names())
    if name not in known and not (kind is Kind.compressors and ":" in name):
        singular = kind.value.removesuffix("s")
        message = f"unknown {singular} {name!r}"
        raise InputError(Problem(message=message, hint=did_you_mean(name, known)))
    return describe(name, full)


# --- compressors ---------------------------------------------------------------------------------


def _compressor_names() -> Iterable[str]:
    from gcsim.compressors.registry import REGISTRY

    return REGISTRY


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
    """What a JSON schema accepts, for people: "integer >= 1", "number in (0, 1]"."""
    if "anyOf" in rule:
        return " or ".join(dict.fromkeys(accepted(choice) for choice in rule["anyOf"]))
    if "enum" in rule:
        return " | ".join(str(value) for value in rule["enum"])
    if "const" in rule:
        return str(rule["const"])
    name = str(rule.get("type", "any"))
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


def _scenario_names() -> Iterable[str]:
    from gcsim.scenarios.load import shipped_scenarios

    return shipped_scenarios()


def _scenario(name: str, full: bool) -> Entry:
    from gcsim.scenarios.load import load_scenario, shipped_scenarios

    scenario = load_scenario(shipped_scenarios()[name])
    path = shipped_scenarios()[name]
    entry: Entry = {
        "name": name,
        "description": scenario.resolved.get("description", ""),
        "path": str(path),
    }
    return {**entry, "resolved": scenario.resolved} if full else entry


def scenario_text(name: str) -> str:
    """The file of a shipped scenario, to be copied and changed."""
    return Path(details(Kind.scenarios, name)["path"]).read_text(encoding="utf-8")


def _model_names() -> Iterable[str]:
    from gcsim.traces.models import MODELS

    return MODELS


def _model(name: str, full: bool) -> Entry:
    from gcsim.traces.models import MODELS

    entry = asdict(MODELS[name])
    return {**entry, "input_shape": list(entry["input_shape"])}


# --- devices and links ---------------------------------------------------------------------------


def _device_names() -> Iterable[str]:
    from gcsim.scenarios.catalog import devices

    return devices()


def _device(name: str, full: bool) -> Entry:
    from gcsim.scenarios.catalog import device

    found: Device = device(name)
    entry: Entry = {
        "name": found.name,
        "title": found.title,
        "effective_flops": found.effective_flop_rate,
        "models": [
            f"{model} (estimate)" if rate.estimate else model
            for model, rate in found.training.items()
        ],
        "estimated_kernels": [kind for kind, rate in found.kernels.items() if rate.estimate],
        "source": found.source,
    }
    if full:
        entry["backward_over_forward"] = found.backward_over_forward
        entry["kernels"] = [
            {
                "class": kind,
                "launch_s": rate.launch,
                "bandwidth_bytes_per_s": rate.bandwidth,
                "flops": rate.flop_rate,
                "estimate": rate.estimate,
                "source": rate.source,
            }
            for kind, rate in found.kernels.items()
        ]
        entry["training"] = [
            {
                "model": rate.model,
                "fixed_s": rate.fixed,
                "per_sample_s": rate.per_sample,
                "estimate": rate.estimate,
                "source": rate.source,
            }
            for rate in found.training.values()
        ]
    return entry


def _link_names() -> Iterable[str]:
    from gcsim.scenarios.catalog import links

    return links()


def _link(name: str, full: bool) -> Entry:
    from gcsim.scenarios.catalog import link
    from gcsim.scenarios.link_plain import calibration, plain_link

    found: Link = link(name)
    up = found.up
    goodput = found.rate * (found.factors[-1].bandwidth if found.factors else 1)
    entry: Entry = {
        "name": found.name,
        "calibration": calibration(found),
        "bandwidth_bytes_per_s": float(found.bandwidth),
        "efficiency": float(found.efficiency),
        "goodput_bytes_per_s": float(goodput),
        "latency_s": float(found.latency),
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


_KINDS: dict[Kind, tuple[Callable[[], Iterable[str]], Callable[[str, bool], Entry]]] = {
    Kind.compressors: (_compressor_names, _compressor),
    Kind.scenarios: (_scenario_names, _scenario),
    Kind.models: (_model_names, _model),
    Kind.devices: (_device_names, _device),
    Kind.links: (_link_names, _link),
}
