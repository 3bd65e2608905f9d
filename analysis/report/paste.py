"""Python code to paste for a method: the code whose time is estimated, by default gcsim's hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gcsim.compressors.options.method import OPTIONS, method_of
from gcsim.scenarios.catalog import implementations
from gcsim.scenarios.scenario import CompressorChoice
from gcsim.simulator.training import DENSE

_PLAIN = (DENSE, "fp16", "bf16", "torch_fp16", "torch_bf16")
"""Methods that can be mixed with any other in a plan."""
LOCAL = "not possible as a DDP hook: its workers take local steps"


def hook_ends(between: str, ranks_per_rack: int) -> dict[str, Any]:
    """Return the hook's arguments for a scope of its exchange (`Training.between`)."""
    if between == "racks":
        return {"between": between, "ranks_per_rack": ranks_per_rack}
    return {"between": between} if between == "nodes" else {}


def ranks_per_part(scenario: Mapping[str, Any]) -> int:
    """Return the number of ranks that act as one worker of a method (`training.between`)."""
    between, cluster = scenario.get("training", {}).get("between"), scenario.get("cluster", {})
    if between not in {"nodes", "racks"}:
        return 1
    nodes: int = cluster.get("racks", {}).get("nodes", 1) if between == "racks" else 1
    return nodes * int(cluster.get("devices_per_node", 1))


def paste_plan(
    choices: Sequence[CompressorChoice], arguments: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """Return Python code for a plan: the method with the most parameters is the hook's own, others
    are listed by name. `arguments` are passed on to the hook."""
    kinds = list(dict.fromkeys(choice.kind for choice in choices))
    stated = {choice.kind: _changes(choice.kind, choice.parameters) for choice in choices}
    main = max(reversed(kinds), key=lambda kind: (len(stated[kind]), kind not in _PLAIN))
    others: dict[str, list[int]] = {}
    for number, choice in enumerate(choices):
        if choice.kind != main:
            others.setdefault(choice.kind, []).append(number)
    given = _written({**stated[main], **arguments})
    said = ", ".join(f'"{kind}": {numbers}' for kind, numbers in others.items())
    return [
        "import gcsim",
        f'gcsim.ddp_hook("{main}"{given}, other_buckets={{{said}}}).register(model)',
    ]


def paste(
    choice: CompressorChoice, arguments: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """Return Python code for a model wrapped in DDP, or the reason why no hook can run the method.
    `arguments` are passed on to the hook."""
    kind, given = choice.kind, choice.parameters
    if kind == DENSE:
        return ["no change: train with your loop as it is"]
    entry = implementations.of(kind, choice.implementation)
    if entry is not None and not arguments and not any(key in OPTIONS for key in given):
        return [line.format(**given) for line in entry.deploy]
    cls, checked = method_of(kind, given)
    if cls.properties(checked).replicas != "identical" or cls.requires:
        return [LOCAL]
    written = _written({**_changes(kind, given), **arguments})
    lines = ["import gcsim", f'gcsim.ddp_hook("{kind}"{written}).register(model)']
    if cls.momentum(checked)[0]:
        lines.append("# has its own momentum: use SGD with momentum=0")
    if start := cls.warmup_steps(checked):
        lines.append(f"# its first {start:,} steps send more; the time is of later ones")
    return lines


def _written(arguments: Mapping[str, Any]) -> str:
    """Return arguments as code; shares of the training's steps also need their number, `steps`."""
    quoted = {k: f'"{v}"' if isinstance(v, str) else repr(v) for k, v in arguments.items()}
    warm_up = arguments.get("warm_up")
    until = warm_up.get("steps") if isinstance(warm_up, Mapping) else None
    if any(isinstance(share, float) for share in (arguments.get("dense_steps"), until)):
        quoted["training_steps"] = "steps"
    return "".join(f", {key}={value}" for key, value in quoted.items())


def _changes(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that differ from the method's defaults."""
    usual = method_of(kind, {}).parameters.model_dump()
    return {key: value for key, value in given.items() if usual.get(key) != value}
