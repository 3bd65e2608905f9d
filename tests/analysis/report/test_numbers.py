"""Numbers for people keep their magnitude and their digits."""

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from gcsim.analysis.report import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    # by hand: three significant digits, whole digits kept, two in scientific notation
    [(0.0, "0"), (244.4, "244"), (12.345, "12.3"), (9.996, "10.0"), (0.9996, "1.00"), (1.0, "1.00"),
     (0.0245, "0.0245"), (1234.5, "1234"), (8.31e-8, "8.3e-08"), (0.5, "0.500"),
     (-12.345, "-12.3"), (2.5e7, "2.5e+07")],
)  # fmt: skip
def test_significant_digits(value: float, text: str) -> None:
    assert numbers.significant(value) == text


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_a_written_number_is_near_the_number(value: float) -> None:
    # 3 significant digits err by half a unit of the third, scientific notation has 2 digits
    assert float(numbers.significant(value)) == pytest.approx(value, rel=0.051)
    if 1e-3 <= value < 1e7:
        assert float(numbers.significant(value)) == pytest.approx(value, rel=0.0051)


def test_a_column_has_the_decimals_that_its_smallest_value_needs() -> None:
    assert numbers.decimals_for([0.0, 0.22, 244.4], digits=2) == 2  # "0.22"
    assert numbers.decimals_for([38.2, 1783.3], digits=3) == 1  # "38.2"
    assert numbers.decimals_for([0.0, 0.0], digits=2) == 1
    assert numbers.decimals_for([1e-9], digits=2) == 3  # at most three
    assert numbers.decimals_for([12345.0], digits=2) == 0


@pytest.mark.parametrize("part", ["so in 89 % of 10 Gbit/s", Text("so in 89 % of 10 Gbit/s")])
def test_a_wrapped_line_does_not_part_a_number_from_its_unit(part: str | Text) -> None:
    assert numbers.folded(part, 8) == "so in\n89 % of\n10 Gbit/s"


def test_code_is_not_wrapped() -> None:
    code = Text("a line to be pasted", no_wrap=True)
    assert numbers.folded(code, 8) is code
    assert numbers.printed([code], Console(file=StringIO(), width=8)) == "a line to be pasted\n"


def test_small_is_not_written_as_zero() -> None:
    assert numbers.fixed(0.0, 1) == "0"
    assert numbers.fixed(0.04, 1) == "<0.1"
    assert numbers.fixed(0.06, 1) == "0.1"
    assert numbers.fixed(0.3, 0) == "<1"


def test_units_and_counts_in_sentences() -> None:
    assert numbers.elapsed(0.4234) == "423 ms"
    assert numbers.elapsed(9.999) == "9999 ms"
    assert numbers.elapsed(1238.8) == "1239 s"
    assert numbers.times(5.206) == "5.21x"
    assert [numbers.plural(1, "node"), numbers.plural(2, "node")] == ["1 node", "2 nodes"]


@pytest.mark.parametrize(
    ("bytes_per_second", "text"),
    # by hand: 8 bits a byte, powers of 1000
    [(1.25e9, "10 Gbit/s"), (1.25e9 * 1448 / 1538, "9.41 Gbit/s"), (12.15e9, "97.2 Gbit/s"),
     (850_000, "6.8 Mbit/s"), (124.96e6, "1000 Mbit/s"), (125e6, "1 Gbit/s"), (10, "80 bit/s"),
     (1e15, "8000 Tbit/s")],
)  # fmt: skip
def test_rates_are_bits(bytes_per_second: float, text: str) -> None:
    assert numbers.bits(bytes_per_second) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (5e-5, "50 us"), (0.0015, "1.5 ms"), (0.2, "200 ms"), (2.0, "2 s"),
     (90.0, "1.5 min"), (7200.0, "2 h"), (2e-9, "2 ns")],
)  # fmt: skip
def test_durations_have_the_unit_of_their_size(seconds: float, text: str) -> None:
    assert numbers.duration(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(1000, "1000 B"), (1024, "1 KiB"), (25 << 20, "25 MiB"), (246_824, "241 KiB"),
     (3 << 29, "1.5 GiB")],
)  # fmt: skip
def test_sizes_are_binary(nbytes: int, text: str) -> None:
    assert numbers.size(nbytes) == text
