"""Is a planted rate of additions found again from all-reduces of two types over one link?"""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcsim.analysis.calibration.link.model import Model
from gcsim.analysis.calibration.link.sums import fit_sums
from gcsim.analysis.calibration.measurements.collectives import Measurement
from gcsim.simulator.host import Sums
from gcsim.simulator.network.links import Link

LINK = Link(name="link", bandwidth=Fraction(10**9), latency=Fraction(100, 10**6))
SIZES = (40_000, 400_000, 4_000_000, 40_000_000)


def measured(algorithm: str, ranks: int, sums: Sums) -> list[Measurement]:
    """As the simulator has them: float32, then half precision."""
    points = [
        Measurement(
            collective="all_reduce",
            ranks=ranks,
            nbytes=nbytes,
            seconds=1.0,
            element=element,
            dtype=dtype,
            algorithm=algorithm,
            place=f"{dtype} {nbytes}",
        )
        for dtype, element in (("float32", 4), ("float16", 2))
        for nbytes in SIZES
    ]
    times = Model(points, LINK, sums).seconds(LINK)
    return [replace(point, seconds=float(time)) for point, time in zip(points, times, strict=True)]


@given(
    rate=st.floats(2e7, 5e8),
    ranks=st.sampled_from([2, 4, 6]),
    algorithm=st.sampled_from(["gloo", "mpich", "ring", "parameter_server"]),
)
@settings(max_examples=15)
def test_a_planted_rate_is_found_again(rate: float, ranks: int, algorithm: str) -> None:
    points = measured(algorithm, ranks, Sums(float16=Fraction(rate)))
    found = fit_sums(points, LINK, inside=LINK, dtype="float16")
    assert found is not None
    assert found.rate == pytest.approx(rate, rel=0.01)
    assert found.low <= found.rate <= found.high


def test_additions_that_nobody_sees_have_no_rate() -> None:
    points = measured("gloo", 4, Sums(float16=Fraction(10**12)))
    assert fit_sums(points, LINK, inside=LINK, dtype="float16") is None
    assert fit_sums(points, LINK, inside=LINK, dtype="bfloat16") is None
