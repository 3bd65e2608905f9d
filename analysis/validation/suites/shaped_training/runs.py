"""Which training steps were measured on shaped links, and what did each rank hand to Gloo in them?

The runs are those of `data/shaped_training.csv`. What a rank sends is known from its hook, and is
checked against the payload that the hook counted:

| hook     | a bucket of n elements                                                     |
|----------|----------------------------------------------------------------------------|
| none     | all-reduce of 4 n bytes                                                    |
| fp16     | all-reduce of 2 n bytes                                                    |
| topk     | all-gather of the 1 % largest, 8 bytes each (value and index)              |
| signsgd  | all-gather of n / 8 bytes of signs and a scale of 4                        |
| powersgd | all-reduces of the tensors that are left as they are, of P, and of Q, rank 4 |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from gcsim.analysis.validation.data_files import data_values
from gcsim.errors import InternalError

Hook = Literal["none", "fp16", "topk", "signsgd", "powersgd"]
TOPK_SHARE = 100
"""One of so many elements is sent."""
GATHERS: frozenset[Hook] = frozenset({"topk", "signsgd"})
"""Hooks that decode a payload of each rank."""

_POWERSGD = {"mlp": (8592, 34368, 49152), "cnn": (7456, 7456, 55232)}
"""Bytes of the tensors left as they are, of P, of Q. MLP: 1024-1024-1024-100 with biases, rank 4.
CNN: Q as counted (steps that missed one collective tell it); the other two are known together, and
taken as equal."""
_COUNTED_TOO = 4
"""Bytes that the hook of PowerSGD counts with each collective beside its tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Twenty consecutive steps of one configuration; times in seconds."""

    number: int
    phantom: bool
    """The passes sleep: they leave the cores to others."""
    model: str
    sleeps: bool
    """A phantom whose passes take time."""
    ranks: int
    rate_mbit: int
    bucket_mb: int
    buckets: tuple[int, ...]
    """Bytes of float32 gradient, in the order in which they are ready."""
    hook: Hook
    payload: int
    """Bytes that a rank handed to its collectives in a step, as counted by the hook."""
    repeats: int
    step: float
    forward: float
    backward: float
    optimizer: float
    """Without exchange, all ranks at once."""
    encode: float
    decode: float
    """In the step, all buckets together."""
    finish: float
    """From the end of decoding to that of the backward pass: DDP copies buckets to gradients."""
    entry_variation: float
    """Standard deviation over mean of the time from the begin of a step to its first collective."""

    @property
    def elements(self) -> int:
        """Of the gradient."""
        return sum(self.buckets) // 4


@cache
def runs() -> tuple[Run, ...]:
    """All of the file, in its order. Raises `InternalError` where a payload is not what the hook
    would send."""
    found = data_values(
        "shaped_training",
        Run,
        number="run",
        phantom=lambda row: row["mode"] == "phantom",
        sleeps=lambda row: row["sleep_ms"] != "0",
        buckets=lambda row: tuple(map(int, row["bucket_bytes"].split("/"))),
        payload="payload_bytes",
        **{name: f"{name}_s" for name in ("step", "encode", "decode", "finish")},
        **{name: f"solo_{name}_s" for name in ("forward", "backward", "optimizer")},
    )
    return tuple(map(_checked, found))


def _checked(run: Run) -> Run:
    handed = sum(sum(sent(run, bucket)) for bucket in run.buckets)
    counted = run.payload
    if run.hook == "powersgd":
        counted -= _COUNTED_TOO * len(_POWERSGD[run.model]) * len(run.buckets)
    if handed != counted:
        raise InternalError(f"run {run.number} counted {run.payload} bytes, not {handed}")
    return run


def sent(run: Run, bucket: int) -> tuple[int, ...]:
    """Bytes that a rank hands to each collective of a bucket of so many bytes."""
    elements = bucket // 4
    match run.hook:
        case "none":
            return (4 * elements,)
        case "fp16":
            return (2 * elements,)
        case "topk":
            return (8 * (elements // TOPK_SHARE),)
        case "signsgd":
            return (-(-elements // 8) + 4,)
        case "powersgd":
            return _POWERSGD[run.model]
