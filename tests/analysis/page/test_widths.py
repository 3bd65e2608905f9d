"""Does a report of each kind fit a phone, a laptop and a screen, no text upon another?"""

import html
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gcsim.analysis.page.run import run_page
from gcsim.analysis.page.sweep import sweep_page
from gcsim.analysis.trained.write import training_page
from gcsim.scenarios.result import Measure, Result
from gcsim.scenarios.sweeps.result import SweepPoint, SweepResult
from gcsim.scenarios.trained.result import TrainingResult
from tests.analysis.page.test_page import (
    COMMAND,
    IN_A_BROWSER,
    Page,
    drawn_result,
    in_a_browser,
    trained,
)

RATES = ("100 Mbit/s", "1 Gbit/s", "2.5 Gbit/s", "10 Gbit/s")


def run_of_twelve(result: Result) -> str:
    """Twelve methods at six sizes, one with a long name, which leaves the bars little room."""
    rows = tuple(
        replace(
            row,
            speedup_low=0.8 * speedup,
            speedup_high=1.25 * speedup,
            iteration_low_s=0.8 * row.iteration_s,
            iteration_high_s=1.25 * row.iteration_s,
            label="gradient sampling, Bayes prior" if row.compressor == "qsgd" else row.label,
        )
        for row in result.rows
        if (speedup := row.speedup_vs_dense)
    )
    return run_page(replace(result, rows=rows), COMMAND)


def sweep_of(result: Result, **grid: tuple[Any, ...]) -> SweepResult:
    """The same result at every point."""
    keys = {key.replace("__", "."): values for key, values in grid.items()}
    every = itertools.product(*keys.values())
    shown = drawn_result(result)
    points = (SweepPoint(values=dict(zip(keys, one, strict=True)), result=shown) for one in every)
    return SweepResult(grid=keys, versions={"gcsim": "1"}, points=tuple(points))


def sweep_of_twelve(result: Result) -> str:
    """A sweep whose keys have long names."""
    swept = sweep_of(result, cluster__nodes=(2, 4, 8), cluster__network__bandwidth=RATES)
    return sweep_page(swept, COMMAND)


def sweep_of_mappings(result: Result) -> str:
    """A sweep over values that are long."""
    slow = {"like": "10gbe", "latency": "220 us", "efficiency": 0.93}
    methods = tuple({"kind": "topk", "ratio": ratio, "momentum": 0.9} for ratio in (0.1, 0.01))
    swept = sweep_of(result, cluster__network=("1gbe", slow), compressors__2=methods)
    return sweep_page(swept, COMMAND)


def sweep_of_hundreds(result: Result) -> str:
    """A sweep of more points than labels have room."""
    rows = tuple(row for row in result.rows if row.nodes == 32)
    swept = sweep_of(
        replace(result, rows=rows), cluster__nodes=tuple(range(2, 77)), cluster__network=RATES
    )
    return sweep_page(swept, COMMAND)


def training_of_ten(measure: Measure) -> TrainingResult:
    """A training with ten methods, half of which miss the target."""
    labels = ["none", *(f"a method, number {n}" for n in range(9))]
    result = trained(*labels)
    rows = [
        row
        if number < 5
        else replace(row, steps_to_target=(None, None), speedup_to_target=None, too_short="")
        for number, row in enumerate(result.rows)
    ]
    return replace(
        result, rows=tuple(rows), measure=measure,
        target="loss 1.5" if measure == "loss" else "accuracy 0.9",
    )  # fmt: skip


KINDS: dict[str, Callable[[Result], str]] = {
    "run": run_of_twelve,
    "sweep": sweep_of_twelve,
    "mappings": sweep_of_mappings,
    "hundreds": sweep_of_hundreds,
    "accuracy": lambda _: training_page(training_of_ten("accuracy"), COMMAND),
    "loss": lambda _: training_page(training_of_ten("loss"), COMMAND),
}


def test_a_point_has_a_short_label_and_its_whole_name(result: Result) -> None:
    (chart,) = Page(sweep_of_twelve(result)).charts
    axis = chart["layout"]["xaxis"]
    assert axis["title"]["text"] == "nodes, bandwidth"
    assert [axis["labelalias"][str(place)] for place in (0, 11)] == [
        "2, 100 Mbit/s",
        "8, 10 Gbit/s",
    ]
    for trace in chart["data"]:
        name = "cluster.nodes=8, cluster.network.bandwidth=10 Gbit/s"
        assert (trace["x"][-1], trace["customdata"][-1]) == ("11", name)


def test_few_points_have_ranges_and_many_are_told_of_maps(result: Result) -> None:
    few, many = Page(sweep_of_twelve(result)), Page(sweep_of_hundreds(result))
    for page, ranged in ((few, True), (many, False)):
        (chart,) = page.charts
        assert all(("error_y" in trace) == ranged for trace in chart["data"])
        assert any(text.startswith(" draws maps") for text in page.texts) != ranged


def test_every_row_of_a_sweep_has_its_own_number_of_nodes(result: Result) -> None:
    """A point of several sizes has a row for each, whether the sizes are in the grid or not."""
    sizes = [row.nodes for row in result.rows]
    assert len(set(sizes)) > 1
    grids: dict[str, Any] = {"cluster.network": ["1gbe", "10gbe"], "cluster.nodes": [sizes, 32]}
    for key, values in grids.items():
        points = tuple(SweepPoint(values={key: value}, result=result) for value in values)
        swept = SweepResult(grid={key: values}, versions={"gcsim": "1"}, points=points)
        heading, *rows = Page(sweep_page(swept, COMMAND)).tables[1]
        column = [text for text, _ in heading].index("nodes")
        assert [int(row[column][0]) for row in rows] == sizes * 2


def test_points_of_alike_labels_stand_apart(result: Result) -> None:
    """Values that differ in what a label has no room for."""
    (chart,) = Page(sweep_of_mappings(result)).charts
    labels = chart["layout"]["xaxis"]["labelalias"]
    assert len(labels) > len(set(labels.values()))
    assert all(trace["x"] == ["0", "1", "2", "3"] for trace in chart["data"])


def test_a_column_of_numbers_is_sorted_by_numbers_and_ranges(result: Result) -> None:
    columns = list(zip(*Page(sweep_of_twelve(result)).tables[0], strict=True))
    by_name = {column[0][0]: column[1:] for column in columns}
    assert {order for _, order in by_name["nodes"]} == {"2.0", "4.0", "8.0"}
    low = {text.split("-")[0] for text, _ in by_name["range [x]"]}
    assert {float(order or "nan") for _, order in by_name["range [x]"]} == set(map(float, low))
    assert {order for _, order in by_name["bandwidth"]} == {None}


SEEN = """
<!doctype html><meta charset="utf-8"><body style="margin: 0"><script>
addEventListener("load", () => setTimeout(() => {
  const frame = document.querySelector("iframe"), page = frame.contentDocument;
  const boxes = [...page.querySelectorAll("div.chart svg text")].filter(one => one.textContent)
    .map(one => ({text: one.textContent, box: one.getBoundingClientRect(),
      chart: one.closest("div.chart")}));
  const over = (a, b) => a.chart === b.chart && a.box.left < b.box.right - 1 &&
    b.box.left < a.box.right - 1 && a.box.top < b.box.bottom - 2 && b.box.top < a.box.bottom - 2;
  const wide = () => [...page.querySelectorAll("div.wide")].filter(
    one => one.scrollWidth > one.clientWidth);
  const found = {
    page: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    tables: wide().map(one => one.scrollWidth - one.clientWidth),
    cut: boxes.filter(one => one.box.width && (one.box.left < -1 ||
      one.box.right > frame.clientWidth + 1)).map(one => one.text),
    over: boxes.flatMap((a, n) => boxes.slice(n + 1).filter(b => over(a, b))
      .map(b => [a.text, b.text])),
  };
  for (const table of page.querySelectorAll("table.rows")) table.classList.add("all");
  found.scrolled = wide().length;
  found.unmarked = wide().filter(
    one => getComputedStyle(one).backgroundAttachment != "local, scroll").length;
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
}, 3000));
</script><iframe style="border: 0; width: WIDTHpx; height: 3000px" srcdoc="PAGE"></iframe>
"""


@pytest.mark.long
@IN_A_BROWSER
@pytest.mark.parametrize("width", [390, 1280, 1440])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_cut_and_no_text_lies_on_another(
    result: Result, tmp_path: Path, kind: str, width: int
) -> None:
    """As bounding boxes in an iframe of this width. Tables fit until all columns are asked for; a
    table with columns out of sight has a shadow."""
    text = html.escape(KINDS[kind](result))
    page = SEEN.replace("WIDTH", str(width)).replace("PAGE", text)
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    said = re.search(r'<pre id="found">(.*?)</pre>', in_a_browser(tmp_path).stdout)
    assert said is not None
    found = json.loads(html.unescape(said.group(1)))
    assert found["page"] <= 0
    assert found["tables"] == [] or (kind, width) == ("mappings", 390)
    assert found["cut"] == []
    assert found["over"] == []
    assert found["scrolled"] or width > 390
    assert found["unmarked"] == 0
