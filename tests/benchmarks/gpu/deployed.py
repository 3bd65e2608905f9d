"""Training steps of whole networks under DDP, dense and with compression hooks, on one rank.

A single rank sends nothing, so a step's excess over plain DDP is the hook's cost on device and
host. Steps have forward, loss, backward and SGD with momentum, with TF32 products; times are the
median and minimum of the gaps between events at their starts. `warm_up_s` is the time of the first
steps, in which kernels are compiled.
"""

import copy
import gc
import statistics
import time
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gcsim
from gcsim.compressors.streams import clock_of, landed
from gcsim.traces.models.building import build_model
from gcsim.traces.models.losses import sample_losses
from gcsim.traces.models.registry import ModelEntry, shipped_model
from gcsim.traces.timing.steps import samples
from tests.benchmarks.gpu.correct import one_rank
from tests.benchmarks.gpu.crew import Row
from tests.benchmarks.gpu.profiled import COLUMNS as COUNTS
from tests.benchmarks.gpu.profiled import marked, profiling

COLUMNS = (
    "model", "batch", "hook", "parameters", "iteration_ms", "lowest_ms", "warm_up_s",
    "computed_ms", "exchanged_ms", "sent_mb", "buckets_ms", *COUNTS,
)  # fmt: skip
WARM_UP = 8
STEPS = 16
HOOKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dense", {}),
    ("fp16", {}),
    ("topk", {"ratio": 0.01}),
    ("qsgd", {}),
    ("powersgd", {"start": 2}),
    ("torch fp16_compress_hook", {}),
    ("torch powerSGD_hook", {"matrix_approximation_rank": 4, "start_powerSGD_iter": 2}),
    ("ef_signsgd", {}),
    ("onebit_adam", {"freeze_step": 2}),
    ("gradient_sampling_bayes", {}),
    ("dgc", {}),
)
"""Methods and PyTorch's own hooks, with parameters."""


def deployed(
    model: str, batch: int, kind: str, given: dict[str, Any], device: str
) -> Iterator[Row]:
    """Yield the row of a model under a hook."""
    torch.backends.cuda.matmul.allow_tf32 = True
    one_rank(device)
    entry = shipped_model(model)
    gc.collect()  # of the last network
    network = DistributedDataParallel(copy.deepcopy(_built(model, device)))
    hook = _registered(network, kind, given)
    step = _step(entry, network, batch, torch.device(device))
    begun = time.perf_counter()
    for _ in range(WARM_UP):
        step()
    landed(torch.device(device))
    row: Row = {"warm_up_s": f"{time.perf_counter() - begun:.1f}", "parameters": given or ""}
    before = hook.measured() if hook else None
    now = clock_of(torch.device(device))
    starts = [now()]
    for _ in range(STEPS):
        step()
        starts.append(now())
    gaps = [after - earlier for earlier, after in pairwise(starts)]
    row["iteration_ms"] = f"{statistics.median(gaps) * 1e3:.2f}"
    row["lowest_ms"] = f"{min(gaps) * 1e3:.2f}"
    if hook and before:
        row |= _since(before, hook.measured())
    counts: dict[str, Row] = {}
    with profiling(torch.device(device), counts), marked("step", torch.device(device)):
        step()
    yield row | counts.get("step", {})


@cache
def _built(model: str, device: str) -> nn.Module:
    return build_model(shipped_model(model), seed=0, device=device)


def _registered(network: DistributedDataParallel, kind: str, given: dict[str, Any]) -> Any:
    """Return gcsim's hook; None for others."""
    if kind == "torch fp16_compress_hook":
        network.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "torch powerSGD_hook":
        state = powerSGD_hook.PowerSGDState(None, **given)
        network.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif kind != "dense":
        return gcsim.ddp_hook(kind, **given).register(network)
    return None


def _step(entry: ModelEntry, network: nn.Module, batch: int, device: torch.device) -> Any:
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    inputs, labels = samples(entry, batch, device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        sample_losses(entry, network(inputs), labels).mean().backward()
        optimizer.step()

    return step


def _since(before: Any, after: Any) -> Row:
    """Return means over the steps between two calls of `measured`."""
    steps = after.steps - before.steps

    def mean(now: float, then: float) -> float:
        return float((now * after.steps - then * before.steps) / steps)

    buckets = [
        f"{new.elements}:{mean(new.computed_s, old.computed_s) * 1e3:.2f}"
        for new, old in zip(after.buckets, before.buckets, strict=True)
    ]
    return {
        "computed_ms": f"{mean(after.computed_s, before.computed_s) * 1e3:.2f}",
        "exchanged_ms": f"{mean(after.exchanged_s, before.exchanged_s) * 1e3:.2f}",
        "sent_mb": f"{after.sent_bytes / 1e6:.4g}",
        "buckets_ms": " ".join(buckets),
    }
