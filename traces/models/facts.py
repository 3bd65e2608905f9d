"""How many parameters and FLOPs has each layer of a model, and what does it put out?

Two samples pass forward, as in training, under torch's own FLOP counter (2 per multiply-add of
matrix products and convolutions; everything else counts nothing, as it does there). What runs
inside a module that owns parameters belongs to that layer; what runs between two layers (attention
products, say) belongs to the layer before, so that the layers' sum is the model's total.

On the meta device no arithmetic is done at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gcsim.compressors.lazy_torch import nn, torch
from gcsim.traces.models.building import sample_batch, trainable, unmoved_buffers
from gcsim.traces.models.entry import ModelEntry
from gcsim.traces.models.layer_kinds import kind_of
from gcsim.traces.models.torch_generator import keyed_generator
from gcsim.traces.profile import Layer, ModelFacts

_SAMPLES = 2
"""Passed forward: batch norm cannot train on a single one."""


def model_facts(entry: ModelEntry, module: nn.Module, batch: int) -> ModelFacts:
    """Count `module`, built from `entry`; `batch`, its samples a worker, is only noted."""
    sample = sample_batch(entry, _SAMPLES, next(module.parameters()).device)
    return counted_facts(
        entry.name,
        module,
        lambda: module(sample),
        samples=_SAMPLES,
        batch=batch,
        tokens=entry.input_shape[0] if entry.input == "tokens" else 0,
    )


def counted_facts(
    name: str,
    module: nn.Module,
    forward: Callable[[], object],
    *,
    samples: int,
    batch: int,
    tokens: int = 0,
) -> ModelFacts:
    """Count `module` while `forward` calls it on `samples` samples; nothing is trained.

    Layers stand in the order of their first call; a layer that is never called (its parameters
    are used by its parent) stands behind its parent. Parameters are the trainable ones; a
    parameter that two layers share belongs to the first in registration order (an output tied to
    its embedding is a layer without parameters).
    """
    numbers = {id(p): i for i, (_, p) in enumerate(trainable(module))}
    owned: dict[str, list[int]] = {}
    taken: set[int] = set()
    for prefix, child in module.named_modules():
        found = [numbers[id(p)] for p in child.parameters(recurse=False) if id(p) in numbers]
        if found:
            owned[prefix] = [i for i in found if i not in taken]
            taken.update(found)
    order, flops, outputs = _run(module, forward, owned)
    registration = list(owned)
    modules = dict(module.named_modules())

    def position(prefix: str) -> tuple[int, int]:
        called = prefix
        while called and called not in order:
            called = called.rpartition(".")[0]
        return order[called], registration.index(prefix)

    return ModelFacts(
        name=name,
        parameters=sum(p.numel() for _, p in trainable(module)),
        layers=tuple(
            Layer(
                name=prefix,
                parameters=tuple(owned[prefix]),
                forward_flops=flops[prefix] // samples,
                kind=kind_of(modules[prefix]),
                outputs=outputs[prefix] // samples,
            )
            for prefix in sorted(owned, key=position)
        ),
        samples_per_worker=batch,
        tokens=tokens,
    )


def _run(
    module: nn.Module, forward: Callable[[], object], owned: dict[str, list[int]]
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Order of first calls of all modules; FLOPs and output elements of those in `owned`."""
    from gcsim.traces.models.flops import FlopCounter

    counter = FlopCounter()
    order: dict[str, int] = {}
    flops = dict.fromkeys(owned, 0)
    outputs = dict.fromkeys(owned, 0)
    stack: list[str] = []
    ran: list[str] = []
    seen = 0

    def settle() -> None:
        nonlocal seen
        owner = stack[-1] if stack else ran[-1] if ran else next(iter(owned))
        flops[owner] += counter.flops - seen
        seen = counter.flops

    def enter(prefix: str) -> Any:
        def hook(_module: nn.Module, _args: Any) -> None:
            order.setdefault(prefix, len(order))
            if prefix in owned:
                settle()
                stack.append(prefix)

        return hook

    def leave(prefix: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            settle()
            outputs[prefix] += _elements(output)
            ran.append(stack.pop())

        return hook

    handles = []
    modules = list(module.named_modules())
    for prefix, child in modules:
        handles.append(child.register_forward_pre_hook(enter(prefix)))
        if prefix in owned:
            handles.append(child.register_forward_hook(leave(prefix)))
    device = next(module.parameters()).device
    try:
        with unmoved_buffers(module), keyed_generator(0, "counting pass", device=device), counter:
            forward()
            settle()
    finally:
        for handle in handles:
            handle.remove()
    return order, flops, outputs


def _elements(output: Any) -> int:
    """Of the first tensor that a module returns: a recurrent layer's states come behind it."""
    while isinstance(output, tuple | list) and output:
        output = output[0]
    return output.numel() if isinstance(output, torch.Tensor) else 0
