"""How many parameters and FLOPs has each layer of a model?

One sample passes forward under torch's own FLOP counter (2 per multiply-add of matrix products
and convolutions; everything else counts nothing, as it does there). What runs inside a module
that owns parameters belongs to that layer; what runs between two layers (attention products,
say) belongs to the layer before, so that the layers' sum is the model's total.

On the meta device no arithmetic is done at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gcsim.compressors.lazy_torch import torch
from gcsim.traces.building import trainable
from gcsim.traces.profile import Layer, ModelFacts
from gcsim.traces.torch_generator import keyed_generator

if TYPE_CHECKING:
    from torch import nn


def model_facts(
    name: str, module: nn.Module, input_shape: tuple[int, ...], batch: int
) -> ModelFacts:
    """Count `module` for one float32 sample of `input_shape`; `batch` is only noted.

    Layers stand in the order of their first call; a layer that is never called (its parameters
    are used by its parent) stands behind its parent. Parameters are the trainable ones; a
    parameter that two layers share belongs to the first in registration order.
    """
    numbers = {id(p): i for i, (_, p) in enumerate(trainable(module))}
    owned: dict[str, list[int]] = {}
    for prefix, child in module.named_modules():
        indices = [numbers.pop(id(p), None) for p in child.parameters(recurse=False)]
        found = [i for i in indices if i is not None]
        if found:
            owned[prefix] = found
    order, flops = _run(module, input_shape, owned)
    registration = list(owned)

    def position(prefix: str) -> tuple[int, int]:
        called = prefix
        while called and called not in order:
            called = called.rpartition(".")[0]
        return order[called], registration.index(prefix)

    return ModelFacts(
        name=name,
        parameters=sum(p.numel() for _, p in trainable(module)),
        layers=tuple(
            Layer(name=prefix, parameters=tuple(owned[prefix]), forward_flops=flops[prefix])
            for prefix in sorted(owned, key=position)
        ),
        samples_per_worker=batch,
    )


def _run(
    module: nn.Module, input_shape: tuple[int, ...], owned: dict[str, list[int]]
) -> tuple[dict[str, int], dict[str, int]]:
    """Order of first calls of all modules, and FLOPs of those in `owned`."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    order: dict[str, int] = {}
    flops = dict.fromkeys(owned, 0)
    stack: list[str] = []
    ran: list[str] = []
    seen = 0

    def settle() -> None:
        nonlocal seen
        total = counter.get_total_flops()
        owner = stack[-1] if stack else ran[-1] if ran else next(iter(owned))
        flops[owner] += total - seen
        seen = total

    def enter(prefix: str) -> Any:
        def hook(_module: nn.Module, _args: Any) -> None:
            order.setdefault(prefix, len(order))
            if prefix in owned:
                settle()
                stack.append(prefix)

        return hook

    def leave(prefix: str) -> Any:
        def hook(_module: nn.Module, _args: Any, _output: Any) -> None:
            settle()
            ran.append(stack.pop())

        return hook

    handles = []
    modules = list(module.named_modules())
    for prefix, child in modules:
        handles.append(child.register_forward_pre_hook(enter(prefix)))
        if prefix in owned:
            handles.append(child.register_forward_hook(leave(prefix)))
    training = [child for _, child in modules if child.training]
    device = next(module.parameters()).device
    sample = torch.zeros((1, *input_shape), device=device)
    module.eval()  # one sample is no batch to batch norm, and must not move its statistics
    try:
        with torch.no_grad(), keyed_generator(0, "counting pass", device=device), counter:
            module(sample)
            settle()
    finally:
        for child in training:
            child.training = True
        for handle in handles:
            handle.remove()
    return order, flops
