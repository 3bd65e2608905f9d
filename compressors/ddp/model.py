"""Requirements of a hook on method and model, and the process group that it uses.

A new process group has a timeout of 30 minutes (NCCL: 10), whatever `init_process_group` was given;
the hook's group gets the model's. Before `register`'s first collective each rank sets a key in the
job's store and waits for the others', so that it can name missing ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from gcsim.compressors.base import Compressor, CompressorParameters
from gcsim.compressors.lazy_torch import Tensor, nn, torch
from gcsim.errors import InputError, Problem


def require_ddp_support(kind: str, cls: type[Compressor], parameters: CompressorParameters) -> None:
    """Raise `InputError` for a method whose replicas differ or that needs data a hook lacks."""
    if cls.properties(parameters).replicas != "identical":
        raise InputError(
            "workers hold different models between synchronisations, "
            "DistributedDataParallel keeps one for all: buffers and checkpoints are rank 0's",
            place=kind,
            hint="choose a method whose update is the same on all workers",
        )
    if cls.requires:
        raise InputError(
            "needs second moments of the samples' gradients, "
            "a DDP hook is given the mean gradient alone",
            place=kind,
            hint="choose a method without them",
        )


def group_for(model: Any, given: Any, device: torch.device) -> tuple[Any, bool]:
    """Return a group of the ranks that `model` exchanges gradients with, `given` or new, and
    whether it sends tensors of `device` (NCCL does; Gloo sends host memory). A new group is NCCL if
    gradients are on a GPU and the model's own group is NCCL; it has the model's timeout. All ranks
    must call this. Raises `InputError` for other ranks or backends, or late ranks."""
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks(model.process_group)
    timeout = timeout_of(model.process_group, device)
    if given is None:
        await_ranks(ranks, timeout)
        carries = _backend(model.process_group, device) == "nccl"
        return group_of(model, device, ranks), carries
    backend, found = _backend(given, device), dist.get_process_group_ranks(given)
    problems = []
    if backend not in ("gloo", "nccl"):
        kind = device.type
        problems.append(f"its backend for {kind} is {backend}, payloads travel over gloo or nccl")
    if found != ranks:
        problems.append(f"it has {ranks_text(found)}, the model is trained by {ranks_text(ranks)}")
    if problems:
        raise InputError(
            Problem(message=message, place="process_group", hint="leave it out, and one is made")
            for message in problems
        )
    await_ranks(ranks, timeout)
    return given, backend == "nccl"


def group_of(model: Any, device: torch.device, ranks: Sequence[int]) -> Any:
    """Create a group of some of the model's ranks, with the backend and timeout of the model's
    group; all ranks call this, and it returns None on the others."""
    import torch.distributed as dist

    everyone = dist.get_process_group_ranks(model.process_group)
    backend = _backend(model.process_group, device)
    # Without the others' help torch names a group by the number of groups of a rank, which may
    # differ between ranks; so do this only if it must be.
    alone = len(everyone) < dist.get_world_size()
    if alone and dist.get_rank() not in ranks:
        return None
    return dist.new_group(
        ranks,
        timeout=timeout_of(model.process_group, device),
        backend=backend if backend == "nccl" else "gloo",
        use_local_synchronization=alone,
    )


def timeout_of(group: Any, device: torch.device) -> timedelta | None:
    """Return the timeout of a group's collectives on a device, if its backend tells."""
    try:
        backend = group._get_backend(device)
    except RuntimeError:  # no backend for the device
        return None
    found = getattr(getattr(backend, "options", None), "_timeout", None)
    return found if isinstance(found, timedelta) else None


def await_ranks(ranks: Sequence[int], timeout: timedelta | None) -> None:
    """Wait until all these ranks have called this as often; `InputError` names late ranks."""
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
        message = f"{ranks_text(absent)} did not come to register() within {seconds}"
        hint = "call it on every rank that trains the model, before training"
        raise InputError(message, place="register", hint=hint) from error


def ranks_text(ranks: Sequence[int]) -> str:
    """Return "rank 2" or "ranks 1, 2"."""
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(str(rank) for rank in ranks)}"


def _backend(group: Any, device: torch.device) -> str:
    """Return the backend for tensors of a device ("cpu:gloo,cuda:nccl"); "none" without one."""
    import torch.distributed as dist

    pairs = (pair.partition(":") for pair in dist.get_backend_config(group).split(","))
    return {kind: library for kind, _, library in pairs}.get(device.type, "none")


def agree(group: Any, facts: Mapping[str, Any]) -> None:
    """Raise `InputError` on all ranks of `group` if a fact on any rank differs from rank 0's."""
    import torch.distributed as dist

    everybody: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, dict(facts), group=group)
    problems = []
    for key in facts:
        others = [r for r, told in enumerate(everybody) if told[key] != everybody[0][key]]
        if others:
            problems.append(
                Problem(
                    message=f"differs between rank 0 and {ranks_text(others)}",
                    place=key,
                    hint="all ranks exchange the same parameters in the same way",
                )
            )
    if problems:
        raise InputError(problems)


def require_float32(trained: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise `InputError` naming the parameters whose gradients do not fit float32."""
    fitting = (torch.float32, torch.float16, torch.bfloat16)
    problems = [
        Problem(
            message=f"{str(parameter.dtype).removeprefix('torch.')} gradients are not compressed",
            place=f"parameter {name}",
            hint="train in float32, float16 or bfloat16",
        )
        for name, parameter in trained
        if parameter.dtype not in fitting
    ]
    if problems:
        raise InputError(problems)


def one_device(trained: Iterable[tuple[str, nn.Parameter]]) -> torch.device:
    """Return the device of all parameters. Raises `InputError` if there are several."""
    where: dict[torch.device, str] = {}
    for name, parameter in trained:
        where.setdefault(parameter.device, name)
    if len(where) > 1:
        told = ", ".join(f"{name} on {device}" for device, name in where.items())
        message = f"its parameters lie on several devices: {told}"
        hint = "one device per rank, as DistributedDataParallel is faster with"
        raise InputError(message, place="model", hint=hint)
    return next(iter(where))


def require_dense(buffer: Tensor) -> None:
    """Raise `InputError` if a bucket has a sparse gradient."""
    if buffer.is_sparse:
        message = "sparse gradients are not compressed"
        raise InputError(message, place="model", hint="make embeddings with sparse=False")
