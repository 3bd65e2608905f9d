"""1-bit Adam is its published algorithm: Adam first, then signs of its momentum in chunks."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, as_bytes, pack_frame
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.compressors.meter import Meter
from gcsim.compressors.quantization.one_bit.onebit_adam import (
    OneBitAdam,
    OneBitAdamParameters,
    add_chunks,
    chunks_of,
)
from gcsim.compressors.quantization.one_bit.scaled_sign import sign_error
from gcsim.errors import InputError
from tests.compressors.shared import exchange, layout_of, members, normal, step_of

Vector = np.ndarray[Any, Any]
SIZES = (37, 0, 5, 1)
N = sum(SIZES)


workers = partial(members, OneBitAdam)


def coded(vector: Vector, norm: str) -> Vector:
    """A scale times signs, zero being positive; nothing of nothing."""
    if vector.size == 0:
        return vector
    scale = np.sqrt((vector**2).mean()) if norm == "rms" else np.abs(vector).mean()
    decoded: Vector = scale * np.where(vector < 0, -1.0, 1.0)
    return decoded


class Oracle:
    """The algorithm in float64, all workers at once, with the errors written out."""

    def __init__(self, count: int, n: int, chosen: OneBitAdamParameters) -> None:
        self.chosen, self.count = chosen, count
        self.m, self.v = np.zeros(n), np.zeros(n)
        self.errors, self.server = np.zeros((count, n)), np.zeros(n)
        chunk = 8 * math.ceil(n / (8 * count))
        self.chunks = [slice(rank * chunk, min(n, (rank + 1) * chunk)) for rank in range(count)]
        self.warm = False

    def step(self, gradients: list[Vector], step: int) -> Vector:
        p = self.chosen
        if step < p.freeze_step:
            g = np.mean(gradients, axis=0)
            self.m = p.beta1 * self.m + (1 - p.beta1) * g
            self.v = p.beta2 * self.v + (1 - p.beta2) * g * g
            self.warm = True
        else:
            total = np.zeros_like(self.m)
            for rank, g in enumerate(gradients):
                a = p.beta1 * self.m + (1 - p.beta1) * g + self.errors[rank]
                q = coded(a, p.scale)
                self.errors[rank] = a - q
                total += q / self.count
            total += self.server
            for chunk in self.chunks:
                self.m[chunk] = coded(total[chunk], p.scale)
            self.server = total - self.m
            if not self.warm:
                self.v, self.warm = (self.m / (1 - p.beta1)) ** 2, True
        divisor = 1 - p.beta1 if p.update == "momentum" else np.sqrt(self.v) + p.epsilon
        update: Vector = self.m / divisor
        return update


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "parameters",
    [
        {"freeze_step": 3},
        {"freeze_step": 0},
        {"freeze_step": 3, "update": "momentum"},
        {"freeze_step": 2, "scale": "mean_abs", "beta1": 0.5, "beta2": 0.9},
    ],
)
def test_updates_follow_the_algorithm_step_by_step(parameters: dict[str, Any], count: int) -> None:
    layout, group = layout_of(*SIZES), workers(count, **parameters)
    oracle = Oracle(count, N, group[0].parameters)
    for step in range(8):
        gradients = [normal(N, 10 * step + rank) for rank in range(count)]
        for gradient in gradients:
            gradient[20:25] = 0.0  # never used
        expected = oracle.step([g.double().numpy() for g in gradients], step)
        updates = step_of(group, layout, gradients, step)
        # Adam divides what is 0 but for rounding by epsilon: looser where v is 0
        np.testing.assert_allclose(updates[0].numpy(), expected, rtol=5e-4, atol=1e-5)
        assert all(torch.equal(update, updates[0]) for update in updates)


def test_the_warm_up_is_adam_without_bias_correction() -> None:
    # torch's Adam with its bias corrections taken out: update = lr-scaled step times
    # (1 - b1^t) / sqrt(1 - b2^t), up to its eps, which is added to the corrected root.
    weight = torch.zeros(64, requires_grad=True)
    adam = torch.optim.Adam([weight], lr=1.0, eps=1e-12)
    (worker,) = workers(1, freeze_step=5, epsilon=1e-12, update="adam")
    for step in range(5):
        gradient = normal(64, step)
        before = weight.detach().clone()
        weight.grad = gradient.clone()
        adam.step()
        moved = before - weight.detach()
        factor = (1 - 0.9 ** (step + 1)) / math.sqrt(1 - 0.999 ** (step + 1))
        (update,) = step_of([worker], layout_of(64), [gradient], step)
        torch.testing.assert_close(update, moved * factor, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("norm", ["rms", "mean_abs"])
def test_the_error_is_exactly_that_of_the_law(norm: str) -> None:
    # One worker, first settled step: the update is Q(g), signed twice without a further loss.
    for vector in (normal(1000), normal(1001, 1).exp(), torch.ones(9), torch.zeros(5)):
        (worker,) = workers(1, update="momentum", scale=norm)
        law = OneBitAdam.properties(worker.parameters)
        first = OneBitAdam.warmup_steps(worker.parameters)
        (update,) = step_of([worker], layout_of(vector.numel()), [vector], first)
        error = float((update - vector).double().square().sum())
        assert law.error_bound is not None
        assert error == pytest.approx(law.error_bound(vector), rel=1e-4, abs=1e-6)
    assert OneBitAdam.properties(workers(1, update="adam")[0].parameters).error_bound is None


@pytest.mark.parametrize(("sigma", "rms", "mean_abs"), [(0.0, 0.404, 0.363), (0.8, 0.842, 0.665)])
def test_known_distributions_lose_known_parts(sigma: float, rms: float, mean_abs: float) -> None:
    # z exp(sigma w): with r = sqrt(2 / pi) exp(-sigma^2 / 2), 2 (1 - r) and 1 - r^2.
    ratio = math.sqrt(2 / math.pi) * math.exp(-(sigma**2) / 2)
    assert 2 * (1 - ratio) == pytest.approx(rms, abs=1e-3)
    assert 1 - ratio**2 == pytest.approx(mean_abs, abs=1e-3)
    values = normal(1_000_000, 1) * (sigma * normal(1_000_000, 2)).exp()
    energy = float(values.double().square().sum())
    assert sign_error(values, norm="rms") / energy == pytest.approx(rms, abs=0.004)
    assert sign_error(values, norm="mean_abs") / energy == pytest.approx(mean_abs, abs=0.004)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [0, 1, 8, 17, 1000])
def test_two_bits_an_element_and_two_scales_a_worker_travel(n: int, count: int) -> None:
    # Chunks of ceil(n / (8 N)) bytes: N of them and N scales to the owners, one of each to all.
    part = HEADER_BYTES + 4 + math.ceil(n / (8 * count))
    meter = Meter(count)
    buckets = [Bucket(layout=layout_of(n), gradient=normal(n, rank)) for rank in range(count)]
    exchange(workers(count, freeze_step=0), buckets, 0, meter)
    assert meter.collectives == [
        CollectiveRecord(kind="all_to_all", sent=(count * part,) * count),
        CollectiveRecord(kind="all_gather", sent=(part,) * count, part=True),
    ]
    meter = Meter(count)
    exchange(workers(count, freeze_step=1), buckets, 0, meter)
    assert meter.collectives == [
        CollectiveRecord(kind="all_reduce", sent=(4 * n,) * count, element=4)
    ]


def test_a_chunk_decodes_exactly_and_damage_is_refused() -> None:
    chunk, out = chunks_of(24, 1), torch.full((9,), torch.nan)
    bits = torch.tensor([0b101, 0b1, 0], dtype=torch.uint8)
    body = torch.cat((as_bytes(torch.tensor([1.5])), bits))
    message = pack_frame(Codec.SIGN_BLOCK, body, numel=24)
    add_chunks(message, chunk, out, 2.0, overwrite=True)
    assert out.tolist() == [-3.0, 3.0, -3.0, 3.0, 3.0, 3.0, 3.0, 3.0, -3.0]
    add_chunks(message, chunk, out, 2.0)
    assert out[0] == -6.0
    for damaged in (message[:-1], torch.cat((message, message)), message[:0]):
        with pytest.raises(InputError):
            add_chunks(damaged, chunk, out, 1.0)
    with pytest.raises(InputError, match="has 16 elements"):
        add_chunks(message, chunks_of(16, 1), out, 1.0)
    with pytest.raises(InputError, match="padding"):
        add_chunks(message, chunk, torch.zeros(8), 1.0)
    short = pack_frame(Codec.SIGN_BLOCK, bits[:2], numel=24, nonzero=24)
    with pytest.raises(InputError):
        add_chunks(short, chunk, out, 1.0)
