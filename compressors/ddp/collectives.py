"""A compressor's collectives between processes, over a Gloo or NCCL process group.

| request     | carried out by                                                                  |
|-------------|---------------------------------------------------------------------------------|
| `AllReduce` | the library's; integers that it does not know (int16) in a ring of messages here |
| `AllGather` | the library's; `variable`: on the host a ring of whole blocks, as Gloo's         |
|             | all-gatherv; on a GPU one all-gather of padded blocks, or, where padding would   |
|             | travel more than payload, a broadcast from each rank                            |
| `PushPull`  | as an all-gather; every rank serves all payloads, and has the same answer         |
| `AllToAll`  | the library's; `variable`: lengths first                                         |
| `TreeMerge` | the binomial tree of `requests.TreeMerge`, there and back                        |

If lengths are not known, 8 bytes are sent first; for a variable all-gather in a separate gather
(`AllGather.lengths`). Gloo works on host memory, NCCL on a GPU's; other tensors are copied there
and back: lengths, which the host needs, and with Gloo a GPU's payloads. NCCL's calls only queue
work on the current stream.

Only one thread may use the group, as collectives are matched in order. If ranks requested different
collectives, or sums of different length or type, they would wait until the group's timeout, or Gloo
would abort the process; `require_alike` compares their requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gcsim.compressors import requests
from gcsim.compressors.coding.frames import as_bytes
from gcsim.compressors.ddp.model import ranks_text
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.mistakes import RefusedRequestError

_LONGEST = 120
"""Bytes of the text by which ranks compare requests."""
_MOST_PADDED = 2
"""Longest padding that is accepted: padded bytes per byte of payload."""
_ALIGNED = 16
"""Alignment in bytes: NCCL copies words of this size, and decoders read numbers in place."""


class Collectives:
    """One rank's collectives over a process group: Gloo, or NCCL on `device`."""

    def __init__(self, group: Any, device: torch.device | None = None) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.group = group
        self._on_host = device is None
        self._where = device or torch.device("cpu")
        self.rank: int = dist.get_rank(group)
        self.count: int = dist.get_world_size(group)
        self._global = dist.get_process_group_ranks(group)

    def execute(self, request: requests.Request) -> Any:
        """Return the reply to a request that all ranks make. Raises `torch.distributed`'s errors if
        a rank is gone, and `RefusedRequestError` if payloads do not fit together."""
        if isinstance(request, requests.AllReduce):
            return self._all_reduce(request.tensor, request.op)
        if isinstance(request, requests.AllToAll):
            return self._all_to_all(request)
        if isinstance(request, requests.PushPull):
            return request.server(self._gathered(request))
        if isinstance(request, requests.TreeMerge):
            return self._merge_along_tree(request)
        return self._gathered(request)

    def begin_maximum(self, number: Tensor) -> Callable[[], Tensor]:
        """Start computing the maximum of all ranks' int64 `[1]`, possibly on a device and in place;
        the returned function makes the current stream wait for it. Other collectives may run in
        between."""
        if self.count == 1:
            return lambda: number
        largest = number.to(self._where)
        maximum = self._dist.ReduceOp.MAX
        begun = self._dist.all_reduce(largest, op=maximum, group=self.group, async_op=True)

        def ended() -> Tensor:
            begun.wait()
            return largest

        return ended

    def require_alike(self, bucket: int, request: requests.Request | None) -> None:
        """Raise `RefusedRequestError` on all ranks if requests differ; None ends an exchange."""
        own = f"bucket {bucket}, {_text(request)}".encode()[:_LONGEST].ljust(_LONGEST)
        gathered = self._gather(torch.frombuffer(bytearray(own), dtype=torch.uint8))
        texts = [bytes(text.tolist()).decode().rstrip() for text in gathered]
        if len(set(texts)) == 1:
            return
        asked = {
            text: [rank for rank, other in enumerate(texts) if other == text] for text in texts
        }
        said = "; ".join(f"{ranks_text(ranks)} for {text}" for text, ranks in asked.items())
        message = f"ranks ask for different collectives: {said}"
        hint = "whether and what to ask must not depend on the rank or on a rank's own gradient"
        raise RefusedRequestError(message, hint=hint, ranks=tuple(range(self.count)))

    # --- all-reduce ---------------------------------------------------------------------------

    def _all_reduce(self, tensor: Tensor, op: requests.Operation) -> Tensor:
        if self.count == 1 or tensor.numel() == 0:
            return tensor.contiguous()
        flat = self._carried(tensor)
        known = (torch.int8, torch.uint8, torch.int32, torch.int64)
        if flat.is_floating_point() or flat.dtype in known:
            operations = self._dist.ReduceOp
            chosen = operations.SUM if op == "sum" else operations.MAX
            self._dist.all_reduce(flat, op=chosen, group=self.group)
        else:
            self._reduce_around_ring(flat, op)
        return flat.to(tensor.device)

    def _reduce_around_ring(self, tensor: Tensor, op: requests.Operation) -> None:
        """Reduce-scatter chunks down the ranks, then all-gather the sums."""
        chunks = list(torch.tensor_split(tensor.view(-1), self.count))
        below, above = (self.rank - 1) % self.count, (self.rank + 1) % self.count
        for step in range(2 * (self.count - 1)):
            out = chunks[(self.rank + 1 + step) % self.count]
            own = chunks[(self.rank + 2 + step) % self.count]
            received = torch.empty_like(own)
            self._swap(as_bytes(out), below, as_bytes(received), above)
            if step >= self.count - 1:
                own.copy_(received)
            elif op == "sum":
                own += received
            else:
                torch.maximum(own, received, out=own)

    # --- payloads -----------------------------------------------------------------------------

    def _gathered(self, request: requests.AllGather | requests.PushPull) -> list[Tensor]:
        if request.variable:
            lengths = self._lengths(request)
            if self._on_host or self.count * max(lengths) > _MOST_PADDED * sum(lengths):
                return self._gather_blocks(request.payload, lengths)
            return self._gather_padded(request.payload, lengths)
        return self._gather(request.payload)

    def _gather(self, payload: Tensor) -> list[Tensor]:
        length = payload.numel()
        if self.count == 1 or length == 0:
            return [payload] * self.count
        own = self._carried(payload)
        received = own.new_empty(self.count * length)
        gather = getattr(self._dist, "all_gather_single", None) or self._dist.all_gather_into_tensor
        gather(received, own, group=self.group)
        return list(received.to(payload.device).view(self.count, length))

    def _lengths(self, request: requests.AllGather | requests.PushPull) -> list[int]:
        """Return each rank's payload bytes, from the request or exchanged now with one wait."""
        told = request.lengths if isinstance(request, requests.AllGather) else None
        if told is None:
            own = torch.full((1,), request.payload.numel(), device=self._where)
            told = self._gather(as_bytes(own))
        lengths: list[int] = torch.stack([*told]).view(torch.int64).view(-1).tolist()  # one wait
        return lengths

    def _gather_blocks(self, payload: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Gather whole payloads of different lengths: on the host around a ring, else broadcast."""
        own = self._carried(payload)
        blocks = [own.new_empty(length) for length in lengths]
        blocks[self.rank] = own
        above, below = (self.rank + 1) % self.count, (self.rank - 1) % self.count
        for step in range(self.count - 1 if self._on_host else 0):
            out = blocks[(self.rank - step) % self.count]
            self._swap(out, above, blocks[(self.rank - step - 1) % self.count], below)
        for source, block in zip(self._global, blocks, strict=True):
            if block.numel() and not self._on_host:
                self._dist.broadcast(block, src=source, group=self.group)
        return [block.to(payload.device) for block in blocks]

    def _gather_padded(self, payload: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Gather payloads of different lengths, padded to the longest."""
        longest = max(lengths)
        row = payload.new_zeros(longest + -longest % _ALIGNED)
        row[: payload.numel()] = payload
        gathered = zip(self._gather(row), lengths, strict=True)
        return [padded[:length] for padded, length in gathered]

    def _all_to_all(self, request: requests.AllToAll) -> list[Tensor]:
        payloads = list(request.payloads)
        if len(payloads) != self.count:
            message = f"all-to-all: {self.count} workers, {len(payloads)} payloads"
            raise RefusedRequestError(message)
        if self.count == 1:
            return payloads
        sizes = [payload.numel() for payload in payloads]
        if request.variable:
            own = self._carried(torch.tensor(sizes))
            lengths = torch.empty_like(own)
            self._dist.all_to_all_single(lengths, own, group=self.group)
            coming = lengths.tolist()
        elif len(set(sizes)) == 1:
            coming = sizes
        else:
            message = f"all-to-all of unequal payloads: {sizes} bytes"
            raise RefusedRequestError(message, hint="say `variable=True`")
        sent = self._carried(torch.cat(payloads))
        received = sent.new_empty(sum(coming))
        self._dist.all_to_all_single(received, sent, coming, sizes, group=self.group)
        return list(torch.split(received.to(payloads[0].device), coming))

    # --- a tree -------------------------------------------------------------------------------

    def _merge_along_tree(self, request: requests.TreeMerge) -> Tensor:
        held, distance = request.payload, 1
        while distance < self.count and self.rank % (2 * distance) == 0:
            if self.rank + distance < self.count:
                held = request.merge(held, self._receive(held, self.rank + distance))
            distance *= 2
        if self.rank:
            self._send(held, self.rank - distance)
            held = self._receive(held, self.rank - distance)
        while distance > 1:  # the largest subtree first
            distance //= 2
            if self.rank + distance < self.count:
                self._send(held, self.rank + distance)
        return held

    # --- messages -----------------------------------------------------------------------------

    def _carried(self, tensor: Tensor) -> Tensor:
        """Return the tensor, contiguous, in memory that the library can send; itself if it is so.
        Does not wait for a device."""
        if tensor.device.type == "cpu" != self._where.type:
            return tensor.contiguous().pin_memory().to(self._where, non_blocking=True)
        return tensor.contiguous().to(self._where)

    def _send(self, payload: Tensor, rank: int) -> None:
        to, group = self._global[rank], self.group
        length = self._carried(torch.tensor([payload.numel()]))
        self._dist.send(length, dst=to, group=group)
        if payload.numel():
            self._dist.send(self._carried(payload), dst=to, group=group)

    def _receive(self, like: Tensor, rank: int) -> Tensor:
        source, group = self._global[rank], self.group
        length = torch.empty(1, dtype=torch.int64, device=self._where)
        self._dist.recv(length, src=source, group=group)
        payload = like.new_empty(int(length), device=self._where)
        if payload.numel():
            self._dist.recv(payload, src=source, group=group)
        return payload.to(like.device)

    def _swap(self, out: Tensor, to: int, into: Tensor, source: int) -> None:
        """Send and receive at the same time; skip empty messages."""
        operation, messages = self._dist.P2POp, []
        if into.numel():
            peer = self._global[source]
            messages.append(operation(self._dist.irecv, into, peer, self.group))
        if out.numel():
            messages.append(operation(self._dist.isend, out, self._global[to], self.group))
        for message in self._dist.batch_isend_irecv(messages) if messages else ():
            message.wait()


def _text(request: requests.Request | None) -> str:
    """Describe a request by facts that are equal on all ranks."""
    if request is None:
        return "nothing more"
    kind = type(request).__name__
    if isinstance(request, requests.AllReduce):
        dtype = str(request.tensor.dtype).removeprefix("torch.")
        return f"{kind} ({request.op}) of {dtype} {list(request.tensor.shape)}"
    if isinstance(request, requests.TreeMerge) or request.variable:
        return f"{kind} of any length"
    lengths = [payload.numel() for payload in requests.tensors_sent(request)]
    return f"{kind} of {len(lengths)} payloads of {sorted(set(lengths))} bytes"
