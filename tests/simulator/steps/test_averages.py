"""Are as many iterations counted as are asked for, in whole rounds and whole passes?"""

from fractions import Fraction

import numpy as np
import pytest

from gcsim.simulator.steps import averages


@pytest.mark.parametrize(
    ("wanted", "length", "expected"),
    [
        (7, 1, 7),  # one plan: as many as are asked for
        (100, 3, 102),
        (20, 10, 50),  # five rounds at least
        (200, 10, 200),
        (10, 400, 800),  # of long ones two
        (1000, 400, 1200),
        (10, 15_000, 15_000),  # or one, where there is room for no more
        (30_000, 7, 30_002),  # whoever asks for more gets more
        (30_000, 25_000, 50_000),
    ],
)
def test_rounds_are_whole(wanted: int, length: int, expected: int) -> None:
    assert averages.in_whole_rounds(wanted, length) == expected


def test_more_iterations_are_whole_rounds_too() -> None:
    assert averages.more_iterations(12, 4, Fraction(31, 10)) == 40
    assert averages.more_iterations(12, 4, Fraction(11, 10)) == 24
    assert (
        averages.more_iterations(averages.MOST_ITERATIONS - 1, 3, Fraction(5))
        == averages.MOST_ITERATIONS + 1
    )


@pytest.mark.parametrize(("length", "expected"), [(1, 95), (4, 96), (30, 90), (100, 100)])
def test_the_last_iterations_that_fill_whole_passes(length: int, expected: int) -> None:
    # a hundred iterations of 10: ten passes of 95, up to the end, begin at 50
    assert averages.last_in_whole_passes(10 * np.arange(101), length, 95) == expected
