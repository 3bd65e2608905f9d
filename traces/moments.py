"""Exact second moments of the gradients over the samples of a mini-batch.

For each parameter, sum_z (g_z / B)^2 over the B samples z of the mini-batch, element by element,
from one forward and backward pass of the whole batch, for the variance-based compressor (Tsuzuku et
al., ICLR 2018 workshop, "Variance-based gradient compression", Algorithm 1). With the loss sum_z
l_z / B, the gradient at a layer's output holds delta_z / B for each sample, so nothing is divided
here. a is the layer's input, delta the gradient at its output; both have the batch first.

- Linear on `[B, in]`: g_z = delta_z a_z^T has rank one, hence sum_z g_z^2 = (delta^2)^T (a^2): one
  matrix product, no per-sample gradient in memory (I. Goodfellow, "Efficient per-example gradient
  computations", arXiv:1510.01799).
- Conv2d: g_z = delta_z unfold(a_z)^T, some samples at a time, within `_LIMIT` bytes; Linear on
  `[B, …, in]` likewise.
- Batch normalisation (scale and shift): each sample's own places' part of the gradient.
- Embedding: sample z adds delta at each of its places to the row of the token there, so g_z has at
  most as many rows as the sample has places. Rows are summed for each pair of sample and token,
  squared, and added up over the samples; never more than one row a place exists.
- Layer and root-mean-square normalisation: scale and shift have g_z = sum over the places of
  delta_z times the normalised input, and of delta_z.
- Every other parameter: one backward pass a sample through the same graph (the same dropout masks).
  Exact for any model, but B backward passes: slow.

Assumes that the batch is the first axis. If batch normalisation mixes samples, a single sample has
no loss; g_z is then its term in the sum that makes up the layer's gradient, delta_z a_z^T with
delta and a of the whole batch. (The slow way has no such terms: a model that needs both is
refused.)

A layer that is called more than once or shares its parameters with another uses the slow way. A
weight that is also used outside its layer is detected: the samples do not add up to its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from gcsim.compressors import meter
from gcsim.compressors.lazy_torch import Tensor, nn, torch
from gcsim.errors import InputError
from gcsim.traces.models.building import trainable
from gcsim.traces.profile import Costs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Second moments of one mini-batch."""

    values: tuple[Tensor, ...]
    """For each trainable parameter sum_z (g_z / B)^2: float32, in the parameter's shape."""
    costs: dict[int, Costs]
    """Kernels used for each parameter, by index; empty if not metered. The cost of the slow way is
    assigned to the first of its parameters, whose gradient is ready last."""


@dataclass(slots=True, eq=False)
class _Call:
    given: Tensor | None
    """Input of the layer; None if it was called more than once or with other arguments."""
    output_gradient: Tensor | None = None


class SecondMoments:
    """Watches a model's layers during one forward and backward pass; see `second_moments`."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = trainable(model)
        self._numbers = {id(p): i for i, (_, p) in enumerate(self._parameters)}
        self._layers = self._closed_form_layers(model)
        self._meet = next(
            (
                name
                for name, layer in model.named_modules()
                if (isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.training)
            ),
            "",
        )
        """Name of a layer that mixes samples."""
        self._calls: dict[int, _Call] = {}
        """Calls by the layer's id."""
        self._losses: Tensor | None = None
        self._following = False
        self._slow: list[int] = []
        self._handles: list[Any] = []

    def _closed_form_layers(self, model: nn.Module) -> list[nn.Module]:
        owners: dict[int, int] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        return [
            module
            for module in model.modules()
            if has_closed_form(module)
            and all(owners[id(p)] == 1 for p in module.parameters(recurse=False))
        ]

    def watch(self) -> None:
        """Start recording the layers' inputs and output gradients."""
        for layer in self._layers:
            self._handles.append(layer.register_forward_hook(self._saw))

    def release(self) -> None:
        """Stop watching and drop all that was recorded."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._calls.clear()
        self._losses = None
        self._following = False

    def _saw(self, layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        if not torch.is_grad_enabled():
            return  # no gradient will return
        earlier = self._calls.get(id(layer))
        if earlier is not None or len(given) != 1:
            self._calls[id(layer)] = _Call(given=None)
            return
        call = self._calls[id(layer)] = _Call(given=given[0].detach())

        def came_back(gradient: Tensor) -> None:
            waited_for = self._following or self._losses is not None
            if waited_for and call.output_gradient is None:
                call.output_gradient = gradient

        if output.requires_grad:
            output.register_hook(came_back)

    def backward(self, losses: Tensor) -> None:
        """Run the backward pass of `losses.sum()`, where `losses` `[B]` has each sample's loss
        divided by B. The parameters' `grad` comes from this pass alone."""
        for _, parameter in self._parameters:
            parameter.grad = None
        self._losses = losses
        self._slow = self._without_closed_form(len(losses))
        if self._slow and self._meet:
            raise InputError(
                f"samples mix in {self._meet}, batch normalisation, and parameter "
                f"{self._parameters[self._slow[0]][0]} belongs to no layer whose samples can "
                "be told apart, so second moments over samples do not exist",
                place="model",
                hint="use group normalisation, or leave out the compressors that need them",
            )
        losses.sum().backward(retain_graph=bool(self._slow))  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        """Wait for one forward and backward pass by the caller; forget the previous one."""
        if not self._handles:
            self.watch()
        self._calls.clear()
        self._following = True

    def followed(
        self,
        gradients: Sequence[Tensor],
        scale: float = 1.0,
        *,
        metered: bool = False,
        check: bool = True,
    ) -> Moments:
        """Return the second moments of the pass after `follow`, whose loss was a sum over samples.
        `gradients` are those of the pass by parameter, on any device, divided by `scale`; `check`
        compares the samples' sums with them. Raises `InputError` that names a parameter without a
        closed form."""
        inputs = [call.given for call in self._calls.values() if call.given is not None]
        batch = max((len(given) for given in inputs), default=0)
        slow = self._without_closed_form(batch)
        if slow:
            raise InputError(
                "belongs to no layer whose samples can be told apart in one backward "
                "pass: the layer has no closed form, or was not called exactly once",
                place=f"parameter {self._parameters[slow[0]][0]}",
                hint="record without second moments, and leave out the compressors that need them",
            )
        whole = [gradient * scale for gradient in gradients] if check else None
        values, costs = self._closed_forms(metered, whole)
        return Moments(values=tuple(v for v in values if v is not None), costs=costs)

    def _without_closed_form(self, batch: int) -> list[int]:
        """Return the parameters of layers that did not see the whole batch exactly once."""
        covered = {
            self._numbers[id(parameter)]
            for layer in self._layers
            if self._is_usable(layer, batch)
            for parameter in layer.parameters(recurse=False)
            if parameter.requires_grad
        }
        return [i for i in range(len(self._parameters)) if i not in covered]

    def _is_usable(self, layer: nn.Module, batch: int) -> bool:
        call = self._calls.get(id(layer))
        if call is None or call.given is None or call.given.shape[0] != batch:
            return False
        if not _places_are_inside(layer, call.given):
            return False
        return call.given.dim() == 4 if isinstance(layer, torch.nn.Conv2d) else call.given.dim() > 1

    def accumulate(self, *, metered: bool = False, check: bool = True) -> Moments:
        """Return the second moments after `backward`, and with `metered` their kernels. With
        `check` (about a tenth of the time; once per model is enough) raises `InputError` if a
        weight is also used outside its layer."""
        assert self._losses is not None
        whole = [parameter.grad for _, parameter in self._parameters] if check else None
        values, costs = self._closed_forms(metered, whole)
        if self._slow:
            with _metered(metered, self._slow[0], costs):
                for number, value in zip(self._slow, self._sample_by_sample(), strict=True):
                    values[number] = value
        return Moments(values=tuple(v for v in values if v is not None), costs=costs)

    def _closed_forms(
        self, metered: bool, whole: Sequence[Tensor | None] | None
    ) -> tuple[list[Tensor | None], dict[int, Costs]]:
        """Return the second moments of each parameter whose layer has a closed form, checked
        against `whole`, the gradients."""
        values: list[Tensor | None] = [None] * len(self._parameters)
        costs: dict[int, Costs] = {}
        with torch.no_grad():
            for layer in self._layers:
                call = self._calls.get(id(layer))
                for role, parameter in layer.named_parameters(recurse=False):
                    number = self._numbers.get(id(parameter))
                    if number is None or number in self._slow:
                        continue
                    assert call is not None
                    assert call.given is not None
                    with _metered(metered, number, costs):
                        values[number] = moment(layer, role, call.given, call.output_gradient)
                    if whole is not None:
                        self._check_alone(number, layer, role, call, whole[number])
        return values, costs

    def _check_alone(
        self, number: int, layer: nn.Module, role: str, call: _Call, gradient: Tensor | None
    ) -> None:
        if call.given is None or call.output_gradient is None or gradient is None:
            return
        if not _adds_up(
            layer, role, call.given, call.output_gradient, gradient.to(call.given.device)
        ):
            raise InputError(
                "its samples' gradients do not add up to its gradient: it is also "
                "used outside its own layer's call, so second moments cannot be told",
                place=f"parameter {self._parameters[number][0]}",
                hint="leave out the compressors that need second moments",
            )

    def _sample_by_sample(self) -> list[Tensor]:
        """Run the slow way: one backward pass per sample, through the kept graph."""
        assert self._losses is not None
        parameters = [self._parameters[number][1] for number in self._slow]
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        for loss in self._losses:
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            for total, gradient in zip(sums, gradients, strict=True):
                if gradient is not None:
                    total.addcmul_(gradient, gradient)
        return sums


@contextmanager
def second_moments(model: nn.Module) -> Iterator[SecondMoments]:
    """Watch one forward and backward pass of `model`.

        with second_moments(model) as watched:
            losses = cross_entropy(model(images), labels, reduction="none") / len(images)
            watched.backward(losses)
            moments = watched.accumulate()

    `backward` raises `InputError` if batch normalisation mixes samples and a parameter has no
    closed form.
    """
    watched = SecondMoments(model)
    watched.watch()
    try:
        yield watched
    finally:
        watched.release()


@contextmanager
def _metered(wanted: bool, number: int, costs: dict[int, Costs]) -> Iterator[None]:
    with meter.segment() if wanted else nullcontext() as recorder:
        yield
    if recorder is not None:
        costs[number] = recorder.costs()


_LIMIT = 64 * 1024 * 1024
"""Most bytes of per-sample intermediates that exist at once."""


def has_closed_form(layer: nn.Module) -> bool:
    """Whether `layer` is exactly torch's Linear, Conv2d, a normalisation (of one process) or an
    embedding, with its own weight and bias; not an embedding that changes its weight during the
    pass (`max_norm`), or whose gradient is scaled over the batch or sparse."""
    own = {name for name, _ in layer.named_parameters(recurse=False)}
    if "weight" not in own or not own <= {"weight", "bias"}:  # weight norm, parametrisations
        return False
    if type(layer) is torch.nn.Conv2d:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is torch.nn.Embedding:
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return type(layer) is torch.nn.Linear or _is_batch_norm(layer) or is_norm(layer)


def _is_batch_norm(layer: nn.Module) -> bool:
    """Whether this layer mixes samples in a known way."""
    return type(layer) in {torch.nn.BatchNorm1d, torch.nn.BatchNorm2d}


def moment(layer: nn.Module, role: str, given: Tensor, gradient: Tensor | None) -> Tensor:
    """Return the second moment of the layer's weight or bias (`role`), in its shape."""
    if gradient is None:  # the loss does not depend on this layer's output
        return torch.zeros_like(layer.get_parameter(role))
    if isinstance(layer, torch.nn.Embedding):
        return _embedding_moment(layer, given, gradient)
    if role == "bias" or is_norm(layer) or _is_batch_norm(layer):
        return _samples(layer, role, given, gradient).square().sum(0)
    if isinstance(layer, torch.nn.Conv2d):
        return _conv2d_moment(layer, given, gradient)
    return _linear_moment(given, gradient)


def _adds_up(layer: nn.Module, role: str, given: Tensor, gradient: Tensor, found: Tensor) -> bool:
    """Whether the samples' gradients at this layer add up to the parameter's gradient `found`;
    compares sums over the outputs (of a group), at the cost of one output."""
    from torch.nn.grad import conv2d_weight

    scale = float(gradient.abs().sum())
    if isinstance(layer, torch.nn.Embedding):
        expected = gradient.new_zeros(layer.num_embeddings)
        expected.index_add_(0, given.flatten(), gradient.sum(-1).flatten())
        if layer.padding_idx is not None:
            expected[layer.padding_idx] = 0
        found = found.sum(1)
    elif role == "bias" or is_norm(layer) or _is_batch_norm(layer):
        expected = _samples(layer, role, given, gradient).sum(0)
        scale *= 1.0 if role == "bias" else float(normalised(layer, given).abs().max())
    elif isinstance(layer, torch.nn.Conv2d):
        batch, outputs, *places = gradient.shape
        summed = gradient.view(batch, layer.groups, outputs // layer.groups, *places).sum(2)
        expected = conv2d_weight(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            given,
            (layer.groups, *layer.weight.shape[1:]),
            summed,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
        )
        found = found.view(layer.groups, -1, *layer.weight.shape[1:]).sum(1)
        scale *= float(given.abs().max())
    else:
        expected = gradient.flatten(0, -2).sum(1) @ given.flatten(0, -2)
        found = found.sum(0)
        scale *= float(given.abs().max())
    return float((expected - found).abs().max()) <= 1e-5 * scale


def channels_last(layer: nn.Module, gradient: Tensor) -> Tensor:
    """Return the gradient as `[B, …, out]`."""
    second = isinstance(layer, torch.nn.Conv2d) or _is_batch_norm(layer)
    return gradient.movedim(1, -1) if second else gradient


def normalised(layer: nn.Module, given: Tensor) -> Tensor:
    """Return the input that the layer scales and shifts; of a batch normalisation over this batch,
    or in a frozen layer with its stored statistics."""
    if isinstance(layer, torch.nn.LayerNorm):
        shape = list(layer.normalized_shape)
        return torch.nn.functional.layer_norm(given, shape, eps=layer.eps)
    if not isinstance(layer, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
        assert isinstance(layer, torch.nn.RMSNorm)
        return torch.nn.functional.rms_norm(given, list(layer.normalized_shape), eps=layer.eps)
    frozen = not layer.training and layer.running_mean is not None
    mean, variance = (layer.running_mean, layer.running_var) if frozen else (None, None)
    return torch.nn.functional.batch_norm(given, mean, variance, training=not frozen, eps=layer.eps)


def _linear_moment(given: Tensor, gradient: Tensor) -> Tensor:
    """Return `[out, in]` from input `[B, …, in]` and output gradient `[B, …, out]`."""
    if given.dim() == 2:
        return gradient.square().t() @ given.square()
    given, gradient = given.flatten(1, -2), gradient.flatten(1, -2)  # [B, places, features]
    elements = given.shape[-1] * gradient.shape[-1]
    result = given.new_zeros(gradient.shape[-1], given.shape[-1])
    for some in _portions(len(given), elements):
        per_sample = gradient[some].transpose(1, 2) @ given[some]  # [b, out, in]
        result += per_sample.square_().sum(0)
    return result


def _conv2d_moment(layer: nn.Conv2d, given: Tensor, gradient: Tensor) -> Tensor:
    """Return `[out, in/groups, h, w]` from input `[B, in, H, W]` and output gradient `[B, out, H',
    W']`: a sample's gradient is delta_z `[out/groups, places]` times unfold(a_z)^T `[places,
    in/groups * h * w]`, by group."""
    weight, groups, padding = layer.weight, layer.groups, layer.padding
    assert not isinstance(padding, str)  # `has_closed_form` excludes such layers
    columns = weight[0].numel()
    places = gradient[0, 0].numel()
    result = weight.new_zeros(groups, weight.shape[0] // groups, columns)
    for some in _portions(len(given), groups * columns * places + weight.numel()):
        unfolded = torch.nn.functional.unfold(
            given[some],
            kernel_size=layer.kernel_size,
            dilation=layer.dilation,
            padding=padding,
            stride=layer.stride,
        )  # [b, in*h*w, places]
        unfolded = unfolded.view(-1, groups, columns, places)
        delta = gradient[some].reshape(-1, groups, weight.shape[0] // groups, places)
        per_sample = delta @ unfolded.transpose(2, 3)  # [b, groups, out/groups, columns]
        result += per_sample.square_().sum(0)
    return result.view(weight.shape)


def _portions(batch: int, elements: int) -> Iterator[slice]:
    """Yield slices of the batch with `elements` float32 per sample that fit the limit."""
    length = max(1, _LIMIT // (4 * elements))
    for start in range(0, batch, length):
        yield slice(start, start + length)


def _places_are_inside(layer: nn.Module, given: Tensor) -> bool:
    """Whether the first axis of the layer's input is only the batch, and not normalised."""
    if not is_norm(layer):
        return True
    assert isinstance(layer.normalized_shape, tuple)
    return given.dim() > len(layer.normalized_shape)


def _embedding_moment(layer: nn.Embedding, tokens: Tensor, gradient: Tensor) -> Tensor:
    """Return `[classes, width]` from tokens, int64 `[B, …]`, and the output's gradient `[B, …,
    width]`."""
    classes, width = layer.weight.shape
    sample = torch.arange(len(tokens), device=tokens.device)[:, None]
    numbers = (sample * classes + tokens.flatten(1)).flatten()
    pairs, pair = torch.unique(numbers, return_inverse=True)
    rows = gradient.new_zeros(len(pairs), width)
    rows.index_add_(0, pair, gradient.reshape(-1, width))
    result = gradient.new_zeros(classes, width)
    result.index_add_(0, pairs % classes, rows.square_())
    if layer.padding_idx is not None:
        result[layer.padding_idx] = 0
    return result


def _samples(layer: nn.Module, role: str, given: Tensor, gradient: Tensor) -> Tensor:
    """Return each sample's gradient of a bias, or of a normalisation's weight: `[B, *shape]`."""
    terms = gradient if role == "bias" else gradient * normalised(layer, given)
    terms = channels_last(layer, terms)
    places = terms.dim() - 1 - layer.get_parameter(role).dim()
    return terms.flatten(1, places).sum(1) if places else terms


def is_norm(layer: nn.Module) -> bool:
    """Whether a layer normalises each position separately."""
    root_mean_square = getattr(torch.nn, "RMSNorm", None)  # torch 2.4
    return type(layer) in {torch.nn.LayerNorm, root_mean_square}
