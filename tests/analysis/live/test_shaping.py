"""The shaper's numbers: the longest frame just fits the bucket, and is about a millisecond."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gcsim.analysis.live.shaping import CHARGED, SEGMENT, Shape

ONE_WAY = Fraction(SEGMENT, CHARGED)
"""Data over what is charged, of a rank that sends and does not receive."""

rates = st.integers(10**6, 10**11)


@given(rates)
def test_the_bucket_holds_what_the_longest_frame_is_charged_and_no_more(rate: int) -> None:
    # The kernel charges a frame of n segments n times (data + headers); `gso_max_size` limits the
    # frame as it is handed over, with its headers once.
    shape = Shape.of(rate)
    segments = (shape.frame - (CHARGED - SEGMENT)) // SEGMENT
    assert segments * CHARGED <= shape.burst < (segments + 1) * CHARGED
    assert shape.frame < 65536


@given(rates)
def test_a_frame_takes_a_millisecond_where_its_limits_allow(rate: int) -> None:
    shape = Shape.of(rate)
    seconds = shape.burst * 8 / rate
    if 4 < shape.segments < 44:
        assert abs(seconds - 0.001) <= CHARGED * 8 / rate / 2 + 1e-12
    assert (shape.segments == 44) == (rate * 0.001 / 8 / CHARGED >= 43.5)


def test_goodput_is_data_over_what_is_charged() -> None:
    # Ethernet 14, IP 20, TCP 20 with time stamps 12: 66 bytes to 1448, at an MTU of 1500.
    charged, data = 1500 + 14, 1500 - 20 - 20 - 12
    assert Fraction(data, charged) == ONE_WAY
    # Both ways: a frame of eight segments, and an acknowledgement of 66 bytes for one received.
    assert Shape.of(100 * 10**6).efficiency == Fraction(8 * 1448, 8 * 1514 + 66)


@given(rates)
def test_acknowledgements_cost_little_and_least_with_long_frames(rate: int) -> None:
    shape, double = Shape.of(rate), Shape.of(2 * rate)
    assert 0.98 * ONE_WAY < shape.efficiency < ONE_WAY
    assert double.efficiency >= shape.efficiency
