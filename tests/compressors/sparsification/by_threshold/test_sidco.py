"""SIDCo: thresholds from fitted distributions, several stages, an adapted number of them."""

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.segments import Segments
from gcsim.compressors.sparsification.by_threshold.sidco import fitted
from tests.compressors.shared import Team, normal


def naive_threshold(a: torch.Tensor, stages: int, ratio: float = 0.05) -> float:
    """The fits in numpy, float64, after the formulas of the paper."""
    x = a.double().abs().numpy()
    t = float(x.mean() * np.log(1 / (ratio if stages == 1 else 0.25)))
    for _ in range(stages - 1):
        excess = x[x > t] - t
        t += excess.mean() * np.log(1 / (ratio / 0.25) ** (1 / (stages - 1)))
    return t


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_exponential_fit_is_exact_on_laplace_data(stages: int) -> None:
    # P(|x| > t) = exp(-t / mu), whatever was cut off; n midpoints of the distribution function
    n = 200_000
    values = -torch.log((torch.arange(n, dtype=torch.float64) + 0.5) / n).float()
    values[::2] *= -1
    limit = fitted(values, Segments.alone(n), np.array([float(stages)]), 0.01)[0]
    assert int((values.abs() >= limit).sum()) / n == pytest.approx(0.01, rel=0.005)


@pytest.mark.parametrize("error_feedback", [True, False])
def test_steps_are_those_of_the_formulas(error_feedback: bool) -> None:
    # of cubes of normal numbers one stage sends about 5 %, and so there are two after five steps
    workers = Team("sidco", [(3000,)], ratio=0.05, error_feedback=error_feedback)
    errors, stages = [torch.zeros(3000)] * 2, [1, 1]
    for t in range(12):
        gradients = [normal(3000, 9 * t + rank) ** (3 if t < 5 else 1) for rank in range(2)]
        gradients[0][:100] = 0.0
        given = list(map(torch.add, errors, gradients))
        limits = map(naive_threshold, given, stages)
        sent = [a * (a.abs() > limit) for a, limit in zip(given, limits, strict=True)]
        expected = (sent[0] + sent[1]) / 2
        torch.testing.assert_close(workers.step(gradients, t), [expected] * 2, rtol=1e-6, atol=1e-7)
        # 64 bits each
        assert workers.sent[-1] == tuple(HEADER_BYTES + 8 * int((a != 0).sum()) for a in sent)
        stages = [int(worker._stages[0][0][0]) for worker in workers.workers]
        if error_feedback:
            errors = list(map(torch.sub, given, sent))
            assert all(map(torch.equal, errors, [w.residual[0] for w in workers.workers]))
        assert all(bool(worker.residual) == error_feedback for worker in workers.workers)
    assert max(stages) > 1


def test_the_number_of_stages_follows_what_was_sent() -> None:
    # One exponential stage sends .02 % of normal data, two .63 %, three 1.13 % at the target of
    # 1 %: 1 -> 2 -> 3 stages after five steps each, then within 20 %. Of N(0, 1) exp(.8 N(0, 1))
    # three stages send .73 %, too few, and a fourth fewer still: more are added nevertheless.
    crew, counts = Team("sidco", [(40_000,)], workers=1, error_feedback=False), []
    for t in range(20):
        crew.step([normal(40_000, t)], t)
        counts.append(int(crew.workers[0]._stages[0][0][0]))
    assert counts == [1] * 4 + [2] * 5 + [3] * 11
    for t in range(20, 60):
        crew.step([normal(40_000, t) * (0.8 * normal(40_000, 100 + t)).exp()], t)
    assert int(crew.workers[0]._stages[0][0][0]) == 7  # ceil(log2 100), the most


@pytest.mark.parametrize("values", [[0.25], [-2.0, 2.0], [0.0, 0.0, 1e-44], [3e38, -3e38, 1.0]])
def test_the_largest_is_sent_when_nothing_passes(values: list[float]) -> None:
    given, crew = torch.tensor(values), Team("sidco", [(len(values),)], workers=1)
    (update,) = crew.step([given])
    assert float(update.abs().max()) == float(given.abs().max())
    assert torch.equal(update + crew.workers[0].residual[0], given)
