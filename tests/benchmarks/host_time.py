"""Host time of a bucket on a GPU, measured without one: a page of launches, operators and waits.

    PYTHONPATH=. python -m tests.benchmarks.host_time [--only name,name] > docs/host-time.md

Buckets have the tensors of real ones, with a thirtieth of their rows and columns: host time depends
on the number of tensors, not on elements. In a first run Triton's interpreter executes every kernel
and records its output; in the timed runs `launch` copies this output, in time that is not counted.
PyTorch's operators run in host memory.
"""

import argparse
import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gcsim import ddp_hook
from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import REGISTRY, create
from tests.benchmarks.gpu import stages

DATA: dict[str, stages.Data] = {
    "1": ("7000000", None),
    "16": ("bert_base", 5),
    "60": ("resnet50", 3),
}
"""Buckets by their number of tensors."""
SHRINK = 30
STEPS = 200
"""Steps of the hook."""


class Kernels:
    """Launches of one run: interpreted and recorded, then replayed outside the measured time."""

    def __init__(self) -> None:
        self.left_out = 0.0
        self._written: list[list[bytes]] = []
        self._number, self._noting = 0, True

    def begin(self) -> None:
        """Begin a run; all runs after the first replay it."""
        self._noting, self._number = not self._written, 0

    def clock(self) -> float:
        """Return the time in seconds, without that of kernels."""
        return time.perf_counter() - self.left_out

    def wrap(self, run: Callable[..., None]) -> Callable[..., None]:
        """Return a replacement of `launch`."""

        def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
            if not programs:
                return
            started = time.perf_counter()
            tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
            if self._noting:
                run(kernel, programs, *arguments, **constants)
                self._written.append([_bytes(each) for each in tensors])
            else:
                for each, content in zip(tensors, self._written[self._number], strict=True):
                    ctypes.memmove(each.data_ptr(), content, len(content))
                self._number += 1
                _mark("cuLaunchKernel")
            self.left_out += time.perf_counter() - started

        return launch


class _Waits(list[int]):
    def append(self, nbytes: int) -> None:
        """Mark that the host read one more tensor."""
        _mark("cudaStreamSynchronize")


def _mark(name: str) -> None:
    """Add an event that `profiled.py` counts, as on a GPU."""
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        with torch.profiler.record_function(name):
            pass


def _bytes(tensor: torch.Tensor) -> bytes:
    assert tensor.is_contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


@contextmanager
def stubbed() -> Iterator[Kernels]:
    """Inside, methods use their GPU code, and `stages` excludes the time of kernels."""
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    from tests.compressors.gpu.conftest import host_copies, kernels, wrap_launches

    found = Kernels()
    with kernels(), host_copies(_Waits()), pytest.MonkeyPatch.context() as patch:
        wrap_launches(patch, found.wrap)
        patch.setattr(stages, "host_clock", found.clock)
        yield found


def rows(name: str) -> Iterator[dict[str, Any]]:
    """Yield a method's steady-state steps by stage; none if it launches no kernel."""
    for tensors, data in DATA.items():
        with stubbed() as run:
            each = list(stages.stages(name, (data,), "cpu", shrink=SHRINK, begin=run.begin))
        if not any(row["triton_launches"] for row in each):
            return
        yield from ({**row, "bucket": tensors} for row in each)


# --- the hook ---------------------------------------------------------------------------------


class _GradBucket:
    """Bucket as DDP passes it to a hook."""

    def __init__(self, parameters: Sequence[torch.Tensor], index: int, count: int) -> None:
        self._parameters, self._index, self._last = list(parameters), index, index == count - 1
        self._buffer = torch.randn(sum(p.numel() for p in parameters))

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last


def hook_us(kind: str, buckets: int = 4, tensors: int = 4) -> tuple[float, float]:
    """Return microseconds per bucket from DDP's call to the update, and of the method alone."""
    network = torch.nn.ParameterList(torch.randn(8, 8) for _ in range(buckets * tensors))
    hook = ddp_hook(kind)
    hook.register(DistributedDataParallel(network))
    handed = [
        _GradBucket(list(network)[tensors * n : tensors * (n + 1)], n, buckets)
        for n in range(buckets)
    ]
    times: list[float] = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        for future in [hook.exchange(bucket) for bucket in handed]:
            future.wait()
        times.append(time.perf_counter() - begun)
    member, alone = create(kind, Worker(rank=0, count=1, seed=0)), []
    for step in range(STEPS):
        bucket = Bucket(layout=hook.layouts[0], gradient=handed[0].buffer())
        begun = time.perf_counter()
        with torch.no_grad():
            lockstep([participate(member, bucket, step, finite=False, unmodified=False)])
        alone.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(times) / buckets, 1e6 * statistics.median(alone)


def hooks(kinds: Sequence[str] = ("none", "fp16", "qsgd")) -> Iterator[tuple[str, float, float]]:
    """Yield `hook_us` of methods, in a group of one rank."""
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            for kind in kinds:
                yield (kind, *hook_us(kind))
        finally:
            dist.destroy_process_group()


# --- the page ---------------------------------------------------------------------------------

_HEAD = """# Host time of a bucket on a GPU, without a GPU

`PYTHONPATH=. python -m tests.benchmarks.host_time > docs/host-time.md` writes this page on any \
machine with Triton. Kernels are stubbed and PyTorch's operators run in host memory; on an H100's \
host, each launch takes about 40 us more. Buckets are one tensor of 7 million elements, bucket 5 \
of BERT-base (16 tensors) and bucket 3 of ResNet-50 (60), with fewer elements per tensor. Times \
are for encode and decode of one payload in the slowest kind of steady-state step.

| method | tensors | launches | operators | waits | encode, us | decode, us |
|---|--:|--:|--:|--:|--:|--:|"""


def page(names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of docs/host-time.md."""
    yield _HEAD
    for name in names:
        found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for row in rows(name):
            found.setdefault((row["bucket"], row["phase"]), {})[row["stage"]] = row
        slowest: dict[str, dict[str, dict[str, Any]]] = {}
        for (bucket, _), both in found.items():
            if bucket not in slowest or _host(both) > _host(slowest[bucket]):
                slowest[bucket] = both
        for bucket, both in slowest.items():
            counts = [
                f"{sum(row[key] for row in both.values()):g}"
                for key in ("triton_launches", "operators", "waits")
            ]
            times = [f"{float(both[stage]['host_us']):.0f}" for stage in ("encode", "decode")]
            yield f"| {' | '.join([f'`{name}`', bucket, *counts, *times])} |"
    yield ""
    yield "The hook of `gcsim.ddp_hook`, from DDP's call to the update (one rank, host memory):"
    yield ""
    yield "| method | hook, us per bucket | method alone | rest |"
    yield "|---|--:|--:|--:|"
    for kind, whole, alone in hooks():
        yield f"| `{kind}` | {whole:.0f} | {alone:.0f} | {whole - alone:.0f} |"


def _host(both: dict[str, dict[str, Any]]) -> float:
    return sum(float(row["host_us"]) for row in both.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args().only
    torch.set_num_threads(1)
    for line in page(chosen.split(",") if chosen else list(REGISTRY)):
        print(line, flush=True)
