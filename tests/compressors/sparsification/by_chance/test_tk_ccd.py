"""TK-CCD: the largest always, everything else exactly once a stage, no index on the wire."""

from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors import check
from gcsim.compressors.coding.selecting.groups import deal, turn
from gcsim.compressors.random import random_key
from gcsim.compressors.registry import check_parameters
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError, InternalError
from tests.compressors.shared import Team, normal

NAME = "tk_ccd"


def groups_of(n: int, always: torch.Tensor, groups: int, seed: int) -> list[torch.Tensor]:
    """The groups of all but `always` of one tensor."""
    count = np.array([always.numel()])
    dealt = deal(always, n - count, groups, np.array([random_key(seed, 0, 0, "x")]))
    given = always, dealt, Segments.alone(n), count
    return [turn(*given, q)[always.numel() :] for q in range(groups)]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_stage_sends_the_largest_in_each_trial_and_the_rest_once(workers: int) -> None:
    # Naive: j = (k Q - n) / (Q - 1) for k = ratio n; here (.2 * 500 * 10 - 500) / 9 = 55.6 -> 56.
    n, groups = 500, 10
    crew = Team(NAME, [(50, 10), (3,)], workers=workers, ratio=0.2, groups=groups, values="fp32")
    for stage in range(2):
        first = stage * (groups + 1)
        gradients = [normal(n + 3, 100 * stage + rank) + 5.0 for rank in range(workers)]
        mean = torch.stack(gradients).mean(0)
        torch.testing.assert_close(crew.step(gradients, first)[0], mean)
        largest = torch.zeros(n, dtype=torch.bool)
        largest[mean[:n].abs().topk(56).indices] = True
        visits = torch.zeros(n)
        sizes = []
        for q in range(groups):
            update = crew.step(gradients, first + 1 + q)[0]
            kept = update != 0
            torch.testing.assert_close(update[kept], mean[kept])
            visits += kept[:n]
            sizes.append(int(kept[:n].sum()) - 56)
            assert crew.sent == [(4 * int(kept.sum()),) * workers]
        assert bool((visits[largest] == groups).all())
        assert bool((visits[~largest] == 1).all())
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("n", [0, 1, 5, 99, 100, 101, 1000])
def test_groups_are_a_partition_of_sizes_that_differ_by_one_at_most(n: int) -> None:
    always = torch.arange(0, n, 7)
    groups = groups_of(n, always, 10, 0)
    assert all(bool((group.diff() > 0).all()) for group in groups)
    assert torch.cat([always, *groups]).sort().values.tolist() == list(range(n))
    sizes = [group.numel() for group in groups]
    assert max(sizes) - min(sizes) <= 1


def test_each_element_is_in_each_group_equally_often() -> None:
    # Counts are binomial(T, 1/5); 7 elements (a whole run and a short one) times 5 groups.
    draws, n, groups = 4000, 7, 5
    counts = torch.zeros(n, groups)
    for seed in range(draws):
        for q, places in enumerate(groups_of(n, torch.arange(0), groups, seed)):
            counts[places, q] += 1
    assert bool((counts.sum(1) == draws).all())
    sd = (draws * 0.2 * 0.8) ** 0.5
    assert float((counts - draws / groups).abs().max()) < 4.5 * sd  # 35 counts: 2e-4


def test_the_error_of_a_trial_is_below_that_of_the_largest() -> None:
    n = 5000
    gradient = normal(n, 1)
    crew = Team(NAME, [(n,)], workers=1)
    crew.step([gradient], 0)
    count = crew.workers[0].stages[0].always.numel()
    assert count == round((0.02 * n * 100 - n) / 99)  # j
    top = gradient.square().topk(count).values.sum()
    rest = float(gradient.square().sum() - top)
    for t in range(1, 6):
        update = crew.step([gradient], t)[0]
        assert float((update - gradient).square().sum()) <= rest
        assert abs(crew.sent[0][0] / 2 - 0.02 * n) <= 1


def test_a_ratio_below_one_group_is_refused() -> None:
    with pytest.raises(InputError, match="a group alone"):
        check_parameters(NAME, {"ratio": 0.005})


def test_a_trial_without_a_stage_is_our_bug() -> None:
    with pytest.raises(InternalError, match="before any synchronisation"):
        Team(NAME, [(10,)], workers=1).step([torch.ones(10)], 1)


@pytest.mark.parametrize(
    "parameters", [{}, {"groups": 3, "ratio": 1.0, "values": "fp32"}], ids=["default", "all"]
)
def test_laws_hold(parameters: dict[str, Any]) -> None:
    check(NAME, parameters)
