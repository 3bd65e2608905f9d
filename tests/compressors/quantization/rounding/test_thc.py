"""THC: a matrix of the transform and a loop over elements are the oracle of every step."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gcsim.compressors import check
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame, read_frames
from gcsim.compressors.coding.integers.packing import unpack_bits
from gcsim.compressors.quantization.rounding.thc import (
    LANES,
    ThcParameters,
    lookup_table,
    read_answer,
    rotate_back,
    sum_dtype,
)
from gcsim.compressors.random import bits64, random_key
from gcsim.compressors.registry import check_parameters
from gcsim.errors import InputError
from tests.compressors.shared import Draw

NORMAL = NormalDist()
Vector = NDArray[np.float64]


def chosen(**options: Any) -> ThcParameters:
    return ThcParameters(**options)


def density(x: Vector) -> Vector:
    """Of the standard normal distribution."""
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def hadamard(order: int) -> Vector:
    """Sylvester's matrix: the sign of an element is the parity of the bits that i and j share."""
    return np.array([[(-1.0) ** (i & j).bit_count() for j in range(order)] for i in range(order)])


def pieces(n: int, stages: int) -> list[tuple[int, int]]:
    """(first element, length) of what is transformed together: whole ones, then powers of two."""
    found, first = [], 0
    while n - first:
        length = min(LANES << stages, 1 << int(math.log2(n - first)))
        found.append((first, length))
        first += length
    return found


def rotation(n: int, stages: int, key: np.uint64) -> Vector:
    """The orthogonal matrix of signs and Hadamard transforms, from its definition."""
    matrix = np.zeros((n, n))
    for first, length in pieces(n, stages):
        order = min(1 << stages, length)  # elements of a transform, length / order apart
        block = np.kron(hadamard(order), np.eye(length // order)) / math.sqrt(order)
        matrix[first : first + length, first : first + length] = block
    plain: Any = bits64
    bits = [int(plain.py_func(key, i // 64)) >> (i % 64) & 1 for i in range(n)]
    return matrix * np.where(bits, -1.0, 1.0)


@pytest.fixture(autouse=True)
def wrapping() -> Any:
    """The generator's words wrap around; outside of compiled loops numpy would warn."""
    with np.errstate(over="ignore"):
        yield


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 100, 129, 2048, 3000])
@pytest.mark.parametrize("stages", [0, 1, 4, 5, 10])
def test_the_inverse_transform_is_that_of_the_definition(normal: Draw, n: int, stages: int) -> None:
    key = random_key(1, 2, 3, "signs")
    sums = (normal(n).abs() * 60).to(torch.uint8)
    out = torch.empty(n)
    rotate_back(out, sums, step=0.25, most=3.0, stages=stages, signs=key)
    if n <= 129 or stages == 4:
        expected = rotation(n, stages, key).T @ (0.25 * sums.numpy().astype(np.float64) - 3)
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-4)
    # orthogonal: lengths are kept
    length = float((0.25 * sums.double() - 3).norm())
    assert float(out.double().norm()) == pytest.approx(length, rel=1e-5)


def test_every_step_follows_the_definition(team: Any, normal: Draw) -> None:
    # Float64 oracle of two tensors, three workers, five steps, with the codes as they were sent.
    sizes, workers, stages, seed = (70, 33), 3, 4, 7
    crew = team("thc", [(n,) for n in sizes], workers=workers, seed=seed, stages=stages)
    parameters = chosen(stages=stages)
    table = lookup_table(parameters).astype(np.int64)
    t_p = NORMAL.inv_cdf(1 - 1 / 64)
    errors = [np.zeros(103) for _ in range(workers)]
    for step in range(5):
        given = [normal(103, 10 * step + rank) * (1 + rank) for rank in range(workers)]
        updates = crew.step(given, step)
        sent = crew.listener.received[0]
        at = 0
        for index, n in enumerate(sizes):
            part = slice(at, at + n)
            key = random_key(seed, step, index, "thc signs")
            matrix = rotation(n, stages, key)
            held = [e[part] + g[part].double().numpy() for e, g in zip(errors, given, strict=True)]
            most = t_p * max(np.linalg.norm(v) for v in held) / math.sqrt(n)
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


def test_rounding_is_right_on_average_within_the_range(team: Any, normal: Draw) -> None:
    # No element is beyond t_p of p = 10^-6: the mean over 400 seeds is the gradient, within 5
    # standard errors along directions that were drawn beforehand.
    gradient = normal(256, 3)
    directions = torch.stack([gradient, *(normal(256, 50 + i) for i in range(8))]).double()
    found = torch.stack(
        [
            directions @ (
                team("thc", [(256,)], workers=1, seed=seed, overflow=1e-6).step([gradient])[0]
                - gradient
            ).double()
            for seed in range(400)
        ]
    )  # fmt: skip
    standard_error = found.std(0) / math.sqrt(400)
    assert bool((found.mean(0).abs() < 5 * standard_error).all())


def test_the_error_is_that_of_the_table_on_normal_numbers(team: Any, normal: Draw) -> None:
    # A rotated vector is about normal: error = integral of the rounding's variance and of the
    # squared excess over t_p, here by quadrature. 2.1 % with the defaults.
    n = 1 << 16
    gradient = normal(n) * normal(n, 1).mul(0.8).exp()
    three: dict[str, Any] = {"bits": 3, "granularity": 20, "overflow": 0.05}
    for options in ({}, {"table": "uniform"}, three):
        parameters = chosen(**options)
        t_p, grid = parameters.half_range, parameters.grid
        levels = (2 * lookup_table(parameters).astype(np.float64) / grid - 1) * t_p
        x = np.linspace(-8, 8, 400_001)
        inside = np.clip(x, -t_p, t_p)
        k = np.clip(np.searchsorted(levels, inside, side="right") - 1, 0, len(levels) - 2)
        variance = (inside - levels[k]) * (levels[k + 1] - inside)
        expected = float(((variance + (x - inside) ** 2) * density(x)).sum() * (x[1] - x[0]))
        update = team("thc", [(n,)], workers=1, **options).step([gradient])[0]
        error = float((update - gradient).square().sum() / gradient.square().sum())
        assert error == pytest.approx(expected, rel=0.05)
    assert check_parameters("thc", {}) == chosen()


@pytest.mark.parametrize(("bits", "grid"), [(2, 5), (2, 6), (2, 9), (3, 10)])
def test_no_other_table_has_a_smaller_error(bits: int, grid: int) -> None:
    parameters = chosen(bits=bits, granularity=grid)
    y = np.linspace(-1, 1, 4001) * parameters.half_range

    def error(table: tuple[int, ...]) -> float:
        levels = (2 * np.array(table) / grid - 1) * parameters.half_range
        k = np.clip(np.searchsorted(levels, y, side="right") - 1, 0, len(levels) - 2)
        return float(((y - levels[k]) * (levels[k + 1] - y) * density(y)).sum())

    middles = itertools.combinations(range(1, grid), 2**bits - 2)
    best = min(error((0, *middle, grid)) for middle in middles)
    assert error(tuple(int(v) for v in lookup_table(parameters))) == pytest.approx(best, rel=1e-6)


def test_tables_by_name() -> None:
    table = lookup_table(chosen())
    assert (len(table), table[0], table[-1]) == (16, 0, 30)
    # 16 of 31 points cannot lie symmetrically about 15 with 15 among them: one of two mirror images
    assert sum(v + w != 30 for v, w in zip(table.tolist(), table[::-1].tolist(), strict=True)) <= 2
    uniform = chosen(table="uniform")
    assert list(lookup_table(uniform)) == list(range(16))
    # t_p from the normal distribution's table: P(|x| > 2.1539) = 1 / 32, P(|x| > 3.8906) = 1e-4
    assert chosen().half_range == pytest.approx(2.1539, abs=1e-4)
    assert uniform.half_range == pytest.approx(3.8906, abs=1e-4)


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
    assert [sum_dtype(30, n).itemsize for n in (1, 8, 9, 1092, 1093)] == [1, 1, 2, 2, 4]


def test_what_is_clamped_is_delivered_later(team: Any) -> None:
    # One large element of 4096, once: half of its norm is beyond the range at first.
    gradient = torch.zeros(4096)
    gradient[77] = 100.0
    crew = team("thc", [(4096,)], workers=1, stages=2)
    total = torch.zeros(4096)
    for step in range(60):
        total += crew.step([gradient if step == 0 else torch.zeros(4096)], step)[0]
        if step == 0:
            assert float((total - gradient).norm()) > 80
    assert float((total - gradient).norm()) < 40
    residual_of = crew.workers[0].residual[0]
    torch.testing.assert_close(total + residual_of, gradient, rtol=0, atol=1e-3)


@pytest.mark.parametrize("options", [
    {"table": "uniform", "bits": 3},
    {"error_feedback": False, "stages": 0},
    {"bits": 8, "granularity": 255, "stages": 13},
    {"bits": 2, "granularity": 3},
    {"aggregation": "all_reduce"},
])  # fmt: skip
def test_options_pass_all_checks(options: dict[str, Any]) -> None:
    check("thc", options)


def test_a_table_needs_as_many_integers_as_codes() -> None:
    with pytest.raises(InputError, match="granularity must be at least"):
        check_parameters("thc", {"granularity": 14})


def test_sums_above_what_workers_can_send_are_refused(team: Any, normal: Draw) -> None:
    layout = team("thc", [(6,)]).layout
    sums = torch.full((6,), 30, dtype=torch.uint8)
    for value, flags, refused in ((30, 129, False), (31, 129, True), (30, 4, True)):
        sums[3] = value
        answer = pack_frame(Codec.THC, sums, numel=6, nonzero=6, flags=flags, params=30)
        if refused:
            with pytest.raises(InputError, match="damaged payload"):
                read_answer(answer, layout, 30, 1)
        else:
            assert torch.equal(read_answer(answer, layout, 30, 1)[0], sums)


def test_negative_sums_are_refused(team: Any) -> None:
    sums = torch.tensor([0, 1, -1, 3, 4, 5], dtype=torch.int16).view(torch.uint8)
    answer = pack_frame(Codec.THC, sums, numel=6, nonzero=6, flags=130, params=30)
    with pytest.raises(InputError, match="a sum outside 0"):
        read_answer(answer, team("thc", [(6,)]).layout, 30, 9)  # nine workers' take 16 bits


@pytest.mark.parametrize(("workers", "width"), [(2, 1), (9, 2)])
def test_an_all_reduce_of_integers_gives_the_servers_update(
    team: Any, normal: Draw, workers: int, width: int
) -> None:
    # the same sums, so the same update to the last bit; 8 bits up to 255 / 30 workers, else 16
    shapes = [(700,), (0,), (10, 7)]
    server = team("thc", shapes, workers=workers)
    summed = team("thc", shapes, workers=workers, aggregation="all_reduce")
    for step in range(3):
        gradients = [normal(770, 10 * step + rank) for rank in range(workers)]
        expected, found = server.step(gradients, step), summed.step(gradients, step)
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        assert summed.sent[1] == (770 * width,) * workers
