"""A loop over all tensors of a bucket gives what calls for each tensor give: bits and refusals.

The oracle of each loop is the path that it replaces, which is taken while somebody counts.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.base import Compressor, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.conformance.subject import Heard, overheard
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import stopwatch
from gcsim.compressors.registry import create
from gcsim.compressors.requests import Exchange
from gcsim.errors import InputError
from tests.compressors.coding.test_lying_frames import among_liars
from tests.compressors.shared import layout_of_shapes

WAYS: list[tuple[str, dict[str, Any]]] = [
    ("topk", {"ratio": 0.05}),
    ("gtopk", {"ratio": 0.1}),
    ("dryden", {"proportion": 0.2}),
    ("dryden", {"proportion": 1.0}),
    ("accordion", {}),
]
SHAPES = st.lists(
    st.sampled_from([(0,), (1,), (7, 1, 3), (40,), (33, 9), (501,), (3, 600)]),
    min_size=1,
    max_size=5,
)
STEPS = 3


@contextlib.contextmanager
def tensor_by_tensor(asked: bool) -> Iterator[None]:
    """Where it is asked for, somebody counts."""
    with stopwatch(time.perf_counter) if asked else contextlib.nullcontext():
        yield


def trained(
    way: tuple[str, dict[str, Any]],
    shapes: list[tuple[int, ...]],
    draw: tuple[int, bool, int],
    apart: Callable[[int], bool],
    among: Callable[[Exchange, random.Random], Exchange] | None = None,
) -> list[Tensor] | str:
    """All that was sent, received and is held back in some steps; or why it was refused.

    `draw` is the seed, whether values are equal often, and the number of workers; `apart` says
    which steps go tensor by tensor.
    """
    seed, rough, workers = draw
    layout = layout_of_shapes(shapes)
    crew: list[Compressor[Any]] = [
        create(way[0], Worker(rank=rank, count=workers, seed=7), way[1]) for rank in range(workers)
    ]
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    found: list[Tensor] = []
    try:
        for step in range(STEPS):
            log, exchanges = list[Heard](), []
            buckets = []
            for worker in crew:
                gradient = torch.randn(layout.numel, generator=generator)
                gradient *= torch.randn(layout.numel, generator=generator).exp_()
                if rough:
                    gradient = gradient.mul_(2).round_().div_(64)
                moment = 0.5 * gradient.square() if worker.requires else None
                bucket = Bucket(layout=layout, gradient=gradient, second_moment=moment)
                exchange = worker.exchange(bucket, step)
                exchanges.append(among(exchange, rng) if among else overheard(exchange, log))
                buckets.append(bucket)
            with tensor_by_tensor(apart(step)):
                found += lockstep(exchanges)
            found += [tensor for heard in log for tensor in heard.sent]
        held = [worker.residual_of(bucket) for worker, bucket in zip(crew, buckets, strict=True)]
    except InputError as error:
        return str(error)
    return found + [one for one in held if one is not None]


def agree(one: list[Tensor] | str, other: list[Tensor] | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way[0]} {way[1]}")
@settings(max_examples=5)
@given(
    shapes=SHAPES,
    draw=st.tuples(st.integers(0, 99), st.booleans(), st.integers(1, 3)),
    first=st.integers(0, STEPS),
)
def test_a_step_may_go_either_way(
    way: tuple[str, dict[str, Any]],
    shapes: list[tuple[int, ...]],
    draw: tuple[int, bool, int],
    first: int,
) -> None:
    # memories are the same: who went one way goes on the other
    expected = trained(way, shapes, draw, lambda step: True)
    for apart in (lambda step: step < first, lambda step: step >= first):
        assert agree(trained(way, shapes, draw, apart), expected)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way[0]} {way[1]}")
def test_what_is_damaged_is_refused_in_the_same_words(way: tuple[str, dict[str, Any]]) -> None:
    shapes: list[tuple[int, ...]] = [(40, 30), (501,), (0,), (7, 1, 3)]
    for seed in range(6):
        found = [
            trained(way, shapes, (seed, False, 2), apart, among_liars)
            for apart in (lambda step: True, lambda step: False)
        ]
        assert agree(*found)


def test_a_mean_that_depends_on_the_order_of_its_sum_is_numpys() -> None:
    # In float64 2^60 + 100 is 2^60: added up from the first to the last the sum is 2^60 + 2^36,
    # half way between two float32, which rounds to 2^60; numpy adds 202 at once, which goes beyond.
    gradient = torch.tensor([2.0**60] + [100.0] * 7 + [2.0**36] + [1.0] * 7)
    found = []
    for apart in (True, False):
        worker = create("dryden", Worker(rank=0, count=1, seed=0), {"proportion": 1.0})
        bucket = Bucket(layout=layout_of_shapes([(16,)]), gradient=gradient)
        with tensor_by_tensor(apart):
            found += lockstep([worker.exchange(bucket, 0)])
    assert torch.equal(*found)
