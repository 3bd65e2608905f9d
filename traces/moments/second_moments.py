"""How much do a mini-batch's gradients scatter? Exact second moments over its samples.

For each parameter, sum_z (g_z / B)^2 over the B samples z of the mini-batch, element by element,
from one forward and backward pass of the whole batch. The variance-based compressor needs it
(Tsuzuku et al., ICLR 2018 workshop, "Variance-based gradient compression", Algorithm 1).

With the loss sum_z l_z / B, the gradient at a layer's output holds delta_z / B for each sample,
so nothing is divided here.

- Linear on `[B, in]`: g_z = delta_z a_z^T has rank one, hence sum_z g_z^2 = (delta^2)^T (a^2):
  one matrix product, no per-sample gradient in memory. I. Goodfellow, "Efficient per-example
  gradient computations", arXiv:1510.01799.
- Conv2d: g_z = delta_z unfold(a_z)^T, some samples at a time; Linear on `[B, …, in]` likewise.
- Embeddings and layer normalisation: `moments/layers.py`.
- Batch normalisation (scale and shift): what each sample's own places add to the gradient.
- Every other parameter: one backward pass a sample through the same graph (the same dropout
  masks). Exact for any model, but B backward passes: slow.

Assumes that the batch is the first axis. Where samples meet in batch normalisation there is no
loss of one sample alone; g_z is then the sample's term of the sum that makes up the gradient at the
layer, delta_z a_z^T with the delta and the a of the whole batch. The terms add up to the gradient
as they do elsewhere. (The slow way has no such terms: a model that needs both is refused.)

A layer that is called more than once, or that shares its parameters with another, goes the slow
way. A weight that is also used outside its layer's call is found out, because the layer's samples
do not add up to its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, nn, torch
from gcsim.errors import InputError
from gcsim.traces.models.building import trainable
from gcsim.traces.moments.layers import adds_up, has_closed_form, moment, places_are_inside
from gcsim.traces.profile import Costs


class Metered(Protocol):
    """What a meter's context manager yields."""

    def costs(self) -> tuple[KernelCost, ...]:
        """The kernels that ran inside, by class."""


Segment = Callable[[], AbstractContextManager[Metered]]
"""Opens one metered stretch of computation, e.g. `gcsim.compressors.meter.segment`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Second moments of one mini-batch."""

    values: tuple[Tensor, ...]
    """For each trainable parameter sum_z (g_z / B)^2: float32, in the parameter's shape."""
    costs: dict[int, Costs]
    """By the parameter's number, the kernels spent on it; empty when nothing was metered. What
    the slow way costs stands at the first of its parameters, whose gradient is ready last."""


@dataclass(slots=True, eq=False)
class _Call:
    """What a layer saw in this pass."""

    given: Tensor | None
    """The input; None when the layer was called more than once or with other arguments."""
    output_gradient: Tensor | None = None


class SecondMoments:
    """Watches a model's layers through one forward and backward pass; see `second_moments`."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = trainable(model)
        self._numbers = {id(p): i for i, (_, p) in enumerate(self._parameters)}
        self._layers = self._closed_form_layers(model)
        self._meet = next((name for name, layer in model.named_modules() if _mixes(layer)), "")
        """Name of a layer in which samples meet."""
        self._calls: dict[int, _Call] = {}
        """By the layer's id."""
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
        """Start to keep what the layers take and what comes back to them."""
        for layer in self._layers:
            self._handles.append(layer.register_forward_hook(self._saw))

    def release(self) -> None:
        """Stop watching and let go of everything that was kept."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._calls.clear()
        self._losses = None
        self._following = False

    def _saw(self, layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        if not torch.is_grad_enabled():
            return  # nothing comes back from it
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
        """Backward pass of `losses.sum()`; `losses` `[B]` holds each sample's loss over B.

        The parameters' `grad` are those of this pass alone.
        """
        for _, parameter in self._parameters:
            parameter.grad = None
        self._losses = losses
        self._slow = self._without_closed_form(len(losses))
        if self._slow and self._meet:
            raise InputError(
                f"samples meet in {self._meet}, batch normalisation, and parameter "
                f"{self._parameters[self._slow[0]][0]} belongs to no layer whose samples can "
                "be told apart, so second moments over samples do not exist",
                place="model",
                hint="use group normalisation, or leave out the compressors that need them",
            )
        losses.sum().backward(retain_graph=bool(self._slow))  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        """Wait for one forward and backward pass that the caller runs; forget the one before."""
        self._calls.clear()
        self._following = True

    def followed(
        self,
        gradients: Sequence[Tensor],
        scale: float = 1.0,
        *,
        segment: Segment | None = None,
        check: bool = True,
    ) -> Moments:
        """The second moments of the pass after `follow`, whose loss was a sum over samples.

        `gradients` are those of the pass by parameter, on any device, divided by `scale`: what the
        samples must add up to, where `check` is asked for. Raises `InputError` that names a
        parameter without a closed form.
        """
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
        values, costs = self._closed_forms(segment, whole)
        return Moments(values=tuple(v for v in values if v is not None), costs=costs)

    def _without_closed_form(self, batch: int) -> list[int]:
        """Parameters of layers that did not see the whole batch once."""
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
        if not places_are_inside(layer, call.given):
            return False
        return call.given.dim() == 4 if isinstance(layer, torch.nn.Conv2d) else call.given.dim() > 1

    def accumulate(self, segment: Segment | None = None, *, check: bool = True) -> Moments:
        """The second moments, after `backward`; all the extra arithmetic happens here.

        `segment` is entered around each parameter's part. With `check` (which costs about a tenth
        and is enough once for a model) raises `InputError` when a weight is also used outside
        its layer.
        """
        assert self._losses is not None
        whole = [parameter.grad for _, parameter in self._parameters] if check else None
        values, costs = self._closed_forms(segment, whole)
        if self._slow:
            with _metered(segment, self._slow[0], costs):
                for number, value in zip(self._slow, self._sample_by_sample(), strict=True):
                    values[number] = value
        return Moments(values=tuple(v for v in values if v is not None), costs=costs)

    def _closed_forms(
        self, segment: Segment | None, whole: Sequence[Tensor | None] | None
    ) -> tuple[list[Tensor | None], dict[int, Costs]]:
        """By parameter, where its layer has one; checked against `whole`, the gradients."""
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
                    with _metered(segment, number, costs):
                        values[number] = moment(layer, role, call.given, call.output_gradient)
                    if whole is not None:
                        self._check_alone(number, layer, role, call, whole[number])
        return values, costs

    def _check_alone(
        self, number: int, layer: nn.Module, role: str, call: _Call, gradient: Tensor | None
    ) -> None:
        if call.given is None or call.output_gradient is None or gradient is None:
            return
        if not adds_up(
            layer, role, call.given, call.output_gradient, gradient.to(call.given.device)
        ):
            raise InputError(
                "its samples' gradients do not add up to its gradient: it is also "
                "used outside its own layer's call, so second moments cannot be told",
                place=f"parameter {self._parameters[number][0]}",
                hint="leave out the compressors that need second moments",
            )

    def _sample_by_sample(self) -> list[Tensor]:
        """The slow way: one backward pass a sample, through the graph that was kept."""
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

    `backward` raises `InputError` for a model whose samples meet in batch normalisation and that
    has parameters outside the layers with a closed form.
    """
    watched = SecondMoments(model)
    watched.watch()
    try:
        yield watched
    finally:
        watched.release()


def _mixes(layer: nn.Module) -> bool:
    return isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.training


@contextmanager
def _metered(segment: Segment | None, number: int, costs: dict[int, Costs]) -> Iterator[None]:
    with segment() if segment is not None else nullcontext() as meter:
        yield
    if meter is not None:
        costs[number] = meter.costs()
