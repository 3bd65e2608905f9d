"""Dynamic 8-bit: a search through a table built digit by digit is the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.floats.powers import tree
from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.rounding.levels import TREE, Levels
from gcsim.compressors.quantization.floats.dynamic_8bit import add_decoded, encode, error_bound
from gcsim.compressors.segments import Segments
from tests.compressors.shared import Draw, LayoutOf, rounded


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


def test_an_element_becomes_the_nearest_value(normal: Draw) -> None:
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


def test_updates_are_means_of_decoded_messages(team: Any, normal: Draw) -> None:
    given = [normal(330, rank) * 10.0**-rank for rank in range(3)]
    crew = team("dynamic_8bit", [(300,), (5, 6)], workers=3)
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


def test_small_numbers_are_relative_to_the_largest_only(layout_of: LayoutOf) -> None:
    # a power of two times the tensor gives the same codes, down to float32's smallest numbers
    layout = layout_of(4)
    values = torch.tensor([1.0, -0.5, 0.003, 1e-5])
    first = encode(values, layout)[HEADER_BYTES + 4 :]
    again = encode(values * 2.0**-100, layout)[HEADER_BYTES + 4 :]
    assert torch.equal(first, again)


def test_the_error_is_below_half_a_step_of_the_decade(normal: Draw, layout_of: LayoutOf) -> None:
    # bound by hand for 1 and .05 of 1: half of .9 / 64 and half of .09 / 32
    expected = (0.45 / 64) ** 2 + (0.045 / 32) ** 2
    assert error_bound(torch.tensor([1.0, 0.05])) == pytest.approx(expected)
    values = normal(100_000)
    out = torch.zeros(100_000)
    add_decoded(encode(values, layout_of(100_000)), layout_of(100_000), out, 1.0)
    # N(0, 1) with the maximum 4.4: most elements in the top decade, error (.9 * 4.4 / 64)^2 / 12
    error = float((out - values).square().sum())
    assert 0.2 * error_bound(values) < error < error_bound(values)
