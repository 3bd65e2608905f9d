"""Measured costs of this machine as a device profile: `gcsim calibrate device`.

The calibration measures torch's kernels by class (to price any compressor), the kernels of shipped
compressors (on a GPU their whole stages, `host.py`), whole training steps, Gloo's summation rates
(for a cluster), and DDP's code around an exchange (for a training loop); on a GPU also its
summation rates by type, and copies to and from the host. The clock is the host's, or events in the
GPU's stream with 30 repeats.

Sums: an all-reduce of k vectors in a group of one process makes k - 1 sums, by the function for
received segments, and k - 1 copies. A sum's time is that of each further vector minus a copy: CPU
time, minimum of several repeats, with one thread as in a collective.

Copies, for `cluster.intra_node`: T = latency + bytes / bandwidth each way
(`simulator/collectives/staging.py`), from pinned host memory. A copy within the GPU is the unit of
comparison for compressors.

Code around an exchange, for `training.framework`: steps with almost no computation, without DDP,
with DistributedDataParallel, and with `gcsim.ddp_hook("none")`, in a group of one rank. The extra
time is fitted to numbers of tensors, buckets and bytes: CPU time of all threads (torch has one),
with gradients in host memory on any device.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Literal

import numpy as np

from gcsim.compressors.ddp.hook import ddp_hook
from gcsim.compressors.kernels import KernelClass, KernelCost, TimedKernel
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.registry import REGISTRY
from gcsim.compressors.streams import landing
from gcsim.scenarios.calibration import machine
from gcsim.scenarios.calibration.host import DATA, all_methods, time_stages, with_stages
from gcsim.scenarios.calibration.kernel_classes import SIZES as CLASS_SIZES
from gcsim.scenarios.calibration.kernel_classes import class_rates, four_digits, time_cases
from gcsim.scenarios.calibration.kernels import SIZES as KERNEL_SIZES
from gcsim.scenarios.calibration.kernels import time_compressors
from gcsim.scenarios.catalog import loops
from gcsim.scenarios.progress import Progress
from gcsim.simulator.devices.device import Curve, Device, KernelRate, TrainingRate
from gcsim.simulator.devices.kernel_fits import Coefficients, coefficients, curves
from gcsim.simulator.host import DTYPES
from gcsim.traces.live import pick_device
from gcsim.traces.models.registry import shipped_model
from gcsim.traces.timing.allocator import keep_freed_memory
from gcsim.traces.timing.clock import DeviceClock
from gcsim.traces.timing.kernel_cases import CASES
from gcsim.traces.timing.kernels import Site
from gcsim.traces.timing.steps import StepTimes, time_steps

SECONDS = 45.0  # time for the compressors' kernels
QUICK_SECONDS = 8.0
LIMIT = {False: 280.0, True: 45.0}
"""Seconds of the whole calibration on a GPU, by `quick`; stages get the remaining time."""
REFERENCE = {"cpu": (("resnet18_cifar10", 16),), "cuda": (("resnet50", 64), ("bert_base", 32))}
"""Default models and batches of the training steps."""
QUICK_REFERENCE = (("resnet18_cifar10", 4),)
_REPEATS = {"cpu": 5, "cuda": 30}
_STEPS = {"cpu": 3, "cuda": 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A measured device and its measurements."""

    device: Device
    samples: tuple[TimedKernel, ...]  # torch's kernels alone
    sites: tuple[Site, ...]  # kernels inside compressors
    sums: Mapping[str, float]  # Gloo's summation rates on the host in B/s, by type
    framework: Mapping[_Code, CodeCost]  # cost of PyTorch's own exchange and a hook's, on the host
    copies: Mapping[Way, Coefficients] = field(default_factory=dict)  # copies of a GPU
    additions: Mapping[str, float] = field(default_factory=dict)
    """Summation rates of a GPU in bytes per second, by type."""

    @property
    def setting(self) -> str:
        """`framework` as a scenario's setting; empty if not measured. On a GPU, passes over the
        gradient use device memory, which was not measured."""
        known = self.sites and self.device.processor != "gpu"
        of_a_cpu = self.device.kernels["streaming"].bandwidth if known else None
        return as_setting(self.framework, of_a_cpu)


def primitive_curves(samples: Iterable[TimedKernel], sites: Iterable[Site]) -> dict[str, Curve]:
    """Return the curves of kernels, timed inside compressors if possible, else alone: a call that a
    loop repeats finds its operands in the cache."""
    inside = curves(site.timed for site in sites)
    alone = curves(samples)
    return dict(sorted({**alone, **inside}.items()))


def calibrate_device(
    progress: Progress,
    *,
    name: str,
    device: str = "auto",
    threads: int | None = None,
    quick: bool = False,
    models: Sequence[tuple[str, int]] = (),
    command: str = "gcsim calibrate device",
    clock: DeviceClock | None = None,
    seconds: float | None = None,
    compressors: Sequence[str] = tuple(REGISTRY),
) -> Calibration:
    """Measure `device` ("auto", "cpu" or "cuda") with `threads` threads (default: torch's).

    `models`: shipped models and batch sizes of the timed training steps; `compressors`: methods to
    time on a CPU, for `seconds`. The process then keeps freed memory. Raises `InputError` for a
    missing device or model, or a batch that does not fit.
    """
    begun = time.monotonic()
    kind = pick_device(device)
    entries = [(shipped_model(model), batch) for model, batch in models]
    with _threads(threads):
        keep_freed_memory()
        timer = clock or DeviceClock(kind)
        conditions, repeats = machine.conditions(kind), 3 if quick else _REPEATS[kind]
        sizes = CLASS_SIZES[:-2] if quick else CLASS_SIZES
        with progress.task("kernel classes", len(CASES)) as task:
            cases = time_cases(
                timer, sizes=sizes, repeats=repeats, advance=lambda note: task.advance(note=note)
            )
        rates = class_rates(cases, conditions)
        samples = tuple(one.timed for one in cases)
        sites: list[Site] = []
        if kind == "cpu":  # on a GPU a single launch takes the host's time
            sites = time_compressors(
                progress,
                seconds=seconds or (QUICK_SECONDS if quick else SECONDS),
                compressors=compressors,
                sizes=KERNEL_SIZES[:-2] if quick else KERNEL_SIZES,
                clock=timer.now,
            )
        usual = QUICK_REFERENCE if quick else REFERENCE[kind]
        wanted = entries or [(shipped_model(model), batch) for model, batch in usual]
        steps = []
        with progress.task("training steps", 2 * len(wanted)) as task:
            for entry, batch in wanted:
                steps.append(
                    time_steps(
                        entry,
                        batch,
                        timer,
                        repeats=2 if quick else _STEPS[kind],
                        advance=lambda note: task.advance(note=note),
                    )
                )
        measured = _device(
            rates, steps, name=name, kind=kind, conditions=conditions, command=command
        )
        copies: dict[Way, Coefficients] = {}
        additions: dict[str, float] = {}
        if kind == "cuda":
            with progress.task("copies and sums", 2) as task:
                copies = time_copies(timer, repeats=repeats)
                task.advance(note="copies")
                additions = time_device_sums(timer, repeats=repeats)
                task.advance(note="sums")
        with progress.task("Gloo's summation", 1) as task:
            sums = time_sums(repeats=3 if quick else 7)
            task.advance(note="")
        with progress.task("DDP around an exchange", 1) as task:
            framework = time_framework(
                shapes=SHAPES[:-2] if quick else SHAPES, steps=12 if quick else 40
            )
            task.advance(note="")
        if kind == "cuda":
            data = DATA[:2] if quick else DATA
            with progress.task("whole stages", len(data) * len(all_methods())) as task:
                timed = time_stages(
                    kind,
                    all_methods(),
                    data=data,
                    seconds=LIMIT[quick] - (time.monotonic() - begun),
                    advance=lambda note: task.advance(note=note),
                )
            measured = with_stages(measured, timed, conditions)
        else:
            curves_here = _rounded(primitive_curves(samples, sites))
            measured = replace(measured, primitives=curves_here)
    return Calibration(
        device=measured,
        samples=samples,
        sites=tuple(sites),
        sums=sums,
        framework=framework,
        copies=copies,
        additions=additions,
    )


def _device(
    rates: dict[KernelClass, KernelRate],
    steps: Sequence[StepTimes],
    *,
    name: str,
    kind: str,
    conditions: str,
    command: str,
) -> Device:
    flop_rates = [times.flop_rate for times in steps]
    middle = sorted(flop_rates)[len(flop_rates) // 2]
    products = rates["matmul"].flop_rate or middle
    return Device(
        name=name,
        title=machine.title(kind),
        processor="gpu" if kind == "cuda" else "cpu",
        kernels=rates,
        training={times.model: _training(times, conditions) for times in steps},
        effective_flop_rate=four_digits(middle),
        effective_flop_rate_range=(
            four_digits(min([middle, *flop_rates])),
            four_digits(max([middle, *flop_rates, products])),
        ),
        source=(
            f"Measured by `{command}` on {date.today().isoformat()}: {conditions} "
            f"Kernels under `primitives` by the minimum times of single launches inside methods. "
            f"effective_flop_rate: whole steps of {', '.join(t.model for t in steps)}; its range "
            "reaches up to the matmul rate."
        ),
    )


def _training(times: StepTimes, conditions: str) -> TrainingRate:
    fixed, per_sample = times.line
    batches = " and ".join(str(batch) for batch in sorted(times.seconds))
    return TrainingRate(
        model=times.model,
        fixed=four_digits(fixed),
        per_sample=four_digits(per_sample),
        source=f"Line through the minimum times at batch {batches}, SGD with momentum, random "
        f"samples in memory. {conditions}",
    )


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rounded(measured: dict[str, Curve]) -> dict[str, Curve]:
    """Return the curves rounded to a file's digits."""
    return {
        name: tuple((nbytes, four_digits(seconds)) for nbytes, seconds in points)
        for name, points in measured.items()
    }


_NBYTES = 1 << 23  # bytes of a vector: larger than a core's own caches, like a bucket
_NBYTES_ON_A_GPU = 1 << 27
_FEW, _MANY = 2, 5  # vectors


def time_sums(
    dtypes: Sequence[str] = DTYPES,
    *,
    nbytes: int = _NBYTES,
    repeats: int = 7,
    group: Any = None,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Return summation rates in bytes per second, by type; empty if torch has no Gloo. Types with
    sums shorter than the noise are left out. `group`: a process group of one process (default: a
    new one of Gloo's)."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        return {}
    if group is None:
        store = distributed.HashStore()  # type: ignore[attr-defined]  # not in its list
        group = distributed.ProcessGroupGloo(store, 0, 1, datetime.timedelta(minutes=1))
    found: dict[str, float] = {}
    for dtype in dtypes:
        kind = getattr(torch, dtype)
        vectors = [torch.zeros(nbytes // kind.itemsize, dtype=kind) for _ in range(_MANY)]

        def reduce(count: int, own: Sequence[object] = vectors) -> None:
            group.allreduce(list(own[:count]), distributed.AllreduceOptions()).wait()

        few, many, copy = _lowest(
            (
                lambda: reduce(_FEW),
                lambda: reduce(_MANY),
                lambda: vectors[0].copy_(vectors[1]),  # noqa: B023 (called at once)
            ),
            repeats,
            clock,
        )
        each = (many - few) / (_MANY - _FEW)
        if each > 0:  # else noise exceeds the sums
            found[dtype] = nbytes / max(each - copy, each / 4)  # a copy takes most of it, not all
    return found


def time_device_sums(
    clock: DeviceClock,
    dtypes: Sequence[str] = DTYPES,
    *,
    nbytes: int = _NBYTES_ON_A_GPU,
    repeats: int = 30,
) -> dict[str, float]:
    """Return the device's summation rates in B/s, by type, as for NCCL or a server on it."""
    found = {}
    for dtype in dtypes:
        kind = getattr(torch, dtype)
        own, received = (
            torch.zeros(nbytes // kind.itemsize, dtype=kind, device=clock.device) for _ in range(2)
        )
        lowest = clock.time(lambda a=own, b=received: a.add_(b), repeats).lowest  # type: ignore[misc]
        found[dtype] = nbytes / lowest
    return found


def _lowest(
    runs: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> list[float]:
    """Return the minimum time of each run, interleaved so that slow phases affect all."""
    best = [float("inf")] * len(runs)
    for _ in range(repeats + 1):
        for place, run in enumerate(runs):
            begin = clock()
            run()
            best[place] = min(best[place], clock() - begin)
    return best


Way = Literal["to the host", "from the host", "within the device"]
_SIZES = (4_000, 64_000, 1_000_000, 16_000_000, 64_000_000)  # bytes


def time_copies(
    clock: DeviceClock, *, sizes: Sequence[int] = _SIZES, repeats: int = 30
) -> dict[Way, Coefficients]:
    """Return latency and bandwidth each way, from copies of `sizes` bytes."""
    device = torch.device(clock.device)
    timed: dict[Way, list[TimedKernel]] = {}
    for nbytes in sizes:
        host, here = landing((nbytes // 4,), device), torch.zeros(nbytes // 4, device=device)
        ends: dict[Way, tuple[torch.Tensor, torch.Tensor]] = {
            "to the host": (host, here),
            "from the host": (here, host),
            "within the device": (torch.zeros_like(here), here),
        }
        for way, (to, source) in ends.items():
            seconds = clock.time(lambda a=to, b=source: a.copy_(b, non_blocking=True), repeats)  # type: ignore[misc]
            cost = KernelCost(
                kind="streaming", launches=1, elements=nbytes // 4, nbytes=here.nbytes
            )
            timed.setdefault(way, []).append(TimedKernel(cost, seconds.lowest))
    return {way: coefficients(copies) for way, copies in timed.items()}


def as_bus(copies: Mapping[Way, Coefficients]) -> str:
    """Return the slower direction between host and device as a setting; "" if not timed."""
    both = [copies[way] for way in ("to the host", "from the host") if way in copies]
    rates = [one.bandwidth for one in both if one.bandwidth]
    if not rates:
        return ""
    latency = max(one.launch for one in both) * 1e6
    bandwidth = min(rates) / 1e9
    return f"cluster.intra_node: {{bandwidth: {bandwidth:.4g} GB/s, latency: {latency:.3g} us}}"


def in_words(copies: Mapping[Way, Coefficients]) -> str:
    """Return latency and bandwidth of each way as text."""
    return ", ".join(
        f"{way} {one.launch * 1e6:.3g} us + {one.bandwidth / 1e9:.4g} GB/s"
        for way, one in copies.items()
        if one.bandwidth
    )


_Code = Literal["reducer", "hook"]
CODES: tuple[_Code, ...] = ("reducer", "hook")


@dataclass(frozen=True, slots=True)
class Shape:
    """Gradients of a model: float32, in buckets of equal tensors."""

    buckets: int
    tensors: int  # per bucket
    elements: int  # per tensor

    @property
    def nbytes(self) -> int:
        """Bytes of a bucket."""
        return 4 * self.tensors * self.elements


SHAPES = (
    Shape(1, 1, 256), Shape(8, 1, 256), Shape(32, 1, 256), Shape(8, 8, 256), Shape(32, 4, 256),
    Shape(1, 64, 256), Shape(1, 1, 1_000_000), Shape(2, 1, 1_000_000), Shape(1, 1, 4_000_000),
    Shape(2, 1, 4_000_000),
)  # fmt: skip
"""Shapes that vary tensors and buckets separately, and some long vectors."""
_FIRST_BUCKET = "_DEFAULT_FIRST_BUCKET_BYTES"
"""Name of the size limit of DDP's first bucket in `torch.distributed`, 1 MB."""
_WARM_UP = 6  # steps: DDP re-forms its buckets after the first


@dataclass(frozen=True, slots=True)
class CodeCost:
    """CPU time of the code around an exchange."""

    per_tensor: float  # seconds
    per_bucket: float  # seconds
    per_byte: float  # seconds per byte of the float32 gradient


def time_framework(
    *,
    shapes: Sequence[Shape] = SHAPES,
    steps: int = 40,
    clock: Callable[[], float] = time.process_time,
) -> dict[_Code, CodeCost]:
    """Measure the cost of DDP's own exchange and of a hook's, in a few seconds. Empty if torch has
    no Gloo, or the process already has a group."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        return {}
    if distributed.is_initialized():
        return {}
    with _one_rank():
        found = [_step_seconds(shape, steps, clock) for shape in shapes]
    return {
        code: fitted(
            shapes, [one[code] - one["alone"] for one in found], [one[code] for one in found]
        )
        for code in CODES
    }


def fitted(shapes: Sequence[Shape], longer: Sequence[float], steps: Sequence[float]) -> CodeCost:
    """Fit the extra seconds of steps by least squares, with costs of at least 0. Noise is relative
    to the whole step, of which the code may be a small part."""
    from scipy.optimize import nnls

    design = np.array(
        [[one.buckets * one.tensors, one.buckets, one.buckets * one.nbytes] for one in shapes],
        dtype=float,
    )
    weights = 1 / np.array(steps)
    scale = design.max(axis=0)  # tensors and bytes differ by seven digits
    found, _ = nnls(design / scale * weights[:, None], np.array(longer) * weights)
    return CodeCost(*(float(value) for value in found / scale))


def _step_seconds(
    shape: Shape, steps: int, clock: Callable[[], float]
) -> dict[_Code | Literal["alone"], float]:
    """Return lower quartiles of a step alone, with DDP and with a hook, interleaved."""
    from torch.nn.parallel import DistributedDataParallel

    setattr(torch.distributed, _FIRST_BUCKET, shape.nbytes)
    reducer, hooked = (
        DistributedDataParallel(_net(shape), bucket_cap_mb=shape.nbytes / 2**20) for _ in CODES
    )
    hook = ddp_hook("none")
    hook.register(hooked)
    models: dict[_Code | Literal["alone"], Any] = {
        "alone": _net(shape),
        "reducer": reducer,
        "hook": hooked,
    }
    inputs = torch.randn(shape.elements) / 10
    found: dict[_Code | Literal["alone"], list[float]] = {how: [] for how in models}
    for _ in range(_WARM_UP + steps):
        for how, model in models.items():
            begun = clock()
            model(inputs).backward()
            for parameter in model.parameters():
                parameter.grad = None
            found[how].append(clock() - begun)
    if len(hook.layouts) != shape.buckets:
        raise RuntimeError(f"DDP made {len(hook.layouts)} buckets of {shape}")
    return {how: sorted(seconds[_WARM_UP:])[steps // 4] for how, seconds in found.items()}


def as_setting(costs: Mapping[_Code, CodeCost], streaming: float | None) -> str:
    """Return `training.framework` as a scenario's setting; empty if not measured. `passes` uses the
    measured device's `streaming` rate in B/s, or the catalogue's passes (None) if gradients are on
    another device."""
    known = dict(zip(CODES, loops.framework("pytorch"), strict=True))
    parts = []
    for code, cost in costs.items():
        passes = known[code].passes if streaming is None else cost.per_byte * streaming
        parts.append(
            f"{code}: {{per_tensor: {cost.per_tensor * 1e6:.3g} us, "
            f"per_bucket: {cost.per_bucket * 1e6:.3g} us, passes: {float(passes):.2g}}}"
        )
    return f"training.framework: {{{', '.join(parts)}}}" if parts else ""


def _net(shape: Shape) -> Any:
    class Net(torch.nn.Module):
        """Model with gradients of any length and almost no computation."""

        def __init__(self) -> None:
            super().__init__()
            count = shape.buckets * shape.tensors
            self.all = torch.nn.ParameterList(
                torch.nn.Parameter(torch.randn(shape.elements)) for _ in range(count)
            )

        def forward(self, x: Any) -> Any:
            for parameter in self.all:
                x = x + parameter * x
            return x.sum()

    return Net()


@contextmanager
def _one_rank() -> Iterator[None]:
    distributed = torch.distributed
    bytes_before, threads = getattr(distributed, _FIRST_BUCKET), torch.get_num_threads()
    store = distributed.HashStore()  # type: ignore[attr-defined]  # not in its list
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        setattr(distributed, _FIRST_BUCKET, bytes_before)
        distributed.destroy_process_group()
