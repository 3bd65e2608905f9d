"""Would the prediction have led to the right choice? Against all pairs, one by one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.analysis.validation.decisions import TIE, decisions
from gcsim.analysis.validation.suite import Point, Unit
from gcsim.simulator.training import DENSE

VALUES = st.floats(0.1, 10)


def point(
    method: str,
    measured: float,
    predicted: float,
    *,
    unit: Unit = "s",
    setting: str = "ResNet-50, 10GbE",
    fitted: bool = False,
) -> Point:
    return Point(
        name=f"{setting}: {method}", series="all", unit=unit, measured=measured,
        predicted=predicted, unfitted=None, fitted=fitted, source="nowhere", workers=8,
        setting=setting, method=method,
    )  # fmt: skip


@st.composite
def settings(draw: st.DrawFn) -> list[Point]:
    """Up to three settings of a unit each, with or without dense, points in any order."""
    found: list[Point] = []
    for setting in draw(st.sets(st.sampled_from(["one", "two", "three"]))):
        unit: Unit = draw(st.sampled_from(["s", "samples/s"]))
        methods = draw(st.sets(st.sampled_from([DENSE, "topk", "qsgd", "fp16", "powersgd"])))
        found += [
            point(
                method,
                draw(VALUES),
                draw(VALUES),
                unit=unit,
                setting=setting,
                fitted=draw(st.booleans()),
            )
            for method in sorted(methods)
        ]
    return draw(st.permutations(found))


def seconds(of: Point, number: float) -> float:
    """A time in place of a rate, so that less is better."""
    return number if of.unit == "s" else 1 / number


@given(settings())
def test_every_choice_is_that_of_brute_force(given: list[Point]) -> None:
    right = ties = fastest = fastest_right = 0
    wrong: set[str] = set()
    regrets: list[float] = []
    for one in given:
        for other in given:
            if one.setting != other.setting or other.method != DENSE:
                continue
            if one.method == DENSE or one.fitted:
                continue
            gain = seconds(other, other.measured) / seconds(one, one.measured)
            if abs(gain - 1) < TIE:
                ties += 1
                continue
            faster = seconds(one, one.predicted) < seconds(other, other.predicted)
            if faster == (gain > 1):
                right += 1
            else:
                wrong.add(one.name)
    for setting in {one.setting for one in given}:
        group = [one for one in given if one.setting == setting]
        if len(group) < 3:
            continue
        fastest += 1
        best = min(seconds(one, one.measured) for one in group)
        promised = min(seconds(one, one.predicted) for one in group)
        taken = next(one for one in group if seconds(one, one.predicted) == promised)
        regrets.append(seconds(taken, taken.measured) / best - 1)
        fastest_right += regrets[-1] < TIE
    found = decisions(given)
    if not right and not wrong and not fastest:
        assert found is None
        return
    assert found is not None
    assert (found.right, found.ties) == (right, ties)
    assert {one.name for one in found.wrong} == wrong
    assert len(found.wrong) == len(wrong)
    assert (found.fastest, found.fastest_right) == (fastest, fastest_right)
    assert found.regret == pytest.approx(sum(regrets) / len(regrets) if regrets else 0.0)
    assert found.share == (right / (right + len(wrong)) if right or wrong else 1.0)


@given(settings())
def test_a_perfect_prediction_is_never_wrong(given: list[Point]) -> None:
    found = decisions([replace(one, predicted=one.measured) for one in given])
    if found is not None:
        assert found.wrong == ()
        assert found.share == 1.0
        assert found.regret == pytest.approx(0.0)
        assert found.fastest_right == found.fastest


@pytest.mark.parametrize(("measured", "ties"), [(0.99, 1), (1.0, 1), (1.015, 1), (0.97, 0)])
def test_what_measurements_cannot_tell_apart_decides_nothing(measured: float, ties: int) -> None:
    """Whatever is predicted."""
    others = [point("fp16", 0.5, 0.5)]
    for predicted in (0.1, 10.0):
        found = decisions([point(DENSE, 1.0, 1.0), point("topk", measured, predicted), *others])
        assert found is not None
        assert found.ties == ties
        assert found.decided == 2 - ties


def test_of_rates_more_is_better() -> None:
    """The same cluster in seconds and in samples a second: the same verdicts."""
    numbers = {DENSE: (1.0, 1.0), "topk": (0.5, 2.0), "fp16": (2.0, 4.0)}
    times = [point(name, *pair) for name, pair in numbers.items()]
    rates = [
        point(name, 1 / measured, 1 / predicted, unit="samples/s")
        for name, (measured, predicted) in numbers.items()
    ]
    for found in (decisions(times), decisions(rates)):
        assert found is not None
        assert (found.right, [one.method for one in found.wrong]) == (1, ["topk"])
        assert found.regret == pytest.approx(1.0)  # dense takes twice as long as top-k


def test_a_setting_without_dense_has_no_choice_against_it() -> None:
    found = decisions([point(name, 1.0, 1.0) for name in ("topk", "fp16", "qsgd")])
    assert found is not None
    assert (found.decided, found.fastest) == (0, 1)
    assert decisions([point(name, 1.0, 1.0) for name in ("topk", "fp16")]) is None


def test_a_point_of_no_setting_is_no_choice() -> None:
    assert decisions([replace(point("topk", 1.0, 1.0), setting=""), point("", 1.0, 1.0)]) is None


@given(settings())
def test_choices_without_fit_are_those_of_the_unfitted_predictions(given: list[Point]) -> None:
    # once with the fitted values in the place of the unfitted ones, once without any
    same = [replace(point, unfitted=point.predicted) for point in given]
    found, bare = decisions(same), decisions(given)
    if found is not None:
        assert (found.unfitted_right, found.unfitted_decided) == (found.right, found.decided)
    if bare is not None:
        assert (bare.unfitted_right, bare.unfitted_decided) == (0, 0)


@given(settings())
def test_always_giving_the_commoner_answer_is_what_predicting_it_would_be_right_in(
    given: list[Point],
) -> None:
    found = decisions(given)
    if found is not None and found.decided:
        # a prediction by which every method is faster (or slower) than dense
        for_all = [
            [
                replace(p, predicted=1.0 if p.method == DENSE else 2.0 if slower else 0.5)
                if p.less_is_better
                else replace(p, predicted=1.0 if p.method == DENSE else 0.5 if slower else 2.0)
                for p in given
            ]
            for slower in (True, False)
        ]
        rights = [d.right for points in for_all if (d := decisions(points)) is not None]
        assert found.commoner == max(rights)
