"""Random-k: a shared mask of exactly k, unbiased when scaled, no index on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors import check
from gcsim.compressors.registry import check_parameters
from gcsim.errors import InputError


def test_all_workers_send_the_same_k_elements_and_no_index(
    team: Any, normal: Callable[..., Tensor]
) -> None:
    workers = team("randomk", [(50, 10), (30,)], workers=3, ratio=0.1)
    gradients = [normal(530, seed) for seed in range(3)]
    updates = workers.step(gradients)
    k = 50 + 3
    assert workers.sent == [(4 * k,) * 3]  # 32 k bits
    assert all(torch.equal(update, updates[0]) for update in updates)
    kept = updates[0] != 0
    assert int(kept[:500].sum()) == 50
    assert int(kept[500:].sum()) == 3
    torch.testing.assert_close(updates[0][kept], torch.stack(gradients).mean(0)[kept])


def test_each_step_draws_another_mask(team: Any) -> None:
    workers = team("randomk", [(1000,)], workers=1, ratio=0.1)
    first, second = (workers.step([torch.ones(1000)], t)[0] for t in (0, 1))
    assert not torch.equal(first, second)


def test_scaled_random_k_is_unbiased_with_the_known_variance(
    team: Any, normal: Callable[..., Tensor]
) -> None:
    # E = g; E|Q - g|^2 = (n/k - 1)|g|^2. Each element of the mean of T updates has variance
    # (n/k - 1) g_i^2 / T, so the sum of its standardised squares has mean n; sd sqrt(2n) or less
    # per degree of freedom for nearly independent elements: five of these is past 1e-6.
    n, T, ratio = 200, 2000, 0.1  # noqa: N806
    gradient = normal(n, 3)
    workers = team("randomk", [(n,)], workers=1, ratio=ratio, scaled=True)
    updates = torch.stack([workers.step([gradient], t)[0] for t in range(T)]).double()
    standardised = (updates.mean(0) - gradient) / (gradient.abs() * (9 / T) ** 0.5)
    assert float(standardised.square().sum()) == pytest.approx(n, abs=5 * (2 * n) ** 0.5)
    error = (updates - gradient).square().sum(1).mean() / gradient.double().square().sum()
    assert float(error) == pytest.approx(9.0, rel=0.05)


def test_unscaled_random_k_loses_one_minus_k_over_n(
    team: Any, normal: Callable[..., Tensor]
) -> None:
    n = 100_000
    gradient = normal(n, 4)
    update = team("randomk", [(n,)], workers=1, ratio=0.25).step([gradient])[0]
    lost = (update - gradient).square().sum() / gradient.square().sum()
    # sd of the kept energy: sqrt(2 * .25 * .75 / n) = 0.002
    assert float(lost) == pytest.approx(0.75, abs=0.01)


def test_scaled_keeps_per_tensor_factors(team: Any) -> None:
    workers = team("randomk", [(10,), (3,)], workers=1, ratio=0.2, scaled=True)
    update = workers.step([torch.ones(13)])[0]
    assert sorted(update[:10].tolist()) == [0.0] * 8 + [5.0] * 2  # n/k = 10/2
    assert sorted(update[10:].tolist()) == [0.0, 0.0, 3.0]  # 3/1


def test_error_feedback_delivers_what_was_not_drawn_later(
    team: Any, normal: Callable[..., Tensor]
) -> None:
    # Naive: a = e + g; the mean of a at the drawn positions; e = a, zero there.
    crew = team("randomk", [(20, 10), (30,)], workers=3, ratio=0.2, error_feedback=True)
    memory = torch.zeros(3, 230)
    for t in range(6):
        gradients = [normal(230, 10 * t + rank) for rank in range(3)]
        update = crew.step(gradients, t)[0]
        memory += torch.stack(gradients)
        kept = update != 0
        assert int(kept[:200].sum()) == 40
        torch.testing.assert_close(update[kept], memory.mean(0)[kept])
        memory[:, kept] = 0.0


@pytest.mark.parametrize("parameters", [{}, {"error_feedback": True}, {"scaled": True}])
def test_laws_hold(parameters: dict[str, Any]) -> None:
    check("randomk", {"ratio": 0.1, **parameters})


def test_scaled_and_error_feedback_exclude_each_other() -> None:
    with pytest.raises(InputError, match="exclude each other"):
        check_parameters("randomk", {"scaled": True, "error_feedback": True})
