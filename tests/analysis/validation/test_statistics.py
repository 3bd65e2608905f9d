"""Medians and percentiles of errors, against naive ones; what served a fit does not count."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.analysis.validation.statistics import by_series, errors, not_fitted
from gcsim.analysis.validation.suite import Point, Unit

POSITIVE = st.floats(1e-6, 1e6)


@st.composite
def points(draw: st.DrawFn, least: int = 0) -> list[Point]:
    """Of three series, some of them fitted, some unknown to the catalogue."""
    count = draw(st.integers(least, 12))
    return [
        Point(
            name=f"point {number}",
            series=draw(st.sampled_from("abc")),
            unit="s",
            measured=draw(POSITIVE),
            predicted=draw(POSITIVE),
            unfitted=draw(st.none() | POSITIVE),
            fitted=draw(st.booleans()),
            source="nowhere",
            workers=1,
        )
        for number in range(count)
    ]


def middle(values: list[float]) -> float:
    """Of a sorted list the middle one, or half way between the two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def percentile(values: list[float], share: Fraction) -> float:
    """On the line through the order statistics, the first at 0 and the last at 1."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + float(place - below) * (ordered[above] - ordered[below])


@given(points())
def test_they_are_those_of_the_points_that_served_no_fit(given: list[Point]) -> None:
    own = [point for point in given if not point.fitted]
    found = errors(given)
    if not own:
        assert found is None
        return
    assert found is not None
    signed = [(point.predicted - point.measured) / point.measured for point in own]
    bare = [
        abs(point.unfitted - point.measured) / point.measured
        for point in own
        if point.unfitted is not None
    ]

    def close(expected: float) -> object:
        return pytest.approx(expected, rel=1e-6, abs=1e-9)

    assert found.points == len(own)
    assert found.median == close(middle([abs(e) for e in signed]))
    assert found.bias == close(middle(signed))
    nine = Fraction(9, 10)
    assert found.p90 == close(percentile([abs(e) for e in signed], nine))
    if bare:
        assert found.unfitted_median == close(middle(bare))
        assert found.unfitted_p90 == close(percentile(bare, nine))
    else:
        assert (found.unfitted_median, found.unfitted_p90) == (None, None)


@given(points(), POSITIVE)
def test_what_a_fitted_point_predicts_changes_nothing(given: list[Point], other: float) -> None:
    changed = [replace(p, predicted=other, unfitted=other) if p.fitted else p for p in given]
    assert errors(changed) == errors(given)


@given(points(least=1), st.integers(1, 5))
def test_the_worst_are_at_least_as_wrong_as_all_others(given: list[Point], count: int) -> None:
    own = not_fitted(given)
    found = errors(given, worst=count)
    if found is None:
        return
    assert len(found.worst) == min(count, len(own))
    sizes = [abs(point.error) for point in found.worst]
    assert sizes == sorted(sizes, reverse=True)
    others = [abs(point.error) for point in own if point not in found.worst]
    assert not others or max(others) <= sizes[-1]


@given(points(least=1), st.sampled_from([0.125, 2.0, 1024.0]))
def test_the_unit_does_not_matter(given: list[Point], factor: float) -> None:
    scaled = [
        replace(
            point,
            measured=point.measured * factor,
            predicted=point.predicted * factor,
            unfitted=None if point.unfitted is None else point.unfitted * factor,
        )
        for point in given
    ]
    before, after = errors(given), errors(scaled)
    assert before is None or after is not None
    if before is not None and after is not None:  # powers of two: exact
        assert replace(after, worst=before.worst) == before


def test_a_prediction_that_is_a_tenth_too_large_has_a_bias_of_a_tenth() -> None:
    point = Point(
        name="one", series="a", unit="samples/s", measured=200.0, predicted=220.0, unfitted=150.0,
        source="nowhere", workers=1,
    )  # fmt: skip
    found = errors([point])
    assert found is not None
    assert found.bias == pytest.approx(0.1)
    assert found.unfitted_median == pytest.approx(0.25)
    assert found.p90 == found.median


@given(points())
def test_series_partition_the_points_in_order(given: list[Point]) -> None:
    found = by_series(given)
    assert list(found) == list(dict.fromkeys(point.series for point in given))
    for name, own in found.items():
        assert own == [point for point in given if point.series == name]


@pytest.mark.parametrize(
    ("unit", "less"), [("s", True), ("bytes", True), ("samples/s", False), ("x", False)]
)
def test_of_times_and_bytes_less_is_better(unit: Unit, less: bool) -> None:
    point = Point(
        name="one", series="a", unit=unit, measured=1.0, predicted=1.0, unfitted=None,
        source="nowhere", workers=1,
    )  # fmt: skip
    assert point.less_is_better is less
    assert point.unfitted_error is None
