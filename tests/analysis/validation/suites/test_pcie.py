"""Boxes on PCIe: are the goodputs those of the other boxes, and the catalogue's those of all?"""

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from statistics import geometric_mean

import pytest

from gcsim.analysis.validation import data_files
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.rows import Row, read_rows, read_suite
from gcsim.scenarios import catalog

NAME = "pcie"
FOLDER = Path(data_files.__file__).parent / "suites" / "pcie"
ROWS = [row for row in read_rows(FOLDER / "rows.csv") if row["series"] != "short vectors"]
LINE = {"3": 15.75, "4": 31.5, "5": 63.0}  # GB/s: 16 lanes of 8, 16 and 32 GT/s, 128b/130b


def rate(row: Row) -> float:
    """Bus bandwidth in GB/s, as nccl-tests define it."""
    ranks = row.number("cluster.devices_per_node")
    return 2 * (ranks - 1) / ranks * row.number("traffic.let.b") / row.number("measured") / 1e9


def way(row: Row) -> str:
    """The boxes of which a figure is the mean."""
    return "PCIe 5, host memory" if row["group"] == "PCIe 5, host memory" else row["series"]


def own(row: Row) -> float:
    """In GB/s through host memory, else a share of the line rate."""
    return rate(row) / (1 if row["series"] == "host memory" else LINE[row["group"][5]])


def mean(rows: list[Row], value: Callable[[Row], float] = own) -> float:
    """Over boxes, of each box's mean."""
    ordered = sorted(rows, key=lambda row: row["_box"])
    boxes = groupby(ordered, key=lambda row: row["_box"])
    return geometric_mean(geometric_mean(map(value, of)) for _, of in boxes)


def test_bounds_hold_over_all_series(report: Report) -> None:
    assert [kept.bound.name for kept in report.bounds if not kept.kept] == []
    assert {one for bound in report.suite.bounds for one in bound.series} == {
        row["series"] for row in ROWS
    }


def test_a_row_has_the_goodput_of_the_other_boxes_of_its_way() -> None:
    for row in ROWS:
        others = [one for one in ROWS if way(one) == way(row) and one["_box"] != row["_box"]]
        line = LINE[row["group"][5]] if row["series"] == "host memory" else 1
        assert row.number("_others") == pytest.approx(mean(others) / line, abs=1e-4), row["name"]


def test_the_catalogue_has_the_mean_of_all_boxes_in_a_range_that_holds_them() -> None:
    for name, group in read_suite(FOLDER)[1].groups.items():
        link = catalog.link(group["fitted"]["cluster.intra_node"]["like"])
        served = [row for row in ROWS if row["group"] == name]
        line = LINE[name[5]] if served[0]["series"] == "host memory" else 1
        middle = mean([row for row in ROWS if way(row) == way(served[0])]) / line
        assert link.efficiency == pytest.approx(middle, rel=0.02), name
        unknown = catalog.link(group["catalogue"]["cluster.intra_node"], "nccl")
        for one in (link, unknown):
            assert one.efficiency_range is not None
            low, high = (float(end * one.bandwidth) / 1e9 for end in one.efficiency_range)
            assert all(low <= rate(row) <= high for row in served), (one.name, name)


@pytest.mark.parametrize("number", ["4", "5"])
def test_where_the_layout_is_unknown_the_mean_of_all_boxes_of_a_bus_holds(number: str) -> None:
    link = catalog.link(f"pcie{number}_x16", "nccl")
    served = [row for row in ROWS if row["group"][5] == number]
    assert float(link.rate) / 1e9 == pytest.approx(mean(served, rate), rel=0.02)


def test_the_page_says_how_many_rows_lie_in_what_the_other_boxes_span() -> None:
    found: dict[str, list[bool]] = {}
    for row in ROWS:
        others = [own(one) for one in ROWS if way(one) == way(row) and one["_box"] != row["_box"]]
        held = min(others) / 1.25 <= own(row) <= max(others) * 1.25
        found.setdefault(row["series"], []).append(held)
    said = " ".join((FOLDER / "page.md").read_text().split()).replace("Of one", "of one")
    for series, each in found.items():
        assert f"of {series} {sum(each)}" in said
        assert f" {sum(each)} of {len(each)}" in said
