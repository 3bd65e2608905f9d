"""One iteration of a deployed method as a transaction: all of its buckets count, or none.

Buckets are exchanged during the backward pass; an overflow may appear in a later one. A non-finite
element is exchanged as zero, so that all ranks still request the same collectives. Along with the
last bucket's exchange ranks compute the maximum of one number: whether a gradient of theirs was not
finite. (A 16-bit sum or an update that is not finite is so on all ranks.) If so, the members are
restored from copies made before each exchange. On a GPU this takes one launch per bucket's gradient
and a few for all updates, and the host waits once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gcsim.compressors.base import Compressor
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.scans import finite_part, not_finite
from gcsim.compressors.demands import Demands, when_known
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.mistakes import is_users, own_mistakes
from gcsim.compressors.participation import check_finite
from gcsim.compressors.requests import AllReduce, Request
from gcsim.compressors.state import tensors_in
from gcsim.errors import InputError, Problem

if TYPE_CHECKING:
    Future = torch.futures.Future[Any]

Members = dict[int, tuple[BucketLayout, Compressor]]
"""Layout and compressor, by bucket number."""
_SHOWN = 4
_HINT = "skip the batch; with a GradScaler: ddp_hook(..., scaler=scaler)"


class NotFiniteError(InputError):
    """An iteration's gradients cannot be exchanged; the hook can continue with the next one."""


@dataclass(slots=True, kw_only=True)
class Part:
    """One bucket of DDP, from its gradient to its update."""

    layout: BucketLayout
    buffer: Tensor
    promise: Future
    gradient: Tensor | None = None
    update: Tensor | None = None


class Step:
    """One iteration on one rank, used by the exchanging thread."""

    def __init__(self, number: int, loss: float | None, *, regrouped: bool) -> None:
        self.number = number
        """Step of the compressor; negative before it starts."""
        self.loss = loss
        self.regrouped = regrouped
        """Whether DDP's buckets differ from the members'."""
        self.scale: Tensor | float = 1.0
        """Loss scale, possibly on a device."""
        self.parts: list[Part] = []
        self.overflowed = False
        """Whether a gradient of any rank is not finite."""
        self.shared_problem: Problem | None = None
        """A problem that is the same on all ranks."""
        self.checks = Demands()
        """Checks of all buckets' payloads, which run before the updates count."""
        self.faulty: Tensor
        """Int64 `[1]`: 1 if a gradient of this rank is not finite."""
        self._before: dict[int, tuple[BucketLayout, Compressor] | None] = {}

    def unscale(self, part: Part) -> Tensor:
        """Return the gradient of `part` without the loss scale: float32, finite."""
        if part is self.parts[0]:  # created on the device, as a copy would wait for it
            self.faulty = torch.zeros(1, dtype=torch.int64, device=part.buffer.device)
        part.gradient = finite_part(part.buffer, self.scale, self.faulty)
        return part.gradient

    def counts(self, faulty: Tensor) -> bool:
        """Whether the iteration counts on all ranks, whose maximum of faults is `faulty`; the host
        waits for a device once."""
        parts = [part for part in self.parts if part.buffer.numel()]
        own = [(faulty.to(self.faulty.device), self._note_overflow)]
        if parts:
            largest = torch._foreach_norm([_update(part) for part in parts], torch.inf)
            own.append((torch.stack(largest) < torch.inf, partial(self._note_updates, parts)))
        self.checks.unknown[:0] = own
        try:
            self.checks.require()
        except NotFiniteError as error:
            self.shared_problem = error.problems[0]
        return not self.overflowed and self.shared_problem is None

    def _note_overflow(self, faulty: int) -> None:
        self.overflowed = bool(faulty)

    def _note_updates(self, parts: Sequence[Part], *finite: int) -> None:
        for part, right in zip(parts, finite, strict=True):
            if not right and self.shared_problem is None:
                update, hint = _update(part), "lower the learning rate or the loss scale"
                wrong, elements = int((~update.isfinite()).sum()), update.numel()
                self.shared_problem = _problem(wrong, elements, "the update", hint)

    def remember(self, members: Members, number: int) -> None:
        """Copy a bucket's member before its exchange; `InputError` if that is impossible."""
        self._before[number] = None
        if number not in members:
            return
        layout, member = members[number]
        if member.memory(member.parameters) == "none" and not is_users(type(member)):
            self._before[number] = layout, member
            return
        held = [each for each in tensors_in(vars(member)) if _is_plain(each)]
        copies = [torch.empty_like(each) for each in held]
        if held:
            torch._foreach_copy_(copies, held)  # in few launches
        same = {id(each): each for each in (layout, member.worker, member.parameters)}
        same |= zip(map(id, held), copies, strict=True)
        with own_mistakes(type(member), "__init__"):
            self._before[number] = layout, copy.deepcopy(member, same)

    def undo(self, members: Members) -> None:
        """Restore the members to their state before this iteration."""
        for number, before in self._before.items():
            if before is None:
                members.pop(number, None)
            else:
                members[number] = before

    def scaled(self, part: Part, update: Tensor) -> None:
        """Give `part` its update, float32 `[n]`, in DDP's form: scaled like the gradient."""
        part.gradient = None
        unscaled = isinstance(self.scale, float) and self.scale == 1.0
        part.update = (update if unscaled else update * self.scale).to(part.buffer)

    def error(self, title: str, group: Any) -> NotFiniteError:
        """Return the error of this iteration, equal on all ranks."""
        import torch.distributed as dist

        problems = [self.shared_problem] if self.shared_problem else []
        if self.overflowed:
            everybody: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(everybody, self._own_problem(), group=group)
            problems = [
                Problem(place=f"rank {rank}, {told[0]}", message=told[1], hint=_HINT)
                for rank, told in enumerate(everybody)
                if told
            ]
        places = (", ".join(filter(None, (title, each.place))) for each in problems)
        named = [replace(p, place=place) for p, place in zip(problems, places, strict=True)]
        return NotFiniteError(named[:_SHOWN])

    def _own_problem(self) -> tuple[str, str] | None:
        """Return (place, message) of this rank's first gradient that is not finite."""
        for part in self.parts:
            try:
                check_finite(Bucket(layout=part.layout, gradient=part.buffer.float()))
            except InputError as error:
                return error.problems[0].place, error.problems[0].message
        return None

    def end(self, results: Sequence[Any]) -> None:
        """Give DDP an update or an exception for each of its buckets, and drop them."""
        for part, result in zip(self.parts, results, strict=True):
            part.promise.set_result(result)
        self.parts.clear()
        self._before.clear()


def _is_plain(one: Tensor) -> bool:
    return type(one) is torch.Tensor and one.layout == torch.strided and not one.requires_grad


def _update(part: Part) -> Tensor:
    assert part.update is not None
    return part.update


def check_sum(request: Request, reply: Any) -> None:
    """Raise `NotFiniteError`, on all ranks, if a 16-bit sum overflows."""
    narrow = (torch.float16, torch.bfloat16)
    if isinstance(request, AllReduce) and reply.dtype in narrow:
        wrong = not_finite(reply)
        dtype = str(reply.dtype).removeprefix("torch.")
        when_known(wrong, partial(_demand_sum, reply.numel(), dtype))


def _demand_sum(elements: int, dtype: str, wrong: int) -> None:
    if wrong:
        name = f"the sum over the workers in {dtype}"
        hint = "lower the loss scale, or choose a method that sends float32"
        raise NotFiniteError(_problem(wrong, elements, name, hint))


def _problem(wrong: int, elements: int, name: str, hint: str) -> Problem:
    message = f"{wrong} of {elements} elements of {name} are not finite"
    return Problem(message=message, hint=hint)


def regroup(parts: Sequence[Part], layouts: Sequence[BucketLayout], exchange: Any) -> list[Tensor]:
    """Exchange the gradients of `parts` in the buckets of `layouts`; return the updates, by part.
    `exchange` maps a layout and its gradient, float32 `[n]`, to the update."""
    pieces: dict[int, Tensor] = {}
    for part in parts:
        assert part.gradient is not None
        pieces |= {piece.index: flat for piece, flat in part.layout.views(part.gradient)}
    for layout in layouts:
        gradient = torch.cat([pieces[piece.index] for piece in layout.slices])
        update = exchange(layout, gradient)
        pieces |= {piece.index: flat for piece, flat in layout.views(update)}
    return [torch.cat([pieces[piece.index] for piece in p.layout.slices]) for p in parts]
