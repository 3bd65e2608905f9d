"""PyTorch's own hooks launch the operators that the reference methods are metered with."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import Meter, segment
from gcsim.compressors.registry import create
from gcsim.scenarios.calibration.host import layout_of
from tests.benchmarks.gpu.stages import _shrunk

STEPS = 4


def _hooks_operators(hook: Any, state: Any, layout: BucketLayout) -> Counter[str]:
    """Launches of the hook's last step, by operator; collectives are done at once."""
    found: Counter[str] = Counter()
    for _ in range(STEPS):
        buffer = torch.randn(layout.numel)
        pieces = [piece.of(buffer).view(piece.shape) for piece in layout.slices]
        bucket = SimpleNamespace(
            buffer=lambda buffer=buffer: buffer, gradients=lambda pieces=pieces: pieces,
            index=lambda: 0, is_last=lambda: True,
        )  # fmt: skip
        with torch.no_grad(), segment() as recorder:
            hook(state, bucket).wait()
        found = _counted(recorder.fixed)
    return found


def _counted(costs: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for cost in costs:
        found[cost.name.split(".")[1].split(":")[0].rstrip("_")] += cost.launches
    return found


class _Work:
    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([self._tensor])
        return future


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank, whose sums are what it has."""
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: _Work(tensor))
    group = SimpleNamespace(size=lambda: 1)
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=group))


@pytest.mark.parametrize(("model", "number"), [("bert_base", 5), ("resnet50", 3)])
@pytest.mark.parametrize("name", ["torch_fp16", "torch_bf16", "rank 4", "rank 2"])
def test_the_hook_launches_what_the_method_is_metered_with(
    name: str, model: str, number: int
) -> None:
    """All but the copy of a gradient that stays, the guard of a column of zeros, and that a cast
    into the bucket is a copy there."""
    layout = _shrunk(layout_of(model, number), 4)
    if name.startswith("rank"):
        rank = int(name[-1])
        state = powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=2)
        theirs = _hooks_operators(powerSGD_hook.powerSGD_hook, state, layout)
        kind, given = "torch_powersgd", {"rank": rank, "start": 0}
    else:
        hook = getattr(default_hooks, f"{name.removeprefix('torch_')}_compress_hook")
        theirs = _hooks_operators(hook, None, layout)
        kind, given = name, {}
    member = create(kind, Worker(rank=0, count=1, seed=0), given)
    for step in range(STEPS):
        meter = Meter(1)
        bucket = Bucket(layout=layout, gradient=torch.randn(layout.numel))
        with torch.no_grad():
            lockstep([member.exchange(bucket, step)], meter, share=False)
    ours = _counted(cost for stretch in meter.segments[0] for cost in stretch.costs())
    if name.startswith("rank"):
        theirs["clone"] += 1
        if rank <= 2:  # a column of zeros stays zero
            theirs |= Counter(eq=theirs["norm"] or theirs["linalg_vector_norm"])
            theirs["masked_fill"] = theirs["eq"]
    else:
        theirs = Counter(_to_copy=theirs["_to_copy"] + theirs.pop("copy"), div=theirs["div"])
    assert ours == theirs
