"""Ok-Topk: against a naive reading of the algorithm, its bounds on words, and its memory."""

from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.errors import InputError
from tests.compressors.shared import Team, bucket_of, normal


def sent_words(crew: Any) -> float:
    """4-byte words that a worker handed over or received beyond its own, without headers."""
    total = 0.0
    for record in crew.listener.collectives:
        workers = len(record.sent)
        if record.kind == "all_to_all":
            total += (sum(record.sent) / workers - workers * HEADER_BYTES) / 4
        elif record.part:
            total += sum(size - HEADER_BYTES for size in record.sent) / 4
    return total


def test_an_exact_step_delivers_the_largest_sums_of_what_was_selected() -> None:
    # oracle: top-k of the dense sum of each worker's own top-k, worker by worker, over all steps
    n, k, workers = 600, 12, 4
    crew = Team("ok_topk", [(n,)], workers=workers, ratio=k / n, threshold_interval=1,
                region_interval=2)  # fmt: skip
    residuals = [np.zeros(n, dtype=np.float32) for _ in range(workers)]
    for t in range(6):
        given = [normal(n, 10 * t + rank) for rank in range(workers)]
        total = np.zeros(n, dtype=np.float64)
        selected = []
        for residual, gradient in zip(residuals, given, strict=True):
            np.add(residual, gradient.numpy(), out=residual)
            mine = np.argsort(-np.abs(residual), kind="stable")[:k]
            total[mine] += residual[mine]
            selected.append(mine)
        kept = np.argsort(-np.abs(total), kind="stable")[:k]
        expected = np.zeros(n)
        expected[kept] = total[kept] / workers
        for residual, mine in zip(residuals, selected, strict=True):
            residual[np.intersect1d(mine, kept)] = 0
        for update in crew.step(given, t):
            np.testing.assert_allclose(update.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "workers", [2, pytest.param(4, marks=pytest.mark.long), pytest.param(8, marks=pytest.mark.long)]
)
def test_a_step_moves_less_than_six_k_words(workers: int) -> None:
    # Li & Hoefler 2022: < 6 k words a worker where thresholds are reused; k here is 100. While
    # the residual still grows, after the start, more elements pass a threshold from before.
    crew = Team("ok_topk", [(50, 40)], workers=workers, ratio=0.05)
    words = []
    for t in range(160):
        crew.step([normal(2000, 10 * t + rank) for rank in range(workers)], t)
        if t > 128:
            words.append(sent_words(crew))
    assert max(words) < 6 * 100


def test_regions_become_balanced() -> None:
    # large elements sit in the first tenth: even regions would put nearly all on worker 0
    shape = torch.where(torch.arange(10_000) < 1000, 10.0, 0.1)
    crew = Team("ok_topk", [(10_000,)], workers=4, ratio=0.01)
    crew.step([shape * normal(10_000, rank) for rank in range(4)], 0)
    (bounds,) = {tuple(m._schedules[0].regions.table.sum(axis=1)) for m in crew.workers}
    assert bounds[-1] == 10_000
    assert bounds[2] < 1000
    shares = [size for record in crew.listener.collectives if record.part for size in record.sent]
    assert max(shares[-4:]) < 2.5 * sum(shares[-4:]) / 4


def test_reused_thresholds_follow_the_published_factors() -> None:
    crew = Team("ok_topk", [(1000,)], workers=1, ratio=0.05)
    crew.step([normal(1000, 0)], 0)
    before = crew.workers[0]._schedules[0].local
    crew.step([10 * normal(1000, 1)], 1)  # far more than 5/4 k pass
    assert crew.workers[0]._schedules[0].local == pytest.approx(1.012 * before)
    quiet = Team("ok_topk", [(1000,)], workers=1, ratio=0.05)
    quiet.step([normal(1000, 0)], 0)
    quiet.step([torch.zeros(1000)], 1)  # what was left is below the threshold: too few pass
    assert quiet.workers[0]._schedules[0].local == pytest.approx(before / 1.012)


def test_a_threshold_of_zero_passes_no_zeros() -> None:
    # 5 of 1000 elements are not zero, k is 10: the k-th largest is 0. All that is left travels.
    gradient = torch.zeros(1000)
    gradient[::200] = 1.0
    crew = Team("ok_topk", [(1000,)], workers=1)
    crew.step([gradient], 0)
    assert crew.workers[0]._schedules[0].local == 0.0
    (update,) = crew.step([gradient], 1)
    assert torch.equal(update, gradient)
    assert crew.sent[0] == (HEADER_BYTES + 8 * 5,)


def test_elements_of_another_region_are_refused() -> None:
    worker = Team("ok_topk", [(1000,)], workers=2, ratio=0.1).workers[0]
    exchange = worker.exchange(bucket_of(normal(1000)), 0)
    boundaries = next(exchange)
    request = exchange.send(2 * boundaries.tensor)
    own, other = request.payloads
    with pytest.raises(InputError, match="outside the region"):
        exchange.send([own, other])


def test_what_is_owed_is_a_copy() -> None:
    crew, bucket = Team("ok_topk", [(100,)], workers=1), bucket_of(normal(100))
    assert not crew.workers[0].residual_of(bucket).any()
    crew.step([bucket.gradient])
    crew.workers[0].residual_of(bucket).zero_()
    assert crew.workers[0].residual_of(bucket).any()


def test_lengths_are_announced_by_the_collectives() -> None:
    crew = Team("ok_topk", [(1000,)], workers=2)
    crew.step([normal(1000, rank) for rank in range(2)], 1)  # sets everything up: no state yet
    kinds = [(r.kind, r.part, r.variable) for r in crew.listener.collectives]
    assert kinds == [
        ("all_reduce", False, False),  # boundaries
        ("all_to_all", False, True),
        ("all_gather", False, False),  # lengths of the sums
        ("all_gather", True, False),
        ("all_gather", False, False),  # lengths of the survivors
        ("all_gather", True, False),
    ]
    crew.step([normal(1000, 5 + rank) for rank in range(2)], 2)
    assert [r.kind for r in crew.listener.collectives] == ["all_to_all", "all_gather", "all_gather"]
