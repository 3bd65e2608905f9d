"""What does a rank do in training? DDP steps with a compressor, or by itself without exchange."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcsim.analysis.live.network import ENTRY
from gcsim.analysis.live.network import batch as samples_of
from gcsim.analysis.live.plan import AloneTask, TrainingTask

if TYPE_CHECKING:
    from torch import Tensor, nn

AHEAD = 0.02
"""Seconds from the announcement of an instant to the instant: enough for it to arrive."""
RECORDED = 2
"""Iterations whose gradients are recorded."""
_LEARNING_RATE = 0.01
clock: Callable[[], float] = time.monotonic
"""All processes of a machine share it."""


def common_start() -> float:
    """Wait for an instant that rank 0 announces; the instant."""
    import torch
    from torch import distributed as dist

    dist.barrier()
    instant = torch.tensor([clock() + AHEAD], dtype=torch.float64)
    dist.broadcast(instant, 0)
    start = float(instant)
    time.sleep(max(0.0, start - clock()))
    return start


def training_steps(task: TrainingTask, batch: int, seed: int) -> dict[str, Any]:
    """`starts`: as announced, of the first step that counts; `ends`: of this rank's steps."""
    from torch import distributed as dist

    import gcsim

    model = _model(seed)
    hook = gcsim.ddp_hook({"kind": task.compressor, **task.parameters}, seed=seed)
    hook.register(model)
    steps = _steps(model, samples_of(batch, worker=dist.get_rank(), seed=seed))
    for _ in range(task.warm_up):
        next(steps)
    starts, ends = [common_start()], []
    for _ in range(task.steps):
        next(steps)
        ends.append(clock())
    return {"starts": starts, "ends": ends, "replicas": _equal_everywhere(model)}


def steps_alone(task: AloneTask, batch: int, seed: int) -> dict[str, Any]:
    """Medians of `forward`, `backward` and `optimizer`, in seconds, of DDP with a hook that hands
    each bucket back at once; and a trace of gradients."""
    import torch

    model = _model(seed)

    def at_once(state: object, bucket: Any) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    at_once.__annotations__ = {}
    model.register_comm_hook(None, at_once)
    steps = _steps(model, samples_of(batch, worker=0, seed=seed))
    for _ in range(task.warm_up):
        next(steps)
    passes = [next(steps) for _ in range(task.steps)]
    _record(task, batch, seed)
    names = ("forward", "backward", "optimizer")
    return {
        name: statistics.median(of_pass)
        for name, of_pass in zip(names, zip(*passes, strict=True), strict=True)
    }


def _model(seed: int) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    from gcsim.traces.building import build_model

    return DistributedDataParallel(build_model(ENTRY, seed=seed))


def _steps(model: nn.Module, data: tuple[Tensor, Tensor]) -> Iterator[tuple[float, float, float]]:
    """A training step each time: seconds of forward, backward and optimiser."""
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


def _record(task: AloneTask, batch: int, seed: int) -> None:
    """The gradients of as many workers, of the first iterations."""
    import torch

    import gcsim
    from gcsim.traces.building import build_model

    model = build_model(ENTRY, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    data = [samples_of(batch, worker=worker, seed=seed) for worker in range(task.workers)]
    with gcsim.record(
        model,
        Path(task.trace),
        name=ENTRY.name,
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
    """Whether all ranks have the same parameters, bit for bit."""
    import torch
    from torch import distributed as dist

    own = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    first = own.clone()
    dist.broadcast(first, 0)
    same = torch.tensor([int(torch.equal(first, own))])
    dist.all_reduce(same, dist.ReduceOp.MIN)
    return bool(same)
