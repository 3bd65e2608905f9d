"""Ranks that do not come, fall asleep, or ask for other things than the rest. A script.

    python late_ranks.py COUNT FOLDER JOB ...

Jobs run side by side, each with COUNT forked ranks; FOLDER/JOB.RANK.pt holds the error that a rank
met and after how many seconds.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch._dynamo  # DDP would in each rank
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gcsim
from gcsim.compressors.base import Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.ddp.hook import COMPARED
from gcsim.compressors.requests import AllGather, AllReduce, Exchange
from tests.compressors.ddp.plan import PROBE, planned, steps_of

DEADLINE = 2.0
LONG = 60.0


class OddParameters(CompressorParameters):
    how: Literal["kind", "dtype", "length", "operation", "more", "later"] = "kind"


class Odd(Compressor[OddParameters]):
    """Dense; in one respect the last rank asks for something else."""

    about = PROBE

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        own, how = bucket.gradient / self.worker.count, self.parameters.how
        last = self.worker.rank == self.worker.count - 1 and (how != "later" or step == 2)
        if last and how in ("kind", "later"):
            yield AllGather(payload=own.view(torch.uint8))
        if last and how == "dtype":
            yield AllReduce(tensor=own.half())
        if last and how == "length":
            yield AllReduce(tensor=own[1:])
        if last and how == "operation":
            yield AllReduce(tensor=own, op="max")
        mean: torch.Tensor = yield AllReduce(tensor=own)
        if last and how == "more":
            yield AllReduce(tensor=mean.clone())
        return mean


def waiting_model() -> DistributedDataParallel:
    """A model whose group waits `DEADLINE` seconds; the job's own waits longer."""
    dist.barrier()
    return planned(process_group=dist.new_group(timeout=timedelta(seconds=DEADLINE)))


def met(act: Callable[[], object]) -> list[Any]:
    """The error that a rank met, and after how many seconds."""
    began = time.monotonic()
    try:
        act()
    except Exception as error:
        return [f"{type(error).__name__}: {error}", time.monotonic() - began]
    return ["", time.monotonic() - began]


def others_awake(rank: int, count: int, act: Callable[[], object], asleep: int) -> list[Any]:
    """What an act comes to, where the last `asleep` ranks do nothing until all others are done."""
    store: Any = dist.distributed_c10d._get_default_store()
    awake = count - asleep
    if rank < awake:
        found = met(act)
        store.set(f"done {rank}", "")
        return found
    store.wait([f"done {other}" for other in range(awake)], timedelta(seconds=LONG))
    return ["", 0.0]


def does_not_come(rank: int, count: int) -> list[Any]:
    """Half of the ranks."""
    model, hook = waiting_model(), gcsim.ddp_hook("topk")
    return others_awake(rank, count, lambda: hook.register(model), count // 2)


def falls_asleep(rank: int, count: int) -> list[Any]:
    """One of the ranks, after the steps in which ranks compare what they ask for, and before."""
    model = waiting_model()
    gcsim.ddp_hook("topk").register(model)
    list(steps_of(model, rank, 1 + COMPARED))
    return others_awake(rank, count, lambda: list(steps_of(model, rank, 1)), 1)


def asks(rank: int, count: int) -> list[Any]:
    """By `ODD`; the last rank is late, but in time."""
    found = []
    for how in ODD:
        model = planned()
        time.sleep(0.2 * (rank == count - 1))
        gcsim.ddp_hook(Odd, how=how).register(model)
        found.append(met(lambda: list(steps_of(model, rank, 1 + COMPARED))))  # noqa: B023
    return found


ODD = ("kind", "dtype", "length", "operation", "more", "later")
JOBS = {"does_not_come": does_not_come, "falls_asleep": falls_asleep, "asks": asks}


def work(job: str, rank: int, count: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / job}.store", rank=rank, world_size=count,
        timeout=timedelta(seconds=LONG),
    )  # fmt: skip
    torch.save(JOBS[job](rank, count), folder / f"{job}.{rank}.pt")
    os._exit(0)  # hooks may wait


def main() -> None:
    count, folder, jobs = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    fork = multiprocessing.get_context("fork")
    running = [
        fork.Process(target=work, args=(job, rank, count, folder), daemon=True)
        for job in jobs
        for rank in range(count)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join(LONG)


if __name__ == "__main__":
    main()
