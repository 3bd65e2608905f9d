"""Deadlines of a hook: its waits end when the job's own would, and name the ranks that are absent.

PyTorch gives a new process group 30 minutes (NCCL 10), whatever `init_process_group` was given; a
group beside the model's gets the model's here. `await_ranks` comes before the first collective of
`register`: each rank leaves a note in the job's store and waits for those of the others, so every
rank that came says which did not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from gcsim.compressors.lazy_torch import torch
from gcsim.errors import InputError


def timeout_of(group: Any, device: torch.device) -> timedelta | None:
    """Timeout of a group's collectives on a device; None where its backend does not say."""
    try:
        backend = group._get_backend(device)
    except RuntimeError:  # it has none for the device
        return None
    found = getattr(getattr(backend, "options", None), "_timeout", None)
    return found if isinstance(found, timedelta) else None


def await_ranks(ranks: Sequence[int], timeout: timedelta | None) -> None:
    """Wait until all these ranks have come as often as this one.

    Raises `InputError` that names those that have not come in time.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    store: Any = _get_default_store()
    wait = timeout or store.timeout
    name = f"gcsim/register/{hashlib.sha256(repr(list(ranks)).encode()).hexdigest()}"
    times = store.add(f"{name}/{dist.get_rank()}", 1)
    notes = {rank: f"{name}/{times}/{rank}" for rank in ranks}
    store.set(notes[dist.get_rank()], "here")
    try:
        store.wait(list(notes.values()), wait)
    except RuntimeError as error:
        absent = [rank for rank, note in notes.items() if not store.check([note])]
        if not absent:
            return
        seconds = f"{wait.total_seconds():g} s, the job's timeout"
        raise InputError(
            f"{ranks_text(absent)} did not come to register() within {seconds}",
            place="register",
            hint="call it on every rank that trains the model, before training",
        ) from error


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 2" or "ranks 1, 2"."""
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(str(rank) for rank in ranks)}"
