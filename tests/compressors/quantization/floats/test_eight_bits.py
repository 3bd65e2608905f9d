"""FP8: torch's casts are the oracle of the codes, a loop over Python floats that of the sums.
Dynamic 8-bit: a search through a table built digit by digit is the oracle."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors import check
from gcsim.compressors.base import Worker
from gcsim.compressors.coding.floats.narrow_floats import (
    decoding_table,
    narrow,
    power_of_two_scales,
)
from gcsim.compressors.coding.floats.powers import tree
from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.rounding.levels import TREE, Levels
from gcsim.compressors.quantization.floats.eight_bits import (
    FORMATS,
    Dynamic8Bit,
    add_decoded,
    error_bound,
)
from gcsim.compressors.segments import Segments
from tests.compressors.shared import Team, layout_of, normal, rounded

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
def test_codes_are_those_of_torch(form: str) -> None:
    values = normal(50_000) * 10.0 ** torch.linspace(-9, 2.6, 50_000)
    codes = narrow(values, FORMATS[form], 1.0)
    assert torch.equal(codes.view(DTYPES[form]).float(), cast(values, form))


@BOTH
def test_the_table_holds_what_torch_decodes(form: str) -> None:
    # E5M2's infinities are never written; what reads one gets NaN
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(DTYPES[form]).float()
    expected[expected.isinf()] = float("nan")
    found = torch.from_numpy(decoding_table(FORMATS[form])).float()
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
    ("e4m3", math.inf, -120),  # 448 * 2^120 < 2^129
])  # fmt: skip
def test_the_scale_is_the_largest_power_of_two_that_fits(
    form: str, largest: float, power: int
) -> None:
    assert power_of_two_scales(np.array([largest], "f4"), FORMATS[form]).tolist() == [2.0**power]


@pytest.mark.parametrize(("form", "bits", "least"), [("e4m3", 4, 2.0**-6), ("e5m2", 3, 2.0**-14)])
def test_the_relative_error_is_that_of_the_format(form: str, bits: int, least: float) -> None:
    # half a unit in the last of 4 (3) places is 2^-4 (2^-3) of a power of two; of the number in
    # the middle between that and the next, 1 / 17 (1 / 9); above the smallest normal number
    values = normal(100_000)
    update = Team("fp8", [(100_000,)], workers=1, format=form).step([values])[0]
    in_range = values.abs() * scaled(values, form)[1] > least
    error = ((update - values).abs() / values.abs())[in_range]
    assert 0.99 < float(error.max()) * (2**bits + 1) < 1.0001


@BOTH
def test_gathered_messages_are_decoded_and_averaged(form: str) -> None:
    # every tensor of every worker has its own scale
    given = [normal(700, rank) * 10.0 ** (rank - 3) for rank in range(3)]
    crew = Team("fp8", [(500,), (10, 20)], workers=3, format=form)
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
def test_equal_gradients_never_overflow_their_sum(form: str) -> None:
    # three times the largest element: its mean is the element
    crew = Team("fp8", [(2,)], workers=3, format=form)
    (update, *_) = crew.step([torch.tensor([7e4, -1.0])] * 3)
    assert float(update[0]) == pytest.approx(7e4, rel=3 * FORMATS[form].rounding)


def test_e5m2_passes_all_checks() -> None:
    check("fp8", {"format": "e5m2"})


# --- dynamic 8-bit ------------------------------------------------------------------------------

ENCODER: Dynamic8Bit[Any] = Dynamic8Bit(Worker(rank=0, count=1, seed=0), Dynamic8Bit.Parameters())


def value(code: int) -> float:
    """What seven bits mean, read as the paper's figure does: zeros, an indicator, a fraction."""
    bits = f"{code:07b}"
    if "1" not in bits:
        return 0.0
    zeros = bits.index("1")
    fraction = bits[zeros + 1 :]
    cells = 2 ** len(fraction)
    position = (int(fraction, 2) if fraction else 0) + 0.5
    return float(10.0**-zeros * (0.1 + 0.9 * position / cells))


def test_a_code_is_a_decimal_exponent_and_a_fraction() -> None:
    assert tree() == pytest.approx([value(code) for code in range(128)])
    # by hand: 64 cells from .1 to 1; one cell from 10^-7 to 10^-6
    assert value(127) == pytest.approx(1 - 0.45 / 64)
    assert value(64) == pytest.approx(0.1 + 0.45 / 64)
    assert value(1) == pytest.approx(0.55e-6)
    assert list(np.diff(tree()) > 0) == [True] * 127


def codes_of(values: torch.Tensor, largest: float) -> torch.Tensor:
    cells = Segments.alone(len(values)).whole
    levels = Levels(kind=TREE, cells=cells, numbers=torch.tensor([largest]))
    return rounded(values, levels, np.uint64(0), fixed(8))


def test_an_element_becomes_the_nearest_value() -> None:
    values = normal(20_000) * 10.0 ** torch.linspace(-9, 0, 20_000)
    largest = float(values.abs().max())
    exact = values.double().numpy() / largest
    table = np.concatenate((tree(), -tree()))
    found = table[codes_of(values, largest).numpy()]
    best = np.abs(np.abs(exact)[:, None] - tree()[None, :]).min(1)
    assert np.abs(found - exact) == pytest.approx(best, rel=1e-5, abs=1e-13)
    assert bool(((found == 0) | (np.sign(found) == np.sign(exact))).all())


def test_every_value_of_the_table_keeps_its_code() -> None:
    values = torch.from_numpy(np.concatenate((tree(), -tree()[1:])).astype(np.float32))
    codes = codes_of(values, 1.0)
    assert codes.tolist() == [*range(128), *range(129, 256)]


def test_updates_are_means_of_decoded_messages() -> None:
    given = [normal(330, rank) * 10.0**-rank for rank in range(3)]
    crew = Team("dynamic_8bit", [(300,), (5, 6)], workers=3)
    expected = np.zeros(330)
    for gradient in given:
        for part in (slice(0, 300), slice(300, 330)):
            v = gradient[part].double().numpy()
            largest = np.abs(v).max()
            nearest = np.abs(np.abs(v)[:, None] / largest - tree()[None, :]).argmin(1)
            expected[part] += np.sign(v) * tree()[nearest] * largest / 3
    for update in crew.step(given):
        np.testing.assert_allclose(update.numpy(), expected, rtol=1e-5, atol=1e-8)
    assert crew.sent == [(2 * HEADER_BYTES + 2 * 4 + 330,) * 3]  # 8 n + 32 bits a tensor


def test_small_numbers_are_relative_to_the_largest_only() -> None:
    # a power of two times the tensor gives the same codes, down to float32's smallest numbers
    layout = layout_of(4)
    values = torch.tensor([1.0, -0.5, 0.003, 1e-5])
    first = ENCODER.encode(values, layout)[HEADER_BYTES + 4 :]
    again = ENCODER.encode(values * 2.0**-100, layout)[HEADER_BYTES + 4 :]
    assert torch.equal(first, again)


def test_the_error_is_below_half_a_step_of_the_decade() -> None:
    # bound by hand for 1 and .05 of 1: half of .9 / 64 and half of .09 / 32
    expected = (0.45 / 64) ** 2 + (0.045 / 32) ** 2
    assert error_bound(torch.tensor([1.0, 0.05])) == pytest.approx(expected)
    values = normal(100_000)
    out = torch.zeros(100_000)
    add_decoded(ENCODER.encode(values, layout_of(100_000)), layout_of(100_000), out, 1.0)
    # N(0, 1) with the maximum 4.4: most elements in the top decade, error (.9 * 4.4 / 64)^2 / 12
    error = float((out - values).square().sum())
    assert 0.2 * error_bound(values) < error < error_bound(values)
