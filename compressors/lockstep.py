"""The lockstep driver: N virtual workers in one process, one collective at a time.

Each worker's generator is advanced to its next request; the requests are carried out exactly,
in rank order; the replies are sent back. An observer sees every stretch of computation between
two requests, and every collective: the meter is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.requests import AllGather, AllReduce, Exchange, PushPull, Request
from gcsim.errors import InternalError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord:
    """One collective as it was carried out, in bytes."""

    kind: Literal["all_reduce", "all_gather", "push_pull"]
    sent: tuple[int, ...]
    """Bytes that each worker handed over, by rank."""
    pulled: int = 0
    """Push-pull: bytes that each worker received from the server."""
    element: int = 1
    """All-reduce: bytes an element; a ring splits the vector between elements."""


class Observer(Protocol):
    """Told what happens during a lockstep exchange."""

    def compute(self, rank: int) -> AbstractContextManager[Any]:
        """Entered around each stretch of one worker's computation."""

    def serve(self) -> AbstractContextManager[Any]:
        """Entered around the parameter server's computation."""

    def payloads(self, received: list[Tensor]) -> Iterable[Tensor]:
        """The payloads to hand to a worker or server; iterating them may be observed."""

    def collective(self, record: CollectiveRecord) -> None:
        """Told after each collective."""


class _Blind:
    def compute(self, rank: int) -> AbstractContextManager[Any]:
        return nullcontext()

    def serve(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def payloads(self, received: list[Tensor]) -> Iterable[Tensor]:
        return received

    def collective(self, record: CollectiveRecord) -> None:
        pass


def lockstep(exchanges: Sequence[Exchange], observer: Observer | None = None) -> list[Tensor]:
    """Run one exchange of all workers to its end; the updates in rank order.

    Raises `InternalError` when workers ask for different collectives at the same point, which
    on a real cluster would be a deadlock.
    """
    seen = observer or _Blind()
    replies: list[Any] = [None] * len(exchanges)
    while True:
        requests: list[Request] = []
        updates: list[Tensor] = []
        for rank, exchange in enumerate(exchanges):
            with seen.compute(rank):
                try:
                    requests.append(exchange.send(replies[rank]))
                except StopIteration as stop:
                    updates.append(stop.value)
        if updates and not requests:
            return updates
        if updates or len({type(request) for request in requests}) != 1:
            asked = [type(request).__name__ for request in requests]
            raise InternalError(
                f"workers disagree: {len(updates)} finished, others ask for {asked}"
            )
        replies = _carry_out(requests, seen)


def _carry_out(requests: Sequence[Request], seen: Observer) -> list[Any]:
    first = requests[0]
    if isinstance(first, AllReduce):
        tensors = [request.tensor for request in requests if isinstance(request, AllReduce)]
        if len({(t.shape, t.dtype) for t in tensors}) != 1:
            raise InternalError("all-reduce of tensors that differ in shape or dtype")
        reduced = tensors[0].clone()
        for tensor in tensors[1:]:
            if first.op == "sum":
                reduced += tensor
            else:
                torch.maximum(reduced, tensor, out=reduced)
        sent = tuple(t.nbytes for t in tensors)
        seen.collective(
            CollectiveRecord(kind="all_reduce", sent=sent, element=reduced.element_size())
        )
        return [reduced] + [reduced.clone() for _ in tensors[1:]]

    payloads = [request.payload for request in requests if not isinstance(request, AllReduce)]
    sent = tuple(p.nbytes for p in payloads)
    if isinstance(first, AllGather):
        if not first.variable and len(set(sent)) != 1:
            raise InternalError(f"all-gather of unequal payloads {sent}: use gather_variable")
        seen.collective(CollectiveRecord(kind="all_gather", sent=sent))
        return [seen.payloads(payloads) for _ in payloads]

    assert isinstance(first, PushPull)
    with seen.serve():
        answer = first.server(seen.payloads(payloads))
    seen.collective(CollectiveRecord(kind="push_pull", sent=sent, pulled=answer.nbytes))
    return [answer] * len(payloads)
