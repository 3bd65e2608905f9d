"""Does no line of a report hide parts that err in opposite ways? Against a rule told again."""

from hypothesis import given
from hypothesis import strategies as st

from gcsim.analysis.validation.report.series import CLEAR, SIDE, by_value, lines, size, span
from gcsim.analysis.validation.statistics import not_fitted
from gcsim.analysis.validation.suite import Point
from tests.analysis.validation.reports import hides_opposites
from tests.analysis.validation.reports import point as example


def one(error: float, ranks: int, nbytes: float, *, fitted: bool = False) -> Point:
    return Point(
        name="",
        series="ring",
        unit="s",
        measured=1.0,
        predicted=1.0 + error,
        unfitted=None,
        fitted=fitted,
        source="nowhere",
        workers=ranks,
        nbytes=nbytes,
    )


POINTS = st.lists(
    st.builds(
        one,
        st.sampled_from([-0.4, -0.1, -0.04, -0.02, 0.0, 0.02, 0.04, 0.1, 0.4]),
        st.sampled_from([2, 4, 8, 16]),
        st.sampled_from([64, 10_000, 1_000_000]),
        fitted=st.sampled_from([False, False, False, True]),
    ),
    max_size=60,
)


@given(POINTS)
def test_lines_are_the_judged_points_and_none_hides_opposites(points: list[Point]) -> None:
    found = lines({"ring": points})
    shown = [id(point) for part in found.values() for point in part]
    assert sorted(shown) == sorted(id(point) for point in not_fitted(points))
    for name, part in found.items():
        assert part
        assert name.startswith("ring")
        assert not hides_opposites(part)
    if points and not hides_opposites(not_fitted(points)):
        assert set(found) <= {"ring"}


def test_a_series_is_cut_where_its_sign_changes_and_its_parts_again() -> None:
    few = [one(0.1, 2, 10**4) for _ in range(SIDE)]
    many = [one(-0.1, 8, 10**4) for _ in range(SIDE + 2)]
    large = [one(0.2, 8, 4 * 10**6) for _ in range(SIDE)]
    assert list(lines({"ring": [*few, *many]})) == ["ring, 2 ranks", "ring, 8 ranks"]
    # by size the biases are 30 % apart, by ranks 20 %
    found = lines({"ring": [*few, *many, *large]})
    assert {name: len(part) for name, part in found.items()} == {
        "ring, 2 ranks, 10 kB": SIDE,
        "ring, 8 ranks, 10 kB": SIDE + 2,
        "ring, 4 MB": SIDE,
    }


def test_chance_and_scatter_cut_nothing() -> None:
    """Five points a side are too few, and 3 % is what repeated runs differ by."""
    few = [one(0.1, 2, 1) for _ in range(SIDE - 1)] + [one(-0.1, 4, 1) for _ in range(SIDE)]
    near = [one(0.9 * CLEAR, 2, 1) for _ in range(9)] + [one(-0.5, 4, 1) for _ in range(9)]
    assert list(lines({"ring": few})) == list(lines({"ring": near})) == ["ring"]


def test_sizes_are_told_by_decades_and_for_people() -> None:
    points = [one(0, 2, nbytes) for nbytes in (0, 64, 100, 999, 1000, 9_999_996, 10**7)]
    assert [len(group) for group in by_value(points, "size").values()] == [1, 1, 2, 1, 2]
    assert [size(n) for n in (0, 64, 10_000, 999_936, 9_999_996, 3 * 10**9)] == [
        "0 B",
        "64 B",
        "10 kB",
        "1 MB",
        "10 MB",
        "3 GB",
    ]
    assert span("size", points[2:4]) == "100 B to 999 B"
    assert span("size", [one(0, 2, n) for n in (999_936, 10**6)]) == "1 MB"  # padded, as it reads
    assert span("ranks", points) == "2 ranks"
    assert list(by_value([example(1, 0.0), example(3, 0.0)], "ranks")) == [2, 8]
