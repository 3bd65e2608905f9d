"""Random-k: a shared mask of exactly k, unbiased when scaled, no index on the wire."""

from typing import Any

import pytest
import torch

from gcsim.compressors import check
from gcsim.compressors.registry import check_parameters
from gcsim.errors import InputError
from tests.compressors.shared import Team, normal


def test_all_workers_send_the_same_k_elements_and_no_index() -> None:
    workers = Team("randomk", [(50, 10), (30,)], workers=3, ratio=0.1)
    gradients = [normal(530, seed) for seed in range(3)]
    updates = workers.step(gradients)
    k = 50 + 3
    assert workers.sent == [(4 * k,) * 3]  # 32 k bits
    assert all(torch.equal(update, updates[0]) for update in updates)
    kept = updates[0] != 0
    assert int(kept[:500].sum()) == 50
    assert int(kept[500:].sum()) == 3
    torch.testing.assert_close(updates[0][kept], torch.stack(gradients).mean(0)[kept])


def test_each_step_draws_another_mask() -> None:
    workers = Team("randomk", [(1000,)], workers=1, ratio=0.1)
    first, second = (workers.step([torch.ones(1000)], t)[0] for t in (0, 1))
    assert not torch.equal(first, second)


def test_scaled_keeps_per_tensor_factors() -> None:
    workers = Team("randomk", [(10,), (3,)], workers=1, ratio=0.2, scaled=True)
    update = workers.step([torch.ones(13)])[0]
    assert sorted(update[:10].tolist()) == [0.0] * 8 + [5.0] * 2  # n/k = 10/2
    assert sorted(update[10:].tolist()) == [0.0, 0.0, 3.0]  # 3/1


def test_error_feedback_delivers_what_was_not_drawn_later() -> None:
    # Naive: a = e + g; the mean of a at the drawn positions; e = a, zero there.
    crew = Team("randomk", [(20, 10), (30,)], workers=3, ratio=0.2, error_feedback=True)
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
