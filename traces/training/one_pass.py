"""Gradients of all workers from a single forward and backward pass of all their batches.

N passes of a small model launch N times as many small kernels. If workers' weights are equal, one
pass processes all their samples, worker after worker, and stops at the layers' outputs; each
worker's gradient of a layer's parameters follows from its samples' inputs and output gradients:

- Linear: one batched matrix product; Conv2d: one weight gradient per worker.
- Embedding: one gradient of `workers` consecutive tables.
- Layer and root-mean-square normalisation, biases: sums over the worker's samples.
- Second moments: the layer's closed form on the worker's part.

Float32 sums have another order than in separate passes, so gradients agree up to rounding. Other
layers, and batch normalisation, which mixes samples, have no such form (`fits`). A comparison with
separate passes (`agrees`) excludes models that use parameters outside these layers, mix samples, or
draw random numbers (dropout).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gcsim.compressors.lazy_torch import Tensor, nn, torch
from gcsim.traces.models.building import trainable
from gcsim.traces.moments import channels_last, has_closed_form, is_norm, moment, normalised

_CLOSE = 1e-3
"""Largest accepted relative deviation of a parameter's gradient; rounding causes about 1e-6."""
_ROUNDING = 1e-6
"""The same relative to the norm of the whole gradient, for parameters whose gradient is 0."""


def fits(model: nn.Module) -> bool:
    """Whether all trained parameters belong to layers with a form per worker, and the model has no
    other state, such as that of batch normalisation."""
    layers = [layer for layer in model.modules() if has_closed_form(layer)]
    own = {id(p) for layer in layers for p in layer.parameters(recurse=False)}
    return all(id(p) in own for _, p in trainable(model)) and not list(model.buffers())


class OnePass:
    """A single pass of a model for all workers."""

    def __init__(
        self, model: nn.Module, rows: Sequence[Tensor], moments: Sequence[Tensor] | None = None
    ) -> None:
        """Prepare the pass; `rows` receive the gradients, by trained parameter: `[workers,
        *shape]`, `moments` the samples' second moments (`traces/moments.py`)."""
        self._workers = len(rows[0])
        self._parameters = [parameter for _, parameter in trainable(model)]
        own: Sequence[Tensor | None] = moments or [None for _ in rows]
        added = zip(rows, own, strict=True)
        rows_of = {id(p): both for p, both in zip(self._parameters, added, strict=True)}
        self._calls: list[tuple[nn.Module, Tensor, Tensor]] = []
        """Layer, input and output of each call in the pass."""
        self._own: dict[nn.Module, list[tuple[str, Tensor, Tensor | None]]] = {}
        """Roles of trained parameters and their rows, also of moments, by layer."""
        for layer in filter(has_closed_form, model.modules()):
            named = [(role, id(p)) for role, p in layer.named_parameters(recurse=False)]
            self._own[layer] = [(role, *rows_of[p]) for role, p in named if p in rows_of]

    def _saw(self, layer: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        if not output.requires_grad:
            output.requires_grad_()
        self._calls.append((layer, given[0].detach(), output))

    def add(self, losses_of: Callable[[], Tensor]) -> Tensor:
        """Add each worker's gradient of its losses' sum, and its moments, to its rows. `losses_of`
        runs the forward pass and returns each sample's loss, `[workers * batch]`; return it as
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
    """Whether gradients `[workers, *shape]`, by parameter, are equal up to rounding."""
    rounding = _ROUNDING * float(torch.stack([each.norm() for each in expected]).norm())
    return all(
        float((ours - other).norm()) <= _CLOSE * float(other.norm()) + rounding
        for ours, other in zip(found, expected, strict=True)
    )


def _gradient(layer: nn.Module, role: str, given: Tensor, gradient: Tensor, workers: int) -> Tensor:
    """Return a parameter's gradient `[workers, *shape]`, given the layer's input `[samples, …]` and
    the gradient at its output `[samples, …]`."""
    from torch.nn.grad import conv2d_weight

    if isinstance(layer, torch.nn.Embedding):
        return _embedding(layer, given, gradient, workers)
    if role == "bias" or is_norm(layer):
        terms = channels_last(layer, gradient)
        terms = terms if role == "bias" else terms * normalised(layer, given)
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
    rows = (tokens.reshape(workers, -1) + first).flatten()  # rows of consecutive tables
    tables: Tensor = torch.ops.aten.embedding_dense_backward(
        gradient.reshape(-1, width), rows, workers * classes, -1, False
    )
    found = tables.view(workers, classes, width)
    if layer.padding_idx is not None:
        found[:, layer.padding_idx] = 0
    return found
