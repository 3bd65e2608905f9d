"""The order in which a model's gradients become ready in autograd, observed by hooks.

Autograd goes backward through the forward pass, the last operation first; gradients of one
operation (a convolution's weight and bias) have a further order. It follows neither from
registration nor from the layers' order but from a backward pass, which is free on the meta device
and has a CPU's order. Recurrent layers fuse their steps only on a real device, so they run on the
CPU; on a GPU their order may differ, as cuDNN returns all of their gradients at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gcsim.compressors.lazy_torch import Tensor, nn, torch
from gcsim.errors import InputError
from gcsim.traces.models.building import build_model, sample_batch, trainable
from gcsim.traces.models.losses import sample_losses
from gcsim.traces.models.own_code import own_mistakes
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.models.torch_generator import keyed_generator

_SAMPLES = 2


@contextmanager
def noted_order(parameters: Sequence[nn.Parameter]) -> Iterator[list[int]]:
    """Yield a list that collects the indices of `parameters` as their gradients become ready."""
    order: list[int] = []

    def noting(number: int) -> Callable[[Tensor], None]:
        return lambda _: order.append(number)

    handles = [
        parameter.register_post_accumulate_grad_hook(noting(number))  # type: ignore[no-untyped-call]
        for number, parameter in enumerate(parameters)
    ]
    try:
        yield order
    finally:
        for handle in handles:
            handle.remove()


def whole_order(arrived: Sequence[int], count: int) -> tuple[int, ...]:
    """Return each of `count` parameters once, by first arrival; those without a gradient follow,
    the last one first."""
    return tuple(dict.fromkeys([*arrived, *reversed(range(count))]))


def ready_order(entry: ModelEntry, module: nn.Module) -> tuple[int, ...]:
    """Return the order for a model built from `entry` on the meta device, by a pass of two samples.
    Raises `InputError` if it cannot be built on the CPU or has no backward pass."""
    from gcsim.traces.models.shapes_only import ShapesOnly  # imports torch

    if any(isinstance(layer, torch.nn.RNNBase) for layer in module.modules()):
        module = build_model(entry, seed=0)
    parameters = [parameter for _, parameter in trainable(module)]
    device = parameters[0].device
    shape = (_SAMPLES, *entry.input_shape) if entry.input == "tokens" else (_SAMPLES,)
    labels = torch.zeros(shape, dtype=torch.int64, device=device)
    with (
        own_mistakes(entry, module, f"a forward and backward pass of {_SAMPLES} samples"),
        keyed_generator(0, "dropout", device=device),
        noted_order(parameters) as order,
        ShapesOnly(),
    ):
        output = module(sample_batch(entry, _SAMPLES, device))
        losses = sample_losses(entry, output, labels)
        if not losses.requires_grad:
            hint = "leave out torch.no_grad(), detach() and requires_grad_(False)"
            raise InputError("its output has no gradient", place="model", hint=hint)
        losses.sum().backward()  # type: ignore[no-untyped-call]  # torch's own
    return whole_order(order, len(parameters))
