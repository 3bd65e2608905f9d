"""Python to paste for a method: the code whose time is estimated.

Casts, which cost the same as gcsim's, and methods that are PyTorch's by name use PyTorch's hooks,
all others gcsim's: its PowerSGD took 0.80 and 0.85 times as long as PyTorch's on an H100
(docs/gpu-measured.md, whole steps of BERT-base and ResNet-50).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gcsim.compressors.options.method import OPTIONS, method_of
from gcsim.scenarios.scenario import CompressorChoice

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
_CASTS = {
    "fp16": "fp16_compress_hook",
    "torch_fp16": "fp16_compress_hook",
    "bf16": "bf16_compress_hook",
    "torch_bf16": "bf16_compress_hook",
}


def paste_plan(choices: Sequence[CompressorChoice]) -> list[str]:
    """Python for a plan: the method of most parameters is the hook's, others go by name."""
    kinds = list(dict.fromkeys(choice.kind for choice in choices))
    stated = {choice.kind: _stated(choice.kind, choice.parameters) for choice in choices}
    main = max(reversed(kinds), key=lambda kind: (len(stated[kind]), kind not in ("none", *_CASTS)))
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
    if kind == "none":
        return ["nothing to add: DistributedDataParallel as it is"]
    plain = not any(key in OPTIONS for key in given)
    if kind in _CASTS and plain:
        return [
            f"from {_HOOKS} import default_hooks",
            f"model.register_comm_hook(None, default_hooks.{_CASTS[kind]})",
        ]
    if kind == "torch_powersgd" and plain:
        state = f"ps.PowerSGDState(None, {given.get('rank', 4)})"
        return [
            f"from {_HOOKS} import powerSGD_hook as ps",
            f"model.register_comm_hook({state}, ps.powerSGD_hook)",
        ]
    cls, checked = method_of(kind, given)
    if cls.properties(checked).replicas != "identical" or cls.requires:
        return ["no DDP hook can, its workers step apart"]
    arguments = "".join(f", {key}={value!r}" for key, value in _stated(kind, given).items())
    return ["import gcsim", f'gcsim.ddp_hook("{kind}"{arguments}).register(model)']


def _stated(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters other than the method's defaults."""
    usual = method_of(kind, {}).parameters.model_dump()
    return {key: value for key, value in given.items() if usual.get(key) != value}
