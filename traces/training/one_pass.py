"""Gradients of all workers from one forward and backward pass of their batches together.

N passes of a small model are N times the calls of small kernels. Where workers' weights are equal,
one pass has all their samples, worker after worker, and stops at the layers' outputs; a layer's
parameters get each worker's gradient from its samples' inputs and output gradients:

- Linear: one batched matrix product; Conv2d: one weight gradient a worker.
- Embedding: one gradient of `workers` tables behind each other.
- Layer and root-mean-square normalisation, biases: sums over the worker's samples.
- Second moments: the layer's closed form, on the worker's part.

Sums of float32 have another order than in passes of one worker: gradients agree to rounding. Other
layers, and batch normalisation, where samples meet, have no such form (`fits`). A comparison with
passes of one worker (`agrees`) rules out models that use parameters outside of these layers, mix
samples, or draw (dropout).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gcsim.compressors.lazy_torch import Tensor, nn, torch
from gcsim.traces.models.building import trainable
from gcsim.traces.moments import (
    channels_last,
    has_closed_form,
    is_norm,
    moment,
    sequence_normalised,
)

_CLOSE = 1e-3
"""Most relative deviation of a parameter's gradient; rounding leaves 1e-6 or so."""
_ROUNDING = 1e-6
"""The same over the norm of the whole gradient, for parameters whose gradient is 0."""


def fits(model: nn.Module) -> bool:
    """Whether all trained parameters are of layers with a form for each worker, and the model keeps
    nothing beside them, as batch normalisation does."""
    layers = [layer for layer in model.modules() if has_closed_form(layer)]
    own = {id(p) for layer in layers for p in layer.parameters(recurse=False)}
    return all(id(p) in own for _, p in trainable(model)) and not list(model.buffers())


class OnePass:
    """The pass of a model."""

    def __init__(
        self, model: nn.Module, rows: Sequence[Tensor], moments: Sequence[Tensor] | None = None
    ) -> None:
        """`rows` take the gradients, by trained parameter: `[workers, *shape]`; `moments` the
        samples' second moments (`traces/moments.py`)."""
        self._workers = len(rows[0])
        self._parameters = [parameter for _, parameter in trainable(model)]
        own: Sequence[Tensor | None] = moments or [None for _ in rows]
        added = zip(rows, own, strict=True)
        rows_of = {id(p): both for p, both in zip(self._parameters, added, strict=True)}
        self._calls: list[tuple[nn.Module, Tensor, Tensor]] = []
        """Layer, input and output of each call in a pass."""
        self._own: dict[nn.Module, list[tuple[str, Tensor, Tensor | None]]] = {}
        """Roles of a layer's trained parameters, and their rows, of moments too."""
        for layer in filter(has_closed_form, model.modules()):
            named = [(role, id(p)) for role, p in layer.named_parameters(recurse=False)]
            self._own[layer] = [(role, *rows_of[p]) for role, p in named if p in rows_of]

    def _saw(self, layer: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        if not output.requires_grad:
            output.requires_grad_()
        self._calls.append((layer, given[0].detach(), output))

    def add(self, losses_of: Callable[[], Tensor]) -> Tensor:
        """Add each worker's gradient of its losses' sum, and its moments, to its rows. `losses_of`
        is the forward pass, and gives each sample's loss, `[workers * batch]`, which is returned as
        `[workers, batch]`."""
        handles = [layer.register_forward_hook(self._saw) for layer in self._own]
        try:
            for parameter in self._parameters:
                parameter.requires_grad_(False)
            losses = losses_of()
            outputs = [output for _, _, output in self._calls]
            found = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
            for (layer, given, _), gradient in zip(self._calls, found, strict=True):
                for role, rows, moments in self._own[layer] if gradient is not None else ():
                    rows.add_(_gradient(layer, role, given, gradient, self._workers))
                    own = zip(
                        given.chunk(self._workers), gradient.chunk(self._workers), strict=True
                    )
                    for row, part in zip(moments, own, strict=True) if moments is not None else ():
                        row.add_(moment(layer, role, *part))
        finally:
            self._calls.clear()
            for handle in handles:
                handle.remove()
            for parameter in self._parameters:
                parameter.requires_grad_()
        return losses.detach().view(self._workers, -1)


def agrees(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether gradients `[workers, *shape]`, by parameter, are the same to rounding."""
    rounding = _ROUNDING * float(torch.stack([each.norm() for each in expected]).norm())
    return all(
        float((ours - other).norm()) <= _CLOSE * float(other.norm()) + rounding
        for ours, other in zip(found, expected, strict=True)
    )


def _gradient(layer: nn.Module, role: str, given: Tensor, gradient: Tensor, workers: int) -> Tensor:
    """A parameter's gradient `[workers, *shape]`, from the layer's input `[samples, …]` and the
    gradient at its output `[samples, …]`."""
    from torch.nn.grad import conv2d_weight

    if isinstance(layer, torch.nn.Embedding):
        return _embedding(layer, given, gradient, workers)
    if role == "bias" or is_norm(layer):
        terms = channels_last(layer, gradient)
        terms = terms if role == "bias" else terms * sequence_normalised(layer, given)
        return terms.reshape(workers, -1, *layer.get_parameter(role).shape).sum(1)
    if isinstance(layer, torch.nn.Conv2d):
        shape, form = (
            layer.weight.shape,
            (layer.stride, layer.padding, layer.dilation, layer.groups),
        )
        parts = zip(given.chunk(workers), gradient.chunk(workers), strict=True)
        weight_of: Any = conv2d_weight
        return torch.stack([weight_of(one, shape, delta, *form) for one, delta in parts])
    deltas = gradient.reshape(workers, -1, gradient.shape[-1])  # [workers, places, out]
    return deltas.transpose(1, 2) @ given.reshape(workers, -1, given.shape[-1])


def _embedding(layer: nn.Embedding, tokens: Tensor, gradient: Tensor, workers: int) -> Tensor:
    classes, width = layer.weight.shape
    first = classes * torch.arange(workers, device=tokens.device)[:, None]
    rows = (tokens.reshape(workers, -1) + first).flatten()  # of the tables behind each other
    tables: Tensor = torch.ops.aten.embedding_dense_backward(
        gradient.reshape(-1, width), rows, workers * classes, -1, False
    )
    found = tables.view(workers, classes, width)
    if layer.padding_idx is not None:
        found[:, layer.padding_idx] = 0
    return found
