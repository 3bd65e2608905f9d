"""Units: exact both ways, and one clear sentence for everything else."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim import units
from gcsim.errors import InputError
from gcsim.units import Dimension


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        # By the definition of the prefixes: k, M, G, T are powers of 1000, Ki … of 1024.
        ("10 Gbit/s", "bandwidth", Fraction(10**10, 8)),
        ("1.25 GB/s", "bandwidth", Fraction(1_250_000_000)),
        ("732 GB/s", "bandwidth", Fraction(732 * 10**9)),
        ("10 Mbit", "bandwidth", Fraction(10**7, 8)),
        ("1 Gibit/s", "bandwidth", Fraction(2**30, 8)),
        ("50 us", "time", Fraction(5, 100_000)),
        ("50us", "time", Fraction(5, 100_000)),
        ("50 µs", "time", Fraction(5, 100_000)),
        ("5e-5 s", "time", Fraction(5, 100_000)),
        (" 1 ps ", "time", Fraction(1, 10**12)),
        ("0 s", "time", Fraction(0)),
        ("25 MiB", "size", Fraction(25 * 2**20)),
        ("32 KiB", "size", Fraction(32 * 1024)),
        ("32 kB", "size", Fraction(32_000)),
        ("8 bit", "size", Fraction(1)),
        ("1.5 TFLOP/s", "compute rate", Fraction(1_500_000_000_000)),
        # Other spellings, of the same prefixes; 60 x 60 x 24 s in a day.
        *[
            (f"25 {unit}", "bandwidth", Fraction(25 * 10**9, 8))
            for unit in (
                "Gb/s",
                "Gbps",
                "gbps",
                "Gbit/sec",
                "Gbits/s",
                "GBit/s",
                "gigabits",
                "GbE",
                "Gb",
                "G",
            )
        ],
        ("25G", "bandwidth", Fraction(25 * 10**9, 8)),
        ("25 Gbit per second", "bandwidth", Fraction(25 * 10**9, 8)),
        ("25 mbps", "bandwidth", Fraction(25 * 10**6, 8)),
        ("25 bps", "bandwidth", Fraction(25, 8)),
        ("3 GBps", "bandwidth", Fraction(3 * 10**9)),
        ("2,5 Gbit/s", "bandwidth", Fraction(25 * 10**8, 8)),
        ("30 usec", "time", Fraction(30, 10**6)),
        ("30 microseconds", "time", Fraction(30, 10**6)),
        ("3 msec", "time", Fraction(3, 1000)),
        ("1 sec", "time", Fraction(1)),
        ("2 Hours", "time", Fraction(7200)),
        ("5 minutes", "time", Fraction(300)),
        ("2 days", "time", Fraction(172_800)),
        ("512 KB", "size", Fraction(512_000)),
        ("100 bytes", "size", Fraction(100)),
        ("2 TFLOPS", "compute rate", Fraction(2 * 10**12)),
    ],
)
def test_a_quantity_has_its_exact_value(text: str, dimension: Dimension, value: Fraction) -> None:
    assert units.parse(text, dimension) == value


def test_fifty_microseconds_are_five_times_ten_to_the_minus_five() -> None:
    # 50 * 1e-6 != 5e-5 in floating point.
    assert units.parse("50 us", "time") == Fraction(Decimal("5e-5"))


@pytest.mark.parametrize(
    ("text", "dimension", "message", "hint"),
    [
        ("10", "time", "10 has no unit", "write it like '50 us'"),
        (10, "bandwidth", "10 has no unit", "write it like '10 Gbit/s'"),
        (0.5, "size", "0.5 has no unit", "write it like '25 MiB'"),
        ("-1 us", "time", "-1 us is negative", "write it like"),
        ("10 Gbps", "size", "unknown unit 'Gbps'", "that is a bandwidth; write it like '25 MiB'"),
        ("10 gb", "bandwidth", "unknown unit 'gb'", "did you mean 'Gbit/s' or 'GB/s'?"),
        ("3 MB", "bandwidth", "unknown unit 'MB'", "that is a size"),
        (
            "1,000 Mbit/s",
            "bandwidth",
            "'1,000 Mbit/s' is not a bandwidth",
            "write '1000 Mbit/s', or '1.000 Mbit/s'",
        ),
        ("3 Ms", "time", "unknown unit 'Ms'", "did you mean 'ms'?"),
        ("3 mB/s", "bandwidth", "unknown unit 'mB/s'", "did you mean 'MB/s'?"),
        ("3 mb", "size", "unknown unit 'mb'", "did you mean 'Mbit' or 'MB'?"),
        ("2 GB", "bandwidth", "unknown unit 'GB'", "that is a size"),
        ("2 s", "size", "unknown unit 's'", "that is a time"),
        ("2 m", "time", "unknown unit 'm'", "did you mean 'ms' or 'min'?"),
        ("25M", "size", "unknown unit 'M'", "did you mean 'MB' or 'MiB'?"),
        ("fast", "bandwidth", "'fast' is not a bandwidth", "write it like"),
        ("", "time", "'' is not a time", "write it like"),
        ("1 2 s", "time", "'1 2 s' is not", "write it like"),
        ("nan s", "time", "'nan s' is not a time", "write it like"),
        ("inf s", "time", "'inf s' is not a time", "write it like"),
        ("1e999 s", "time", "'1e999 s' is not a time", "write it like"),
        ("9" * 100 + " s", "time", "is not a time", "write it like"),
        (None, "time", "'None' is not a time", "write it like"),
        (True, "time", "'True' is not a time", "write it like"),
        (["1 s"], "time", "is not a time", "write it like"),
    ],
)
def test_what_is_no_quantity_is_refused_with_a_way_out(
    text: object, dimension: Dimension, message: str, hint: str
) -> None:
    with pytest.raises(InputError) as caught:
        units.parse(text, dimension)
    (problem,) = caught.value.problems
    assert message in problem.message
    assert hint in problem.hint


def test_a_size_is_whole_bytes() -> None:
    assert units.parse_bytes("1.5 KiB") == 1536
    with pytest.raises(InputError, match=r"1\.5 B is 1\.5 bytes"):
        units.parse_bytes("1.5 B")
    with pytest.raises(InputError, match=r"0\.5 bytes"):
        units.parse_bytes("4 bit")


@given(
    dimension=st.sampled_from(list(units.UNITS)),
    mantissa=st.integers(0, 10**15),
    places=st.integers(0, 12),
    choice=st.integers(0, 100),
)
def test_exact_text_reads_back_to_the_same_value(
    dimension: Dimension, mantissa: int, places: int, choice: int
) -> None:
    names = list(units.UNITS[dimension])
    value = units.parse(f"{mantissa}e-{places} {names[choice % len(names)]}", dimension)
    text = units.exact(value, dimension)
    assert "e" not in text.split()[0]
    assert units.parse(text, dimension) == value


def test_exact_text_is_short() -> None:
    assert units.exact(Fraction(10**10, 8), "bandwidth") == "1.25 GB/s"
    assert units.exact(25 * 2**20, "size") == "25 MiB"
    assert units.exact(Fraction(1, 20_000), "time") == "50 us"
    assert units.exact(0, "time") == "0 s"
    with pytest.raises(ValueError, match="no finite decimal"):
        units.exact(Fraction(1, 3), "time")
