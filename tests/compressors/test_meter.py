"""The meter counts what a kernel moves, and tells payload cost from fixed cost."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.kernels import KernelCost, total
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import Meter, count_random, kernel, segment, unpriced
from gcsim.compressors.registry import REGISTRY, create
from tests.compressors.shared import layout_of_shapes


def counted(costs: list[KernelCost]) -> list[tuple[str, int, int]]:
    return [(cost.kind, cost.nbytes, cost.flops) for cost in costs]


X, Y = torch.zeros(10_000), torch.ones(10_000)
AT, THREE = torch.tensor([3, 5, 7]), torch.ones(3)
"""Three int64 indices are 24 bytes, three float32 12."""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: X.add_(Y), ("streaming", 3 * 40_000, 0)),  # two vectors read, one written
        (lambda: X.copy_(Y), ("streaming", 2 * 40_000, 0)),
        (lambda: X.new_zeros(3), ("streaming", 12, 0)),  # reads nothing of X
        (lambda: torch.zeros_like(X), ("streaming", 40_000, 0)),
        (
            lambda: torch.zeros(30, 20) @ torch.zeros(20, 10),
            ("matmul", 4 * (600 + 200 + 300), 2 * 30 * 20 * 10),  # two FLOPs a multiply-add
        ),
        # what is touched is read, and written where it is selected or added to
        (lambda: X[AT], ("gather_scatter", 24 + 12 + 12, 0)),
        (lambda: X.index_add_(0, AT, THREE), ("gather_scatter", 24 + 12 + 2 * 12, 0)),
        (
            lambda: X.index_put_((AT,), THREE, accumulate=True),
            ("gather_scatter", 24 + 12 + 2 * 12, 0),
        ),
        (lambda: X.index_put_((AT,), THREE), ("gather_scatter", 24 + 12 + 12, 0)),
        # an expanded operand counts what it is expanded from
        (
            lambda: X.view(100, 100).mul_(Y[:100].view(100, 1).expand(100, 100)),
            ("streaming", 4 * (10_000 + 100 + 10_000), 0),
        ),
        (lambda: X.view(100, 100).t()[2:5], None),
        (lambda: torch.empty(50), None),
        (X.detach, None),
        (X[:0].clone, None),
    ],
)
def test_a_kernel_of_torchs_counts_what_it_moves(
    call: Callable[[], object], expected: tuple[str, int, int] | None
) -> None:
    with segment() as recorder:
        call()
    assert counted(recorder.fixed)[-1:] == ([expected] if expected else [])


def test_reading_a_value_back_is_a_host_synchronisation() -> None:
    x = torch.ones(5)
    with segment() as recorder:
        float(x[0])
    assert [cost.kind for cost in recorder.fixed] == ["host_sync"]


def test_a_decorated_primitive_is_one_kernel_with_its_operands_bytes() -> None:
    @kernel("selection")
    def first(x: torch.Tensor, count: int) -> torch.Tensor:
        return torch.from_numpy(x.numpy()[:count].copy()) + 0

    x = torch.zeros(100)
    with segment() as recorder:
        first(x, 10)
    assert counted(recorder.fixed) == [("selection", 440, 0)]


def test_nested_primitives_count_once() -> None:
    @kernel("streaming")
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @kernel("sort")
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    x = torch.zeros(10)
    with segment() as recorder:
        outer(x)
    assert counted(recorder.fixed) == [("sort", 80, 0)]


def test_a_kernel_counts_what_it_updates() -> None:
    @kernel("streaming", updates=("out",))
    def step(out: torch.Tensor) -> None:
        count_random(100, 16)

    out = torch.zeros(10)
    with segment() as recorder:
        step(out)
    # 40 bytes read and written, and 200 bytes of random bits
    assert [(c.kind, c.launches, c.nbytes) for c in recorder.fixed] == [
        ("random", 0, 200),
        ("streaming", 1, 80),
    ]


def test_parts_of_a_whole_are_counted_apart_and_looking_into_them_is_free() -> None:
    meter = Meter(1)
    received = [torch.zeros(10), torch.zeros(10)]
    with meter.compute(0):
        parts = meter.payloads(received, parts=True)
        for part in parts:
            float(part.sum())
        torch.ones(4) + 1  # after the last part: the exchange's own
    (recorder,) = meter.segments[0]
    assert recorder.parts == 2
    assert counted(recorder.per_part) == [("reduction", 44, 0)] * 2
    assert not recorder.per_payload
    assert sum(cost.nbytes for cost in recorder.fixed) == 16 + 32


def test_what_is_unpriced_costs_nothing() -> None:
    @unpriced
    def check(x: torch.Tensor) -> None:
        x.sum()

    x = torch.zeros(10)
    with segment() as recorder:
        check(x)
    assert not recorder.fixed


def team_costs(name: str, workers: int) -> list[tuple[list[KernelCost], list[KernelCost], int]]:
    """(fixed, per payload, payloads) of rank 0's segments and of the server.

    A tree of merges has N - 1 of them, all alike: one stands for all.
    """
    layout = layout_of_shapes([(64, 48), (64,)])
    generator = torch.Generator().manual_seed(7)
    gradient = torch.randn(layout.numel, generator=generator)
    moment = gradient.square() / 64
    bucket = Bucket(layout=layout, gradient=gradient, second_moment=moment)
    team = [create(name, Worker(rank=r, count=workers, seed=1)) for r in range(workers)]
    window = type(team[0]).window(type(team[0]).Parameters())
    for step in range(window):
        meter = Meter(workers)
        lockstep([member.exchange(bucket, step) for member in team], meter)
    recorders = meter.segments[0] + [served[0] for served in meter.servers if served]
    return [(r.fixed, r.per_payload, r.payloads) for r in recorders]


DATA_DEPENDENT = ("dgc", "ok_topk", "ce_sgd")
"""Payloads differ: a threshold sampled by rank, regions of a vector, a selection of one's own."""
OWNED_PARTS = ("onebit_sgd",)
"""A worker's part of the whole shrinks as workers are added; each part has levels of its own."""


@pytest.mark.parametrize("name", [n for n in REGISTRY if n not in DATA_DEPENDENT + OWNED_PARTS])
def test_cost_at_four_workers_follows_from_two(name: str) -> None:
    # All workers hold the same gradient, so payloads are alike, and the cost must be
    # fixed + workers * per payload.
    at_two, at_four = team_costs(name, 2), team_costs(name, 4)
    assert len(at_two) == len(at_four)
    for (fixed2, payload2, count2), (fixed4, payload4, count4) in zip(at_two, at_four, strict=True):
        assert count4 == 2 * count2
        for kind in {cost.kind for cost in [*fixed4, *payload4, *fixed2, *payload2]}:
            two_fixed = sum(c.nbytes for c in total(fixed2) if c.kind == kind)
            two_payload = sum(c.nbytes for c in total(payload2) if c.kind == kind)
            four = sum(c.nbytes for c in total([*fixed4, *payload4]) if c.kind == kind)
            expected = two_fixed + 2 * two_payload
            assert four == pytest.approx(expected, rel=0.03, abs=256), kind


def test_cost_of_owned_parts_follows_from_three_numbers_of_owners() -> None:
    # Of 48 columns each of N owners has 48 / N, and of the bias, one column of 64 rows, a stripe,
    # padding but for the first. So bytes(N) = a + b N + c / N, exactly. With one owner more the
    # encoder writes two headers of 20 bytes (and reads them) and a stripe: 64 elements read and
    # written, 8 bytes of bits, 12 of threshold and levels. The receiver copies 56 bytes of frames,
    # and of the stripe adds 64 elements from 8 bytes of bits and 8 of levels.
    owners = (2, 3, 4, 8)
    costs = [[fixed for fixed, _, _ in team_costs("onebit_sgd", n)] for n in owners]
    laws = np.array([[1, n, 1 / n] for n in owners])
    growth = []
    for parts in zip(*costs, strict=True):  # a worker's, an owner's and a receiver's
        moved = [sum(c.nbytes for c in part if c.kind == "streaming") for part in parts]
        law = np.linalg.solve(laws[:3], moved[:3])
        assert laws[3] @ law == pytest.approx(moved[3], abs=1e-6)
        growth.append(law[1])
    encoder, receiver = 2 * 2 * 20 + 8 * 64 + 8 + 12, 2 * 56 + 8 * 64 + 8 + 8
    assert growth == pytest.approx([encoder, 0, receiver], abs=1e-6)
