"""Shapes of an operator's outputs on the meta device, without computing them.

torch computes many of them in Python, with operators that are checked one by one (thirty for a
batch normalisation), and first loads its compiler: this takes a second, more than half of
ResNet-152's passes. This module has rules for the shipped models' operators; torch handles all
others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gcsim.compressors.meter_dispatch import UncompiledMode

_aten = torch.ops.aten
_broadcast: Callable[..., torch.Size] = torch.broadcast_shapes
_Rule = Callable[..., Any]
_NO_REDUCTION = 0
_WITHOUT_EFFECT = {"alpha", "approximate", "generator"}
"""Options that change neither shape nor dtype."""


def _itself(first: Tensor, *_: Any) -> Tensor:
    return first


def _as_the_first(first: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(first)


def _as_the_second(_: Tensor, second: Tensor, *__: Any) -> Tensor:
    return torch.empty_like(second)


def _together(first: Tensor, second: Tensor | float) -> Tensor:
    shape = _broadcast(first.shape, getattr(second, "shape", ()))
    return first.new_empty(shape, dtype=torch.result_type(first, second))


def _divided(values: Tensor, _: float) -> Tensor | None:
    return torch.empty_like(values) if values.is_floating_point() else None


def _where(condition: Tensor, one: Tensor, other: Tensor) -> Tensor:
    shape = _broadcast(condition.shape, one.shape, other.shape)
    return one.new_empty(shape, dtype=torch.result_type(one, other))


def _cat(parts: Sequence[Tensor], dimension: int = 0) -> Tensor | None:
    if len({part.dim() for part in parts}) > 1:
        return None  # there may be an empty vector among the others
    shape = list(parts[0].shape)
    shape[dimension] = sum(part.shape[dimension] for part in parts)
    return parts[0].new_empty(shape)


def _stack(parts: Sequence[Tensor], dimension: int = 0) -> Tensor:
    return parts[0].new_empty((len(parts), *parts[0].shape)).movedim(0, dimension)


def _mean(values: Tensor, dimensions: Sequence[int], keep: bool = False) -> Tensor:
    gone = [number % values.dim() for number in dimensions]
    shape = [1 if number in gone else length for number, length in enumerate(values.shape)]
    if not keep:
        shape = [length for number, length in enumerate(shape) if number not in gone]
    return values.new_empty(shape)


def _running_sum(values: Tensor, _: int) -> Tensor:
    return torch.empty_like(values, dtype=None if values.is_floating_point() else torch.int64)


def _product(_: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


def _batch_norm(values: Tensor, *_: Any) -> tuple[Tensor, ...]:
    """Return shapes for `[n, channels, ...]` and two statistics of `[channels]`."""
    return torch.empty_like(values), *(values.new_empty(values.shape[1]) for _ in range(2))


def _batch_norm_backward(_: Tensor, values: Tensor, *__: Any) -> tuple[Tensor, ...]:
    return _batch_norm(values)


def _layer_norm(values: Tensor, over: Sequence[int], *_: Any) -> tuple[Tensor, ...]:
    shape = [*values.shape[: -len(over)], *(1 for _ in over)]
    return torch.empty_like(values), values.new_empty(shape), values.new_empty(shape)


def _layer_norm_backward(
    _: Tensor, values: Tensor, over: Sequence[int], *__: Any
) -> tuple[Tensor, ...]:
    return torch.empty_like(values), values.new_empty(over), values.new_empty(over)


def _loss(
    logits: Tensor, labels: Tensor, _: Any, reduction: int, *__: Any
) -> tuple[Tensor, ...] | None:
    """Return shapes for `[n, classes, ...]` and labels `[n, ...]`, and the total weight."""
    if reduction != _NO_REDUCTION:
        return None
    return logits.new_empty(labels.shape), logits.new_empty(())


_RULES: dict[Any, _Rule] = {
    _aten.normal_.default: _itself,
    _aten.uniform_.default: _itself,
    _aten.hardtanh_.default: _itself,
    _aten.relu.default: _as_the_first,
    _aten.gelu.default: _as_the_first,
    _aten.tanh.default: _as_the_first,
    _aten.tril.default: _as_the_first,
    _aten._safe_softmax.default: _as_the_first,
    _aten._log_softmax.default: _as_the_first,
    _aten.threshold_backward.default: _as_the_first,
    _aten.hardtanh_backward.default: _as_the_first,
    _aten.gelu_backward.default: _as_the_first,
    _aten.tanh_backward.default: _as_the_first,
    _aten._softmax_backward_data.default: _as_the_first,
    _aten._log_softmax_backward_data.default: _as_the_first,
    _aten.nll_loss_backward.default: _as_the_second,
    _aten.nll_loss2d_backward.default: _as_the_second,
    _aten.add.Tensor: _together,
    _aten.sub.Tensor: _together,
    _aten.mul.Tensor: _together,
    _aten.mul.Scalar: _together,
    _aten.div.Scalar: _divided,
    _aten.where.self: _where,
    _aten.cat.default: _cat,
    _aten.stack.default: _stack,
    _aten.mean.dim: _mean,
    _aten.cumsum.default: _running_sum,
    _aten.addmm.default: _product,
    _aten.native_batch_norm.default: _batch_norm,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_layer_norm_backward.default: _layer_norm_backward,
    _aten.nll_loss_forward.default: _loss,
    _aten.nll_loss2d_forward.default: _loss,
}


def shapes_of(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Return an operator's results on the meta device; None if torch must compute them."""
    rule = _RULES.get(func)
    if rule is None or not options.keys() <= _WITHOUT_EFFECT:
        return None
    first = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
    return rule(*args) if first.is_meta else None


class ShapesOnly(UncompiledMode):
    """Passes on the meta device, with the same shapes and order of gradients as without it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        found = shapes_of(func, args, given)
        return func(*args, **given) if found is None else found
