"""PowerSGD projects onto a warm-started subspace, keeps the rest, and sends two thin messages."""

from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors import check
from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.low_rank.powersgd import PowerSgd, PowerSgdParameters
from gcsim.compressors.meter import Meter
from tests.compressors.shared import bucket_of, exchange


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def workers(count: int = 1, **parameters: Any) -> list[PowerSgd]:
    chosen = PowerSgdParameters(**parameters)
    return [PowerSgd(Worker(rank=r, count=count, seed=7), chosen) for r in range(count)]


def mean(buckets: list[Bucket]) -> torch.Tensor:
    return torch.stack([bucket.gradient for bucket in buckets]).mean(0)


def test_warm_start_converges_to_the_best_approximation() -> None:
    # With one gradient again and again and no feedback this is subspace iteration: the error
    # tends to that of the truncated singular value decomposition (Eckart and Young).
    left, _ = torch.linalg.qr(normal(40, 40))
    right, _ = torch.linalg.qr(normal(32, 32, seed=1))
    values = 0.7 ** torch.arange(32.0)
    matrix = left[:, :32] * values @ right.T
    best = float(values[4:].square().sum())
    group, cold = (
        workers(rank=4, error_feedback=False),
        workers(rank=4, error_feedback=False, warm_start=False),
    )
    bucket = bucket_of(matrix)
    errors = [
        float((exchange(group, [bucket], s)[0] - bucket.gradient).square().sum()) for s in range(25)
    ]
    assert errors[0] > 1.2 * best
    assert errors[-1] == pytest.approx(best, rel=1e-3)
    drawn = [
        float((exchange(cold, [bucket], s)[0] - bucket.gradient).square().sum()) for s in range(25)
    ]
    assert min(drawn) > 1.01 * best


def test_two_thin_messages_carry_everything() -> None:
    # 32 r (a + b) bits for the matrices; the rest in full in the first message.
    tensors = [normal(64, 3, 4, 4), normal(64), normal(100, 50), normal(2, 2), normal(1)]
    meter = Meter(2)
    exchange(workers(2, rank=2), [bucket_of(*tensors)] * 2, meter=meter)
    first, second = meter.collectives
    plain = 64 + 4 + 1
    assert first.sent == (4 * (plain + 2 * (64 + 100)),) * 2
    assert second.sent == (4 * 2 * (48 + 50),) * 2
    assert {first.kind, second.kind} == {"all_reduce"}


def test_without_a_matrix_there_is_one_exact_all_reduce() -> None:
    buckets = [bucket_of(normal(64, seed=s), normal(3, 2, seed=s + 9)) for s in range(2)]
    meter = Meter(2)
    group = workers(2)
    for update in exchange(group, buckets, meter=meter):
        torch.testing.assert_close(update, mean(buckets))
    assert [record.sent for record in meter.collectives] == [(4 * 70, 4 * 70)]
    assert not group[0].residual


@pytest.mark.parametrize(("shape", "rank", "compressed"), [
    ((8, 8), 2, False),  # (8 + 8) 2 * 2 = 64 = 8 * 8: not smaller
    ((9, 8), 2, True),  # 68 < 72
    ((1000,), 1, False),
    ((1, 1000), 1, False),  # one row: r (a + b) > a b
    ((), 1, False),
])  # fmt: skip
def test_only_what_shrinks_by_the_rate_is_compressed(
    shape: tuple[int, ...], rank: int, compressed: bool
) -> None:
    (worker,) = workers(rank=rank, min_compression_rate=2.0)
    matrices, others = worker.split(bucket_of(normal(*shape)).layout)
    assert (len(matrices), len(others)) == ((1, 0) if compressed else (0, 1))


def test_steps_before_start_are_dense() -> None:
    group = workers(2, start=2)
    buckets = [bucket_of(normal(40, 40, seed=s)) for s in range(2)]
    assert [PowerSgd.phase(group[0].parameters, s) for s in range(3)] == ["dense", "dense", "step"]
    for step in range(2):
        meter = Meter(2)
        torch.testing.assert_close(exchange(group, buckets, step, meter)[1], mean(buckets))
        assert [record.sent for record in meter.collectives] == [(6400, 6400)]
    meter = Meter(2)
    exchange(group, buckets, 2, meter)
    assert len(meter.collectives) == 2


# --- the options -----------------------------------------------------------------------------


def orthonormal(matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of the same columns' span; P Q^T depends on nothing else."""
    return np.linalg.qr(matrix)[0]


@pytest.mark.parametrize("alternate", [False, True])
@pytest.mark.parametrize("feedback", [False, True])
def test_every_step_is_that_of_the_algorithm(alternate: bool, feedback: bool) -> None:
    # Independent float64 loop over Algorithms 1 and 2, from the first step's Q on.
    count, rank = 3, 2
    group = workers(count, rank=rank, alternate=alternate, error_feedback=feedback)
    errors = [np.zeros((30, 20)) for _ in range(count)]
    p = q = np.zeros(0)
    for step in range(7):
        buckets = [bucket_of(normal(30, 20, seed=9 * step + s), normal(7)) for s in range(count)]
        given = [b.gradient[:600].double().numpy().reshape(30, 20) for b in buckets]
        held = [g + e for g, e in zip(given, errors, strict=True)]
        centre = np.mean(held, axis=0)
        updates = exchange(group, buckets, step)
        if step == 0:  # what Q was is told by the worker's stream only: its span, by the update
            update = updates[0][:600].double().numpy().reshape(30, 20)
            rows = np.linalg.svd(update)[2][:rank].T
            if alternate:  # the update is M Q Q^T
                p, q = centre @ rows, rows
            else:  # the update is P P^T M
                p = np.linalg.svd(update)[0][:, :rank]
                q = centre.T @ p
        elif not alternate:
            p = orthonormal(centre @ q)
            q = centre.T @ p
        elif step % 2:
            p = orthonormal(p)
            q = centre.T @ p
        else:
            q = orthonormal(q)
            p = centre @ q
        expected = p @ q.T
        for update_ in updates:
            found = update_[:600].double().numpy().reshape(30, 20)
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
        errors = [h - expected if feedback else 0 * h for h in held]


def test_alternating_sends_one_factor_a_step() -> None:
    tensors = [normal(64, 3, 4, 4), normal(64), normal(100, 50)]
    group = workers(2, rank=2, alternate=True)
    sent = []
    for step in range(4):
        meter = Meter(2)
        exchange(group, [bucket_of(*tensors)] * 2, step, meter)
        sent.append([record.sent for record in meter.collectives])
    left, right = 4 * (64 + 2 * (64 + 100)), 4 * (64 + 2 * (48 + 50))
    assert sent == [[(left,) * 2], [(right,) * 2]] * 2
    parameters = group[0].parameters
    assert PowerSgd.period(parameters) == 2
    assert [PowerSgd.phase(parameters, t) for t in range(3)] == ["P", "Q", "P"]


@pytest.mark.parametrize("options", [
    {"alternate": True, "rank": 1},
    {"alternate": True, "warm_start": False, "start": 3},
    {"error_feedback": False},
])  # fmt: skip
def test_options_pass_all_checks(options: dict[str, Any]) -> None:
    check("powersgd", options)
