"""Accordion compresses a tensor little where its gradient changes, and keeps the state it has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.controllers.accordion import Accordion, AccordionParameters
from gcsim.compressors.registry import check_parameters
from gcsim.errors import InputError
from tests.compressors.shared import Draw

TOPK = {
    "compressor": "topk",
    "low": {"ratio": 0.5},
    "high": {"ratio": 0.1},
    "steps_per_epoch": 2,
    "interval_epochs": 2,
}


def kept(crew: Any) -> list[int]:
    """How many elements of each tensor worker 0 keeps in the next step, in per cent."""
    members = crew.workers[0].inner
    return [round(100 * members[index].parameters.ratio) for index in sorted(members)]


def test_regimes_are_those_of_the_gradients_norm(team: Any) -> None:
    # Epochs of 2 steps, every second one measured: steps 0-1, 4-5, 8-9, 12-13. Tensor 0 stays at
    # norm 1 a step; tensor 1 has, by epoch, the norms 1, 1, 3, 9, 3.1, 1, 1.6: decisions compare
    # 1 with 3 (critical), 3 with 3.1 (not), 3.1 with 1.6 (change .484: not), at the end of steps
    # 5, 9 and 13. All elements are sent within an epoch or two, so that updates follow gradients.
    given = {"low": {"ratio": 1.0}, "high": {"ratio": 0.5}, "parameters": {"error_feedback": False}}
    crew = team("accordion", [(4,), (4,)], workers=1, **{**TOPK, **given})
    norms = [1, 1, 3, 9, 3.1, 1, 1.6]
    expected = {0: [100, 100], 5: [50, 100], 9: [50, 50], 13: [50, 50]}
    now = expected[0]
    for step in range(14):
        # two elements each: half of the elements hold all of the norm
        size = norms[step // 2] / 2**0.5
        gradient = torch.tensor([0.5, 0.5, 0, 0, size, size, 0, 0])
        crew.step([gradient], step)
        now = expected.get(step, now)
        assert kept(crew) == now, step


@pytest.mark.parametrize(
    ("after", "critical"), [(1.4, False), (1.6, True), (0.6, False), (0.4, True)]
)
def test_half_of_the_norm_before_is_critical(team: Any, after: float, critical: bool) -> None:
    crew = team("accordion", [(3,)], workers=2, **{**TOPK, "parameters": {"error_feedback": False}})
    for step in range(6):
        size = 1.0 if step < 4 else after
        crew.step([torch.tensor([size, 0.0, 0.0])] * 2, step)
    assert kept(crew) == [50 if critical else 10]


def test_a_drop_of_the_learning_rate_means_low_compression(team: Any) -> None:
    crew = team("accordion", [(10,)], workers=1, **TOPK, learning_rate_drops=[7])
    seen = []
    for step in range(10):
        crew.step([torch.ones(10)], step)
        seen.append(kept(crew)[0])
    assert seen == [50] * 5 + [10, 10] + [50, 50] + [10]  # decisions at the end of steps 5 and 9


def test_messages_are_those_of_the_setting_in_one_collective(team: Any) -> None:
    # Two tensors of 100: 20 bytes of header and 8 bytes an element, in one all-gather.
    crew = team("accordion", [(100,), (10, 10)], workers=3, **TOPK)
    sent = []
    for step in range(7):
        crew.step([torch.ones(200)] * 3, step)
        assert [record.kind for record in crew.listener.collectives] == ["all_gather"]
        sent.append(crew.sent[0][0])
    assert sent == [2 * (20 + 8 * 50)] * 6 + [2 * (20 + 8 * 10)]


def test_the_result_is_that_of_the_inner_compressor_while_nothing_switches(
    team: Any, normal: Draw
) -> None:
    shapes = [(12, 20), (20,), ()]
    controlled = team("accordion", shapes, workers=2)
    plain = team("powersgd", shapes, workers=2, rank=2)
    for step in range(4):
        gradients = [normal(261, 10 * step + rank) for rank in range(2)]
        a, b = controlled.step(gradients, step), plain.step(gradients, step)
        torch.testing.assert_close(a[0], b[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("topk", {"ratio": 0.5}, {"ratio": 0.1}),
        ("powersgd", {"rank": 3}, {"rank": 1}),
        ("threshold", {}, {}),
        ("dgc", {"ratio": 0.1}, {"ratio": 0.01}),
        # State or tables depend on the setting.
        ("count_sketch", {"column_ratio": 0.15}, {"column_ratio": 0.05}),
        ("qsgd", {"steps": 7}, {"steps": 1}),
        ("ce_sgd", {"speculative": 0.2}, {"speculative": 0.05}),
        ("ef_block_sgdm", {"momentum": 0.0, "block_elements": 3}, {"momentum": 0.0}),
    ],
)
def test_what_is_owed_survives_a_switch(
    team: Any, normal: Draw, name: str, low: dict[str, Any], high: dict[str, Any]
) -> None:
    # Sum of updates + mean of what is owed = sum of mean gradients, over low and high settings.
    given = {
        "compressor": name, "low": low, "high": high, "steps_per_epoch": 1, "interval_epochs": 1,
    }  # fmt: skip
    crew = team("accordion", [(30, 20), (20,), (0,)], workers=2, **given)
    applied, wanted = torch.zeros(620).double(), torch.zeros(620).double()
    settings = set()
    for step in range(12):
        factor = 4.0 if step % 4 == 3 else 1.0
        gradients = [factor * normal(620, 10 * step + rank) for rank in range(2)]
        wanted += torch.stack(gradients).double().mean(0)
        updates = crew.step(gradients, step)
        assert torch.equal(*updates)
        assert bool(updates[0].isfinite().all())
        applied += updates[0].double()
        settings.add(str(crew.workers[0].inner[0].parameters))
    assert len(settings) == (1 if low == high else 2)
    if name not in ("topk", "powersgd", "threshold"):  # others drop memory, or have momentum
        return
    bucket = Bucket(layout=crew.layout, gradient=torch.zeros(620))
    residual_of = (
        torch.stack([worker.residual_of(bucket) for worker in crew.workers]).double().mean(0)
    )
    torch.testing.assert_close(applied + residual_of, wanted, rtol=1e-3, atol=1e-3)


def test_another_rank_starts_from_another_factor(team: Any, normal: Draw) -> None:
    crew = team("accordion", [(30, 20)], workers=2, steps_per_epoch=1, interval_epochs=1)
    ranks = []
    for step in range(8):
        factor = 3.0 if step >= 4 else 1.0
        updates = crew.step([factor * normal(600, rank) for rank in range(2)], step)
        assert torch.equal(*updates)
        ranks.append(int(torch.linalg.matrix_rank(updates[0].view(30, 20))))
    assert set(ranks) == {1, 2}
    assert ranks[:2] == [2, 2]


def test_all_workers_decide_alike(team: Any, normal: Draw) -> None:
    # Gradients of very different sizes: only the updates, which are equal, may count.
    crew = team("accordion", [(40,), (30,)], workers=3, **{**TOPK, "steps_per_epoch": 1})
    for step in range(12):
        gradients = [10.0**rank * normal(70, 100 * step + rank) for rank in range(3)]
        updates = crew.step(gradients, step)
        assert torch.equal(updates[0], updates[2])
        settings = [[m.parameters for m in worker.inner.values()] for worker in crew.workers]
        assert settings[0] == settings[1] == settings[2]


def test_defaults_are_the_papers() -> None:
    p = check_parameters("accordion", {})
    assert isinstance(p, AccordionParameters)
    assert (p.threshold, p.interval_epochs, p.low, p.high) == (0.5, 10, {"rank": 2}, {"rank": 1})
    assert Accordion.properties(p).conserves


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"compressor": "topq"}, "compressor: error: unknown compressor 'topq'; did you mean"),
        ({"low": {"rank": 0}}, r"low.rank: error: powersgd.rank = 0"),
        (
            {"compressor": "topk", "high": {"ratio": 0.1}},
            "low.rank: .* topk has no parameter 'rank'",
        ),
        ({"compressor": "accordion", "low": {}, "high": {}}, "is a controller itself"),
        ({"compressor": "variance", "low": {}, "high": {}}, "needs second_moments"),
        (
            {"compressor": "qsparse_local_sgd", "low": {}, "high": {}},
            "models differ between its steps",
        ),
        (
            {"compressor": "ef_block_sgdm", "low": {"momentum": 0.5}, "high": {}},
            "momentum is .* with low, .* with high",
        ),
        ({"threshold": -1}, "accordion.threshold = -1"),
    ],
)
def test_what_cannot_be_controlled_is_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        check_parameters("accordion", given)
