"""Fitted tensors for the tensors of another model: by kind, size and place in the model.

A tensor that the fit has by name and shape is used as it is. Any other gets the distribution of the
nearest tensor of its kind, by the logs of rows and columns and by depth. All come from the most
similar recorded model, so that scales fit together; a kind that it lacks comes from another. A
worker's own noise has the variance of one sample over the batch size; the common part does not
depend on it (S. McCandlish et al., "An empirical model of large-batch training", arXiv:1812.06162,
section 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gcsim.errors import InputError, Problem
from gcsim.traces.synthetic.fit_file import Kind, ModelFit, TensorFit, matrix_shape

Parameters = Sequence[tuple[str, tuple[int, ...]]]

_EMBEDDINGS = ("embed", "wte", "wpe", "token")
_ALIKE: dict[Kind, tuple[Kind, ...]] = {
    "convolution": ("convolution", "linear"),
    "linear": ("linear", "convolution"),
    "embedding": ("embedding", "linear", "convolution"),
    "scale": ("scale", "shift", "bias"),
    "shift": ("shift", "bias", "scale"),
    "bias": ("bias", "shift", "scale"),
}
"""Kinds that can stand in for each, best first."""
_OTHER_KIND = 10.0
"""Distance added per substitute kind; a factor of e in a size is 1, the full depth is 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Distribution of a tensor's gradients."""

    fit: TensorFit
    model: ModelFit
    rms: float
    common: float
    exact: bool
    """Whether the fitted tensor is this very one."""


def kinds(parameters: Parameters) -> list[Kind]:
    """Return each tensor's kind, by shape, name and the tensor before it in its layer."""
    found: list[Kind] = []
    before: dict[str, Kind] = {}
    for name, shape in parameters:
        layer, _, role = name.rpartition(".")
        kind: Kind
        if len(shape) > 2:
            kind = "convolution"
        elif len(shape) == 2:
            named = any(word in name.lower() for word in _EMBEDDINGS)
            kind = "embedding" if named else "linear"
        elif role.endswith("bias"):
            kind = "shift" if before.get(layer) == "scale" else "bias"
        else:
            kind = "scale"
        before.setdefault(layer, kind)
        found.append(kind)
    return found


def depths(parameters: Parameters) -> list[float]:
    """Return relative depths: 0 for the first tensor, 1 for the last."""
    last = max(1, len(parameters) - 1)
    return [number / last for number in range(len(parameters))]


def mapped(
    fits: Sequence[ModelFit], model: str, parameters: Parameters, samples: int
) -> list[Mapped]:
    """Return the distribution of each tensor of `model`, trained with `samples` per worker. Raises
    `InputError` if a fit of this very model has a tensor of that name with another shape."""
    check_shapes(fits, model, parameters)
    by_kind = list(zip(parameters, kinds(parameters), depths(parameters), strict=True))
    own = next((fit for fit in fits if fit.model == model), None)
    named = {} if own is None else {tensor.name: tensor for tensor in own.tensors}
    first = own or min(fits, key=lambda fit: _distance_of_models(fit, by_kind))
    norm = _mean_norm(first)
    found = []
    for (name, shape), kind, depth in by_kind:
        if name in named and own is not None:
            fit, source = named[name], own
        else:
            fit, source = min(
                (
                    (tensor, source)
                    for source in fits
                    for tensor in source.tensors
                    if tensor.rms > 0
                ),
                key=lambda pair: (
                    _distance(pair[0], shape, kind, depth) + (0 if pair[1] is first else 4.0)
                ),
            )
        exact = name in named
        rms = fit.rms
        if not exact:
            # a layer's whole gradient is about as long, whatever the layer's size
            rms *= math.sqrt(fit.numel / math.prod(shape)) * norm / _mean_norm(source)
        ratio = source.samples_per_worker / samples
        noise = (1 - fit.common) * ratio
        found.append(
            Mapped(
                fit=fit,
                model=source,
                rms=rms * math.sqrt(fit.common + noise),
                common=fit.common / (fit.common + noise),
                exact=exact,
            )
        )
    return found


def check_shapes(fits: Sequence[ModelFit], model: str, parameters: Parameters) -> None:
    """Raise `InputError` if a fit of this very model has a tensor of the same name with another
    shape, or none of the same name."""
    fit = next((fit for fit in fits if fit.model == model), None)
    if fit is None:
        return
    shapes = {tensor.name: tuple(tensor.shape) for tensor in fit.tensors}
    if not any(name in shapes for name, _ in parameters):
        raise InputError(
            f"has no tensor of the fit of {fit.model!r}: it has {parameters[0][0]!r}, "
            f"the fit {fit.tensors[0].name!r}",
            place=f"model {model}",
            hint="give the model another name, or fit a recording of it",
        )
    problems = [
        Problem(
            place=f"tensor {name}",
            message=f"has shape {list(shape)}; in the fit of {fit.model!r} it has "
            f"{list(shapes[name])}: of another model?",
            hint="give the model another name, or fit a recording of it",
        )
        for name, shape in parameters
        if name in shapes and shapes[name] != tuple(shape)
    ]
    if problems:
        raise InputError(problems[:5])


def _distance_of_models(
    fit: ModelFit, tensors: Sequence[tuple[tuple[str, tuple[int, ...]], Kind, float]]
) -> float:
    """Return the mean distance to the nearest tensors, weighted by number of elements."""
    total = weights = 0.0
    for (_, shape), kind, depth in tensors:
        weight = math.prod(shape)
        total += weight * min(_distance(tensor, shape, kind, depth) for tensor in fit.tensors)
        weights += weight
    return total / weights


def _distance(fit: TensorFit, shape: tuple[int, ...], kind: Kind, depth: float) -> float:
    alike = _ALIKE[kind]
    away = alike.index(fit.kind) if fit.kind in alike else len(alike) + 2
    of_fit, of_shape = matrix_shape(fit.shape), matrix_shape(shape)
    sizes = sum(abs(math.log(a / b)) for a, b in zip(of_fit, of_shape, strict=True))
    return _OTHER_KIND * away + sizes + 2 * abs(fit.depth - depth)


def _mean_norm(fit: ModelFit) -> float:
    """Return the geometric mean of the lengths of the tensors' gradients."""
    lengths = [math.log(t.rms * math.sqrt(t.numel)) for t in fit.tensors if t.rms > 0]
    return math.exp(sum(lengths) / len(lengths)) if lengths else 1.0
