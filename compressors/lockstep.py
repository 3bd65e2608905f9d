"""The lockstep driver: it runs N virtual workers in one process, one collective at a time.

Each worker's generator runs to its next request; the driver carries the requests out exactly, in
rank order, and sends the replies back. An observer, such as the meter, sees each stretch of
computation and each collective. Without an observer, work that all workers do on the same reply is
done once (`sharing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.mistakes import RefusedRequestError, blame
from gcsim.compressors.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchange,
    Operation,
    Request,
    TreeMerge,
    WithoutServer,
    tensors_sent,
)
from gcsim.compressors.sharing import Payloads, forget, shared
from gcsim.fields import Count, Whole

Reduction = Callable[[Sequence[Tensor], Operation], Tensor]
"""Reduces the workers' tensors (same shape and dtype, in rank order) to one new tensor."""


Scope = Literal["all", "node", "nodes", "rack", "racks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord:
    """One collective that was carried out; sizes are in bytes."""

    kind: Literal["all_reduce", "all_gather", "push_pull", "all_to_all", "tree_merge"]
    sent: tuple[Whole, ...]
    """Bytes that each worker sends, by rank (all-to-all: to all workers together)."""
    pulled: Whole = 0
    """Push-pull and tree merge: bytes of the result, which each worker receives."""
    part: bool = False
    """All-gather: each payload is a part of one whole that is divided among p workers."""
    variable: bool = False
    """All-to-all: each pair first exchanges a length of 8 bytes; push-pull: as in `PushPull`."""
    element: Count = 1
    """All-reduce: bytes per element; a ring cuts the vector only between elements."""
    dtype: str = "float32"
    """All-reduce: the elements' torch dtype, which determines the cost of an addition."""
    without_server: WithoutServer = "all_gather"
    """Push-pull: as in `PushPull`."""
    by_servers: bool = False
    """All-reduce: always carried out by the cluster's parameter servers."""
    scope: Scope = "all"
    """Ranks that take part. all: all ranks; node, rack: the ranks of each node or rack separately;
    nodes, racks: one rank of each, which then passes the result on to the others there."""


class Observer:
    """The interface to watch a lockstep exchange; this base class ignores all events."""

    def compute(self, rank: int) -> AbstractContextManager[Any]:
        """Return a context for each stretch of one worker's computation."""
        return nullcontext()

    def serve(self) -> AbstractContextManager[Any]:
        """Return a context for each computation of a server and each merge of two payloads."""
        return nullcontext()

    def payloads(self, received: list[Tensor], *, parts: bool = False) -> Iterable[Tensor]:
        """Return the payloads, or parts of one whole, as a worker or server shall receive them."""
        return received

    def collective(self, record: CollectiveRecord) -> None:
        """Take note of a collective that was carried out."""


class Collectives(Observer):
    """An observer that records only the collectives: counting kernels is several times slower."""

    def __init__(self) -> None:
        self.collectives: list[CollectiveRecord] = []

    def collective(self, record: CollectiveRecord) -> None:
        self.collectives.append(record)

    @property
    def nbytes(self) -> int:
        return sum(sum(record.sent) for record in self.collectives)


def in_rank_order(tensors: Sequence[Tensor], op: Operation) -> Tensor:
    """Return ((t0 + t1) + t2) + …, each sum rounded to the tensors' dtype; or the maximum."""
    reduced = tensors[0].clone()
    for tensor in tensors[1:]:
        if op == "sum":
            reduced += tensor
        else:
            torch.maximum(reduced, tensor, out=reduced)
    return reduced


def lockstep(
    exchanges: Sequence[Exchange],
    observer: Observer | None = None,
    *,
    reduction: Reduction = in_rank_order,
    share: bool | Literal["checked"] | None = None,
) -> list[Tensor]:
    """Run one exchange of all workers to its end; return the updates in rank order.

    `reduction` carries out all-reduces; its order of addition determines the rounding. `share`: do
    work that all workers do on one reply only once, with the same bits ("checked": do it each time
    and compare); None: share if there is no observer. An observer that looks at each worker needs
    False. Raises `RefusedRequestError` if workers request different collectives at the same point
    (a deadlock on a cluster) or an impossible one; if the exchanges are guarded (`participate`) and
    the code is a user's, `InputError` with file and line.
    """
    seen = observer or Observer()
    sharing = observer is None if share is None else share
    replies: list[Any] = [None] * len(exchanges)
    while True:
        requests: list[Request] = []
        updates: list[Tensor] = []
        for rank, exchange in enumerate(exchanges):  # each runs to its next request
            with seen.compute(rank):
                try:
                    requests.append(exchange.send(replies[rank]))
                except StopIteration as stop:
                    updates.append(stop.value)
        forget(replies)
        if updates and not requests:
            return updates
        try:
            if updates or len({type(request) for request in requests}) != 1:
                raise _disagreement(requests, len(updates))
            replies = _run_request(requests, seen, reduction)
            if sharing and not isinstance(requests[0], AllToAll):  # replies differ by worker
                shared(replies, checked=sharing == "checked")
        except RefusedRequestError as error:
            blame(exchanges, error)


def _disagreement(requests: Sequence[Request], finished: int) -> RefusedRequestError:
    hint = "whether and what to ask must not depend on the rank or on a worker's own gradient"
    names = [type(request).__name__ for request in requests]
    if finished:  # finished workers left no request, so the list's positions are no longer ranks
        ranks = tuple(range(len(requests) + finished))
        text = f"workers disagree: {finished} finished, others ask for {names}"
        return RefusedRequestError(text, hint=hint, ranks=ranks)
    other = next(rank for rank, name in enumerate(names) if name != names[0])
    text = f"workers disagree: worker 0 asks for {names[0]}, worker {other} for {names[other]}"
    return RefusedRequestError(text, hint=hint, ranks=(0, other))


def _run_request(requests: Sequence[Request], seen: Observer, reduction: Reduction) -> list[Any]:
    first = requests[0]
    if not isinstance(first, Request):
        raise RefusedRequestError(f"a worker yields {type(first).__name__}, which is no request")
    handed = [tensors_sent(request) for request in requests]
    sent = tuple(sum(tensor.nbytes for tensor in own) for own in handed)
    if isinstance(first, AllToAll):
        return _all_to_all(handed, sent, first.variable, seen)
    tensors = [own[0] for own in handed]
    if isinstance(first, AllReduce):
        kinds = [f"{t.dtype} {list(t.shape)}" for t in tensors]
        if len(set(kinds)) != 1:
            message = f"all-reduce of tensors that differ in shape or dtype: {_unlike(kinds)}"
            raise RefusedRequestError(message, hint="they are added element by element")
        try:
            reduced = reduction(tensors, first.op)
        except (RuntimeError, TypeError, ValueError) as error:
            raise RefusedRequestError(f"all-reduce, {first.op}, of {kinds[0]}: {error}") from error
        dtype = str(reduced.dtype).removeprefix("torch.")
        seen.collective(
            CollectiveRecord(
                kind="all_reduce", sent=sent, element=reduced.element_size(), dtype=dtype
            )
        )
        return [reduced] + [reduced.clone() for _ in tensors[1:]]

    if isinstance(first, TreeMerge):
        merged = _merge_along_tree(tensors, first.merge, seen)
        seen.collective(CollectiveRecord(kind="tree_merge", sent=sent, pulled=merged.nbytes))
        return [merged] * len(tensors)

    payloads = Payloads(tensors)
    if not first.variable and len(set(sent)) != 1:
        lengths = _unlike([f"{n} bytes" for n in sent])
        if isinstance(first, AllGather):
            hint = "`payloads = yield from gather_variable(payload)` tells the lengths first"
            raise RefusedRequestError(f"all-gather of unequal payloads: {lengths}", hint=hint)
        hint = "`PushPull(..., variable=True)` tells the lengths first"
        raise RefusedRequestError(f"push-pull of unequal payloads: {lengths}", hint=hint)
    if isinstance(first, AllGather):
        seen.collective(CollectiveRecord(kind="all_gather", sent=sent, part=first.part))
        return [seen.payloads(payloads, parts=first.part) for _ in payloads]
    with seen.serve():
        answer = first.server(seen.payloads(payloads))
    seen.collective(
        CollectiveRecord(
            kind="push_pull",
            sent=sent,
            pulled=answer.nbytes,
            variable=first.variable,
            without_server=first.without_server,
        )
    )
    return [answer] * len(payloads)


def _all_to_all(
    handed: Sequence[Sequence[Tensor]], sent: tuple[int, ...], variable: bool, seen: Observer
) -> list[Any]:
    count = len(handed)
    for own in handed:
        if len(own) != count:
            raise RefusedRequestError(f"all-to-all: {count} workers, {len(own)} payloads")
    lengths = {payload.nbytes for own in handed for payload in own}
    if not variable and len(lengths) != 1:
        message = f"all-to-all of unequal payloads: {min(lengths)} to {max(lengths)} bytes"
        raise RefusedRequestError(message, hint="say `variable=True`")
    seen.collective(CollectiveRecord(kind="all_to_all", sent=sent, variable=variable))
    by_receiver = zip(*handed, strict=True)
    return [seen.payloads(list(parts), parts=True) for parts in by_receiver]


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


def _unlike(values: Sequence[str]) -> str:
    rank = next(rank for rank, value in enumerate(values) if value != values[0])
    return f"worker 0 has {values[0]}, worker {rank} {values[rank]}"
