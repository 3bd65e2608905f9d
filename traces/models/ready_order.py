"""Order in which a model's gradients become ready: autograd's, seen by hooks.

It runs backward through the forward pass, the operation that came last first; the gradients of
one operation (a convolution's weight and bias) come in an order of its own. So neither the order
in which parameters are registered nor that of the layers tells it: a backward pass does.

On the meta device it is the order of a CPU, and costs no arithmetic; but recurrent layers, which
fuse their steps on a real device alone, run on the CPU. Their gradients may be ready in another
order on a GPU: cuDNN returns all of them at once.
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
    """A list that inside fills with the numbers of `parameters` as their gradients are ready."""
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
    """Each of `count` parameters once, in the order of its first arrival; those that got no
    gradient behind the others, the last of them first."""
    return tuple(dict.fromkeys([*arrived, *reversed(range(count))]))


def ready_order(entry: ModelEntry, module: nn.Module) -> tuple[int, ...]:
    """The order for a model that was built from `entry` on the meta device.

    One forward and one backward pass of two samples. Raises `InputError` when the model cannot
    be built on the CPU, or has no backward pass.
    """
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
            raise InputError(
                "its output has no gradient",
                place="model",
                hint="leave out torch.no_grad(), detach() and requires_grad_(False)",
            )
        losses.sum().backward()  # type: ignore[no-untyped-call]  # torch's own
    return whole_order(order, len(parameters))
