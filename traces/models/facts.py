"""Parameters, FLOPs, outputs and kinds of the layers of a model.

Two samples run forward, as in training, under torch's FLOP counter (2 per multiply-add of matrix
products and convolutions; nothing else counts). Operators inside a module that owns parameters
count for that layer; those between two layers (e.g. attention products) for the layer before, so
that the layers add up to the model's total. The meta device does no arithmetic.

Kinds of arithmetic reach different shares of a device's peak. A 3 x 3 convolution with stride 1 is
faster than its FLOPs suggest (Winograd: Lavin and Gray 2016, arXiv:1509.09308), a depthwise one
much slower, since memory bandwidth limits it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from gcsim.compressors.lazy_torch import nn, torch
from gcsim.traces.models.building import sample_batch, trainable, unmoved_buffers
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.models.torch_generator import keyed_generator
from gcsim.traces.profile import Layer, ModelFacts

_SAMPLES = 2
"""Batch norm cannot be trained on a single sample."""


def model_facts(entry: ModelEntry, module: nn.Module, batch: int) -> ModelFacts:
    """Count `module`, built from `entry`; `batch`, the samples per worker, is only recorded."""
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
    """Count `module` while `forward` calls it on `samples` samples, without training. Layers are in
    the order of their first call; one that is never called (its parent uses its parameters) comes
    after its parent; without any call the order is that of registration. Parameters are the
    trainable ones; a shared one belongs to the first layer in registration order (an output tied to
    its embedding is a layer without parameters)."""
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
        return order.get(called, 0), registration.index(prefix)

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
    """Return all modules by first call, and FLOPs and output elements of those in `owned`."""
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
    """Return the size of a module's first output tensor (a recurrent layer's states follow)."""
    while isinstance(output, tuple | list) and output:
        output = output[0]
    return output.numel() if isinstance(output, torch.Tensor) else 0


_LayerKind = Literal[
    "conv3x3", "conv1x1", "conv", "grouped", "linear", "recurrent", "normalization", "embedding"
]
_KINDS: tuple[_LayerKind, ...] = get_args(_LayerKind)
"""conv3x3: dense, stride 1, this kernel; conv: other dense ones; grouped: convolutions with several
groups, also depthwise; linear: matrix products, including attention's, and anything else with
parameters."""


def kind_of(layer: nn.Module) -> _LayerKind:
    """Return the kind of a module that owns parameters."""
    from torch import nn

    if isinstance(layer, nn.modules.conv._ConvNd):
        if layer.groups > 1:
            return "grouped"
        if set(layer.kernel_size) == {1}:
            return "conv1x1"
        plain = set(layer.kernel_size) == {3} and set(layer.stride) == {1}
        return "conv3x3" if plain and len(layer.kernel_size) == 2 else "conv"
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        return "recurrent"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    norms = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    return "normalization" if isinstance(layer, norms) else "linear"


def kind_of_shape(shape: Sequence[int]) -> _LayerKind:
    """Return the kind of a layer with a weight of this shape. `[out, in, height, width]` is a
    convolution, grouped if it has a single input channel and several outputs (like a first layer on
    grey images), `[n]` a normalization. Shapes lack strides: every 3 x 3 convolution counts as
    stride 1."""
    if len(shape) == 4:
        if shape[1] == 1 and shape[0] > 1:
            return "grouped"
        if tuple(shape[2:]) == (1, 1):
            return "conv1x1"
        return "conv3x3" if tuple(shape[2:]) == (3, 3) else "conv"
    if len(shape) in (3, 5):
        return "conv"
    return "linear" if len(shape) == 2 else "normalization"


def outputs_of_shape(shape: Sequence[int], forward_flops: int) -> int:
    """Return the output elements of a layer, given its weight's shape and its FLOPs per sample:
    each output sums as many products as the weight has elements for it. 0 for a vector."""
    if len(shape) < 2:
        return 0
    return forward_flops // (2 * math.prod(shape[1:]))
