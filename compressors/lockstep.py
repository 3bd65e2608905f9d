"""The lockstep driver: N virtual workers in one process, one collective at a time.

Each worker's generator is advanced to its next request; the requests are carried out exactly,
in rank order; the replies are sent back. An observer sees every stretch of computation between
two requests, and every collective: the meter is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gcsim.compressors.reductions import Reduction, in_rank_order
from gcsim.compressors.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchange,
    PushPull,
    Request,
    TreeMerge,
)
from gcsim.errors import InternalError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord:
    """One collective as it was carried out, in bytes."""

    kind: Literal["all_reduce", "all_gather", "push_pull", "all_to_all", "tree_merge"]
    sent: tuple[int, ...]
    """Bytes that each worker handed over, by rank (all-to-all: to all workers together)."""
    pulled: int = 0
    """Push-pull, tree merge: bytes of the result, which each worker receives."""
    part: bool = False
    """All-gather: each payload is a part of one whole, which p workers share."""
    variable: bool = False
    """All-to-all: each pair exchanges a length of 8 bytes first."""
    element: int = 1
    """All-reduce: bytes an element; a ring splits the vector between elements."""


class Observer(Protocol):
    """Told what happens during a lockstep exchange."""

    def compute(self, rank: int) -> AbstractContextManager[Any]:
        """Entered around each stretch of one worker's computation."""

    def serve(self) -> AbstractContextManager[Any]:
        """Entered around the server's computation, and around each merge of two payloads."""

    def payloads(self, received: list[Tensor]) -> Iterable[Tensor]:
        """The payloads to hand to a worker or server; iterating them may be observed."""

    def parts(self, received: list[Tensor]) -> Iterable[Tensor]:
        """`payloads` that are parts of one whole."""

    def collective(self, record: CollectiveRecord) -> None:
        """Told after each collective."""


class _Blind:
    def compute(self, rank: int) -> AbstractContextManager[Any]:
        return nullcontext()

    def serve(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def payloads(self, received: list[Tensor]) -> Iterable[Tensor]:
        return received

    def parts(self, received: list[Tensor]) -> Iterable[Tensor]:
        return received

    def collective(self, record: CollectiveRecord) -> None:
        pass


def lockstep(
    exchanges: Sequence[Exchange],
    observer: Observer | None = None,
    *,
    reduction: Reduction = in_rank_order,
) -> list[Tensor]:
    """Run one exchange of all workers to its end; the updates in rank order.

    `reduction` carries out all-reduces: `in_gloo_ring_order` gives the bits that Gloo gives.
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
        replies = _carry_out(requests, seen, reduction)


def _carry_out(requests: Sequence[Request], seen: Observer, reduction: Reduction) -> list[Any]:
    first = requests[0]
    if isinstance(first, AllReduce):
        tensors = [request.tensor for request in requests if isinstance(request, AllReduce)]
        if len({(t.shape, t.dtype) for t in tensors}) != 1:
            raise InternalError("all-reduce of tensors that differ in shape or dtype")
        reduced = reduction(tensors, first.op)
        sent = tuple(t.nbytes for t in tensors)
        seen.collective(
            CollectiveRecord(kind="all_reduce", sent=sent, element=reduced.element_size())
        )
        return [reduced] + [reduced.clone() for _ in tensors[1:]]

    if not isinstance(first, Request):
        raise InternalError(f"a worker yields {type(first).__name__}, which is no request")
    if isinstance(first, AllToAll):
        return list(_all_to_all([r for r in requests if isinstance(r, AllToAll)], seen))

    payloads = [r.payload for r in requests if isinstance(r, AllGather | PushPull | TreeMerge)]
    sent = tuple(p.nbytes for p in payloads)
    if isinstance(first, AllGather):
        if not first.variable and len(set(sent)) != 1:
            raise InternalError(f"all-gather of unequal payloads {sent}: use gather_variable")
        seen.collective(CollectiveRecord(kind="all_gather", sent=sent, part=first.part))
        if first.part:  # together they are as large for any number of workers
            return [seen.parts(payloads) for _ in payloads]
        return [seen.payloads(payloads) for _ in payloads]

    if isinstance(first, TreeMerge):
        merged = _merge_along_tree(payloads, first.merge, seen)
        seen.collective(CollectiveRecord(kind="tree_merge", sent=sent, pulled=merged.nbytes))
        return [merged] * len(payloads)

    assert isinstance(first, PushPull)
    with seen.serve():
        answer = first.server(seen.payloads(payloads))
    seen.collective(CollectiveRecord(kind="push_pull", sent=sent, pulled=answer.nbytes))
    return [answer] * len(payloads)


def _all_to_all(requests: Sequence[AllToAll], seen: Observer) -> list[Iterable[Tensor]]:
    count = len(requests)
    if any(len(request.payloads) != count for request in requests):
        raise InternalError(f"all-to-all: {count} workers, not as many payloads")
    lengths = {payload.nbytes for request in requests for payload in request.payloads}
    variable = requests[0].variable
    if not variable and len(lengths) != 1:
        raise InternalError(f"all-to-all of unequal payloads {sorted(lengths)}: say `variable`")
    sent = tuple(sum(payload.nbytes for payload in request.payloads) for request in requests)
    seen.collective(CollectiveRecord(kind="all_to_all", sent=sent, variable=variable))
    return [seen.parts([request.payloads[rank] for request in requests]) for rank in range(count)]


def _merge_along_tree(
    payloads: Sequence[Tensor], merge: Callable[[Tensor, Tensor], Tensor], seen: Observer
) -> Tensor:
    held = list(payloads)
    distance = 1
    while distance < len(held):
        for rank in range(0, len(held) - distance, 2 * distance):
            with seen.serve():
                held[rank] = merge(held[rank], held[rank + distance])
        distance *= 2
    return held[0]
