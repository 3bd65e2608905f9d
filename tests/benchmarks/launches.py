"""Launches of each metered kernel on a GPU, counted without one: compressors/launches.csv.

    PYTHONPATH=. python -m tests.benchmarks.launches > compressors/launches.csv

Triton's interpreter runs whole steps of methods on one bucket of 16 tensors. Torch's operators
are one launch each; a fit over the stages of all methods gives what else is launched to the other
kernels of the stage, near to what their own calls launch. So frames, which are metered as nothing,
are in the kernels of their message.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.ddp.steps import Part, Step
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import Observer, lockstep
from gcsim.compressors.meter import Recorder, segment
from gcsim.compressors.meter_dispatch import UncompiledMode, kernel_cost
from gcsim.compressors.queued import variant
from gcsim.compressors.registry import REGISTRY, check_parameters, compressor_class
from gcsim.scenarios.calibration.host import layout_of
from gcsim.traces.timing.kernels import matrix_bucket, steps_of
from tests.benchmarks.gpu.stages import _gradient, _shrunk

Counts = tuple[int, ...]
"""Launches of Triton, operators of torch that launch, waits of the host."""
SHRINK = 30
_PULL = 0.03
"""Weight of a kernel's own calls in the fit, beside 1 for a stage."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Kernels that are metered between two collectives, and what they launch."""

    calls: list[tuple[KernelCost, Counts]]
    """Each cost, and the launches since the one before."""
    counts: Counts


class _Operators(UncompiledMode):
    """Counts operators that launch."""

    def __init__(self, counted: list[int]) -> None:
        super().__init__()
        self._counted = counted

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        result = func(*args, **(kwargs or {}))
        cost = kernel_cost(func, args, kwargs or {}, result)
        self._counted[1] += cost is not None and cost.kind != "host_sync"
        return result


class _Waits(list[int]):
    def __init__(self, counted: list[int]) -> None:
        self._counted = counted

    def append(self, nbytes: int) -> None:
        """One more tensor is read."""
        self._counted[2] += 1


class _Watch(Observer):
    def __init__(self, counted: list[int], noted: list[tuple[KernelCost, Counts]]) -> None:
        self.stretches: list[Stretch] = []
        self._counted, self._noted = counted, noted

    @contextmanager
    def compute(self, rank: int) -> Iterator[None]:
        self._noted.clear()
        before = tuple(self._counted)
        with segment():
            yield
        counts = tuple(now - then for now, then in zip(self._counted, before, strict=True))
        self.stretches.append(Stretch(calls=list(self._noted), counts=counts))


def stretches(name: str, **given: Any) -> Iterator[tuple[str, list[Stretch]]]:
    """Each kind of step of a method, settled, and its stretches."""
    cls, parameters = compressor_class(name), check_parameters(name, given)
    layout = _shrunk(layout_of("bert_base", 5), SHRINK * (20 if name == "deepreduce" else 1))
    bucket = matrix_bucket(_gradient(layout.numel), second_moments=bool(cls.requires))
    bucket = replace(bucket, layout=layout)
    counted, last = [0, 0, 0], [0, 0, 0]
    noted: list[tuple[KernelCost, Counts]] = []

    metered = Recorder.launched

    def launched(self: Recorder, cost: KernelCost, begin: Any, end: Any) -> None:
        noted.append((cost, tuple(n - then for n, then in zip(counted, last, strict=True))))
        last[:] = counted
        metered(self, cost, begin, end)

    found: dict[str, list[Stretch]] = {}
    member = cls(Worker(rank=0, count=1, seed=0), parameters)
    with _counting(counted), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "launched", launched)
        for step in steps_of(cls, parameters):
            watch = _Watch(counted, noted)
            last[:] = counted
            lockstep([member.exchange(bucket, step)], watch, share=False)
            found[cls.phase(parameters, step)] = watch.stretches
    yield from found.items()


@contextmanager
def _counting(counted: list[int]) -> Iterator[None]:
    """Count what runs inside, in Triton's interpreter."""
    from tests.compressors.gpu.conftest import host_copies, whole_methods, wrap_launches

    def wrap(run: Callable[..., None]) -> Callable[..., None]:
        def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
            before = list(counted)
            run(kernel, programs, *arguments, **constants)
            counted[:] = [before[0] + bool(programs), *before[1:]]

        return launch

    with whole_methods(), host_copies(_Waits(counted)), pytest.MonkeyPatch.context() as patch:
        wrap_launches(patch, wrap)
        with torch.no_grad(), _Operators(counted):
            yield


def of_the_hook() -> dict[str, Counts]:
    """Launches of the DDP hook's own checks of a bucket and of a step, beside methods' stages."""
    nobody: Any = None
    layout = _shrunk(layout_of("bert_base", 5), SHRINK)
    values = _gradient(layout.numel)
    counted, step, after = [0, 0, 0], Step(0, None, regrouped=False), []
    with _counting(counted):
        for _ in range(2):
            part = Part(layout=layout, buffer=values, promise=nobody)
            step.parts.append(part)
            step.scaled(part, step.unscale(part))
            after.append(tuple(counted))
        step.counts(step.faulty)
    bucket = tuple(late - early for early, late in zip(*after, strict=True))
    rest = tuple(all_ - 2 * each for all_, each in zip(counted, bucket, strict=True))
    return {"ddp.bucket": bucket, "ddp.step": rest}


def table(each: Iterable[Stretch]) -> dict[str, tuple[float, ...]]:
    """Launches by kernel and variant."""
    from scipy.optimize import nnls

    rows = list(each)
    own: dict[str, list[Counts]] = {}
    for row in rows:
        for cost, counts in row.calls:
            if cost.launches and not cost.name.startswith("aten."):
                own.setdefault(variant(cost.name), []).append(counts)
    names = sorted(own)
    place = {name: at for at, name in enumerate(names)}
    uses = np.zeros((len(rows), len(names)))
    left = np.array([row.counts for row in rows], dtype=float).reshape(-1, 3)
    for number, row in enumerate(rows):
        for cost, _ in row.calls:
            base = variant(cost.name)
            if base in place:
                uses[number, place[base]] += cost.launches
            elif cost.kind == "host_sync":
                left[number, 2] -= cost.launches
            else:
                left[number, 1] -= cost.launches
    size = np.maximum(1.0, uses.sum(axis=1))[:, None]
    known = np.array([np.mean(own[name], axis=0) for name in names])
    work = np.vstack((uses / size, _PULL * np.eye(len(names))))
    columns = [
        nnls(work, np.concatenate((np.maximum(0, left[:, k]) / size[:, 0], _PULL * known[:, k])))[0]
        for k in range(3)
    ]
    return {name: tuple(round(float(c[at]), 1) for c in columns) for name, at in place.items()}


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """All methods, and variants that have kernels of their own."""
    from tests.compressors.gpu.test_launches import ALIKE

    yield from ((name, {}) for name in REGISTRY)
    yield from ((name, given) for name, given in ALIKE if given)
    yield "threshold", {"threshold": 0.5, "indices": "bitmap"}


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    torch.set_num_threads(1)
    every: list[Stretch] = []
    for name, given in cases():
        every += [one for _, step in stretches(name, **given) for one in step]
        print(name, given, len(every), file=sys.stderr, flush=True)
    print("name,kernel,operator,wait")
    for name, counts in {**table(every), **of_the_hook()}.items():
        print(",".join([name, *(f"{one:g}" for one in counts)]))
