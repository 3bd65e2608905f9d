"""Program of one rank, `python -m gcsim.analysis.live.ranks`: torch.distributed over Gloo.

A measurement begins at a time that rank 0 announces on the machine's common clock, and ends with
the last rank; the launcher combines the ranks' times. A rank exits when its time limit is reached
or its parent is gone.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcsim.analysis.live import plan
from gcsim.compressors.lazy_torch import torch
from gcsim.files import write_text
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.models.torch_generator import keyed_generator

if TYPE_CHECKING:
    from torch import Tensor, nn


AHEAD = 0.02  # seconds between an announcement and the start it announces
RECORDED = 2  # iterations whose gradients are recorded
_LEARNING_RATE = 0.01
_TENTHS_APART = 2.563
"""Width of a normal distribution's middle 80 % in standard deviations: robust against pauses."""
clock: Callable[[], float] = time.monotonic  # common to all processes of a machine


def common_start() -> float:
    """Wait for a start that rank 0 announces; return its time."""
    import torch
    from torch import distributed as dist

    dist.barrier()
    instant = torch.tensor([clock() + AHEAD], dtype=torch.float64)
    dist.broadcast(instant, 0)
    start = float(instant)
    time.sleep(max(0.0, start - clock()))
    return start


def training_steps(task: plan.TrainingTask, batch: int, seed: int) -> dict[str, Any]:
    """Run the steps; return the announced start of the first counted one and this rank's ends."""
    from torch import distributed as dist

    model = _model(seed)
    _hook(task, seed).register(model)
    steps = _steps(model, _batch(batch, worker=dist.get_rank(), seed=seed))
    for _ in range(task.warm_up):
        next(steps)
    starts, ends = [common_start()], []
    for _ in range(task.steps):
        next(steps)
        ends.append(clock())
    return {"starts": starts, "ends": ends, "replicas": _equal_everywhere(model)}


def steps_alone(task: plan.AloneTask, batch: int, seed: int) -> dict[str, Any]:
    """Return median seconds of `forward`, `backward` and `optimizer` of DDP on this rank alone,
    with a hook that returns each bucket at once; `hooks`: extra seconds of a step with a method's
    `gcsim.ddp_hook`, by label; `variation` of the steps, standard deviation over median. Also
    records a trace of gradients."""
    from torch import distributed as dist

    rank = dist.get_rank()
    itself = dist.new_group([rank], use_local_synchronization=True)
    samples = _batch(batch, worker=rank, seed=seed)
    model = _model(seed, itself)
    model.register_comm_hook(None, _at_once)
    running = {"": _steps(model, samples)}
    for one in task.methods:
        model = _model(seed, itself)
        _hook(one, seed).register(model)
        running[one.label] = _steps(model, samples)
    for _ in range(task.warm_up):
        for steps in running.values():
            next(steps)
    taken: dict[str, list[tuple[float, float, float]]] = {label: [] for label in running}
    for _ in range(task.steps):  # in turn, so that all see the same conditions
        for label, steps in running.items():
            taken[label].append(next(steps))
    if rank == 0:
        _record(task, batch, seed)
    passes = taken.pop("")
    tenths = statistics.quantiles((sum(one) for one in passes), n=10)
    return {
        "variation": (tenths[-1] - tenths[0]) / _TENTHS_APART / tenths[4],
        "hooks": {
            label: max(
                0.0, statistics.median(sum(o) - sum(p) for o, p in zip(of, passes, strict=True))
            )
            for label, of in taken.items()
        },
        **{
            name: statistics.median(of_pass)
            for name, of_pass in zip(
                ("forward", "backward", "optimizer"), zip(*passes, strict=True), strict=True
            )
        },
    }


def _at_once(state, bucket):  # type: ignore[no-untyped-def]
    """Return the bucket unchanged; unannotated, since DDP checks annotations as objects."""
    import torch

    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _hook(task: plan.TrainingTask, seed: int) -> Any:
    from gcsim.compressors.ddp.hook import ddp_hook

    return ddp_hook({"kind": task.compressor, **task.parameters}, seed=seed)


def _model(seed: int, group: Any = None) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    from gcsim.traces.models.building import build_model

    return DistributedDataParallel(build_model(_ENTRY, seed=seed), process_group=group)


def _steps(model: nn.Module, data: tuple[Tensor, Tensor]) -> Iterator[tuple[float, float, float]]:
    """Run training steps; yield seconds of forward, backward and optimizer."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    inputs, labels = data
    while True:
        begun = clock()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        forward = clock()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        backward = clock()
        optimizer.step()
        optimizer.zero_grad()
        yield forward - begun, backward - forward, clock() - backward


def _record(task: plan.AloneTask, batch: int, seed: int) -> None:
    """Record the gradients of the first iterations for all workers."""
    import torch

    from gcsim.traces.models.building import build_model
    from gcsim.traces.recording.recording import record

    model = build_model(_ENTRY, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    data = [_batch(batch, worker=worker, seed=seed) for worker in range(task.workers)]
    with record(
        model,
        Path(task.trace),
        name=_ENTRY.name,
        iterations=RECORDED,
        timed=0,
        workers=task.workers,
        distributed=False,
        quiet=True,
    ) as recording:
        done = False
        while not done:
            optimizer.zero_grad()
            for inputs, labels in data:
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            optimizer.step()
            done = recording.step(float(loss.detach()))


def _equal_everywhere(model: Any) -> bool:
    """Whether all ranks have bitwise equal parameters."""
    import torch
    from torch import distributed as dist

    own = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    first = own.clone()
    dist.broadcast(first, 0)
    same = torch.tensor([int(torch.equal(first, own))])
    dist.all_reduce(same, dist.ReduceOp.MIN)
    return bool(same)


_PIXELS = 784
_WIDTH = 1100
_CLASSES = 10
_ENTRY = ModelEntry(
    name="live_perceptron",
    title="Perceptron with two hidden layers",
    build="gcsim.analysis.live.ranks:build",
    input_shape=(_PIXELS,),
    classes=_CLASSES,
    parameters=(_PIXELS + 1) * _WIDTH + (_WIDTH + 1) * _WIDTH + (_WIDTH + 1) * _CLASSES,
    paper="",
)


def build() -> nn.Module:
    """Build the untrained network."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(_PIXELS, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU(),
        nn.Linear(_WIDTH, _CLASSES),
    )  # fmt: skip


def _batch(samples: int, *, worker: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return a worker's samples float32 `[samples, PIXELS]` and labels int64 `[samples]`."""
    with keyed_generator(seed, "labels of the live task"):
        teacher = torch.randn(_PIXELS, _CLASSES)
    with keyed_generator(seed, "samples of the live task", rank=worker):
        samples_ = torch.randn(samples, _PIXELS)
    return samples_, (samples_ @ teacher).argmax(1)


_PDEATHSIG = 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Join the other ranks, do the tasks in order, and write the times."""
    options = _options(arguments)
    _die_with_parent(options.parent)
    signal.alarm(options.seconds)  # by default it ends the process
    own = plan.RANK_PLAN.validate_json(options.plan.read_bytes())
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
    for number, task in enumerate(own.tasks):
        results.append(_do(task, own.batch, own.seed))
        if options.rank == 0:  # for the launcher
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


def _do(task: plan.Task, batch: int, seed: int) -> dict[str, Any]:
    if isinstance(task, plan.CollectiveTask):
        return _repeated(_collective(task), task.repeats)
    if isinstance(task, plan.StreamTask):
        return _repeated(_stream(task), task.repeats)
    if isinstance(task, plan.AloneTask):
        return steps_alone(task, batch, seed)
    return training_steps(task, batch, seed)


def _collective(task: plan.CollectiveTask) -> Callable[[], object]:
    import torch
    from torch import distributed as dist

    own = torch.zeros(task.nbytes // 4)
    if task.kind == "all_reduce":
        return lambda: dist.all_reduce(own)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    return lambda: dist.all_gather(gathered, own)


def _stream(task: plan.StreamTask) -> Callable[[], object]:
    import torch
    from torch import distributed as dist

    own, others = torch.zeros(2, task.nbytes, dtype=torch.uint8)
    other = 1 - dist.get_rank()

    def both_ways() -> None:
        coming = dist.irecv(others, other)  # first: Gloo sends only what is requested
        dist.send(own, other)
        if coming is not None:  # None: this rank is outside the group
            coming.wait()

    return both_ways


def _repeated(call: Callable[[], object], repeats: int) -> dict[str, Any]:
    """Return `starts` (announced) and this rank's `ends`, per repeat after the first."""
    call()
    starts, ends = [], []
    for _ in range(repeats):
        starts.append(common_start())
        call()
        ends.append(clock())
    return {"starts": starts, "ends": ends}


def _die_with_parent(parent: int) -> None:
    """Make Linux send SIGKILL when the parent process ends."""
    if not parent or not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0 and os.getppid() != parent:
        sys.exit("the process that started this rank is gone")


if __name__ == "__main__":
    main()
