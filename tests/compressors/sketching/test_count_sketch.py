"""Sketches add up exactly, their sum shows the heavy coordinates, and the rest stays in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, only_frame, pack_frame
from gcsim.compressors.registry import check_parameters
from gcsim.compressors.sketching.count_sketch import (
    CountSketch,
    CountSketchParameters,
    unpack_answer,
)
from gcsim.compressors.sketching.table import Hashes, estimate, sketch
from gcsim.errors import InputError
from tests.compressors.shared import Draw, LayoutOf, split_mix


class Oracle:
    """The count sketch as matrices: r matrices c x n of one sign a column, float64."""

    def __init__(self, hashes: Hashes, n: int) -> None:
        self.rows = np.zeros((hashes.rows, hashes.columns, n))
        for row in range(hashes.rows):
            for i in range(n):
                block, inside = divmod(i, hashes.length)
                hashed = split_mix(int(hashes.keys[row]), inside)
                column = (hashed >> 32) * hashes.columns >> 32
                column = (column + int(hashes.offsets[row, block])) % hashes.columns
                bit = (hashed ^ int(hashes.flips[row, block])) & 1
                self.rows[row, column, i] = 1 - 2 * bit

    def sketch(self, values: Any) -> np.ndarray[Any, Any]:
        return np.asarray(self.rows @ values)

    def estimate(self, table: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        each = np.einsum("rcn,rc->rn", self.rows, table)
        return np.asarray(np.median(each, axis=0))


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_tables_and_estimates_are_those_of_the_definition(
    normal: Draw, rows: int, blocks: int
) -> None:
    hashes = Hashes(7, 0, 500, rows=rows, columns=40, blocks=blocks)
    oracle, values = Oracle(hashes, 500), normal(500)
    table = sketch(values, hashes)
    np.testing.assert_allclose(table.numpy(), oracle.sketch(values.numpy()), rtol=1e-5, atol=1e-5)
    found = estimate(table, 500, hashes)
    np.testing.assert_allclose(found.numpy(), oracle.estimate(table.numpy()), rtol=1e-5, atol=1e-6)


def test_sketches_are_linear_exactly(normal: Draw) -> None:
    # Whole numbers of at most 2^12, times 4096 elements: every sum is exact in float32.
    a, b = (normal(4096, seed).mul(100).round() for seed in (1, 2))
    hashes = Hashes(3, 0, 4096, rows=5, columns=300)
    assert torch.equal(sketch(a, hashes) + sketch(b, hashes), sketch(a + b, hashes))
    assert torch.equal(sketch(-3 * a, hashes), -3 * sketch(a, hashes))


def test_heavy_hitters_are_recovered(normal: Draw) -> None:
    # An estimate is off by about |rest| / sqrt(c) = 100 / sqrt(1000) = 3.2 in each row, the
    # median of 5 by less: coordinates of 100 are the twenty largest, to within 12 (four times).
    values = normal(10_000)
    heavy = torch.arange(20) * 487 + 13
    values[heavy] = 100 * (-1.0) ** torch.arange(20)
    hashes = Hashes(5, 0, 10_000, rows=5, columns=1000)
    found = estimate(sketch(values, hashes), 10_000, hashes)
    assert torch.equal(found.abs().topk(20).indices.sort().values, heavy)
    assert float((found - values)[heavy].abs().max()) < 12


def test_estimates_are_unbiased_over_seeds() -> None:
    # E[s(i) S[h(i)]] = v_i in one row (Charikar et al. 2002), variance (|v|^2 - v_i^2) / c:
    # 400 seeds, five standard errors.
    values = torch.tensor([3.0, -1.0, 0.5, 2.0, -4.0, 1.0, 0.0, 2.5])
    found = []
    for seed in range(400):
        hashes = Hashes(seed, 0, 8, rows=1, columns=4)
        found.append(estimate(sketch(values, hashes), 8, hashes))
    off = torch.stack(found).double() - values
    variance = (values.double().square().sum() - values.double().square()) / 4
    assert bool((off.mean(0).abs() < 5 * (variance / 400).sqrt()).all())
    assert torch.allclose(off.square().mean(0), variance, rtol=0.5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.0},
        {"after": "subtract", "momentum_masking": False},
        {"aggregate": "push_pull", "rows": 3},
        {"blocks": 4},
    ],
)
def test_updates_follow_the_published_algorithm_step_by_step(
    team: Any, normal: Draw, options: dict[str, Any]
) -> None:
    # Algorithm 1 of Rothchild et al. with the matrices of the definition, float64.
    n, count = 400, 3
    given = {"column_ratio": 0.2, "ratio": 0.02, "momentum": 0.9, **options}
    crew = team("count_sketch", [(20, 15), (100,)], workers=count, **given)
    p = check_parameters("count_sketch", given)
    assert isinstance(p, CountSketchParameters)
    bucket = Bucket(layout=crew.layout, gradient=torch.zeros(n))
    oracle = Oracle(crew.workers[0].hashes(bucket), n)
    momentum = np.zeros((p.rows, 80))
    error = np.zeros((p.rows, 80))
    for step in range(6):
        gradients = [normal(n, 10 * step + rank) for rank in range(count)]
        momentum = p.momentum * momentum + oracle.sketch(torch.stack(gradients).mean(0).numpy())
        error = error + momentum
        estimates = oracle.estimate(error)
        updates = crew.step(gradients, step)
        for update in updates:
            assert torch.equal(update, updates[0])
        sent = updates[0].numpy()
        top = np.flatnonzero(sent)
        assert len(top) == 8  # .02 * 400
        least = np.sort(np.abs(estimates))[-8]  # of equal ones either may be sent
        assert np.abs(estimates[top]).min() >= least * (1 - 1e-6)
        expected = np.zeros(n)
        expected[top] = estimates[top]
        np.testing.assert_allclose(sent, expected, rtol=1e-3, atol=1e-4)
        hit = np.abs(oracle.rows[:, :, top]).sum(2) > 0
        if p.after == "zero":
            error[hit] = 0
        else:
            error -= oracle.sketch(expected)
        if p.momentum_masking:
            momentum[hit] = 0
    assert CountSketch.momentum(p) == (p.momentum, False)


def test_all_reduce_sends_the_table_alone(team: Any, normal: Draw) -> None:
    # 32 r c bits: 5 rows of .075 * 1000 = 75 columns, 1500 bytes; nothing comes down.
    crew = team("count_sketch", [(1000,)])
    crew.step([normal(1000, rank) for rank in range(2)])
    (record,) = crew.listener.collectives
    assert (record.kind, record.sent) == ("all_reduce", (1500, 1500))


def test_push_pull_sends_tables_up_and_a_sparse_update_down(team: Any, normal: Draw) -> None:
    # Up 32 r c bits and a header, down 64 k bits and a header: k = round(.0075 * 1000) = 8.
    crew = team("count_sketch", [(1000,)], aggregate="push_pull", columns=30)
    crew.step([normal(1000, rank) for rank in range(2)])
    (record,) = crew.listener.collectives
    assert record.kind == "push_pull"
    assert record.sent == (HEADER_BYTES + 4 * 5 * 30,) * 2
    assert record.pulled == HEADER_BYTES + 8 * 8
    assert not crew.workers[1]._error  # the server is worker 0's object


def test_both_ways_to_aggregate_give_the_same_updates(team: Any, normal: Draw) -> None:
    crews = [team("count_sketch", [(600,)], aggregate=how) for how in ("all_reduce", "push_pull")]
    for step in range(4):
        given = [normal(600, 2 * step + rank) for rank in range(2)]
        a, b = (crew.step(given, step)[1] for crew in crews)
        torch.testing.assert_close(a, b)


def test_one_column_an_element_and_no_momentum_lose_nothing_in_the_long_run(
    team: Any, normal: Draw
) -> None:
    # One gradient, then zeros: with columns to spare every element is delivered once, as it was.
    crew = team("count_sketch", [(40,)], workers=1, columns=100_000, ratio=0.25, momentum=0.0)
    gradient = normal(40)
    total = torch.zeros(40)
    for step in range(4):
        (update,) = crew.step([gradient if step == 0 else torch.zeros(40)], step)
        assert int(update.count_nonzero()) == 10
        total += update
    assert torch.equal(total, gradient)


def test_tables_do_not_depend_on_the_number_of_threads(
    normal: Draw, same_on_any_threads: Any
) -> None:
    values = normal(300_001)
    hashes = Hashes(1, 0, 300_001, rows=5, columns=5000, blocks=7)
    (table,) = same_on_any_threads(lambda: (sketch(values, hashes),))
    same_on_any_threads(lambda: (estimate(table, 300_001, hashes),))


def test_columns_and_signs_are_evenly_spread() -> None:
    # 200,000 elements, 50 columns: counts are binomial, mean 4000, deviation 62.6; six of them.
    # Signs: mean 0, deviation 1 / sqrt(200,000) = .0022.
    n = 200_000
    for blocks in (1, 20):
        hashes = Hashes(11, 0, n, rows=1, columns=50, blocks=blocks)
        probe = estimate(torch.arange(50.0).add(1).view(1, -1), n, hashes)
        counts = torch.bincount(probe.abs().long())[1:]
        assert int((counts - 4000).abs().max()) < 6 * 63
        assert abs(float(probe.sign().mean())) < 6 * 0.0022


def test_buckets_and_seeds_have_hashes_of_their_own() -> None:
    keys = {
        int(key)
        for seed, bucket in ((0, 0), (0, 1), (1, 0))
        for key in Hashes(seed, bucket, 10, rows=5, columns=4).keys
    }
    assert len(keys) == 15


def test_an_empty_bucket_has_an_empty_update(team: Any) -> None:
    for how in ("all_reduce", "push_pull"):
        crew = team("count_sketch", [(0,)], aggregate=how)
        assert crew.step([torch.zeros(0)] * 2)[0].shape == (0,)


def test_damage_is_refused(layout_of: LayoutOf, normal: Draw) -> None:
    worker = CountSketch(
        Worker(rank=0, count=1, seed=1),
        CountSketchParameters.model_validate({"aggregate": "push_pull"}),
    )
    bucket = Bucket(layout=layout_of(100), gradient=normal(100))
    exchange = worker.exchange(bucket, 0)
    request = next(exchange)
    with pytest.raises(InputError):
        request.server([request.payload[:-1]])  # type: ignore[union-attr]  # it is a PushPull
    with pytest.raises(InputError, match="not one frame of 99 elements"):
        only_frame(request.payload, Codec.SKETCH, 99)  # type: ignore[union-attr]

    def answer(indices: list[int]) -> Tensor:
        body = torch.cat(
            (
                torch.tensor(indices, dtype=torch.int32).view(torch.uint8),
                torch.ones(len(indices)).view(torch.uint8),
            )
        )
        return pack_frame(Codec.SKETCH, body, numel=100, nonzero=len(indices))

    assert unpack_answer(answer([0, 99]), 100)[0].tolist() == [0, 99]
    for indices in ([1, 1], [5, 4], [0, 100], [-1, 3]):
        with pytest.raises(InputError, match="ascend"):
            unpack_answer(answer(indices), 100)
