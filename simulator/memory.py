"""Memory of a worker in data-parallel training: parts in bytes, each with a range.

ZeRO (arXiv:1910.02054, section 5) shards the optimizer's state and float32 master weights over the
workers, its second stage also gradients, its third (FSDP) also weights, of which the root unit and
two blocks are gathered at a time. Weights are float32; mixed precision adds a 2-byte copy for the
matrix products, which alone is whole in the second stage; 16-bit weights have a float32 master.
Gradients are counted once, and again for DDP's buckets unless they are views of these. Adam keeps
two floats per parameter, momentum one, and SGD after a method with its own momentum none. A method
keeps its state, and an exchange takes at most six floats per element of the largest bucket
(`tests/compressors/test_memory.py`). Activations come from a formula
(`traces/models/transformer.py`), from counts by autograd's hooks (half of that with fused kernels),
or from the outputs in a table of layers. Logits are stored, cast, normalised and differentiated as
float32; a fused loss stores only them and their gradient, without a cast.

Two parts are estimates: CUDA context with NCCL's buffers (4 MiB per channel and direction,
NCCL_BUFFSIZE), and the allocator's slack. The other parts add up to TorchTitan's eight published
peaks within 7 % (tests/simulator/test_memory.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from gcsim.simulator.training import Strategy, Training
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.models.table import table_facts

Fits = Literal["yes", "no", "perhaps"]
STAGES: tuple[Strategy, ...] = get_args(Strategy)
_ZERO = ("ddp", "zero1", "zero2", "zero3")
_CONTEXT = (0.5e9, 2e9)
_SLACK = 0.1  # most memory that the allocator holds in excess, relative to all other parts
_EXCHANGE = 6
_FLOAT, _HALF = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the memory: lower and upper bound in bytes."""

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory that a worker needs, and the device's memory in bytes (None: unknown)."""

    parts: tuple[Part, ...]
    device: float | None

    @property
    def low(self) -> float:
        """Lower bound in bytes."""
        return sum(part.low for part in self.parts)

    @property
    def high(self) -> float:
        """Upper bound in bytes."""
        return sum(part.high for part in self.parts)

    @property
    def share(self) -> float:
        """Lower bound over the device's memory; 0 if that is unknown."""
        return 0.0 if self.device is None else self.low / self.device

    @property
    def fits(self) -> Fits | None:
        """Whether it fits in the device's memory; None if that is unknown."""
        if self.device is None:
            return None
        return "no" if self.low > self.device else "yes" if self.high <= self.device else "perhaps"


def memory(
    model: ModelEntry,
    batch: int,
    training: Training,
    *,
    workers: int,
    device: float | None,
    dense: bool = True,
    state: str = "none",
    largest: int = 0,
    stage: Strategy | None = None,
    devices: int = 1,
) -> Memory | None:
    """Return the memory of a worker with `batch` samples; None if the model's parameters or
    activations are unknown. `state`: the method's own state (`Compressor.memory`); `largest`:
    elements of the largest bucket (0: unknown); `stage`: replaces the training's strategy, which
    shards over `workers`; `devices`: per node, which share a second copy of the weights."""
    stage = stage or training.strategy
    passes = activations(model, batch, training)
    if model.parameters is None or passes is None:
        return None
    parts = [*states(model.parameters, training, workers, stage), *passes]
    units = in_flight(model)
    if stage in ("zero3", "hsdp"):
        gathered = float(training.weight_bytes * units)
        parts.append(Part(name="gathered units", low=gathered, high=gathered))
    if training.secondary and stage == "zero3":
        copy = training.weight_bytes * model.parameters / devices
        parts.append(Part(name="weights of a node", low=copy, high=copy))
    if workers > 1:
        whole = model.parameters if stage in ("ddp", "zero1") else units
        parts.append(Part(name="DDP's buckets", low=0, high=float(training.gradient_bytes * whole)))
    if not dense:
        parts_of = workers if stage == "hsdp" else 1
        own = _FLOAT * floats(state) * model.parameters / parts_of
        high = own + _EXCHANGE * _FLOAT * largest / parts_of
        parts.append(Part(name="method", low=own, high=high))
    slack = _SLACK * sum(part.high for part in parts)
    parts.append(Part(name="context, NCCL", low=_CONTEXT[0], high=_CONTEXT[1]))
    parts.append(Part(name="allocator", low=0, high=slack))
    return Memory(parts=tuple(parts), device=device)


def in_flight(model: ModelEntry) -> float:
    """Return the parameters of the root unit (embedding and output) and two blocks; of the whole
    model if its blocks are unknown."""
    parameters, network = model.parameters or 0, model.transformer
    if network is None:
        return float(parameters)
    root = network.vocabulary * network.width * (1 if network.tied else 2)
    return root + 2 * (parameters - root) / network.blocks


def states(
    parameters: int, training: Training, workers: int = 1, stage: Strategy = "ddp"
) -> Iterator[Part]:
    """Yield the weights, optimizer state and gradients of a worker."""
    half, number = training.gradients != "fp32", _ZERO.index("zero3" if stage == "hsdp" else stage)
    copied = training.timed_as == "fp16" and not half
    adam = {"adam": 2, "momentum": 1, "none": 0}[training.optimizer_state or "adam"]
    for name, nbytes, divided_from in (
        ("weights", _HALF if half else _FLOAT, 2 if copied else 3),
        ("16-bit weights", _HALF * (copied and number < 3), 3),
        ("masters", _FLOAT * half, 1),
        ("optimizer", _FLOAT * adam, 1),
        ("gradients", training.gradient_bytes, 2),
    ):
        exact = nbytes * parameters / (workers if number >= divided_from else 1)
        if exact:
            yield Part(name=name, low=exact, high=exact)


def activations(model: ModelEntry, batch: int, training: Training) -> list[Part] | None:
    """Return the activations and logits of a micro-batch; None if unknown."""
    half = training.timed_as == "fp16"
    network = model.transformer
    if network is None:
        nbytes = float(batch * model.saved)
        if not nbytes and model.layers:
            layers = table_facts(model, batch).layers
            nbytes = float(_FLOAT * batch * sum(layer.outputs for layer in layers))
        low = nbytes / (4 if half else 2)
        return [Part(name="activations", low=low, high=nbytes)] if nbytes else None
    width = _HALF if half else _FLOAT
    saved = batch * network.activations(
        training.checkpointing, flash=training.flash_attention, nbytes=width
    )
    logits = batch * network.sequence * network.vocabulary
    return [
        Part(name="activations", low=saved, high=saved),
        Part(
            name="logits",
            low=logits * 2 * width,
            high=logits * (width + (3 if half else 2) * _FLOAT),
        ),
    ]


def floats(state: str) -> float:
    """Return the floats per parameter of a state such as "momentum (n), order (n/2)" or "momentum,
    variance (n each)"; smaller parts do not count."""
    found = 0.0
    for names, size in re.findall(r"([^()]*)\((n each|n/2|n)\)", state.partition(";")[0]):
        found += names.strip(", ").count(",") + 1 if size == "n each" else 0.5 if "/" in size else 1
    return found
