"""FP8: torch's casts are the oracle of the codes, a loop over Python floats that of the sums."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors import check
from gcsim.compressors.coding.floats.narrow_floats import decoding_table, narrow
from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.quantization.floats.fp8 import FORMATS, power_of_two_scale
from tests.compressors.shared import Draw

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
BOTH = pytest.mark.parametrize("form", DTYPES)


def cast(values: Tensor, form: str) -> Tensor:
    """Torch's cast of numbers that are within range, back in float32."""
    largest = FORMATS[form].largest
    return values.clamp(-largest, largest).to(DTYPES[form]).float()


def scaled(values: Tensor, form: str) -> tuple[Tensor, float]:
    """(values * scale, scale) with the scale of the formula."""
    scale = 2.0 ** math.floor(math.log2(FORMATS[form].largest / float(values.abs().max())))
    return values * scale, scale


@BOTH
def test_codes_are_those_of_torch(normal: Draw, form: str) -> None:
    values = normal(50_000) * 10.0 ** torch.linspace(-9, 2.6, 50_000)
    codes = narrow(values, FORMATS[form], 1.0)
    assert torch.equal(codes.view(DTYPES[form]).float(), cast(values, form))


@BOTH
def test_the_table_holds_what_torch_decodes(form: str) -> None:
    # E5M2's infinities are never written; what reads one gets NaN
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(DTYPES[form]).float()
    expected[expected.isinf()] = float("nan")
    found = torch.from_numpy(decoding_table(FORMATS[form], 1.0))
    assert torch.equal(found.nan_to_num(0.3), expected.nan_to_num(0.3))


@pytest.mark.parametrize(("form", "largest", "power"), [
    ("e4m3", 1.0, 8),  # 448 = 1.75 * 2^8
    ("e4m3", 1.75, 8),
    ("e4m3", 1.7500001, 7),
    ("e5m2", 1.0, 15),  # 57344 = 1.75 * 2^15
    ("e4m3", 448.0, 0),
    ("e4m3", 1e5, -8),  # 448 / 1e5 = 1.15 * 2^-8
    ("e4m3", 0.0, 0),
    ("e4m3", 1e-44, 126),  # as far as float32's own exponent goes
])  # fmt: skip
def test_the_scale_is_the_largest_power_of_two_that_fits(
    form: str, largest: float, power: int
) -> None:
    assert power_of_two_scale(largest, FORMATS[form]) == 2.0**power


@pytest.mark.parametrize(("form", "bits", "least"), [("e4m3", 4, 2.0**-6), ("e5m2", 3, 2.0**-14)])
def test_the_relative_error_is_that_of_the_format(
    team: Any, normal: Draw, form: str, bits: int, least: float
) -> None:
    # half a unit in the last of 4 (3) places is 2^-4 (2^-3) of a power of two; of the number in
    # the middle between that and the next, 1 / 17 (1 / 9); above the smallest normal number
    values = normal(100_000)
    update = team("fp8", [(100_000,)], workers=1, format=form).step([values])[0]
    in_range = values.abs() * scaled(values, form)[1] > least
    error = ((update - values).abs() / values.abs())[in_range]
    assert 0.99 < float(error.max()) * (2**bits + 1) < 1.0001


@BOTH
def test_gathered_messages_are_decoded_and_averaged(team: Any, normal: Draw, form: str) -> None:
    # every tensor of every worker has its own scale
    given = [normal(700, rank) * 10.0 ** (rank - 3) for rank in range(3)]
    crew = team("fp8", [(500,), (10, 20)], workers=3, format=form)
    expected = torch.zeros(700, dtype=torch.float64)
    for gradient in given:
        for part in (slice(0, 500), slice(500, 700)):
            numbers, scale = scaled(gradient[part], form)
            expected[part] += cast(numbers, form).double() / scale / 3
    for update in crew.step(given):
        torch.testing.assert_close(update.double(), expected, rtol=1e-5, atol=1e-9)
    # 8 n + 32 bits and a header a tensor
    assert crew.sent == [(2 * HEADER_BYTES + 500 + 200 + 2 * 4,) * 3]


@BOTH
def test_equal_gradients_never_overflow_their_sum(team: Any, form: str) -> None:
    # three times the largest element: its mean is the element
    crew = team("fp8", [(2,)], workers=3, format=form)
    (update, *_) = crew.step([torch.tensor([7e4, -1.0])] * 3)
    assert float(update[0]) == pytest.approx(7e4, rel=3 * FORMATS[form].rounding)


def test_e5m2_passes_all_checks() -> None:
    check("fp8", {"format": "e5m2"})
