"""When is an order said to have come out? Small cases, by hand."""

import itertools

import pytest
from scipy.stats import kendalltau, t

from gcsim.scenarios.papers import judge


def test_equal_printed_values_are_one_group_that_is_not_compared() -> None:
    assert judge.ranked({"a": 1.0, "b": 3.0, "c": 1.0}) == [["b"], ["a", "c"]]
    pairs = judge.pairs_of(
        {"a": [1.0], "b": [3.0], "c": [9.0]}, judge.ranked({"a": 1.0, "b": 3.0, "c": 1.0})
    )
    assert pairs.kept == (("b", "a"),)
    assert pairs.reversed == (("b", "c"),)


@pytest.mark.parametrize("found", list(itertools.permutations((1.0, 2.0, 3.0, 4.0))))
def test_without_ties_tau_is_kendalls(found: tuple[float, ...]) -> None:
    # scipy's tau of the two rankings, which has no groups
    names = "abcd"
    here = {name: [value] for name, value in zip(names, found, strict=True)}
    expected = [[name] for name in names]
    assert judge.pairs_of(here, expected).tau == pytest.approx(
        kendalltau((4, 3, 2, 1), found).statistic
    )


def apart(first: list[float], second: list[float]) -> int:
    return judge.significant_signs([(first, second)])[0]


def test_seeds_tell_two_apart_where_students_t_does() -> None:
    # differences 1, 2, 3: mean 2, standard error 1/sqrt(3); t for 90 % with 2 degrees is 2.92
    limit = float(t.ppf(0.95, 2)) / 3**0.5
    first = [1.0, 2.0, 3.0]
    assert limit < 2.0
    assert apart(first, [0.0, 0.0, 0.0]) == 1
    assert apart([0.0, 0.0, 0.0], first) == -1
    just_open = [2.0 - limit * 0.999] * 3
    just_told = [2.0 - limit * 1.001] * 3
    assert apart(first, just_open) == 0
    assert apart(first, just_told) == 1


@pytest.mark.parametrize("count", [2, 5, 40])
def test_of_many_pairs_each_needs_more(count: int) -> None:
    # Holm: the clearest of m pairs has to pass at 10 % / m (both sides), the others are ties
    first = [1.0, 2.0, 3.0]
    needed = float(t.ppf(1 - 0.05 / count, 2)) / 3**0.5
    ties = [([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])] * (count - 1)
    for factor, told in ((1.001, 0), (0.999, 1)):
        shifted = [v - 2.0 + needed / factor for v in first]  # its mean is needed / factor
        assert judge.significant_signs([*ties, (shifted, [0.0] * 3)]) == [0] * (count - 1) + [told]


def test_a_pair_told_apart_leaves_its_share_to_the_next() -> None:
    # Holm's second of two has the whole 10 %: 2.92 standard errors, not the 4.30 of 5 %
    almost = [v - 2.0 + 3.0 / 3**0.5 for v in (1.0, 2.0, 3.0)]  # t = 3.0
    clear = [9.0, 9.1, 9.2]
    assert judge.significant_signs([(almost, [0.0] * 3), (clear, [0.0] * 3)]) == [1, 1]
    assert judge.significant_signs([(almost, [0.0] * 3)] * 2) == [0, 0]


def test_the_same_difference_with_every_seed_is_told_apart_and_none_is_not() -> None:
    assert apart([1.0, 5.0], [0.5, 4.5]) == 1
    assert apart([1.0, 5.0], [1.0, 5.0]) == 0


def test_without_seeds_a_hundredth_is_a_tie() -> None:
    assert apart([100.0], [99.1]) == 0
    assert apart([100.0], [98.9]) == 1


def test_half_of_the_pairs_is_not_enough() -> None:
    here = {"a": [2.0], "b": [1.0], "c": [2.0]}
    assert judge.order("", "", here, (("a",), ("b", "c"))).agrees == "open"  # one of two


@pytest.mark.parametrize(
    ("values", "agrees"),
    [
        ((3.0, 2.0, 1.0), "agrees"),
        ((3.0, 1.0, 2.0), "in part"),  # 2 kept, 1 reversed
        ((1.0, 3.0, 2.0), "disagrees"),  # 1 kept, 2 reversed
        ((1.0, 1.0, 1.0), "open"),
        ((2.0, 1.0, 1.0), "agrees"),  # 2 kept, 1 open
    ],
)
def test_an_order_is_judged_by_its_pairs(values: tuple[float, ...], agrees: str) -> None:
    here = {name: [value] for name, value in zip("abc", values, strict=True)}
    found = judge.order("c", "Table 1", here, (("a",), ("b",), ("c",)))
    assert found.agrees == agrees
    assert found.printed == "a > b > c"


def test_where_less_is_better_the_order_turns_round() -> None:
    here = {"a": [1.0], "b": [2.0]}
    assert judge.order("", "", here, (("a",), ("b",)), least=True).agrees == "agrees"
    assert judge.order("", "", here, (("a",), ("b",)), least=True).printed == "a < b"
    assert judge.order("", "", here, (("a",), ("b",))).agrees == "disagrees"


def test_reversed_pairs_are_named() -> None:
    found = judge.order("", "", {"a": [1.0], "b": [2.0]}, (("a",), ("b",)))
    assert found.here == "0 of 1 pairs kept, 1 reversed (b before a)"


def test_growing_and_falling_go_along_the_places() -> None:
    along = {"1": [1.0], "2": [2.0], "3": [4.0]}
    assert judge.monotone("", "", along).agrees == "agrees"
    assert judge.monotone("", "", along, falling=True).agrees == "disagrees"
    assert judge.monotone("", "", {"1": [4.0], "2": [2.0]}, falling=True).agrees == "agrees"


def test_a_ratio_agrees_within_its_factor_both_ways() -> None:
    assert judge.near("", "", 4.0, 8.0, 2).agrees == "agrees"
    assert judge.near("", "", 16.0, 8.0, 2).agrees == "agrees"
    assert judge.near("", "", 3.9, 8.0, 2).agrees == "disagrees"
    assert judge.near("", "", 16.1, 8.0, 2).agrees == "disagrees"


def test_a_limit_holds_for_all_for_most_or_not() -> None:
    assert judge.at_most("", "", {"a": 1.0, "b": -3.0}, 1.0, "points").agrees == "agrees"
    assert judge.at_most("", "", {"a": 2.0, "b": 0.0, "c": 0.0}, 1.0, "points").agrees == "in part"
    assert judge.at_most("", "", {"a": 2.0, "b": 0.0}, 1.0, "points").agrees == "disagrees"


@pytest.mark.parametrize(
    ("own", "said", "agrees"),
    [
        ((3.0, 1.0, 1.0), "ahead from 8 on", "agrees"),
        ((1.0, 1.0, 1.0), "ahead everywhere", "agrees"),
        ((3.0, 3.0, 3.0), "behind everywhere", "disagrees"),
        ((1.0, 1.0, 3.0), "behind at 16", "disagrees"),
        ((1.0, 3.0, 1.0), "ahead from 16 on", "agrees"),
    ],
)
def test_a_line_overtakes_another(own: tuple[float, ...], said: str, agrees: str) -> None:
    places = ("4", "8", "16")
    found = judge.overtakes("", "", dict(zip(places, own, strict=True)), dict.fromkeys(places, 2.0))
    assert (found.here, found.agrees) == (said, agrees)


def test_methods_with_too_few_steps_are_left_out_and_named() -> None:
    values = {"a": 2.0, "b": 0.0}
    found = judge.at_most("", "", values, 1.0, "points", too_short=["a", "c"])
    assert (found.agrees, found.here) == ("agrees", "a 2, b 0; too few steps for a")
    assert judge.at_most("", "", values, 1.0, "points", too_short=["a", "b"]).agrees == "open"

    seeds = {"a": [3.0], "b": [2.0], "c": [1.0], "d": [9.0]}
    groups = [["a"], ["b"], ["d"], ["c"]]
    ordered = judge.order("", "", seeds, groups, too_short=["d"])
    assert (ordered.agrees, ordered.here) == (
        "agrees", "3 of 3 pairs kept; tau 1.00; too few steps for d",
    )  # fmt: skip
    assert judge.order("", "", seeds, groups, too_short=["a", "b", "d"]).agrees == "open"
