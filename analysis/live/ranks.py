"""Program of one rank, `python -m gcsim.analysis.live.ranks`: torch.distributed over Gloo.

Every measurement begins at an instant that rank 0 has announced, on the clock that all processes
of a machine share; it ends when the last rank is done. The ranks' times are put together by who
started them. A rank ends itself when its time is over or when its parent is gone.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from gcsim.analysis.live.plan import AloneTask, CollectiveTask, StreamTask, Task, from_json
from gcsim.analysis.live.steps import clock, common_start, steps_alone, training_steps
from gcsim.files import write_text

_PDEATHSIG = 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Join the others, do the tasks in order, and write the times."""
    options = _options(arguments)
    _die_with_parent(options.parent)
    signal.alarm(options.seconds)  # its default is the end of the process
    tasks, batch, seed = from_json(options.plan.read_text(encoding="utf-8"))
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    limit = timedelta(seconds=options.seconds)
    host, _, port = options.store.rpartition(":")
    make: Any = dist.TCPStore  # type: ignore[attr-defined]  # exported by assignment
    store = make(host, int(port), options.world, options.rank == 0, limit)
    dist.init_process_group(
        "gloo", store=store, rank=options.rank, world_size=options.world, timeout=limit
    )
    results = []
    for number, task in enumerate(tasks):
        results.append(_do(task, batch, seed))
        if options.rank == 0:  # for whoever watches
            print(number, flush=True)
    write_text(options.results, json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gcsim.analysis.live.ranks")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--store", required=True, help="ADDRESS:PORT of rank 0's TCP store")
    parser.add_argument("--plan", type=Path, required=True, help="a round's tasks, JSON")
    parser.add_argument("--results", type=Path, required=True, help="the file to write, JSON")
    parser.add_argument("--seconds", type=int, required=True, help="after which it ends itself")
    parser.add_argument("--parent", type=int, default=0, help="the process that started it")
    return parser.parse_args(arguments)


def _do(task: Task, batch: int, seed: int) -> dict[str, Any]:
    if isinstance(task, CollectiveTask):
        return _repeated(_collective(task), task.repeats)
    if isinstance(task, StreamTask):
        return _repeated(_stream(task), task.repeats)
    if isinstance(task, AloneTask):
        return steps_alone(task, batch, seed)
    return training_steps(task, batch, seed)


def _collective(task: CollectiveTask) -> Callable[[], object]:
    import torch
    from torch import distributed as dist

    own = torch.zeros(task.nbytes // 4)
    if task.kind == "all_reduce":
        return lambda: dist.all_reduce(own)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    return lambda: dist.all_gather(gathered, own)


def _stream(task: StreamTask) -> Callable[[], object]:
    import torch
    from torch import distributed as dist

    own, others = torch.zeros(2, task.nbytes, dtype=torch.uint8)
    other = 1 - dist.get_rank()

    def both_ways() -> None:
        coming = dist.irecv(others, other)  # first: Gloo sends what is asked for
        dist.send(own, other)
        if coming is not None:  # None: from a rank outside of the group
            coming.wait()

    return both_ways


def _repeated(call: Callable[[], object], repeats: int) -> dict[str, Any]:
    """`starts`: as announced; `ends`: of this rank; a number for each repeat after the first."""
    call()
    starts, ends = [], []
    for _ in range(repeats):
        starts.append(common_start())
        call()
        ends.append(clock())
    return {"starts": starts, "ends": ends}


def _die_with_parent(parent: int) -> None:
    """Linux: SIGKILL when the process that started this one ends, however it ends."""
    if not parent or not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0 and os.getppid() != parent:
        sys.exit("the process that started this rank is gone")


if __name__ == "__main__":
    main()
