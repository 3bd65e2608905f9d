"""L-GreCo picks the fewest bytes within the error of the base, and tells everybody."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.controllers.l_greco import (
    LGreco,
    LGrecoParameters,
    allocate,
    candidate_values,
)
from gcsim.compressors.registry import check_parameters
from gcsim.errors import InputError
from tests.compressors.shared import Draw

TOPK = {"compressor": "topk", "parameters": {"ratio": 0.1}, "vary": "ratio", "every": 4, "over": 2}


def fewest(errors: Any, sizes: Any, limit: float) -> int:
    """Bytes of the smallest of all choices whose errors add up to at most so much."""
    tensors, candidates = errors.shape
    return min(
        (
            sum(int(sizes[t, c]) for t, c in enumerate(choice))
            for choice in itertools.product(range(candidates), repeat=tensors)
            if sum(errors[t, c] for t, c in enumerate(choice)) <= limit
        ),
        default=10**9,
    )


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("seed", range(12))
def test_the_knapsack_is_that_of_brute_force(seed: int, alpha: float) -> None:
    # All 4^5 choices; errors are whole multiples of budget / 100, so that nothing is rounded.
    rng = np.random.default_rng(seed)
    errors = rng.integers(1, 40, (5, 4)).astype(float)
    errors[:, 0] = 20
    sizes = rng.integers(1, 1000, (5, 4))
    budget, base = alpha * 100, int(sizes[:, 0].sum())
    chosen = allocate(errors, sizes, alpha, round(budget))
    found = sum(int(sizes[t, c]) for t, c in enumerate(chosen))
    assert found == min(fewest(errors, sizes, budget), base)
    if found < base:
        assert sum(errors[t, c] for t, c in enumerate(chosen)) <= budget


@pytest.mark.parametrize("seed", range(8))
def test_the_budget_holds_and_little_is_lost_to_rounding(seed: int) -> None:
    # Real errors: with 10,000 steps and 6 tensors at most 6 / 10,000 of the budget is given away.
    rng = np.random.default_rng(seed)
    errors, sizes = rng.random((6, 4)), rng.integers(1, 1000, (6, 4))
    chosen = allocate(errors, sizes, 1.0, 10_000)
    budget = errors[:, 0].sum()
    assert sum(errors[t, c] for t, c in enumerate(chosen)) <= budget
    found = sum(int(sizes[t, c]) for t, c in enumerate(chosen))
    least, most = (fewest(errors, sizes, budget * share) for share in (1, 1 - 6 / 10_000))
    assert least <= found <= most


def test_the_base_stays_where_nothing_is_smaller() -> None:
    errors, sizes = np.array([[1.0, 5.0], [1.0, 0.5]]), np.array([[10, 1], [10, 40]])
    assert allocate(errors, sizes, 1.0, 1000) == [0, 0]
    # Twice the error is still too little for 5 + 1; three times is 6, and a bit for rounding up.
    assert allocate(errors, sizes, 2.0, 1000) == [0, 0]
    assert allocate(errors, sizes, 3.01, 1000) == [1, 0]


def test_exact_tensors_cost_no_error() -> None:
    errors, sizes = np.zeros((2, 3)), np.array([[9, 5, 7], [8, 8, 8]])
    assert allocate(errors, sizes, 1.0, 100)[0] == 1


@pytest.mark.parametrize(
    ("base", "expected"),
    [(4, [2, 3, 4, 5, 6, 7, 8]), (1, [1, 2]), (3, [2, 3, 4, 5, 6]), (1000, None)],
)
def test_whole_numbers_lie_between_half_and_twice_the_base(
    base: int, expected: list[int] | None
) -> None:
    values = candidate_values(base, 0.5, 2.0, 15)
    if expected is None:
        assert len(values) == 15
        assert (values[0], values[-1]) == (500, 2000)
    else:
        assert values == expected


def test_ratios_lie_on_a_geometric_scale() -> None:
    values = candidate_values(0.01, 0.5, 2.0, 5)
    assert values == pytest.approx([0.005, 0.01 / 2**0.5, 0.01, 0.01 * 2**0.5, 0.02])


def test_the_inner_compressors_bounds_hold() -> None:
    # A ratio of 1.2 does not exist: .6 to 1 are the candidates of .6 above the base.
    p = check_parameters("l_greco", {**TOPK, "parameters": {"ratio": 0.6}})
    assert isinstance(p, LGrecoParameters)
    ratios = [float(getattr(setting, "ratio")) for setting in p.settings()]  # noqa: B009
    assert ratios[0] == 0.6
    assert max(ratios) <= 1.0
    assert min(ratios) == pytest.approx(0.3)
    assert len(ratios) == len(set(ratios))


def steep_and_flat(normal: Draw, seed: int) -> Tensor:
    """Tensor 0: a few large elements; tensor 1: all of a size. 2000 elements each."""
    steep = normal(2000, seed) * torch.exp(-torch.arange(2000) / 40.0) * 10
    return torch.cat((steep, normal(2000, 1000 + seed)))


def test_bytes_move_to_where_they_help(team: Any, normal: Draw) -> None:
    # Error of top-k: the energy left out. The steep tensor has none at half of the ratio, so it
    # gives bytes away; the error of both together stays below that of the base everywhere.
    crew = team("l_greco", [(2000,), (2000,)], workers=2, **TOPK)
    seen = [], []  # type: tuple[list[float], list[int]]
    for step in range(9):
        crew.step([steep_and_flat(normal, 10 * step + rank) for rank in range(2)], step)
        seen[0].append(crew.workers[1].inner[0].parameters.ratio)
        seen[1].append(crew.sent[0][0])
    assert seen[0][:3] == [0.1] * 3  # a decision at the end of step 3
    assert seen[0][3] < 0.1
    assert seen[1][4] < seen[1][3]


def test_the_choice_obeys_the_budget_on_the_summed_gradient(team: Any, normal: Draw) -> None:
    # Top-k's error by hand: the squares that are not among the k largest of worker 0's gradients,
    # summed over the last two steps.
    crew = team("l_greco", [(2000,), (2000,)], workers=2, **TOPK, buckets=10_000)
    total = torch.zeros(4000)
    for step in range(4):
        gradients = [steep_and_flat(normal, 10 * step + rank) for rank in range(2)]
        total += gradients[0] if step >= 2 else 0
        crew.step(gradients, step)

    def left_out(part: Tensor, ratio: float) -> float:
        squares = part.double().square().sort(descending=True).values
        return float(squares[round(2000 * ratio) :].sum())

    parts = total[:2000], total[2000:]
    chosen = [crew.workers[0].inner[index].parameters.ratio for index in (0, 1)]
    error = sum(left_out(part, ratio) for part, ratio in zip(parts, chosen, strict=True))
    budget = sum(left_out(part, 0.1) for part in parts)
    assert error <= budget * (1 + 1e-6)
    assert sum(chosen) < 0.2
    # No single step to the next smaller candidate would have been allowed as well.
    ratios = sorted(setting.ratio for setting in crew.workers[0]._settings)
    for index in (0, 1):
        smaller = [ratio for ratio in ratios if ratio < chosen[index]]
        if smaller:
            changed = left_out(parts[index], smaller[-1]) - left_out(parts[index], chosen[index])
            assert error + changed > budget * (1 - 2 / 10_000)


@pytest.mark.parametrize(
    "given",
    [TOPK, {"every": 3, "over": 1, "alpha": 50.0}, {**TOPK, "compressor": "topk", "alpha": 3.0}],
)
def test_worker_0_decides_for_all(team: Any, normal: Draw, given: dict[str, Any]) -> None:
    crew = team("l_greco", [(40, 50), (2000,), ()], workers=3, **given)
    for step in range(2 * given["every"]):
        flat = [torch.cat((steep_and_flat(normal, 10 * step + r), torch.ones(1))) for r in range(3)]
        updates = crew.step(flat, step)
        assert torch.equal(updates[0], updates[2])
        settings = [[m.parameters for m in worker.inner.values()] for worker in crew.workers]
        assert settings[0] == settings[1] == settings[2]
        decides = (step + 1) % given["every"] == 0
        phase = LGreco.phase(crew.workers[0].parameters, step)
        assert ("decision" in phase) == decides
        if decides:  # one int32 a tensor, to which only worker 0 contributes
            assert crew.sent[-1] == (12, 12, 12)
        assert not crew.workers[1]._sums
    base = crew.workers[0]._settings[0]
    assert any(setting != base for setting in settings[0])


def test_defaults_are_the_papers() -> None:
    p = check_parameters("l_greco", {})
    assert isinstance(p, LGrecoParameters)
    assert (p.every, p.over, p.buckets, p.lowest, p.highest) == (100, 10, 10_000, 0.5, 2.0)
    assert LGreco.period(p) == 100
    assert LGreco.phase(p, 99) == "step, decision"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"vary": "rang"}, "vary: error: powersgd has no number 'rang' to vary; did you mean"),
        ({"vary": "warm_start"}, "no number 'warm_start'"),
        ({"parameters": {"rank": 0}}, "parameters.rank: error: powersgd.rank = 0"),
        ({"compressor": "l_greco"}, "parameters.rank: .* l_greco has no parameter 'rank'"),
        ({"every": 5, "over": 6}, "over = 6 steps"),
        (
            {
                "compressor": "ef_block_sgdm",
                "parameters": {"block_elements": 9},
                "vary": "block_elements",
            },
            "has momentum",
        ),
        ({"compressor": "variance", "parameters": {}, "vary": "alpha"}, "needs second_moments"),
    ],
)
def test_what_cannot_be_controlled_is_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        check_parameters("l_greco", given)
