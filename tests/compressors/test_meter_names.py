"""The meter says which kernel ran, on how much it worked, and with a clock how long it took."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

import gcsim.compressors
from gcsim.compressors.coding.index_coding import Coder, encode_indices
from gcsim.compressors.kernels import total
from gcsim.compressors.meter import (
    count_bytes,
    count_random,
    kernel,
    kernel_name,
    segment,
    stopwatch,
    unpriced,
)


def names(call: Callable[[], object]) -> list[str]:
    with segment() as recorder:
        call()
    return [cost.name for cost in recorder.fixed]


def test_an_own_kernel_is_called_by_file_and_function_with_its_variant() -> None:
    indices = torch.tensor([1, 5, 9])
    assert names(lambda: encode_indices(indices, 100, Coder.RICE)) == [
        "index_coding.encode_indices:rice"
    ]


def test_a_users_kernel_keeps_its_whole_path() -> None:
    def mine(x: torch.Tensor) -> torch.Tensor:
        return x

    assert kernel_name(mine).startswith(f"{__name__}.")


def test_no_two_kernels_share_a_name() -> None:
    found: Counter[str] = Counter()
    for module in pkgutil.walk_packages(gcsim.compressors.__path__, "gcsim.compressors."):
        if module.ispkg:
            continue
        loaded = importlib.import_module(module.name)
        for value in vars(loaded).values():
            wrapped = getattr(value, "__wrapped__", None)
            if callable(wrapped) and wrapped.__module__ == module.name:
                found[kernel_name(wrapped)] += 1
    # `sampling._draw` is decorated twice, under names of its own
    assert {name for name, count in found.items() if count > 1} <= {"sampling._draw"}
    assert "signs.fold" in found


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: x + 1, "aten.add"),
        (lambda x: x.half(), "aten._to_copy:float32_to_float16"),
        (lambda x: x.view(4, 4).sum(0), "aten.sum:some_dimensions"),
        (lambda x: x.sum(), "aten.sum"),
        (lambda x: x[torch.tensor([1, 2, 9])], "aten.index:2^4"),
        (lambda x: x[torch.tensor([9, 1, 2])], "aten.index:jumping:2^4"),
        # 16 numbers and a vector of 4 to 4: 32 FLOPs, 96 bytes, a third of a FLOP each
        (lambda x: x.view(4, 4) @ x[:4].view(4, 1), "aten.mm.along_0.25_flop_per_byte"),
        (lambda x: x.view(4, 4).t() @ x[:4].view(4, 1), "aten.mm.across_0.25_flop_per_byte"),
        (lambda x: x[:4].view(4, 1) @ x[:4].view(1, 4), "aten.mm.out_0.25_flop_per_byte"),
        (lambda x: torch.linalg.qr(x.view(8, 2)), "aten.linalg_qr.2_columns"),
    ],
)
def test_torchs_kernels_are_named_by_what_decides_on_their_speed(
    call: Callable[[torch.Tensor], object], name: str
) -> None:
    x = torch.arange(16, dtype=torch.float32)
    assert names(lambda: call(x))[-1] == name


def test_what_a_kernel_draws_belongs_to_it() -> None:
    @kernel("streaming", resident=("x",))
    def noisy(x: torch.Tensor) -> None:
        count_bytes("streaming", 80)
        count_random(8, 16)

    x = torch.zeros(10)
    with segment() as recorder:
        noisy(x)
        count_random(8, 16)
    own = kernel_name(noisy)
    assert [(c.kind, c.name, c.part, c.launches, c.nbytes) for c in total(recorder.fixed)] == [
        ("streaming", own, False, 1, 80),
        ("random", "", False, 0, 16),
        ("random", own, True, 0, 16),
    ]


@pytest.mark.parametrize(("elements", "reach"), [(1, 0), (4, 2), (5, 4), (16, 4), (17, 6)])
def test_gathering_kernels_say_how_far_they_reach(elements: int, reach: int) -> None:
    @kernel("gather_scatter")
    def gather(x: torch.Tensor) -> None:
        count_bytes("gather_scatter", 5)

    x = torch.zeros(elements)
    with segment() as recorder:
        gather(x)
    (found,) = total(recorder.fixed)
    assert found.name == f"{kernel_name(gather)}:2^{reach}"
    assert 4 ** (reach // 2) >= elements  # the power of four that holds all elements ...
    assert reach == 0 or 4 ** (reach // 2 - 1) < elements  # ... and the next one does not
    assert found.nbytes == 4 * elements + 5


def test_a_kernel_that_is_as_long_as_what_it_finds_says_so() -> None:
    @kernel("gather_scatter", by_results=True)
    def first(x: torch.Tensor, count: int) -> torch.Tensor:
        return x[:count].clone()

    x = torch.zeros(100)
    with segment() as recorder:
        first(x, 3)
        first(x, 0)
    assert [(c.nbytes, c.work) for c in recorder.fixed] == [(412, 12), (400, 1)]


def ticking() -> Callable[[], float]:
    ticks: Iterator[int] = itertools.count()
    return lambda: float(next(ticks))


def test_a_clock_times_each_launch_with_all_that_it_states() -> None:
    @kernel("streaming", variants=("fast",))
    def step(x: torch.Tensor, *, fast: bool) -> None:
        count_bytes("streaming", 60)
        x.add_(1)  # inside: neither counted nor seen by the clock

    x = torch.zeros(10)
    with segment(ticking()) as recorder:
        step(x, fast=True)
        torch.zeros(5).add_(1)
    assert [(t.cost.name, t.cost.nbytes, t.seconds) for t in recorder.timed] == [
        (f"{kernel_name(step)}:fast", 100, 1.0),  # 40 bytes read, 60 stated
        ("aten.zeros", 20, 1.0),
        ("aten.add_", 40, 1.0),
    ]


def test_a_stopwatch_counts_nothing_and_notes_what_is_left_out() -> None:
    @unpriced
    def check() -> None:
        pass

    @kernel("sort")
    def inner(x: torch.Tensor) -> torch.Tensor:
        check()  # part of the kernel: not left out
        return x

    with stopwatch(ticking()) as recorder:
        inner(torch.zeros(3))
        check()
        torch.zeros(3)
    assert recorder.left_out == 1.0
    assert not recorder.fixed
    assert not recorder.timed
