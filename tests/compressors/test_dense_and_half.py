"""The dense all-reduces: float32 is the mean, float16 is PyTorch's communication hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def test_dense_update_is_the_mean_gradient(team: Any, normal: Callable[..., Tensor]) -> None:
    gradients = [normal(101, seed) for seed in range(3)]
    workers = team("none", [(101,)], workers=3)
    for update in workers.step(gradients):
        torch.testing.assert_close(update, torch.stack(gradients).mean(0))
    assert workers.sent == [(404,) * 3]  # 32 bits an element, no header: the vector itself


def test_half_is_cast_then_divided_then_summed_as_the_ddp_hook_does(
    team: Any, normal: Callable[..., Tensor]
) -> None:
    gradients = [normal(1000, seed) for seed in range(3)]
    workers = team("fp16", [(1000,)], workers=3)
    update = workers.step(gradients)[0]
    halves = [g.to(torch.float16).div_(3) for g in gradients]  # fp16_compress_hook's two steps
    assert torch.equal(update, ((halves[0] + halves[1]) + halves[2]).to(torch.float32))
    assert workers.sent == [(2000,) * 3]  # 16 bits an element


def test_half_of_one_worker_has_the_relative_error_of_float16(
    team: Any, normal: Callable[..., Tensor]
) -> None:
    gradient = normal(10_000)
    update = team("fp16", [(10_000,)], workers=1).step([gradient])[0]
    normal_range = gradient.abs() > 2.0**-14  # smallest normal float16
    error = ((update - gradient).abs() / gradient.abs())[normal_range]
    assert float(error.max()) <= 2.0**-11  # half a unit in the last of 11 places


def test_half_overflows_at_the_cast_although_the_mean_would_fit(team: Any) -> None:
    # Cast first: 1e5 is infinite before the division by 2 could bring it below 65504.
    updates = team("fp16", [(2,)]).step([torch.tensor([1e5, 6e4])] * 2)
    assert updates[0].tolist() == [float("inf"), 6e4]


def test_half_underflows_at_the_division(team: Any) -> None:
    # 2^-24 is the smallest float16; a quarter of it rounds to zero, so four of them add up to 0.
    updates = team("fp16", [(1,)], workers=4).step([torch.tensor([2.0**-24])] * 4)
    assert updates[0].tolist() == [0.0]
