"""The ranks of a process group on loopback: what DDP hooks and collectives give. A script.

    python ranks.py COUNT FOLDER JOB ...

It forks COUNT ranks, so that torch is imported once for all; `test_ddp.py` compares
FOLDER/JOB.RANK.pt with lockstep. Where a rank fails, all end: the others would wait for it.
"""

import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP would in each rank
import torch.distributed as dist
from torch import Tensor

import gcsim
from gcsim.compressors.ddp.collectives import Collectives
from gcsim.compressors.requests import AllGather, AllReduce, AllToAll, PushPull, Request, TreeMerge
from tests.compressors.ddp.loops import LOOPS
from tests.compressors.ddp.plan import (
    SEED,
    SOME,
    TOGETHER,
    carried,
    carried_with_options,
    each_exchange,
    end_groups,
    gpus_for,
    planned,
    steps_of,
)
from tests.compressors.ddp.trials import situations, trials
from tests.forked import ranks

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int16, torch.uint8)
LENGTHS = (1, 2, 3, 7, 64, 1001, 300_007, 1_300_001)
"""Elements; the longest take several of Gloo's segments a chunk."""
_LONG = (torch.float32, torch.int16)


def buckets_of(hook: Any) -> list[list[int]]:
    return [[p.index for p in hook.layouts[i].slices] for i in range(len(hook.layouts))]


def registry(rank: int) -> Iterator[Any]:
    """Every compressor."""
    return methods(rank, carried())


def with_options(rank: int) -> Iterator[Any]:
    """Every compressor with the options that mean something for it."""
    return methods(rank, carried_with_options())


def some_with_options(rank: int) -> Iterator[Any]:
    return methods(rank, carried_with_options(*SOME))


def between_nodes(rank: int) -> Iterator[Any]:
    """Methods of two nodes of two ranks."""
    return methods(rank, each_exchange(), between="nodes", devices_per_node=2)


def methods(
    rank: int, cases: list[tuple[str, dict[str, Any]]], device: str = "cpu", **given: Any
) -> Iterator[Any]:
    """Compressors, one after the other, on a group that they share, all ranks on one device."""
    group = dist.new_group(backend="gloo")
    for name, parameters in cases:
        model = planned(torch.device(device))
        hook = gcsim.ddp_hook(name, seed=SEED, process_group=group, **given, **parameters)
        hook.register(model)
        updates = [[one.cpu() for one in each] for each in steps_of(model, rank)]
        told, timed = model._get_ddp_logging_data(), hook.measured()  # type: ignore[no-untyped-call]
        yield {
            "updates": updates,
            "measured": (timed.workers, timed.rank, timed.ranks_per_part),
            "step": hook.step,
            "buckets": buckets_of(hook),
            "of DDP": told["rebuilt_per_bucket_param_indices"],
        }


# --- requests ----------------------------------------------------------------------------


def requests(rank: int, count: int) -> list[Request]:
    """One rank's requests, of all kinds: payloads of no byte and of many, of odd lengths."""
    made: list[Request] = []
    for dtype in DTYPES:
        for length in LENGTHS if dtype in _LONG else LENGTHS[:-2]:
            made.append(AllReduce(tensor=_numbers(dtype, length, rank)))
        made.append(AllReduce(tensor=_numbers(dtype, 999, rank).view(27, 37), op="max"))
    for length in (0, 1, 5, 4096, 100_003):
        own = _bytes(length, rank)
        made.append(AllGather(payload=own))
        made.append(PushPull(payload=own, server=lambda received: torch.cat(list(received))))
        made.append(TreeMerge(payload=own, merge=lambda a, b: torch.cat((b, a))))
        made.append(AllToAll(payloads=[_bytes(length, rank + 7 * r) for r in range(count)]))
    for length in (0, 1, 5000):
        ragged = _bytes(length * (rank % 3), rank)  # rank 0 has nothing
        made.append(AllGather(payload=ragged, variable=True))  # nobody has told lengths
        told = [torch.tensor([length * (r % 3)]).view(torch.uint8) for r in range(count)]
        made.append(AllGather(payload=ragged, variable=True, lengths=told))
        last = lambda received: list(received)[-1][:2]  # noqa: E731 - beside the others
        made.append(PushPull(payload=ragged, server=last, variable=True))
        made.append(TreeMerge(payload=ragged, merge=lambda a, b: torch.cat((a, b))))
        each = [_bytes(length * ((rank + r) % 3), rank + 7 * r) for r in range(count)]
        made.append(AllToAll(payloads=each, variable=True))
    return made


def _numbers(dtype: torch.dtype, length: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(length + 10 * rank)
    if dtype.is_floating_point:
        return (torch.randn(length, generator=generator).exp() * 3).to(dtype)
    return torch.randint(0, 40, (length,), generator=generator).to(dtype)


def _bytes(length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (length,), dtype=torch.uint8, generator=generator)


def collectives(
    rank: int, backend: str = "gloo", device: torch.device | None = None
) -> Iterator[Any]:
    carried_out = Collectives(dist.new_group(backend=backend), device)
    for request in requests(rank, carried_out.count):
        reply = carried_out.execute(request)
        yield [t.clone() for t in reply] if isinstance(reply, list) else reply.clone()


def as_on_a_gpu(rank: int) -> Iterator[Any]:
    """The ways of a GPU's payloads."""
    if not gpus_for(dist.get_world_size()):
        return collectives(rank, "gloo", torch.device("cpu"))
    torch.cuda.set_device(rank)
    return collectives(rank, "nccl", torch.device("cuda", rank))


# --- training loops ----------------------------------------------------------------------


def loops(rank: int) -> Iterator[Any]:
    """Each of loops.py: what was wrong, or nothing. The first failure ends them, since other
    ranks may wait."""
    for loop in LOOPS.values():
        try:
            loop(rank)
        except Exception:
            traceback.print_exc()
            yield traceback.format_exc()
            return
        end_groups()
        yield ""


def left(rank: int) -> Iterator[Any]:
    """Rank 1 is gone after two iterations: what rank 0 gets, and after how many seconds."""
    model = planned()
    gcsim.ddp_hook("topk", seed=SEED).register(model)
    list(steps_of(model, rank, 2))
    if rank == 1:
        torch.save([], Path(sys.argv[2]) / "left.1.pt")
        os._exit(0)
    began = time.monotonic()
    try:
        list(steps_of(model, rank, 1))
    except Exception as error:
        found = [type(error).__name__ + f": {error}", time.monotonic() - began]
        torch.save(found, Path(sys.argv[2]) / "left.0.pt")
        os._exit(0)
    yield "nothing"


JOBS: dict[str, Callable[[int], Iterator[Any]]] = {
    "registry": registry,
    "with_options": with_options,
    "some_with_options": some_with_options,
    "between_nodes": between_nodes,
    "collectives": collectives,
    "as_on_a_gpu": as_on_a_gpu,
    "loops": loops,
    **{
        f"together_on_{device}": partial(methods, cases=TOGETHER, device=device)
        for device in ("cpu", "cuda")
    },
    "left": left,
    "situations": situations,
    "all_trials": partial(trials, cases=carried()),
    "some_trials": partial(trials, cases=each_exchange()),
}


def work(rank: int, count: int, folder: Path, jobs: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=600),
    )
    for job in jobs:
        torch.save(list(JOBS[job](rank)), folder / f"{job}.{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    count, folder, jobs = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    carried()  # imports the compressors
    ranks(work, count, count, folder, jobs)


if __name__ == "__main__":
    main()
