"""Several exchanges in one: their all-reduces and all-gathers are merged into common collectives.

    updates = yield from fused([a.exchange(first, step), b.exchange(second, step), ...])

In each round every unfinished exchange makes a request; requests that one collective can serve are
merged, and each exchange receives its part of the reply:

| request    | one if equal are     | merged                                                    |
|------------|----------------------|-----------------------------------------------------------|
| AllReduce  | operation, dtype     | tensors behind each other                                 |
| AllGather  | `variable`, `part`   | payloads behind each other; variable: their lengths first |

A length takes 8 bytes. A request without a partner in its round, or of another kind, is sent
unchanged. Assumes the same order of exchanges and the same kinds of requests on all workers, which
a collective needs anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gcsim.compressors import meter
from gcsim.compressors.coding.frames import from_bytes
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import AllGather, AllReduce, Exchange, Request
from gcsim.errors import InputError

Cut = Callable[["Tensor"], Sequence["Tensor"]]
LENGTH_BYTES = 8


def fused(exchanges: Sequence[Exchange]) -> Generator[Request, Any, list[Tensor]]:
    """Run the exchanges together and return their updates, in order. Raises `InputError` if a
    merged payload is damaged."""
    updates: dict[int, Tensor] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(exchanges)))
    while replies:
        groups: dict[Hashable, dict[int, Request]] = {}
        for number, reply in sorted(replies.items()):
            try:
                request = exchanges[number].send(reply)
            except StopIteration as stop:
                updates[number] = stop.value
            else:
                groups.setdefault(_kind(request) or number, {})[number] = request
        replies = {}
        for members in groups.values():
            merged, split = _merged(list(members.values()))
            replies.update(zip(members, split((yield merged)), strict=True))
    return [updates[number] for number in range(len(exchanges))]


def _kind(request: Request) -> Hashable:
    """Return a key that is equal for requests that can be merged; None if it must stay alone."""
    if isinstance(request, AllReduce):
        return AllReduce, request.op, request.tensor.dtype
    if isinstance(request, AllGather):
        return AllGather, request.variable, request.part
    return None


def _merged(requests: Sequence[Any]) -> tuple[Request, Callable[[Any], Sequence[Any]]]:
    """Merge requests of one kind: (request, function from its reply to each part's reply)."""
    first, count = requests[0], len(requests)
    if count == 1:
        return first, lambda reply: [reply]
    if isinstance(first, AllReduce):
        tensors = [request.tensor for request in requests]

        def split(total: Tensor) -> list[Tensor]:
            pieces = total.split_with_sizes([t.numel() for t in tensors])
            return [
                piece if t.dim() == 1 else piece.view(t.shape)
                for piece, t in zip(pieces, tensors, strict=True)
            ]

        flat = torch.cat([t if t.dim() == 1 else t.reshape(-1) for t in tensors])
        return replace(first, tensor=flat), split
    payloads = [request.payload for request in requests]
    if first.variable:
        payload, parts = pack(payloads), partial(unpack, count=count)
    else:
        payload = torch.cat(payloads)
        parts = partial(_cut, lengths=[part.numel() for part in payloads])
    told = tuple(lengths for request in requests for lengths in request.lengths)
    return replace(first, payload=payload, lengths=told), lambda received: [
        _Part(received, parts, number) for number in range(count)
    ]


# --- several payloads in one ---------------------------------------------------------------------


def pack(payloads: Sequence[Tensor]) -> Tensor:
    """Concatenate the payloads (uint8, one-dimensional) behind their lengths (int64)."""
    lengths = torch.tensor([part.numel() for part in payloads], dtype=torch.int64)
    return torch.cat((lengths.view(torch.uint8).to(payloads[0].device), *payloads))


def unpack(payload: Tensor, count: int) -> list[Tensor]:
    """Undo `pack`; returns views. Raises `InputError` if the lengths do not fit the payload."""
    head = LENGTH_BYTES * count
    if payload.numel() < head:
        raise InputError(f"damaged payload: {payload.numel()} bytes hold no {count} lengths")
    return _cut(payload[head:], from_bytes(payload[:head], torch.int64, count).tolist())


def _cut(payload: Tensor, lengths: list[int]) -> list[Tensor]:
    """Return consecutive parts of these lengths, as views."""
    if min(lengths) < 0 or sum(lengths) != payload.numel():
        raise InputError(f"damaged payload: parts of {lengths} bytes in {payload.numel()} bytes")
    return list(payload.split_with_sizes(lengths))


class _Part:
    """One exchange's payloads in rank order, cut out of the merged ones as they are read.

    The meter attributes what runs between two payloads to a payload and divides by their number, so
    the merged payloads are counted once, however many exchanges read their parts.
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
