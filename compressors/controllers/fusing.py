"""Exchanges side by side in one collective: requests of a kind are merged.

    updates = yield from fused([a.exchange(first, step), b.exchange(second, step), ...])

In each round all exchanges that want something ask for it; requests that one collective can serve
become one, and each exchange receives its part of the reply:

| request    | one if equal are     | merged                                                    |
|------------|----------------------|-----------------------------------------------------------|
| AllReduce  | operation, dtype     | tensors behind each other                                 |
| AllGather  | `variable`, `part`   | payloads behind each other; variable: their lengths first |
| PushPull   | `without_server`     | lengths, payloads; the server calls each part's server    |
| AllToAll   | `variable`           | lengths, payloads, for each receiver                      |
| TreeMerge  | -                    | lengths, payloads; merged part by part                    |

A length takes 8 bytes. A request that is alone in its round travels as it is. Assumes what a
collective needs anyway: exchanges in the same order, asking for the same kinds, on all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from typing import Any

from gcsim.compressors import meter
from gcsim.compressors.coding.frames import from_bytes
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchange,
    PushPull,
    Request,
    TreeMerge,
)
from gcsim.errors import InputError

Split = Callable[[Any], list[Any]]
"""From the merged request's reply to the replies of its parts."""

LENGTH_BYTES = 8


def fused(exchanges: Sequence[Exchange]) -> Generator[Request, Any, list[Tensor]]:
    """Run the exchanges side by side; the update of each, in order.

    Raises `InputError` when a merged payload is damaged.
    """
    updates: dict[int, Tensor] = {}
    waiting: dict[int, Request] = {}
    _advance(exchanges, dict.fromkeys(range(len(exchanges))), waiting, updates)
    while waiting:
        groups: dict[Hashable, list[int]] = {}
        for number, request in waiting.items():
            groups.setdefault(_kind(request), []).append(number)
        replies: dict[int, Any] = {}
        for members in groups.values():
            requests = [waiting[number] for number in members]
            if len(requests) == 1:
                replies[members[0]] = yield requests[0]
            else:
                merged, split = _merged(requests)
                reply = yield merged
                replies.update(zip(members, split(reply), strict=True))
        waiting = {}
        _advance(
            exchanges, {number: replies[number] for number in sorted(replies)}, waiting, updates
        )
    return [updates[number] for number in range(len(exchanges))]


def _advance(
    exchanges: Sequence[Exchange],
    replies: dict[int, Any],
    waiting: dict[int, Request],
    updates: dict[int, Tensor],
) -> None:
    for number, reply in replies.items():
        try:
            waiting[number] = exchanges[number].send(reply)
        except StopIteration as stop:
            updates[number] = stop.value


def _kind(request: Request) -> Hashable:
    """Equal for requests that can be merged."""
    if isinstance(request, AllReduce):
        return AllReduce, request.op, request.tensor.dtype
    if isinstance(request, AllGather):
        return AllGather, request.variable, request.part
    if isinstance(request, AllToAll):
        return AllToAll, request.variable
    if isinstance(request, PushPull):
        return PushPull, request.without_server
    return (type(request),)


def _merged(requests: Sequence[Request]) -> tuple[Request, Split]:
    """One request for several of a kind, and how its reply is divided."""
    first = requests[0]
    if isinstance(first, AllReduce):
        return _all_reduce([r for r in requests if isinstance(r, AllReduce)])
    if isinstance(first, AllToAll):
        return _all_to_all([r for r in requests if isinstance(r, AllToAll)])
    payloads = [r.payload for r in requests if isinstance(r, AllGather | PushPull | TreeMerge)]
    count = len(requests)
    if isinstance(first, AllGather):
        if first.variable:
            cut: Cut = lambda payload: unpack(payload, count)  # noqa: E731 - beside the other
            payload = pack(payloads)
        else:
            cut = _Fixed([part.numel() for part in payloads])
            payload = torch.cat(payloads)
        gathered = AllGather(payload=payload, variable=first.variable, part=first.part)
        return gathered, lambda received: _parts(received, cut, count)
    if isinstance(first, TreeMerge):
        merges = [r.merge for r in requests if isinstance(r, TreeMerge)]

        def merge(own: Tensor, other: Tensor) -> Tensor:
            pairs = zip(merges, unpack(own, count), unpack(other, count), strict=True)
            return pack([merge_part(a, b) for merge_part, a, b in pairs])

        return TreeMerge(payload=pack(payloads), merge=merge), lambda reply: unpack(reply, count)

    servers = [r.server for r in requests if isinstance(r, PushPull)]

    def serve(received: Iterable[Tensor]) -> Tensor:
        parts = _parts(received, lambda payload: unpack(payload, count), count)
        return pack([server(part) for server, part in zip(servers, parts, strict=True)])

    merged = PushPull(
        payload=pack(payloads),
        server=serve,
        without_server=first.without_server,
        variable=any(r.variable for r in requests if isinstance(r, PushPull)),
    )
    return merged, lambda reply: unpack(reply, count)


def _all_reduce(requests: Sequence[AllReduce]) -> tuple[Request, Split]:
    tensors = [request.tensor for request in requests]
    sizes = [tensor.numel() for tensor in tensors]

    def split(total: Tensor) -> list[Tensor]:
        pieces = zip(_cut(total, sizes), tensors, strict=True)
        return [piece if t.dim() == 1 else piece.view(t.shape) for piece, t in pieces]

    flat = torch.cat([t if t.dim() == 1 else t.reshape(-1) for t in tensors])
    return AllReduce(tensor=flat, op=requests[0].op), split


def _all_to_all(requests: Sequence[AllToAll]) -> tuple[Request, Split]:
    to_each = [pack(list(parts)) for parts in zip(*(r.payloads for r in requests), strict=True)]

    def split(received: Sequence[Tensor]) -> list[list[Tensor]]:
        parts = [unpack(payload, len(requests)) for payload in received]
        return [list(column) for column in zip(*parts, strict=True)]

    return AllToAll(payloads=to_each, variable=requests[0].variable), split


# --- payloads in one another -------------------------------------------------------------------

Cut = Callable[["Tensor"], Sequence["Tensor"]]


def pack(payloads: Sequence[Tensor]) -> Tensor:
    """Their lengths, int64, and the payloads (uint8, one dimension), behind each other."""
    lengths = torch.tensor([part.numel() for part in payloads], dtype=torch.int64)
    return torch.cat((lengths.view(torch.uint8).to(payloads[0].device), *payloads))


def unpack(payload: Tensor, count: int) -> list[Tensor]:
    """Undo `pack`, as views. Raises `InputError` when the lengths are not those of the payload."""
    head = LENGTH_BYTES * count
    if payload.numel() < head:
        raise InputError(f"damaged payload: {payload.numel()} bytes hold no {count} lengths")
    lengths = from_bytes(payload[:head], torch.int64, count).tolist()
    if min(lengths) < 0 or sum(lengths) != payload.numel() - head:
        raise InputError(
            f"damaged payload: parts of {lengths} bytes in {payload.numel() - head} bytes"
        )
    return _cut(payload[head:], lengths)


def _cut(flat: Tensor, lengths: list[int]) -> list[Tensor]:
    """Consecutive parts of these lengths, as views."""
    return list(flat.split_with_sizes(lengths))


class _Fixed:
    """Cut a payload into parts of known lengths."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def __call__(self, payload: Tensor) -> Sequence[Tensor]:
        if payload.numel() != sum(self._lengths):
            raise InputError(
                f"damaged payload: {payload.numel()} bytes, all workers send {sum(self._lengths)}"
            )
        return _cut(payload, self._lengths)


def _parts(received: Iterable[Tensor], cut: Cut, count: int) -> list[Any]:
    return [_Part(received, cut, number) for number in range(count)]


class _Part:
    """One exchange's payloads, in rank order, cut out of the merged ones as they are read.

    The meter attributes what runs between two payloads to a payload and divides by their number:
    so the merged payloads are counted once, however many exchanges read their parts.
    """

    def __init__(self, received: Iterable[Tensor], cut: Cut, number: int) -> None:
        self._received, self._cut, self._number = received, cut, number

    def __iter__(self) -> Iterator[Tensor]:
        recorder = meter._active[-1] if meter._active else None
        before = (recorder.payloads, recorder.parts) if recorder else (0, 0)
        try:
            for payload in self._received:
                yield self._cut(payload)[self._number]
        finally:
            if recorder and self._number:
                recorder.payloads, recorder.parts = before
