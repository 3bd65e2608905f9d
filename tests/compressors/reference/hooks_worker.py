"""Two processes of a Gloo group that run PyTorch's own communication hooks; see test_hooks.

    python hooks_worker.py FOLDER

FOLDER/job.pt (torch.save) holds {"shapes": [...], "gradients": [step][rank] -> flat tensor};
FOLDER/RANK.pt gets what the hooks returned at each step, by name, and the numbers that they drew.
The ranks are forked, so that torch is imported once.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from tests.forked import ranks

POWER_SGD = {
    "rank 1": {"matrix_approximation_rank": 1},
    "rank 2": {"matrix_approximation_rank": 2},
    "rank 3": {"matrix_approximation_rank": 3},
    "cold": {"matrix_approximation_rank": 2, "warm_start": False},
    "no feedback": {"matrix_approximation_rank": 1, "use_error_feedback": False},
    "epsilon": {"matrix_approximation_rank": 1, "orthogonalization_epsilon": 1e-3},
}
START = 2
PERIOD = 3
LEARNING_RATE = 0.1


class Bucket:
    """The part that a hook uses of a `dist.GradBucket`, which Python cannot make."""

    def __init__(self, flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> None:
        self._flat, self._shapes = flat.clone(), shapes

    def buffer(self) -> Tensor:
        return self._flat

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def gradients(self) -> list[Tensor]:
        sizes = [torch.Size(shape).numel() for shape in self._shapes]
        parts = torch.split(self._flat, sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]


def run(hook: Callable[..., Any], state: Any, job: dict[str, Any], rank: int) -> list[Tensor]:
    """The hook's result for each step's gradient."""
    return [
        hook(state, Bucket(step[rank], job["shapes"])).wait().clone() for step in job["gradients"]
    ]


@contextmanager
def recorded_draws() -> Iterator[list[Tensor]]:
    """The values that `torch.randn` returns meanwhile."""
    draws: list[Tensor] = []
    randn = torch.randn

    def record(*size: Any, **options: Any) -> Tensor:
        drawn = randn(*size, **options)
        draws.append(drawn.clone())
        return drawn

    torch.randn = record
    try:
        yield draws
    finally:
        torch.randn = randn


@contextmanager
def nested_gather_results() -> Iterator[None]:
    """all_gather's future with all ranks' tensors as first element, as these hooks expect."""
    module: Any = dist
    gather = module.all_gather

    class Done:
        def __init__(self, tensors: list[Tensor]) -> None:
            self.tensors = tensors

        def get_future(self) -> torch.futures.Future[Any]:
            future: torch.futures.Future[Any] = torch.futures.Future()
            future.set_result([torch.stack(self.tensors)])
            return future

    def repaired(tensors: list[Tensor], own: Tensor, group: Any, async_op: bool) -> Done:
        gather(tensors, own, group=group)
        return Done(tensors)

    module.all_gather = repaired
    try:
        yield
    finally:
        module.all_gather = gather


def post_local(job: dict[str, Any], rank: int) -> list[Tensor]:
    """The parameters after each step of SGD with momentum under the hook and the averager."""
    parameter = torch.nn.Parameter(torch.zeros_like(job["gradients"][0][rank]))
    optimiser = torch.optim.SGD([parameter], lr=LEARNING_RATE, momentum=0.9)
    module: Any = post_localSGD_hook
    state = module.PostLocalSGDState(
        process_group=None, subgroup=None, start_localSGD_iter=START,
        post_local_gradient_allreduce=False,
    )  # fmt: skip
    averager = PeriodicModelAverager(period=PERIOD, warmup_steps=START)
    after = []
    for step in job["gradients"]:
        bucket: Any = Bucket(step[rank], job["shapes"])
        parameter.grad = post_localSGD_hook.post_localSGD_hook(state, bucket).wait()
        optimiser.step()
        averager.average_parameters([parameter])
        after.append(parameter.detach().clone())
    return after


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=600),
    )
    job = torch.load(folder / "job.pt", weights_only=True)
    found: dict[str, Any] = {
        "fp16": run(default_hooks.fp16_compress_hook, None, job, rank),
        "bf16": run(default_hooks.bf16_compress_hook, None, job, rank),
        "post_local": post_local(job, rank),
    }
    for name, options in POWER_SGD.items():
        with recorded_draws() as draws:
            state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=START, **options)  # type: ignore[arg-type]
            found[name] = run(powerSGD_hook.powerSGD_hook, state, job, rank)
        found[f"{name} draws"] = draws
    with nested_gather_results():
        for name in ("pertensor", "perchannel"):
            hook = getattr(quantization_hooks, f"quantization_{name}_hook")
            found[name] = run(hook, None, job, rank)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    ranks(work, 2, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
