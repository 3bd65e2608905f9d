"""Whether a method's results on a GPU equal the CPU's: alone, and as DDP's hook over NCCL."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gcsim
from gcsim.compressors import on_device
from gcsim.compressors.conformance import CHECKS, examine
from gcsim.compressors.conformance.subject import Heard, gradients, overheard, subject_of
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.sharing import same
from gcsim.errors import InputError
from tests.benchmarks.gpu.crew import Row
from tests.compressors.ddp.plan import BUCKET_MB, PHASES, SEED, Planned, in_lockstep, steps_of
from tests.compressors.ddp.plan import STEPS as DDP_STEPS
from tests.compressors.ddp.plan import gradients as planned_gradients

SHAPES = ((30, 9), (1,), (2100,))
STEPS = 3
COLUMNS = ("method", "payloads", "updates", "where", "checks", "failed", "seconds")
HOOK_COLUMNS = ("method", "updates", "seconds")


def correct(name: str, device: str) -> Iterator[Row]:
    """Compare payloads and updates with the CPU's, then run the conformance suite on the GPU."""
    begun = time.perf_counter()
    ours, visited = _exchanged(name, device)
    pairs = zip(ours, _exchanged(name, "cpu")[0], strict=True)
    row: Row = dict(zip(("payloads", "updates"), (_compared(*both) for both in pairs), strict=True))
    row["where"] = "partly in host memory" if visited else "on the GPU"
    report = examine(name, device=device)
    failed = sum(len(finding.checks) for finding in report.findings)
    yield row | {
        "checks": f"{len(CHECKS) - failed} of {len(CHECKS)}",
        "failed": "; ".join(f"{f.checks[0]}: {f.message}" for f in report.findings),
        "seconds": f"{time.perf_counter() - begun:.1f}",
    }


def _exchanged(name: str, device: str) -> tuple[tuple[list[Tensor], list[Tensor]], bool]:
    """Return (payloads, updates) of two workers on the host, and whether loops used host memory."""
    subject = replace(subject_of(name, {}), device=device)
    crew = subject.crew(SHAPES)
    n = crew.layout.numel
    visits = on_device.host_visits
    payloads: list[Tensor] = []
    updates: list[Tensor] = []
    for step in range(subject.first, subject.first + STEPS):
        logs: list[list[Heard]] = [[], []]
        exchanges = crew.exchanges(gradients(n, 2, step), step)
        with torch.no_grad():
            updates += lockstep(
                [overheard(one, log) for one, log in zip(exchanges, logs, strict=True)]
            )
        payloads += [sent for log in logs for heard in log for sent in heard.sent]
    on_host = [one.cpu() for one in payloads], [one.cpu() for one in updates]
    return on_host, on_device.host_visits > visits


def _compared(ours: Sequence[Tensor], of_the_cpu: Sequence[Tensor]) -> str:
    if len(ours) != len(of_the_cpu):
        return f"{len(ours)}, not {len(of_the_cpu)}"
    unlike = [(a, b) for a, b in zip(ours, of_the_cpu, strict=True) if not same(a, b)]
    if not unlike:
        return "equal"
    a, b = unlike[0]
    if a.is_floating_point() and a.shape == b.shape:
        apart = float((a.double() - b.double()).norm() / b.double().norm())
        return f"{len(unlike)} of {len(ours)} differ, by {apart:.1e}"
    return f"{len(unlike)} of {len(ours)} differ"


def hook(name: str, device: str) -> Iterator[Row]:
    """Compare updates of `gcsim.ddp_hook` with those of lockstep on the CPU; nothing if DDP cannot
    run the method."""
    begun = time.perf_counter()
    one_rank(device)
    given = PHASES.get(name, {})
    try:
        deployed = gcsim.ddp_hook(name, seed=SEED, process_group=dist.new_group(), **given)
    except InputError:
        return
    model = DistributedDataParallel(Planned().to(device), bucket_cap_mb=BUCKET_MB)
    deployed.register(model)
    ours = [update.cpu() for step in steps_of(model, 0) for update in step]
    layouts = [deployed.layouts[number] for number in range(len(deployed.layouts))]
    planned = ([planned_gradients(1 + step, 0)] for step in range(DDP_STEPS))
    wanted = in_lockstep(name, given, layouts, planned)
    expected = [update for (of_rank,) in wanted for update in of_rank]
    yield {
        "updates": _compared(ours[-len(expected) :], expected),
        "seconds": f"{time.perf_counter() - begun:.1f}",
    }


def one_rank(device: str) -> None:
    """Make this process the only rank of a group, once, until the process ends."""
    if not dist.is_initialized():
        backend = "nccl" if device == "cuda" else "gloo"
        store = dist.HashStore()  # type: ignore[attr-defined]  # not in its list
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
