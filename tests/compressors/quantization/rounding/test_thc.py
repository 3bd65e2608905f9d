"""THC: a matrix of the transform and a loop over elements are the oracle of every step."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame, read_frames
from gcsim.compressors.coding.integers.packing import unpack_bits
from gcsim.compressors.quantization.rounding.thc import (
    GRID,
    HALF_RANGE,
    LANES,
    STAGES,
    TABLE,
    rotate_back,
    sum_dtype,
    write_update,
)
from gcsim.compressors.random import random_key
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError
from tests.compressors.shared import Draw, layout_of, split_mix

Vector = NDArray[np.float64]


def hadamard(order: int) -> Vector:
    """Sylvester's matrix: the sign of an element is the parity of the bits that i and j share."""
    return np.array([[(-1.0) ** (i & j).bit_count() for j in range(order)] for i in range(order)])


def rotation(n: int, key: np.uint64) -> Vector:
    """The orthogonal matrix of signs and Hadamard transforms, from its definition."""
    matrix, first = np.zeros((n, n)), 0
    while n - first:  # whole parts, then powers of two
        length = min(LANES << STAGES, 1 << int(math.log2(n - first)))
        order = min(1 << STAGES, length)  # elements of a transform, length / order apart
        part = slice(first, first + length)
        matrix[part, part] = np.kron(hadamard(order), np.eye(length // order)) / math.sqrt(order)
        first += length
    bits = [split_mix(int(key), i // 64) >> (i % 64) & 1 for i in range(n)]
    return matrix * np.where(bits, -1.0, 1.0)


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 100, 129, 2048, 3000])
def test_the_inverse_transform_is_that_of_the_definition(normal: Draw, n: int) -> None:
    key, sums, out = random_key(1, 2, 3, "signs"), (normal(n).abs() * 60).byte(), torch.empty(n)
    rotate_back(out, sums, Segments.alone(n), np.array([0.25]), np.array([3.0]), np.array([key]))
    expected = rotation(n, key).T @ (0.25 * sums.numpy().astype(np.float64) - 3)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_every_step_follows_the_definition(team: Any, normal: Draw) -> None:
    # Float64 oracle of two tensors, three workers, five steps, with the codes as they were sent.
    sizes, workers, seed = (70, 33), 3, 7
    crew = team("thc", [(n,) for n in sizes], workers=workers, seed=seed)
    table = TABLE.astype(np.int64)
    errors = [np.zeros(103) for _ in range(workers)]
    for step in range(5):
        given = [normal(103, 10 * step + rank) * (1 + rank) for rank in range(workers)]
        updates = crew.step(given, step)
        sent = crew.listener.received[0]
        at = 0
        for index, n in enumerate(sizes):
            part = slice(at, at + n)
            key = random_key(seed, step, index, "thc signs")
            matrix = rotation(n, key)
            held = [e[part] + g[part].double().numpy() for e, g in zip(errors, given, strict=True)]
            most = HALF_RANGE * max(np.linalg.norm(v) for v in held) / math.sqrt(n)
            decoded = []
            for rank, v in enumerate(held):
                frame = list(read_frames(sent[rank]))[index]
                codes = unpack_bits(frame.body, n, 4).numpy().astype(np.int64)
                place = np.clip((matrix @ v / most + 1) * 15, 0, 30)  # on the grid 0 ... 30
                integers = table[codes]
                below = table[np.maximum(codes - 1, 0)]
                above = table[np.minimum(codes + 1, 15)]
                # one of the two neighbours in the table
                assert bool(((place > below - 1e-3) & (place < above + 1e-3)).all())
                rotated_back = matrix.T @ ((integers / 15 - 1) * most)
                decoded.append(rotated_back)
                errors[rank][part] = v - rotated_back
            mean = sum(decoded) / workers
            for update in updates:
                np.testing.assert_allclose(update[part].numpy(), mean, rtol=2e-4, atol=2e-4)
            at += n
    for worker, error in zip(crew.workers, errors, strict=True):
        np.testing.assert_allclose(worker.residual[0].numpy(), error, rtol=1e-3, atol=1e-3)


def test_no_other_table_has_a_smaller_error() -> None:
    # The error is a sum over neighbours: the best table of 16 integers is a shortest path of 15.
    y = np.linspace(-1, 1, 6001) * HALF_RANGE
    points = np.linspace(-1, 1, GRID + 1) * HALF_RANGE

    def cost(i: int, j: int) -> float:
        low, high = points[i], points[j]
        error = (y - low) * (high - y) * np.exp(-(y**2) / 2)
        return float(error[(y >= low) & (y < high)].sum())

    costs = {pair: cost(*pair) for pair in itertools.combinations(range(GRID + 1), 2)}
    best = {0: 0.0}
    for _ in range(15):
        ends = range(1 + min(best), GRID + 1)
        best = {j: min(best[i] + costs[i, j] for i in best if i < j) for j in ends}
    ours = sum(costs[pair] for pair in itertools.pairwise(TABLE.tolist()))
    assert ours == pytest.approx(best[GRID], rel=1e-6)


def test_four_bits_go_up_and_eight_come_down(team: Any, normal: Draw) -> None:
    crew = team("thc", [(1001,), (10, 7)], workers=2)
    crew.step([normal(1071, rank) for rank in range(2)])
    norms, exchange = crew.listener.collectives
    assert norms.sent == (8, 8)  # a float32 for each tensor
    assert exchange.sent == (2 * HEADER_BYTES + 501 + 35,) * 2
    assert exchange.pulled == 2 * HEADER_BYTES + 1071
    # 9 workers at 30 each do not fit a byte
    crew = team("thc", [(100,)], workers=9)
    crew.step([normal(100, rank) for rank in range(9)])
    assert crew.listener.collectives[1].pulled == HEADER_BYTES + 200
    assert [sum_dtype(n).itemsize for n in (1, 8, 9, 1092, 1093)] == [1, 1, 2, 2, 4]


@pytest.mark.parametrize(
    ("sums", "count", "flags"),
    [
        ([0, 1, 2, 31, 4, 5], 1, 129),  # more than one worker's 30
        ([0, 1, 2, 30, 4, 5], 1, 4),
        ([0, 1, -1, 3, 4, 5], 9, 130),  # nine workers' take 16 bits
    ],
)
def test_sums_that_workers_cannot_have_sent_are_refused(
    sums: list[int], count: int, flags: int
) -> None:
    dtype = sum_dtype(count)

    def read(numbers: list[int], said: int) -> None:
        body = torch.tensor(numbers).to(dtype).view(torch.uint8)
        answer = pack_frame(Codec.THC, body, numel=6, flags=said, params=GRID)
        keys = np.zeros(1, dtype=np.uint64)
        write_update(answer, torch.zeros(6), layout_of(6), count, np.ones(1), keys)

    read([0, 1, 2, 30, 4, 5], 128 + dtype.itemsize)
    with pytest.raises(InputError, match="damaged payload"):
        read(sums, flags)
