"""A method's collectives between nodes or racks: `gcsim.ddp_hook(..., between="nodes")`.

A node's ranks sum their gradients uncompressed, over NVLink if available, and together are one
worker of the method: all have the same mean and state, so all encode the same payload. The node's
first rank exchanges it with those of other nodes and passes the reply to the ranks of its node; all
decode it. The network carries one payload per node instead of one per GPU. With `between="racks"`
the ranks of a rack or site do the same, and one payload per rack crosses its uplinks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gcsim.compressors import requests
from gcsim.compressors.coding.frames import as_bytes
from gcsim.compressors.ddp.collectives import Collectives
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InputError


class PartCollectives:
    """One rank's collectives within its node or rack, and between nodes or racks."""

    def __init__(
        self,
        everyone: Collectives,
        ranks: int,
        new_group: Callable[[Sequence[int]], Any],
        device: torch.device | None,
    ) -> None:
        """Group the ranks of `everyone`, `ranks` consecutive ones per part; `new_group` creates a
        group, and all ranks call it. Raises `InputError` if parts would differ in size."""
        if everyone.count % ranks:
            message = f"{everyone.count} ranks are no whole nodes or racks of {ranks}"
            hint = "start as many ranks on each, or leave between out"
            raise InputError(message, place="between", hint=hint)
        import torch.distributed as dist

        self.everyone, self.group = everyone, everyone.group
        self.rank, self.count = everyone.rank // ranks, everyone.count // ranks
        self.begin_maximum = everyone.begin_maximum
        self.require_alike = everyone.require_alike
        every = dist.get_process_group_ranks(everyone.group)
        parts = [every[first : first + ranks] for first in range(0, len(every), ranks)]
        groups = [new_group(part) for part in parts]
        firsts = new_group([part[0] for part in parts])
        self._device = device or torch.device("cpu")
        self._inside = Collectives(groups[self.rank], device)
        self._first, self._broadcast = parts[self.rank][0], dist.broadcast
        self._between = None if everyone.rank % ranks else Collectives(firsts, device)

    def mean(self, gradient: Tensor) -> Tensor:
        """Return the mean of the part's gradients, with the same bits on all of its ranks."""
        total = requests.AllReduce(tensor=gradient / self._inside.count)
        found: Tensor = self._inside.execute(total)
        return found

    def execute(self, request: requests.Request) -> Any:
        """Return the reply to a request that all parts make."""
        if isinstance(request, requests.PushPull):
            gather = requests.AllGather(payload=request.payload, variable=request.variable)
            return request.server(self.execute(gather))
        reply = None if self._between is None else self._between.execute(request)
        if self._inside.count == 1:
            return reply
        like = requests.tensors_sent(request)[0]
        whole = isinstance(request, requests.AllReduce | requests.TreeMerge)
        own = [reply] if whole and reply is not None else reply
        count = 1 if whole else self.count
        told = isinstance(request, requests.TreeMerge) or getattr(request, "variable", False)
        handed = self._handed(own, None if told else [like.nbytes] * count, count, like)
        if isinstance(request, requests.AllReduce):
            return handed[0].view(like.dtype).view(like.shape)
        return handed[0] if whole else handed

    def _handed(
        self, reply: Sequence[Tensor] | None, sizes: list[int] | None, count: int, like: Tensor
    ) -> list[Tensor]:
        """Return `count` tensors of the first rank as bytes, on `like`'s device; `sizes` are their
        bytes if all ranks know them, so that nobody waits."""
        if sizes is None:
            lengths = torch.zeros(count, dtype=torch.int64)
            if reply is not None:
                lengths = torch.tensor([each.nbytes for each in reply])
            lengths = lengths.to(self._device)
            self._broadcast(lengths, src=self._first, group=self._inside.group)
            sizes = lengths.tolist()
        if reply is not None:
            flat = torch.cat([as_bytes(each.reshape(-1)) for each in reply]).to(self._device)
        else:
            flat = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        if len(flat):
            self._broadcast(flat, src=self._first, group=self._inside.group)
        return list(torch.split(flat.to(like.device), sizes))
