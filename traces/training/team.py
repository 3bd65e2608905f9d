"""One step of data-parallel training: N workers, one process, a compressor between them.

    batch of worker w ─► loss ─► gradient of w ─┐
    batch of worker v ─► loss ─► gradient of v ─┼─ lockstep, bucket by bucket ─► update ─► optimiser

The update replaces the mean gradient. Gradients are one flat vector per worker, in the order of
DDP's buckets, so a bucket is a slice of it; weights are one flat vector, with the model's
parameters as views. If a method's workers differ between synchronisations, each has its own weights
and optimiser, and the evaluated model is their mean. Each worker's batch statistics normalise its
own batch; the running ones are worker 0's, as with DDP's `broadcast_buffers`. Weights, gradients
and compressors are on the device. With several micro-batches per step, the loss is the mean over
all their samples, and one exchange follows.

If workers' weights are equal, all gradients of a small model come from one pass of all batches
(`one_pass.py`): the same as separate passes, up to the rounding of float32 sums.

Assumes float32. A step is a function of (seed, step), weights and state; on a GPU as far as torch's
kernels are deterministic. The optimisers (SGD, Adam, AdamW on one flat vector) are torch's
functional forms, with the same bits as its classes, which load torch's compiler in their first step
(2 s).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gcsim.compressors.base import Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.scans import all_finite
from gcsim.compressors.kernels import total
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.lockstep import (
    CollectiveRecord,
    Collectives,
    Reduction,
    in_rank_order,
    lockstep,
)
from gcsim.compressors.meter import Meter
from gcsim.compressors.mistakes import new_member
from gcsim.compressors.participation import participate
from gcsim.compressors.state import CannotBeKeptError
from gcsim.errors import InputError
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.live import deterministic, pick_device
from gcsim.traces.models.building import build_model, trainable, unmoved_buffers
from gcsim.traces.models.facts import model_facts
from gcsim.traces.models.losses import heads, sample_losses
from gcsim.traces.models.own_code import own_mistakes
from gcsim.traces.models.ready_order import noted_order, whole_order
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.models.torch_generator import keyed_generator
from gcsim.traces.moments import Moments, second_moments
from gcsim.traces.profile import Compute, Costs, Exchange
from gcsim.traces.stage1.metered import metered_exchange
from gcsim.traces.stage1.quality import ErrorMeter, ErrorMetrics
from gcsim.traces.tasks.split import Indices, Samples, Split
from gcsim.traces.training import checkpoint, one_pass
from gcsim.traces.training.plan import Optimizer, Partition
from gcsim.traces.training.shares import Shares

_EVALUATED = 256
"""Samples per forward pass of an evaluation."""
_AT_ONCE = 1 << 29
"""Most FLOPs of a worker's forward pass that is joined with the others': a larger one keeps a core
busy by itself, and joining would keep the inputs of all workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """The compression method of a training."""

    kind: str
    compressor: type[Compressor]
    parameters: CompressorParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of a step."""

    loss: float
    """Mean loss over workers, at the weights before the step."""
    finite: bool
    """Whether all gradients were finite; else nothing was exchanged."""
    collectives: tuple[tuple[CollectiveRecord, ...], ...] = ()
    """Collectives, by bucket."""
    exchanges: tuple[Exchange, ...] = ()
    """Exchanges with their kernels, by bucket, if the step was metered."""
    error: ErrorMetrics | None = None
    """Error of the update against the mean gradient, if the step was metered."""


class Team:
    """N workers and the model that they train."""

    def __init__(
        self,
        entry: ModelEntry,
        split: Split,
        method: Method,
        *,
        workers: int,
        batch: int,
        optimizer: Optimizer,
        limits: tuple[int, int],
        seed: int,
        partition: Partition,
        accumulation: int = 1,
        reduction: Reduction = in_rank_order,
        device: str = "cpu",
        at_once: bool = True,
        clip: float | None = None,
        autocast: bool = False,
    ) -> None:
        """Set up the training. `batch` is the number of samples in a micro-batch, `accumulation`
        the number of micro-batches per step. `limits` are DDP's bucket limits in bytes: first
        bucket, others; `device` as in `pick_device`; without `at_once`, or with `autocast`
        (products in bfloat16, weights and gradients in float32), each worker has a separate pass.
        `clip` is the largest norm of a worker's gradient per step; None: unlimited. Raises
        `InputError` for an untrainable model or data."""
        self._entry, self._split, self._method, self._seed = entry, split, method, seed
        self._reduction = reduction
        self._micro_batches, self._samples = accumulation, batch * accumulation
        self._shares = Shares(
            split.train, workers=workers, batch=batch, seed=seed, partition=partition,
            accumulation=accumulation,
        )  # fmt: skip
        self._needs_moments = "second_moments" in method.compressor.requires
        self._clip, self._autocast = clip, autocast
        self._device = torch.device(pick_device(device))
        self._model = build_model(entry, seed=seed, device=self._device.type)
        self.facts = model_facts(entry, self._model, batch)
        self._parameters = [parameter for _, parameter in trainable(self._model)]
        order = self._ready_order()
        named = [(name, tuple(p.shape)) for name, p in trainable(self._model)]
        self.layouts = bucket_layouts(named, order, first=limits[0], cap=limits[1])
        self._pieces = [piece for layout in self.layouts for piece in layout.slices]
        elements = sum(layout.numel for layout in self.layouts)
        self._rows = torch.zeros(workers, elements, device=self._device)
        """Rows to which backward passes write gradients, by worker."""
        self._views = [self._cut(flat) for flat in self._rows]
        self._moment_costs: dict[int, Costs] = {}
        """Kernels of second moments by parameter, from the first pass only, as all are alike."""
        self._members = [
            [
                new_member(
                    method.compressor,
                    Worker(rank=rank, count=workers, seed=seed),
                    method.parameters,
                )
                for rank in range(workers)
            ]
            for _ in self.layouts
        ]
        alike = method.compressor.properties(method.parameters).replicas == "identical"
        live = torch.empty_like(self._rows[0])
        for view, parameter in zip(self._cut(live), self._parameters, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self._live = live
        self._replicas = [live] if alike else [live.clone() for _ in range(workers)]
        own = method.compressor.momentum(method.parameters)[0] > 0 or not alike
        self._optimizers = [_Stepper(optimizer, r, own_momentum=own) for r in self._replicas]
        small = self.facts.forward_flops * batch <= _AT_ONCE and workers > 1
        fitting = at_once and not autocast and small and alike and one_pass.fits(self._model)
        self._moments = torch.zeros_like(self._rows) if fitting and self._needs_moments else None
        self._one_pass = self._checked_pass() if fitting else None

    # --- the layout of flat vectors ---------------------------------------------------------------

    def _ready_order(self) -> tuple[int, ...]:
        """Return the order in which gradients of the first batch become ready; training repeats
        this pass."""
        inputs, labels = self._taken([0], 0)
        noted, unmoved = noted_order(self._parameters), unmoved_buffers(self._model)
        with noted as arrived, unmoved, torch.enable_grad():
            losses = self._loss(inputs, labels, rank=0, number=0)
            losses.sum().backward()  # type: ignore[no-untyped-call]  # torch's own
        for parameter in self._parameters:
            parameter.grad = None
        return whole_order(arrived, len(self._parameters))

    def _cut(self, flat: Tensor) -> list[Tensor]:
        """Return parts of flat vectors `[…, n]` by parameter, `[…, *shape]`, as views."""
        views: dict[int, Tensor] = {}
        start = 0
        for piece in self._pieces:
            part = flat[..., start : start + piece.numel]
            views[piece.index] = part.view(*flat.shape[:-1], *piece.shape)
            start += piece.numel
        return [views[index] for index in range(len(views))]

    # --- a step -----------------------------------------------------------------------------------

    def step(self, number: int, rate: float, *, metered: bool = False) -> Done:
        """Train one step at a learning rate; `metered` counts its kernels and judges its update.
        Raises `InputError` for faults in a user's compressor or model."""
        losses, moments = self._passes(number)
        loss = sum(losses) / len(losses)
        if not (math.isfinite(loss) and all_finite(self._rows.view(-1))):
            return Done(loss=loss, finite=False)
        with torch.no_grad():
            if self._clip is not None:
                self._clipped(self._clip, moments)
            updates, done = self._exchange(number, losses, moments, metered, rate)
            self._apply(updates, rate)
        return done

    def _clipped(self, most: float, moments: Sequence[Tensor | None]) -> None:
        """Scale each worker's gradient, and moments, to at most this norm, as torch does."""
        for views, moment in zip(self._views, moments, strict=True):
            for parameter, view in zip(self._parameters, views, strict=True):
                parameter.grad = view
            norm = torch.nn.utils.clip_grad_norm_(self._parameters, most)
            if moment is not None:
                moment.mul_((most / (norm + 1e-6)).clamp(max=1.0).square())

    def _passes(self, step: int) -> tuple[list[float], list[Tensor | None]]:
        """Return a step's losses and second moments, by worker; gradients are in the rows."""
        workers = range(len(self._rows))
        if self._one_pass is None:
            found = [self._pass(rank, step) for rank in workers]
            return [loss for loss, _ in found], [moment for _, moment in found]
        losses = self._at_once(self._one_pass, step)
        return losses, [None for _ in workers] if self._moments is None else [*self._moments]

    def _at_once(self, all_workers: one_pass.OnePass, step: int) -> list[float]:
        """Return a step's losses by worker, a pass per micro-batch; gradients are in the rows."""
        for rows in (self._rows, self._moments):
            if rows is not None:
                rows.zero_()
        total = torch.zeros(len(self._rows), device=self._device)
        for number in range(step * self._micro_batches, (step + 1) * self._micro_batches):
            inputs, labels = self._taken(range(len(self._rows)), number)
            with deterministic(self._device):
                losses = all_workers.add(
                    partial(self._loss, inputs, labels, rank=None, number=number)
                )
            total += losses.sum(1)
        found: list[float] = total.tolist()
        return found

    def _checked_pass(self) -> one_pass.OnePass | None:
        """Return the pass for all workers if its first step agrees with separate passes."""
        apart, by_rank = zip(*(self._pass(rank, 0) for rank in range(len(self._rows))), strict=True)
        rows, moments = self._cut(self._rows), None
        expected = [each.clone() for each in rows]
        if self._moments is not None:
            moments = self._cut(self._moments)
            of_moments = self._cut(torch.stack(by_rank))
        found = one_pass.OnePass(self._model, rows, moments)
        try:
            losses = self._at_once(found, 0)
        except Exception:  # a user's layers or loss may not accept several batches at once
            return None
        right = one_pass.agrees(rows, expected) and np.allclose(losses, apart, rtol=1e-4)
        right = right and (moments is None or one_pass.agrees(moments, of_moments))
        return found if right else None

    def _pass(self, rank: int, step: int) -> tuple[float, Tensor | None]:
        """Return loss and second moments of a worker's step; the gradient is summed in its row."""
        if len(self._replicas) > 1:
            self._live.copy_(self._replicas[rank])
        statistics = [(b, b.clone()) for b in self._model.buffers()] if rank else []
        self._rows[rank].zero_()
        first = step * self._micro_batches
        parts = [self._micro_batch(rank, first + part) for part in range(self._micro_batches)]
        for buffer, saved in statistics:
            buffer.copy_(saved)
        moments = [found for _, found in parts if found is not None]
        return sum(loss for loss, _ in parts), sum(moments[1:], moments[0]) if moments else None

    def _micro_batch(self, rank: int, number: int) -> tuple[float, Tensor | None]:
        """Run forward and backward of a worker's micro-batch, counted from 0 over the training."""
        inputs, labels = self._taken([rank], number)
        views = self._views[rank]
        watching: AbstractContextManager[Any] = (
            second_moments(self._model) if self._needs_moments else nullcontext()
        )
        for parameter, view in zip(self._parameters, views, strict=True):
            parameter.grad = view
        with watching as watched, deterministic(self._device):
            losses = self._loss(inputs, labels, rank=rank, number=number)
            if watched is None:
                losses.sum().backward()  # type: ignore[no-untyped-call]  # torch's own
                found = None
            else:
                watched.backward(losses)  # gives the parameters separate gradients
                found = watched.accumulate(metered=not self._moment_costs)
                for parameter, view in zip(self._parameters, views, strict=True):
                    assert parameter.grad is not None
                    view.add_(parameter.grad)
        return float(losses.detach().sum()), self._flat(found)

    def _flat(self, moments: Moments | None) -> Tensor | None:
        if moments is None:
            return None
        self._moment_costs = self._moment_costs or moments.costs
        return torch.cat([moments.values[piece.index].flatten() for piece in self._pieces])

    def _taken(self, ranks: Sequence[int], number: int) -> tuple[Tensor, Tensor]:
        """Return a micro-batch of some workers, concatenated."""
        chosen = np.concatenate([self._shares.indices(rank, number) for rank in ranks])
        inputs, labels = self._split.train.taken(chosen)
        return inputs.to(self._device), labels.to(self._device)

    def _loss(self, inputs: Tensor, labels: Tensor, *, rank: int | None, number: int) -> Tensor:
        """Return each sample's loss divided by the number of samples of a step, `[batch]`."""
        with (
            keyed_generator(self._seed, "dropout", step=number, rank=rank, device=self._device),
            own_mistakes(self._entry, self._model, "training"),
        ):
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
                losses = sample_losses(self._entry, self._model(inputs), labels)
            if self._needs_moments and losses.stride() == (0,):
                raise InputError(
                    f"{self._method.kind} needs each sample's loss, {self._entry.loss} gives one",
                    place="train.loss",
                    hint="return [batch], as torch's losses do with reduction='none'",
                )
            return losses / self._samples

    def _exchange(
        self, number: int, losses: Sequence[float], moments: Sequence[Tensor | None], metered: bool,
        rate: float,
    ) -> tuple[list[Tensor], Done]:  # fmt: skip
        """Exchange the gradients; return the update of each replica, float32 `[n]`."""
        records, exchanges, error = [], [], ErrorMetrics()
        updates = [torch.empty_like(self._rows[0]) for _ in self._replicas]
        start = 0
        for layout, members in zip(self.layouts, self._members, strict=True):
            part = slice(start, start + layout.numel)
            start += layout.numel
            buckets = [
                Bucket(
                    layout=layout,
                    gradient=gradient[part],
                    second_moment=None if moment is None else moment[part],
                    loss=loss,
                    rate=rate,
                )
                for gradient, moment, loss in zip(self._rows, moments, losses, strict=True)
            ]
            seen = Meter(len(members)) if metered else Collectives()
            found = lockstep(
                [
                    participate(member, bucket, number, finite=False, unmodified=False)
                    for member, bucket in zip(members, buckets, strict=True)
                ],
                seen,
                reduction=self._reduction,
                share=not metered,
            )
            records.append(tuple(seen.collectives))
            if isinstance(seen, Meter):
                exchanges.append(metered_exchange(seen, self._moments_of(layout)))
                ErrorMeter((0.0, False)).add(buckets, found, error)
            for update, own_update in zip(updates, found, strict=False):  # one replica: the first
                update[part] = own_update
        return updates, Done(
            loss=sum(losses) / len(losses),
            finite=True,
            collectives=tuple(records),
            exchanges=tuple(exchanges),
            error=error if metered else None,
        )

    def _apply(self, updates: Sequence[Tensor], rate: float) -> None:
        for optimizer, update in zip(self._optimizers, updates, strict=True):
            optimizer.step(update, rate)

    def _moments_of(self, layout: BucketLayout) -> Compute | None:
        """Return the cost of a bucket's second moments."""
        if not self._needs_moments:
            return None
        known = [self._moment_costs.get(piece.index, ()) for piece in layout.slices]
        return Compute(stage="moments", fixed=total(cost for costs in known for cost in costs))

    def phase(self, number: int) -> str:
        """Return the method's kind of step for a step."""
        return self._method.compressor.phase(self._method.parameters, number)

    @property
    def comparable(self) -> bool:
        """Whether an update should equal the mean gradient of its step."""
        own = self._method.compressor.momentum(self._method.parameters)[0] > 0
        return len(self._replicas) == 1 and not own

    # --- judging ----------------------------------------------------------------------------------

    def evaluate(self) -> tuple[float, float | None]:
        """Return loss and accuracy on the held-out samples; None if labels are not classes."""
        if len(self._replicas) > 1:
            self._live.copy_(torch.stack(self._replicas).mean(0))
        test: Samples = self._split.test
        self._model.eval()
        lost, right, labels_seen, classes = 0.0, 0, 0, True
        with torch.no_grad(), own_mistakes(self._entry, self._model, "evaluation"):
            for start in range(0, len(test), _EVALUATED):
                numbers: Indices = np.arange(start, min(start + _EVALUATED, len(test)))
                inputs, labels = (each.to(self._device) for each in test.taken(numbers))
                output = self._model(inputs)
                logits = heads(output)[0]
                judged = output if self._entry.loss else logits
                lost += float(sample_losses(self._entry, judged, labels).double().sum())
                if self._entry.input == "tokens" and logits.dim() == 2 and labels.dim() == 2:
                    labels = labels[:, -1]
                classes = logits.shape[:-1] == labels.shape and not labels.is_floating_point()
                if classes:
                    right += int((logits.argmax(-1) == labels).sum())
                    labels_seen += labels.numel()
        self._model.train()
        return lost / len(test), right / labels_seen if classes else None

    # --- contents of a checkpoint -----------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state that the next steps depend on, besides the team's arguments."""
        return {
            "replicas": self._replicas,
            "buffers": list(self._model.buffers()),
            "optimizers": [optimizer.state for optimizer in self._optimizers],
            "members": self._members,
        }

    def restore(self, kept: Any) -> None:
        """Set a new team to the result of `checkpoint.read`. Raises `CannotBeKeptError` for the
        state of another model."""
        own, state = [*self._replicas, *self._model.buffers()], self.state()
        checkpoint.restore(state, kept, self._device)
        read = [*state.get("replicas", ()), *state.get("buffers", ())]
        if [id(tensor) for tensor in read] != [id(tensor) for tensor in own]:
            raise CannotBeKeptError("tensors of other shapes")


_EPSILON = 1e-8
"""Added to the root in Adam; torch's default."""


class _Stepper:
    """The optimiser of one replica, float32 `[n]`, which it changes in place."""

    def __init__(self, chosen: Optimizer, weights: Tensor, *, own_momentum: bool) -> None:
        """Set up the optimiser; a method with its own momentum uses plain SGD steps."""
        self._chosen, self._weights = chosen, weights
        self._adam = chosen.name != "sgd" and not own_momentum
        self._momentum = 0.0 if own_momentum else chosen.momentum
        self.state: dict[str, Any] = {}
        """State between steps: vectors `[n]` and Adam's step count; empty at first."""

    def step(self, gradient: Tensor, rate: float) -> None:
        """Apply a gradient `[n]`."""
        with torch.no_grad():
            if self._adam:
                self._adam_step(gradient, rate)
            else:
                self._sgd_step(gradient, rate)

    def _sgd_step(self, gradient: Tensor, rate: float) -> None:
        from torch.optim.sgd import sgd

        buffers = [self.state.get("momentum_buffer")]
        sgd(
            [self._weights], [gradient], buffers,
            weight_decay=self._chosen.weight_decay, momentum=self._momentum, lr=rate,
            dampening=0.0, nesterov=False, maximize=False, foreach=False,
        )  # fmt: skip
        if self._momentum:
            self.state["momentum_buffer"] = buffers[0]

    def _adam_step(self, gradient: Tensor, rate: float) -> None:
        from torch.optim.adam import adam

        if not self.state:
            self.state["step"] = torch.zeros((), dtype=torch.float32)
            self.state["exp_avg"] = torch.zeros_like(self._weights)
            self.state["exp_avg_sq"] = torch.zeros_like(self._weights)
        adam(
            [self._weights], [gradient], [self.state["exp_avg"]], [self.state["exp_avg_sq"]], [],
            [self.state["step"]], foreach=False, amsgrad=False, maximize=False, lr=rate,
            decoupled_weight_decay=self._chosen.name == "adamw", eps=_EPSILON,
            beta1=self._momentum, beta2=self._chosen.beta2,
            weight_decay=self._chosen.weight_decay,
        )  # fmt: skip
