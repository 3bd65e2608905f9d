"""Who records? One process alone, or all ranks of a process group, each its own gradients.

Rank 0 makes the trace. Its temporary folder is written to by every rank that can see it; a rank
that cannot (machines without a shared file system) sends its gradients to rank 0. Every decision
that could differ (a NaN on one rank) is taken together, so that no rank waits for one that left.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from gcsim.compressors.lazy_torch import Tensor, nn, torch

_TOKEN = ".shared"  # noqa: S105 - a file's name


class Ranks(Protocol):
    """The processes that record together."""

    rank: int
    count: int

    def share(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank."""

    def bring(self, tensors: Sequence[Tensor], absent: Sequence[int]) -> dict[int, list[Tensor]]:
        """On rank 0 the tensors of the ranks in `absent`; each has as many and as large ones."""


class Alone:
    """A single process."""

    rank = 0
    count = 1

    def share(self, value: Any) -> Any:  # noqa: D102
        return value

    def gather(self, value: Any) -> list[Any]:  # noqa: D102
        return [value]

    def bring(  # noqa: D102
        self, tensors: Sequence[Tensor], absent: Sequence[int]
    ) -> dict[int, list[Tensor]]:
        return {}


class Group:
    """The ranks of a `torch.distributed` process group."""

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._group = group
        self.rank = dist.get_rank(group)
        self.count = dist.get_world_size(group)
        on_gpu = dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else None

    def _global(self, rank: int) -> int:
        return rank if self._group is None else self._dist.get_global_rank(self._group, rank)

    def share(self, value: Any) -> Any:  # noqa: D102
        box = [value]
        self._dist.broadcast_object_list(
            box, src=self._global(0), group=self._group, device=self._device
        )
        return box[0]

    def gather(self, value: Any) -> list[Any]:  # noqa: D102
        found: list[Any] = [None] * self.count
        self._dist.all_gather_object(found, value, group=self._group)
        return found

    def bring(  # noqa: D102
        self, tensors: Sequence[Tensor], absent: Sequence[int]
    ) -> dict[int, list[Tensor]]:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        device = self._device or torch.device("cpu")
        if self.rank in absent:
            self._dist.send(flat.to(device), dst=self._global(0), group=self._group)
        brought: dict[int, list[Tensor]] = {}
        if self.rank == 0:
            for rank in absent:
                box = torch.empty_like(flat, device=device)
                self._dist.recv(box, src=self._global(rank), group=self._group)
                pieces = torch.split(box.cpu(), [tensor.numel() for tensor in tensors])
                brought[rank] = [p.view(t.shape) for p, t in zip(pieces, tensors, strict=True)]
        return brought


def ranks_of(model: nn.Module) -> Ranks:
    """The group that `model` exchanges gradients in; alone where there is none."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return Alone()
    group = getattr(model, "process_group", None) if _is_ddp(model) else None
    return Group(group) if dist.get_world_size(group) > 1 else Alone()


def exchanged_buckets(model: nn.Module, names: Sequence[str]) -> tuple[tuple[str, ...], ...] | None:
    """DDP's buckets as it rebuilt them, by parameter; None where there are none to be seen."""
    if not _is_ddp(model):
        return None
    try:
        told = model._get_ddp_logging_data()  # type: ignore[operator]
        text = str(told["rebuilt_per_bucket_param_indices"])
        found = tuple(
            tuple(names[int(number)] for number in bucket.split()) for bucket in text.split(",")
        )
    except (AttributeError, KeyError, ValueError, IndexError, RuntimeError):
        return None  # it keeps that to itself in this version of torch, or did not rebuild them
    return found if sorted(sum(found, ())) == sorted(names) else None


def _is_ddp(model: nn.Module) -> bool:
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(model, DistributedDataParallel)


class SharedFolder:
    """Which ranks can see a folder that rank 0 has made."""

    def __init__(self, ranks: Ranks, folder: Path | None) -> None:
        word = secrets.token_hex(16)
        if folder is not None:
            (folder / _TOKEN).write_text(word, encoding="ascii")
        told, expected = ranks.share((str(folder), word))
        self.path = Path(told)
        seen = ranks.gather(_reads(self.path / _TOKEN, expected))
        self.absent = tuple(rank for rank, sees in enumerate(seen) if not sees)
        """Ranks that cannot."""


def _reads(path: Path, expected: str) -> bool:
    try:
        return path.read_text(encoding="ascii") == expected
    except (OSError, ValueError):
        return False
