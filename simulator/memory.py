"""Memory of a worker in data-parallel training: parts in bytes, each with a range.

Weights are float32, under mixed precision with a copy of 2 bytes that the products read; stored in
16 bits with a float32 master. Gradients are whole, and once more in DDP's buckets unless these are
views. Adam keeps two floats a parameter, momentum one. A method keeps its state, and an exchange
takes at most six floats an element of the largest bucket (`tests/compressors/test_memory.py`).
Activations are by formula (`traces/models/transformer.py`), as counted by autograd's hooks
(`traces/models/saved.py`; half of that with fused kernels), or the outputs of a table's layers.
Logits are read, cast, normalised and differentiated as float32; a fused loss keeps them and
their gradient as they are.

Two parts are estimates: context and NCCL's buffers (4 MiB a channel and direction, NCCL_BUFFSIZE),
and the allocator's slack. The others add up to TorchTitan's eight published peaks within 7 %
(tests/simulator/test_memory.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gcsim.simulator.training import Training
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.models.table import table_facts

Fits = Literal["yes", "no", "perhaps"]
_CONTEXT = (0.5e9, 2e9)
_SLACK = 0.1
"""Most of the rest that the allocator holds beyond it."""
_EXCHANGE = 6
_FLOAT, _HALF = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the memory, in bytes at least and at most."""

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Parts, and the device's memory in bytes (None: unknown)."""

    parts: tuple[Part, ...]
    device: float | None

    @property
    def low(self) -> float:
        """Bytes at least."""
        return sum(part.low for part in self.parts)

    @property
    def high(self) -> float:
        """Bytes at most."""
        return sum(part.high for part in self.parts)

    @property
    def share(self) -> float:
        """The least over what the device has; 0 where unknown."""
        return 0.0 if self.device is None else self.low / self.device

    @property
    def fits(self) -> Fits | None:
        """None where the device's memory is unknown."""
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
) -> Memory | None:
    """Memory of a worker with `batch` samples; `state` is what a method says of its own
    (`Compressor.memory`), `largest` the elements of the largest bucket (0: unknown). None for a
    model whose parameters or activations are unknown."""
    passes = activations(model, batch, training)
    if model.parameters is None or passes is None:
        return None
    parts = [*states(model.parameters, training), *passes]
    if workers > 1:
        gradient = float(training.gradient_bytes * model.parameters)
        parts.append(Part(name="DDP's buckets", low=0, high=gradient))
    if not dense:
        own = _FLOAT * floats(state) * model.parameters
        high = own + _EXCHANGE * _FLOAT * largest
        parts.append(Part(name="method", low=own, high=high))
    slack = _SLACK * sum(part.high for part in parts)
    parts.append(Part(name="context, NCCL", low=_CONTEXT[0], high=_CONTEXT[1]))
    parts.append(Part(name="allocator", low=0, high=slack))
    return Memory(parts=tuple(parts), device=device)


def states(parameters: int, training: Training, shards: int = 1) -> Iterator[Part]:
    """Weights, optimizer and gradients, or a worker's part of as many shards."""
    half = training.gradients != "fp32"
    copies = _HALF * (training.timed_as == "fp16" and not half)
    adam = {"adam": 2, "momentum": 1, "none": 0}[training.optimizer_state]
    for name, nbytes in (
        ("weights", (_HALF if half else _FLOAT) + copies),
        ("masters", _FLOAT * half),
        ("optimizer", _FLOAT * adam),
        ("gradients", training.gradient_bytes),
    ):
        exact = nbytes * parameters / shards
        if exact:
            yield Part(name=name, low=exact, high=exact)


def activations(model: ModelEntry, batch: int, training: Training) -> list[Part] | None:
    """Activations and logits of a micro-batch; None where unknown."""
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


def floats(state: str) -> int:
    """Floats a parameter of a state such as "momentum (n), error (n)" or "momentum, variance (n
    each)"; what is smaller than that is left out."""
    found = 0
    for names, size in re.findall(r"([^()]*)\((n each|n)\)", state.partition(";")[0]):
        found += names.strip(", ").count(",") + 1 if size == "n each" else 1
    return found
