"""What do the compressors do on this GPU? It writes docs/gpu-measured.md (`make gpu`).

    PYTHONPATH=. python tests/benchmarks/gpu_table.py [--quick] [--only topk,qsgd]

First whether they are right there: all checks of the conformance suite with gradients on the GPU,
payloads beside the CPU's, byte for byte, and the hook over NCCL, of one rank. Then what they cost,
in copies of the gradient within the GPU, beside PyTorch's own hooks; then whether pricing
transfers, as `transfer_table.py` asks of a CPU. Events in the GPU's stream are the clock, the
lowest of 30 repeats counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gcsim
from gcsim.compressors import on_device
from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.conformance import CHECKS, examine
from gcsim.compressors.conformance.subject import Heard, gradients, numel, overheard, subject_of
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.registry import REGISTRY
from gcsim.compressors.sharing import same
from gcsim.errors import InputError
from gcsim.scenarios.calibration import machine
from gcsim.scenarios.calibration.copies import in_words
from gcsim.scenarios.calibration.device import calibrate_device
from gcsim.scenarios.progress import SilentProgress
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.registry import shipped_model
from gcsim.traces.timing.clock import DeviceClock, clock_for
from gcsim.traces.timing.kernels import gradient
from tests.benchmarks.direct_times import direct_times
from tests.benchmarks.transfer_table import page as transfer_tables
from tests.benchmarks.transfer_table import timed_directly
from tests.compressors.ddp.plan import BUCKET_MB, PHASES, SEED, Planned, in_lockstep, steps_of
from tests.compressors.ddp.plan import STEPS as DDP_STEPS
from tests.compressors.ddp.plan import gradients as planned_gradients
from tests.compressors.reference.hooks_worker import Bucket as HookBucket

SHAPES = ((30, 9), (1,), (2100,))
STEPS = 3
REPEATS = 30

HEAD = """# Measured on a GPU

Written by `make gpu` ({command}) on {date}, in {minutes:.0f} minutes, on {where}.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured, and how long."""

    names: Sequence[str] = tuple(REGISTRY)
    elements: Sequence[int] = (250_000, 6_250_000, 61_000_000)
    """Of one matrix: 1, 25 and 244 MB."""
    models: Sequence[str] = ("alexnet", "bert_base")
    """As lists of tensors, in one bucket."""
    transfer: Sequence[int] = (1_000_000, 10_000_000, 61_000_000)
    quick: bool = False
    """The calibration's."""
    seconds: float = 2.0
    """Of a method at a size; two rounds are run in any case."""


QUICK = Plan(elements=(250_000, 6_250_000), models=(), transfer=(1_000_000,), quick=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the page; exit code 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short tensors alone: a first look")
    parser.add_argument("--only", metavar="NAME,NAME", help="these methods alone")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(f"error: PyTorch {torch.__version__} sees no NVIDIA GPU here", file=sys.stderr)
        sys.exit(2)
    plan = QUICK if options.quick else Plan()
    if options.only:
        plan = replace(plan, names=options.only.split(","))
    for line in page(clock_for("cuda"), plan):
        print(line, flush=True)


def page(clock: DeviceClock, plan: Plan) -> Iterator[str]:
    """The page, Markdown, of the device of `clock`."""
    begun = time.perf_counter()
    broken: set[str] = set()
    right = list(_right(clock.device, plan, broken))
    plan = replace(plan, names=[name for name in plan.names if name not in broken])
    hooked = list(_deployed(clock.device, plan))
    cost = list(_costs(clock, plan))
    transfer = list(_transfer(clock, plan))
    yield HEAD.format(
        command=" ".join(["python tests/benchmarks/gpu_table.py", *sys.argv[1:]]),
        date=datetime.now(UTC).date().isoformat(),
        minutes=(time.perf_counter() - begun) / 60,
        where=machine.conditions(clock.device).rstrip("."),
    ).rstrip("\n")
    for section in (right, hooked, cost, transfer):
        yield ""
        yield from section


# --- is it right? ---------------------------------------------------------------------------------


def _right(device: str, plan: Plan, broken: set[str]) -> Iterator[str]:
    """`broken` gets those that do not run."""
    yield "## Right"
    yield ""
    yield (
        f"*Checks*: those of the {len(CHECKS)} that `gcsim.compressors.check` runs which pass with "
        "gradients on the GPU; what fails stands below. *Payloads* and *updates*: of "
        f"{STEPS} steps of two workers on three tensors, are they the CPU's, byte for byte? "
        "*Where*: on the GPU, or in host memory for a part."
    )
    yield ""
    yield "| method | checks | payloads | updates | where |"
    yield "|---|--:|---|---|---|"
    failures = []
    for name in plan.names:
        report = examine(name, device=device)
        failed = sum(len(finding.checks) for finding in report.findings)
        failures += [f"- `{name}`, {f.checks[0]}: {f.message}" for f in report.findings]
        try:
            ours, visited = _exchanged(name, device)
        except Exception as error:  # a kernel that does not compile, say: the others go on
            broken.add(name)
            failures.append(f"- `{name}` does not run: {type(error).__name__}: {error}")
            yield f"| `{name}` | {len(CHECKS) - failed} | - | - | - |"
            continue
        payloads, updates = (
            _compared(*both) for both in zip(ours, _exchanged(name, "cpu")[0], strict=True)
        )
        where = "partly in host memory" if visited else "on the GPU"
        yield f"| `{name}` | {len(CHECKS) - failed} | {payloads} | {updates} | {where} |"
        _say(f"{name} checked")
    yield ""
    yield "\n".join(failures) if failures else "Nothing fails."


def _exchanged(name: str, device: str) -> tuple[tuple[list[Tensor], list[Tensor]], bool]:
    """(payloads, updates) of two workers, on the host; did a loop work in host memory?"""
    subject = replace(subject_of(name, {}), device=device)
    crew, n = subject.crew(SHAPES), numel(SHAPES)
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
    found = [one.cpu() for one in payloads], [one.cpu() for one in updates]
    return found, on_device.host_visits > visits


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


def _deployed(device: str, plan: Plan) -> Iterator[str]:
    yield "## Hook"
    yield ""
    yield (
        f"`gcsim.ddp_hook` in a group of one rank ({_backend(device)}), {DDP_STEPS} steps of a "
        "network on the GPU in several buckets: are the updates those of workers in lockstep on "
        "the CPU, byte for byte? Milliseconds of a step, by events in the hook's stream."
    )
    yield ""
    yield "| method | updates | encoding and decoding [ms] | collectives [ms] |"
    yield "|---|---|--:|--:|"
    with _one_rank(device):
        group = dist.new_group(backend=_backend(device))
        _GROUPS.append(group)
        for name in plan.names:
            given = PHASES.get(name, {})
            try:
                hook = gcsim.ddp_hook(name, seed=SEED, process_group=group, **given)
            except InputError:
                continue  # DDP cannot carry it
            model = DistributedDataParallel(Planned().to(device), bucket_cap_mb=BUCKET_MB)
            hook.register(model)
            found = [update.cpu() for step in steps_of(model, 0) for update in step]
            layouts = [hook.layouts[number] for number in range(len(hook.layouts))]
            wanted = in_lockstep(
                name, given, layouts, ([planned_gradients(1 + s, 0)] for s in range(DDP_STEPS))
            )
            expected = [update for (of_rank,) in wanted for update in of_rank]
            took = hook.measured()
            yield (
                f"| `{name}` | {_compared(found[-len(expected) :], expected)} "
                f"| {took.computed_s * 1e3:.3g} | {took.exchanged_s * 1e3:.3g} |"
            )
            _say(f"{name} deployed")


# --- what does it cost? ---------------------------------------------------------------------------


def _costs(clock: DeviceClock, plan: Plan) -> Iterator[str]:
    """A table with a column for each gradient."""
    data: list[tuple[str, Tensor, BucketLayout | None]] = [
        (_megabytes(elements), gradient(elements, 1).to(clock.device), None)
        for elements in plan.elements
    ]
    for model in plan.models:
        tensors = _tensors_of(model)
        title = f"{model}: {_megabytes(tensors.numel)}, {len(tensors.slices)} tensors"
        data.append((title, gradient(tensors.numel, 1).to(clock.device), tensors))
    copies = [_copy(clock, source) for _, source, _ in data]
    yield "## Cost"
    yield ""
    yield (
        "Encode / decode of one payload, in copies of the gradient within the GPU; default "
        f"parameters, one worker, the lowest of up to {REPEATS} repeats. Checksums are left out. "
        "PyTorch's own hooks: the whole hook in a group of one rank."
    )
    yield ""
    yield "| method | step | " + " | ".join(title for title, _, _ in data) + " |"
    yield "|---|---|" + "--:|" * len(data)
    yield "| a copy | | " + " | ".join(f"{one * 1e6:.3g} us" for one in copies) + " |"
    for name in plan.names:
        cells: dict[str, list[str]] = {}
        for (_, source, layout), copy in zip(data, copies, strict=True):
            for row in direct_times(
                name, source, clock.now, rounds=REPEATS, layout=layout, seconds=plan.seconds
            ):
                told = f"{row.measured.encode / copy:.2f} / {row.measured.decode / copy:.2f}"
                cells.setdefault(row.phase, []).append(told)
        for phase, row_of in cells.items():
            yield f"| `{name}` | {phase} | {' | '.join(row_of)} |"
        _say(f"{name} timed")
    with _one_rank(clock.device):
        for title, hook, state in _hooks():
            cells_of = [
                f"{_hooked(clock, hook, state(), source, layout) / copy:.2f}"
                for (_, source, layout), copy in zip(data, copies, strict=True)
            ]
            yield f"| PyTorch's {title} | whole | {' | '.join(cells_of)} |"


def _megabytes(elements: int) -> str:
    return f"{4 * elements / 1e6:.4g} MB"


def _copy(clock: DeviceClock, source: Tensor) -> float:
    target = torch.zeros_like(source)
    return clock.time(lambda: target.copy_(source), REPEATS).lowest


def _tensors_of(model: str) -> BucketLayout:
    network = build_model(shipped_model(model), seed=0, device="meta")
    shapes = [(name, tuple(p.shape)) for name, p in trainable(network)]
    (layout,) = bucket_layouts(shapes, first=1 << 40)
    return layout


Hook = Callable[[Any, Any], Any]


def _hooks() -> Iterator[tuple[str, Hook, Callable[[], Any]]]:
    """Title, hook, and what makes its state."""
    yield "fp16_compress_hook", default_hooks.fp16_compress_hook, lambda: None
    yield "bf16_compress_hook", default_hooks.bf16_compress_hook, lambda: None
    yield (
        "powerSGD_hook, rank 4",
        powerSGD_hook.powerSGD_hook,
        lambda: powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=2),
    )


def _hooked(
    clock: DeviceClock, hook: Hook, state: Any, source: Tensor, layout: BucketLayout | None
) -> float:
    """Seconds of a hook on a bucket of `layout`, or of one square matrix."""
    side = int(source.numel() ** 0.5)
    shapes = [(side, side)] if layout is None else [piece.shape for piece in layout.slices]
    bucket = HookBucket(source[: numel(shapes)], shapes)
    return clock.time(lambda: hook(state, bucket).wait(), REPEATS).lowest


def _backend(device: str) -> str:
    return "nccl" if device == "cuda" else "gloo"


_GROUPS: list[Any] = []
"""Kept until the process ends: a thread of Gloo's that lets go of the last reference to its group
joins itself, which aborts."""


@contextmanager
def _one_rank(device: str) -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]  # not in its list
    dist.init_process_group(_backend(device), store=store, rank=0, world_size=1)
    _GROUPS.append(dist.group.WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()


# --- does pricing transfer? -----------------------------------------------------------------------


def _transfer(clock: DeviceClock, plan: Plan) -> Iterator[str]:
    calibration = calibrate_device(
        SilentProgress(),
        name="here",
        device=clock.device,
        quick=plan.quick,
        clock=clock,
        compressors=plan.names,
    )
    _say("calibrated")
    yield "## The device, calibrated"
    yield ""
    device = calibration.device
    yield "| kernels | launch [us] | GB/s |"
    yield "|---|--:|--:|"
    for kind, rate in device.kernels.items():
        bandwidth = "" if rate.bandwidth is None else f"{rate.bandwidth / 1e9:.4g}"
        yield f"| {kind} | {rate.launch * 1e6:.3g} | {bandwidth} |"
    yield ""
    yield f"Copies: {in_words(calibration.copies)}."
    additions = (f"{name} {rate / 1e9:.4g} GB/s" for name, rate in calibration.additions.items())
    yield f"Additions: {', '.join(additions)}."
    rows = timed_directly(
        clock, plan.transfer, rounds=REPEATS, names=plan.names, seconds=plan.seconds
    )
    yield ""
    yield "## Does pricing transfer?"
    yield ""
    yield (
        "Every method timed directly on other data, and priced from what the meter counted "
        "([kernel-transfer.md](kernel-transfer.md) says how, of a CPU). Errors are "
        "|priced / measured - 1|."
    )
    yield ""
    for line in transfer_tables(calibration, rows):
        yield f"#{line}" if line.startswith("## ") else line


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
