"""Training steps that were measured on shaped links, and the traffic profile of each.

The runs are those of `data/shaped_training.csv`. What a rank sends is known from its hook, and is
checked against the payload that the hook counted:

| hook     | a bucket of n elements                                                     |
|----------|----------------------------------------------------------------------------|
| none     | all-reduce of 4 n bytes                                                    |
| fp16     | all-reduce of 2 n bytes                                                    |
| topk     | all-gather of the 1 % largest, 8 bytes each (value and index)              |
| signsgd  | all-gather of n / 8 bytes of signs and a scale of 4                        |
| powersgd | all-reduces of the tensors that are left as they are, of P, and of Q, rank 4 |

With the hooks of the measured code, of which it is known how long they took: one kernel a stage,
which works on the bucket's bytes; gathered payloads are decoded one by one. Or with our own
compressors in their place (`data/shaped_training_kernels.csv`), as a catalogue's device prices
them: metered on one bucket, in proportion to bytes, launches as they are.

PowerSGD's tensors that are left as they are travel while P is computed, as an exchange of their
own. P and Q are products of the same size, and are taken to cost the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from gcsim.analysis.validation.data_files import data_rows, data_values
from gcsim.analysis.validation.suite import one_step
from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KERNEL_CLASSES, KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.traces.profile import Compute, Exchange, ModelFacts, TrafficProfile

Hook = Literal["none", "fp16", "topk", "signsgd", "powersgd"]
TOPK_SHARE = 100
"""Elements of which one is sent."""
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
        """Elements of the gradient."""
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


Stage = Literal["encode", "decode"]
_METERED_BYTES = 4 * 1024 * 1024
"""Size of the bucket that our compressors were metered on."""


def kernel(hook: Hook, stage: Stage) -> str:
    """The name by which a device's curve of a hook's stage is found."""
    return f"{hook}.{stage}"


def launches(run: Run, stage: Stage) -> int:
    """Number of a stage's kernels that a rank runs in a step, on a bucket's bytes each time."""
    if stage == "decode" and run.hook in GATHERS:
        return len(run.buckets) * run.ranks
    if stage == "encode" and run.hook == "powersgd":
        return len(run.buckets) * 2
    return len(run.buckets)


def profile(run: Run, *, ours: bool = False) -> TrafficProfile:
    """Profile of the run's step, with its hook, or with our own compressor in the hook's place."""
    exchanges = tuple(one for bucket in run.buckets for one in _exchanges(run, bucket, ours))
    layouts = tuple(
        BucketLayout(
            index=index,
            slices=(TensorSlice(name="all of it", shape=(size // 4,), offset=0, index=index),),
        )
        for index, size in enumerate(bytes_by_exchange(run))
    )
    model = ModelFacts(name=run.model, parameters=run.elements, layers=(), samples_per_worker=16)
    return one_step(run.hook, model, layouts, exchanges)


def bytes_by_exchange(run: Run) -> tuple[int, ...]:
    """Bytes of gradient that each exchange waits for beside those before it."""
    if run.hook == "powersgd":
        return tuple(size for bucket in run.buckets for size in (bucket, 0))
    return run.buckets


def _exchanges(run: Run, bucket: int, ours: bool) -> list[Exchange]:
    def compute(stage: Stage) -> Compute:
        return _ours(run.hook, stage, bucket) if ours else _hook(run.hook, stage, bucket)

    nothing = Compute(stage="encode", fixed=())
    encode, decode = compute("encode"), compute("decode")
    element, dtype = (2, "float16") if run.hook == "fp16" else (4, "float32")
    kind: Literal["all_gather", "all_reduce"]
    kind = "all_gather" if run.hook in GATHERS else "all_reduce"
    first, *others = (
        CollectiveRecord(kind=kind, sent=(nbytes,), element=element, dtype=dtype)
        for nbytes in sent(run, bucket)
    )
    if not others:
        return [Exchange(computes=(encode, decode), collectives=(first,))]
    between = nothing if ours else encode  # ours is metered as a whole
    return [
        Exchange(computes=(nothing, nothing), collectives=(first,)),
        Exchange(computes=(encode, between, decode), collectives=tuple(others)),
    ]


def _hook(hook: Hook, stage: Stage, bucket: int) -> Compute:
    cost = KernelCost(
        kind="streaming", name=kernel(hook, stage), launches=1, elements=bucket // 4, nbytes=bucket
    )
    if stage == "decode" and hook in GATHERS:
        return Compute(stage=stage, fixed=(), per_payload=(cost,))
    return Compute(stage=stage, fixed=(cost,))


def _ours(hook: Hook, stage: Stage, bucket: int) -> Compute:
    fixed, per_payload = (
        tuple(
            KernelCost(
                kind=cost.kind,
                launches=cost.launches,
                elements=bucket // 4,
                nbytes=cost.nbytes * bucket // _METERED_BYTES,
                flops=cost.flops * bucket // _METERED_BYTES,
            )
            for cost in _metered().get((hook, stage, each), ())
        )
        for each in (False, True)
    )
    return Compute(stage=stage, fixed=fixed, per_payload=per_payload)


@cache
def _metered() -> dict[tuple[Hook, Stage, bool], list[KernelCost]]:
    """Kernels by hook, stage, and whether it is done once for each payload."""
    found: dict[tuple[Hook, Stage, bool], list[KernelCost]] = {}
    for row in data_rows("shaped_training_kernels"):
        kind = next((kind for kind in KERNEL_CLASSES if kind == row["kind"]), None)
        hook = next((hook for hook in get_args(Hook) if hook == row["hook"]), None)
        stage = next((stage for stage in get_args(Stage) if stage == row["stage"]), None)
        if kind is None or hook is None or stage is None:
            raise InternalError(f"a kernel that nobody knows: {row}")
        cost = KernelCost(
            kind=kind,
            launches=int(row["launches"]),
            elements=_METERED_BYTES // 4,
            nbytes=int(row["bytes"]),
            flops=int(row["flops"]),
        )
        found.setdefault((hook, stage, row["per_payload"] == "1"), []).append(cost)
    return found
