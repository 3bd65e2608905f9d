"""A validation on a terminal: what a reader must be able to see."""

from dataclasses import replace

import pytest
from rich.console import Console

from gcsim.analysis.validation.report import table, write
from tests.analysis.validation.reports import report


def terminal_parts(width: int, *, verbose: bool = False) -> list[str]:
    console = Console(width=width, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(*write.terminal_parts([report()], width, verbose=verbose))
    return [line.rstrip() for line in capture.get().split("\n")]


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, terminal_parts(width, verbose=True))) <= width


def test_errors_are_those_of_the_points_that_served_no_fit() -> None:
    # |1|, |2|, |3|, |10| %: median 2.5 %; 90th percentile 3 + 0.7 * 7 = 7.9 %; without fit 50 %
    row = next(line for line in terminal_parts(100) if line.startswith("ring "))
    assert row.split() == ["ring", "4", "2.5", "7.9", "+1.5", "50.0", "50.0"]


def test_the_worst_point_stands_there_by_name_with_both_values() -> None:
    # 1.2 s for 0.9 s is further off (33 %) than 1.1 s for 1 s
    text = " ".join(" ".join(terminal_parts(100)).split())
    worst = "top-k 6: +33.3 % (1.20 s for 900 ms); ring 4: +10.0 % (1.10 s for 1.00 s)"
    assert f"Worst: {worst}" in text


def test_verbose_lists_each_measurement_beside_its_prediction() -> None:
    # ring 0 served a fit; ring 3 was predicted 3 % too short
    rows = [line.split() for line in terminal_parts(80, verbose=True)]
    assert ["ring", "0", "1.00", "s", "1.50", "s", "fit"] in rows
    assert ["ring", "3", "1.00", "s", "970", "ms", "-3.0"] in rows
    assert not [line for line in terminal_parts(80) if line.startswith("ring 3 ")]


def test_a_broken_bound_is_named_so_and_a_kept_one_too() -> None:
    found = report(limit=0.02)
    of_rings = "median 2.5 % of 4 points (catalogue alone: 50.0 %)"
    assert [table.bound_cells(kept) for kept in found.bounds] == [
        ("rings", of_rings, "at most 2 %", "BROKEN"),
        ("right choices", "0.0 % of 1 choice right", "at least 90 %", "BROKEN"),
        ("arithmetic", "1 of 1", "all", "yes"),
    ]
    assert table.bound_cells(report(limit=0.03).bounds[0])[-1] == "yes"


def test_a_target_that_is_missed_is_said() -> None:
    kept = report(limit=0.03).bounds[0]
    for target, said in ((0.02, "; target of 2 % missed"), (0.03, ""), (0.4, "")):
        with_target = replace(kept, bound=replace(kept.bound, target=target))
        assert table.bound_cells(with_target)[2] == table.bound_cells(kept)[2] + said


def test_wrong_choices_exclusions_and_papers_mistakes_are_shown() -> None:
    text = " ".join(" ".join(terminal_parts(100)).split())
    assert "0 of 1 right (faster than dense, yes or no); by the catalogue alone 0 of 1; " in text
    assert "; always saying yes: 1; wrong: top-k 6" in text
    assert "Fitted: 1 factor, and 1 figure given, on 1 point" in text
    assert "Not compared: 12 rows: they contradict themselves" in text
    assert "10.0 39.0 s wrong" in text
    assert "244 MB at 50 Mbit/s: megabytes were counted as megabits" in text


def test_the_summary_counts_choices_and_bounds() -> None:
    # all six judged: 1, 2, 3, 10, 0, 33.3 %: median 2.5 %
    row = next(line for line in terminal_parts(100) if line.startswith("example "))
    assert row.split()[:3] == ["example", "6", "2.5"]
    assert row.split()[7:] == ["0/1", "2/3"]


def test_percentages_keep_a_digit_and_their_sign() -> None:
    assert [table.percent(share) for share in (0.0, 0.004, 0.072, 0.9994, 1.23)] == [
        "0.0", "0.4", "7.2", "99.9", "123",
    ]  # fmt: skip
    assert [table.signed(share) for share in (0.012, -0.004)] == ["+1.2", "-0.4"]
