"""Python to paste for a method: the code whose time is estimated, gcsim's hook by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gcsim.compressors.options.method import OPTIONS, method_of
from gcsim.scenarios.catalog import implementations
from gcsim.scenarios.scenario import CompressorChoice
from gcsim.simulator.training import DENSE

_PLAIN = (DENSE, "fp16", "bf16", "torch_fp16", "torch_bf16")
"""Methods that go beside any other in a plan."""


def paste_plan(choices: Sequence[CompressorChoice]) -> list[str]:
    """Python for a plan: the method of most parameters is the hook's, others go by name."""
    kinds = list(dict.fromkeys(choice.kind for choice in choices))
    stated = {choice.kind: _stated(choice.kind, choice.parameters) for choice in choices}
    main = max(reversed(kinds), key=lambda kind: (len(stated[kind]), kind not in _PLAIN))
    others: dict[str, list[int]] = {}
    for number, choice in enumerate(choices):
        if choice.kind != main:
            others.setdefault(choice.kind, []).append(number)
    given = "".join(f", {key}={value!r}" for key, value in stated[main].items())
    said = ", ".join(f'"{kind}": {numbers}' for kind, numbers in others.items())
    return [
        "import gcsim",
        f'gcsim.ddp_hook("{main}"{given}, other_buckets={{{said}}}).register(model)',
    ]


def paste(choice: CompressorChoice) -> list[str]:
    """Python for a model wrapped by DDP; if no hook can carry the method, why."""
    kind, given = choice.kind, choice.parameters
    if kind == DENSE:
        return ["no change: train with your loop as it is"]
    entry = implementations.of(kind, choice.implementation)
    if entry is not None and not any(key in OPTIONS for key in given):
        return [line.format(**given) for line in entry.deploy]
    cls, checked = method_of(kind, given)
    if cls.properties(checked).replicas != "identical" or cls.requires:
        return ["not possible as a DDP hook: its workers take local steps"]
    arguments = "".join(f", {key}={value!r}" for key, value in _stated(kind, given).items())
    lines = ["import gcsim", f'gcsim.ddp_hook("{kind}"{arguments}).register(model)']
    if cls.momentum(checked)[0]:
        lines.append("# has its own momentum: use SGD with momentum=0")
    if start := cls.warmup_steps(checked):
        lines.append(f"# its first {start:,} steps are uncompressed; the time is of later ones")
    return lines


def _stated(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters other than the method's defaults."""
    usual = method_of(kind, {}).parameters.model_dump()
    return {key: value for key, value in given.items() if usual.get(key) != value}
