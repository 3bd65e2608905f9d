"""Threshold-v: what is above v travels, nothing else, and nothing is lost."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import HEADER_BYTES, read_frames
from gcsim.compressors.sparsification.by_threshold.threshold import just_above
from tests.compressors.shared import Team, normal


@pytest.mark.parametrize("error_feedback", [True, False])
@pytest.mark.parametrize("values", ["fp32", "fp16"])
@pytest.mark.parametrize("indices", ["raw", "auto", "rice"])
def test_several_steps_are_those_of_the_definition(
    error_feedback: bool, values: str, indices: str
) -> None:
    n, crew = 300, 3
    given: dict[str, Any] = {"error_feedback": error_feedback, "values": values, "indices": indices}
    workers = Team("threshold", [(10, 20), (100,)], workers=crew, threshold=1.5, **given)
    errors = [torch.zeros(n) for _ in range(crew)]
    for t in range(6):
        gradients = [normal(n, 9 * t + rank) for rank in range(crew)]
        expected = torch.zeros(n)
        for rank in range(crew):
            a = errors[rank] + gradients[rank]
            sent = torch.where(a.abs() > 1.5, a, 0.0)
            if values == "fp16":
                sent = sent.half().float()
            expected += sent / crew
            if error_feedback:
                errors[rank] = a - sent
        for update in workers.step(gradients, t):
            torch.testing.assert_close(update, expected, rtol=1e-6, atol=1e-7)
        for rank, worker in enumerate(workers.workers):
            residual_of = worker.residual_of(
                Bucket(layout=workers.layout, gradient=gradients[rank])
            )
            assert (residual_of is None) == (not error_feedback)
            if residual_of is not None:
                torch.testing.assert_close(residual_of, errors[rank])


def test_the_threshold_itself_is_not_exceeded() -> None:
    gradient = torch.tensor([0.5, -0.5, float(just_above(0.5)), -0.75])
    update = Team("threshold", [(4,)], workers=1, threshold=0.5).step([gradient])[0]
    assert update.tolist() == [0.0, 0.0, float(np.float32(0.5) + np.float32(2**-24)), -0.75]


def test_a_zero_threshold_sends_all_but_zeros() -> None:
    crew = Team("threshold", [(5,)], workers=1, threshold=0.0)
    gradient = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1.0])
    assert torch.equal(crew.step([gradient])[0], gradient)
    (frame,) = read_frames(crew.listener.received[-1][0])
    assert frame.nonzero == 3


def test_no_element_errs_by_more_than_the_threshold() -> None:
    # |Q(g) - g|_inf <= v, so |Q(g) - g|^2 <= n v^2
    gradient = normal(5000, 1)
    crew = Team("threshold", [(5000,)], workers=1, threshold=0.3)
    error = crew.step([gradient])[0] - gradient
    assert float(error.abs().max()) <= 0.3
    bound = type(crew.workers[0]).properties(crew.workers[0].parameters).error_bound
    assert bound(gradient) == pytest.approx(5000 * 0.3**2)
    assert bound(0.01 * gradient) == pytest.approx(1e-4 * float(gradient.square().sum()), rel=1e-6)


def test_the_share_above_the_threshold_is_that_of_the_distribution() -> None:
    # P(|N(0, 1)| > 2) = erfc(2 / sqrt 2) = .0455; the binomial spread at n = 1e5 is .00066
    crew = Team("threshold", [(100_000,)], workers=1, threshold=2.0, indices="raw")
    crew.step([normal(100_000, 2)])
    (frame,) = read_frames(crew.listener.received[-1][0])
    assert frame.nonzero / 1e5 == pytest.approx(math.erfc(2**0.5), abs=4 * 0.00066)
    assert crew.sent == [(8,), (HEADER_BYTES + 8 * frame.nonzero,)]  # a length; 64 bits each


def test_a_low_threshold_costs_one_bit_a_position() -> None:
    crew = Team("threshold", [(801,)], workers=1, threshold=0.01)  # auto: a bitmap
    crew.step([normal(801)])
    (frame,) = read_frames(crew.listener.received[-1][0])
    assert crew.sent[-1] == (HEADER_BYTES + 4 * frame.nonzero + 101,)
