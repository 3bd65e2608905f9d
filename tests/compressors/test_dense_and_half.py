"""The dense all-reduces: float32 is the mean; 16 bits round each worker's share and each sum."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.floats.narrow_floats import BFLOAT16, FLOAT16, Narrow, narrow
from gcsim.errors import InputError
from tests.compressors.shared import Team, normal

FORMATS = {torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
NAMES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def test_dense_update_is_the_mean_gradient() -> None:
    gradients = [normal(101, seed) for seed in range(3)]
    workers = Team("none", [(101,)], workers=3)
    for update in workers.step(gradients):
        torch.testing.assert_close(update, torch.stack(gradients).mean(0))
    assert workers.sent == [(404,) * 3]  # 32 bits an element, no header: the vector itself


def spread() -> Tensor:
    """Every magnitude that a gradient may have, and the ends of the formats."""
    magnitudes = 10.0 ** torch.linspace(-44, 38, 20_001, dtype=torch.float64)
    edges = [0.0, -0.0, 65504, 65519.99, 65520, 2.0**-14, 2.0**-24, 2.0**-25, 3.39e38, 1e-45]
    ties = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3 * 2.0**-25]
    return torch.cat((normal(20_001) * magnitudes, torch.tensor(edges + ties))).float()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("share", [1, 2, 3, 7])
def test_a_cast_is_torchs_after_the_scaling(dtype: torch.dtype, share: int) -> None:
    # torch's own cast of the float32 product is the oracle, infinities and subnormals included
    values = spread()
    values = torch.cat((values, -values, torch.tensor([np.nan, np.inf, -np.inf])))
    expected = (values * torch.tensor(1 / share)).to(dtype)
    found = narrow(values, FORMATS[dtype], 1 / share).view(dtype)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0.5), expected.nan_to_num(0.5))
    assert torch.equal(found.signbit()[:-3], expected.signbit()[:-3])  # NaN has no sign


@pytest.mark.parametrize("name", NAMES)
def test_shares_are_cast_and_summed_in_sixteen_bits(name: str) -> None:
    gradients = [normal(1000, seed) for seed in range(3)]
    workers = Team(name, [(990,), (10,)], workers=3)
    first, second, third = ((g * torch.tensor(1 / 3)).to(NAMES[name]) for g in gradients)
    for update in workers.step(gradients):
        assert torch.equal(update, ((first + second) + third).float())
    assert workers.sent == [(2000,) * 3]  # 16 bits an element


def test_half_keeps_what_is_too_large_for_one_but_not_for_the_mean() -> None:
    # a quarter of 2e5 fits; 49984 and 50016 are float16's neighbours of 5e4, 49984 is even
    updates = Team("fp16", [(2,)], workers=4).step(
        [torch.tensor([2e5, 1.0])] + 3 * [torch.zeros(2)]
    )
    assert updates[0].tolist() == [49984.0, 0.25]
    with pytest.raises(InputError, match="the sum over the workers are beyond float16"):
        Team("fp16", [(1,)]).step([torch.tensor([1e5])] * 2)


@pytest.mark.parametrize("form", [FLOAT16, BFLOAT16])
def test_the_error_bound_is_half_a_unit_of_each_element(form: Narrow) -> None:
    # 1 is in the normal range; 2^(-bias - mantissa) is half the smallest step, by hand
    tiny = 2.0 ** (-form.bias - form.mantissa)
    assert form.error_bound(torch.tensor([1.0, 2.0])) == pytest.approx(5 * form.rounding**2)
    assert form.error_bound(torch.tensor([tiny])) == pytest.approx(tiny**2, abs=0)
    assert form.error_bound(torch.tensor([])) == 0
    assert FLOAT16.error_bound(torch.tensor([1e5])) == float("inf")
