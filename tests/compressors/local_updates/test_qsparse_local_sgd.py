"""Qsparse-local-SGD: replicas part, meet again where the formula says, and lose no mass."""

import math
from typing import Any

import pytest
import torch

from gcsim.compressors import check
from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.coding.indices.index_coding import Coder
from gcsim.compressors.coding.selecting.largest import largest_of
from gcsim.compressors.local_updates.qsparse_local_sgd import (
    QsparseLocalSgd,
    QsparseLocalSgdParameters,
    add_decoded,
    from_sign_magnitude,
    to_sign_magnitude,
)
from gcsim.compressors.meter import Meter
from tests.compressors.shared import encode_indices, layout_of, normal, step_of


def workers(count: int = 1, **parameters: Any) -> list[QsparseLocalSgd]:
    chosen = QsparseLocalSgdParameters(**parameters)
    return [QsparseLocalSgd(Worker(rank=r, count=count, seed=7), chosen) for r in range(count)]


def decode(message: torch.Tensor, layout: BucketLayout) -> torch.Tensor:
    out = torch.zeros(layout.numel)
    add_decoded(message, layout, out, 1.0)
    return out


@pytest.mark.parametrize("interval", [1, 3, 4])
def test_replicas_meet_at_the_synchronised_model(interval: int) -> None:
    # x_sync - lr * mean(decoded), with each round's a = e + sum of heavy-ball directions formed
    # independently in float64 from the same gradients, and e from the worker's own message.
    count, n, lr, m = 3, 410, 0.05, 0.9
    layout, group = layout_of(400, 10), workers(count, interval=interval, momentum=m)
    start = normal(n, 99).double()
    replicas = [start.clone() for _ in range(count)]
    synchronised = start.clone()
    u, e = torch.zeros(count, n).double(), torch.zeros(count, n).double()
    for step in range(3 * interval):
        gradients = [normal(n, 31 * step + rank) for rank in range(count)]
        u = m * u + torch.stack(gradients)
        e += u
        last = (step + 1) % interval == 0
        twins = []
        if last:  # what each worker is about to send; random bits depend on nothing but the key
            for rank, worker in enumerate(group):
                message = worker.encode(e[rank].float(), layout, step)
                twins.append(decode(message, layout).double())
                e[rank] -= twins[rank]
        updates = step_of(group, layout, gradients, step)
        for rank, update in enumerate(updates):
            replicas[rank] -= lr * update.double()
        if last:
            synchronised -= lr * torch.stack(twins).mean(0)
            for rank, replica in enumerate(replicas):
                torch.testing.assert_close(replica, synchronised, rtol=0, atol=2e-5)
                torch.testing.assert_close(
                    group[rank].residual[0].double(), e[rank], rtol=0, atol=2e-4
                )
        else:
            assert float((replicas[0] - replicas[1]).abs().max()) > 0.01


def test_a_local_step_exchanges_nothing_and_returns_heavy_ball_momentum() -> None:
    # By hand: u = 1, 1.9; the gradient is 1.
    layout, group = layout_of(5), workers(2, interval=3)
    for step, expected in enumerate((1.0, 1.9)):
        meter = Meter(2)
        updates = step_of(group, layout, [torch.ones(5)] * 2, step, meter)
        assert meter.collectives == []
        torch.testing.assert_close(updates[0], torch.full((5,), expected))
    meter = Meter(2)
    step_of(group, layout, [torch.ones(5)] * 2, 2, meter)
    assert [record.kind for record in meter.collectives] == ["all_gather", "all_gather"]


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_a_message_is_a_contraction_that_quantises_the_largest(norm: str) -> None:
    # |v - Q(TopK v)|^2 = |rest|^2 + quantisation error <= (1 - k / n + k / n beta) |v|^2, with
    # beta = d / s^2 = 512 / 127^2 = .032 (Alistarh et al., Lemma 3.1; the maximum norm is below).
    values, ratio = normal(20_000), 0.08
    layout, (worker,) = layout_of(20_000), workers(ratio=ratio, norm=norm)
    kept = largest_of(values, 1600)
    energy, top = float(values.square().sum()), float(values[kept].square().sum())
    for step in range(5):
        decoded = decode(worker.encode(values, layout, step), layout)
        assert not decoded[torch.ones(20_000, dtype=torch.bool).index_fill(0, kept, False)].any()
        error = float((values - decoded).square().sum())
        assert error <= energy - top + 512 / 127**2 * top
        assert error <= (1 - ratio + ratio * 512 / 127**2) * energy


def test_kept_values_are_right_on_average() -> None:
    values, draws = normal(600), 300
    layout, (worker,) = layout_of(600), workers(ratio=1.0)
    decoded = torch.stack([decode(worker.encode(values, layout, s), layout) for s in range(draws)])
    norms = torch.tensor([values[:512].abs().max(), values[512:].abs().max()])
    interval = norms.repeat_interleave(512)[:600] / 127
    # Bernoulli rounding: a deviation of at most half an interval, so the mean of 300 draws lies
    # within 5.5 deviations except with probability 600 * 4e-8.
    bound = 5.5 * 0.5 * interval / math.sqrt(draws) + 1e-6
    assert bool(((decoded.mean(0) - values).abs() <= bound).all())


@pytest.mark.parametrize("coder", list(Coder))
def test_the_message_has_the_length_of_the_formula(coder: Coder) -> None:
    n, values = 10_000, normal(10_000)
    layout, (worker,) = layout_of(n), workers(indices=coder.name.lower(), ratio=0.08)
    message = worker.encode(values, layout, 0)
    positions = encode_indices(largest_of(values, 800), n, coder).numel()
    # k (8 + index) + 32 for each 512 kept values
    assert message.numel() == HEADER_BYTES + 4 * 2 + 800 + positions
    exact = {Coder.RAW: 3200, Coder.PACKED: 800 * 14 / 8, Coder.BITMAP: n / 8}
    assert positions == exact.get(coder, positions)


def test_the_default_interval_brings_the_volume_to_one_percent() -> None:
    # .08 (8 + 32/512 + 5.05 Rice bits) / 32 = 3.28 % a round; H = 3 gives 1.09 %, nearest to 1 %.
    n = 1_000_000
    (worker,) = workers()
    nbytes = worker.encode(normal(n), layout_of(n), 0).numel()
    for interval in (2, 3, 4):
        assert abs(nbytes / (4 * n) / 3 - 0.01) <= abs(nbytes / (4 * n) / interval - 0.01)
    assert worker.parameters.steps == 3
    assert nbytes / (4 * n) / 3 == pytest.approx(0.0109, abs=0.0001)


def test_bytes_are_sign_and_magnitude() -> None:
    levels = torch.tensor([0, 5, -1, 127, -127])
    stored = to_sign_magnitude((levels + 127).to(torch.uint8))
    assert stored.tolist() == [0x00, 0x05, 0x81, 0x7F, 0xFF]
    everything = torch.arange(255, dtype=torch.uint8)
    assert torch.equal(from_sign_magnitude(to_sign_magnitude(everything)), everything)


def test_replicas_differ_between_and_the_schedule_says_when() -> None:
    parameters = workers(interval=4)[0].parameters
    phases = [QsparseLocalSgd.phase(parameters, step) for step in range(8)]
    assert phases == (["local"] * 3 + ["synchronisation"]) * 2
    assert QsparseLocalSgd.period(parameters) == QsparseLocalSgd.window(parameters) == 4
    assert QsparseLocalSgd.momentum(parameters) == (0.9, False)


# --- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "steps"),
    [
        # ratio (8 + 32/512 + index bits) / 32 / .01, rounded: .08 (8.06 + 5.05) / .32 = 3.28
        ({}, 3),
        ({"indices": "raw"}, 10),  # .08 * 40.06 / .32 = 10.0
        ({"indices": "packed"}, 9),  # .08 * 34.06 / .32 = 8.5
        ({"indices": "bitmap"}, 5),  # .08 * (8.06 + 12.5) / .32 = 5.1
        ({"interval": "values"}, 2),  # .08 * 8 / .32 = 2
        ({"interval": 7}, 7),
    ],
)
def test_presets_of_the_interval_follow_from_the_payload(
    parameters: dict[str, Any], steps: int
) -> None:
    chosen = QsparseLocalSgdParameters(**parameters)
    assert QsparseLocalSgd.period(chosen) == steps


def test_one_norm_for_all_kept_values_takes_one_word() -> None:
    layout, (worker,) = layout_of(10_000), workers(bucket=None, indices="raw")
    message = worker.encode(normal(10_000), layout, 0)
    assert message.numel() == HEADER_BYTES + 4 + 800 + 3200  # k (8 + 32) + 32 bits


def test_laws_hold_for_one_norm() -> None:
    given = {"interval": 1, "norm": "l2", "bucket": None, "ratio": 0.5}
    check("qsparse_local_sgd", given)
