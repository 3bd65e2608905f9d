"""Maps of a sweep: is each cell that of its point, whatever the keys are and whatever failed?

Times are chosen: `fast` takes 0.1 s where the rate is below a border, dense training 0.2 s always,
so the winner and its speedup of every cell are known beforehand.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from gcsim.analysis.plots.panels import PANELS, numbers_of, picture_of
from gcsim.analysis.plots.style import BLACK
from gcsim.analysis.plots.sweep import gain_figure, winner_figure
from gcsim.analysis.plots.winners import colours_of
from gcsim.analysis.report.numbers import fixed
from gcsim.errors import Problem
from gcsim.scenarios.result import Result
from gcsim.scenarios.sweeps.result import SweepPoint, SweepResult
from gcsim.scenarios.sweeps.store import HEADER, JSON, POINTS
from gcsim.scenarios.sweeps.tasks import Failure, Unfit
from tests.analysis.drawn import between, drawn, plain_row
from tests.command import gcsim

Values = Mapping[str, Any]


def swept_over(
    grid: Mapping[str, Sequence[Any]],
    seconds: Callable[[Values], float],
    *,
    unsure: Callable[[Values], bool] = lambda values: False,
    failed: Callable[[Values], bool] = lambda values: False,
    unfit: Callable[[Values], bool] = lambda values: False,
) -> SweepResult:
    """A safe method `fast` takes so many seconds at a point, dense training 0.2 s."""

    def point(values: dict[str, Any], number: int) -> SweepPoint:
        if failed(values):
            return SweepPoint(values=values, failure=Failure(problems=(Problem(message="no"),)))
        if unfit(values):
            least = Unfit(label="dense", device_memory_low_bytes=2e9, device_memory_high_bytes=3e9)
            return SweepPoint(values=values, failure=Failure(problems=(), unfit=least))
        own = seconds(values)
        rows = [plain_row("dense", 0.2), plain_row("fast", own, nmse=0.0, cosine_similarity=1.0)]
        rows[0] = replace(rows[0], compressor="none", nmse=0.0)
        wide = (own / 3, own * 5 / 3) if unsure(values) else (own, own)
        filled = drawn(rows, {"dense": between(0.2, 0.2), "fast": between(*wide)})
        result = Result(scenario={}, provenance={}, rows=filled, wall={})
        return SweepPoint(values=values, result=result, file=f"{POINTS}/{number}.json")

    every = itertools.product(*grid.values())
    points = [point(dict(zip(grid, v, strict=True)), n) for n, v in enumerate(every)]
    whole = {key: tuple(values) for key, values in grid.items()}
    return SweepResult(grid=whole, versions={}, points=tuple(points))


RATES: dict[str, Sequence[Any]] = {
    "cluster.network.bandwidth": ["10 Gbit/s", "1 Gbit/s", "100 Mbit/s"]
}
GRID: dict[str, Sequence[Any]] = {"cluster.nodes": [2, 4, 8, 16], **RATES}


def pays(values: Values) -> float:
    """On a slow network."""
    return 0.4 if values["cluster.network.bandwidth"] == "10 Gbit/s" else 0.1


def texts(figure: Any) -> list[str]:
    found = [text.get_text() for axes in figure.axes for text in axes.texts]
    return [text for text in found if text]


def test_winners_and_speedups_stand_at_their_values() -> None:
    result = swept_over(GRID, pays, unsure=lambda v: v["cluster.nodes"] == 16)
    axes = winner_figure(result).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "4", "8", "16"]
    ascending = ["100 Mbit/s", "1 Gbit/s", "10 Gbit/s"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ascending
    # number 0 is dense training, 1 is fast; by row from the lowest rate
    assert np.array(axes.collections[0].get_array()).tolist() == [[1] * 4, [1] * 4, [0] * 4]
    # between a third and five thirds of 0.1 s it surely beats 0.2 s; of 0.4 s it may
    hatched = [patch.get_xy() for patch in axes.patches if isinstance(patch, Rectangle)]
    assert hatched == [(2.5, 1.5)]
    gains = gain_figure(result).axes[0]
    assert np.array(gains.collections[0].get_array()).tolist() == [[2.0] * 4, [2.0] * 4, [1.0] * 4]
    shown = {(t.get_position(), t.get_text()) for t in gains.texts if t.get_fontweight() == "bold"}
    assert shown == {((x, y), fixed(2.0 if y < 2 else 1.0, 2)) for x in range(4) for y in range(3)}


def test_a_method_that_beats_dense_training_is_sure_beside_one_as_fast() -> None:
    result = swept_over(GRID, pays)
    points = []
    for point in result.points:
        assert point.result is not None
        dense, fast = point.result.rows
        rows = (dense, fast, replace(fast, label="as fast"))
        points.append(replace(point, result=replace(point.result, rows=rows)))
    axes = winner_figure(replace(result, points=tuple(points))).axes[0]
    assert not [patch for patch in axes.patches if isinstance(patch, Rectangle)]


@pytest.mark.parametrize(
    ("why", "shown", "told"),
    [("failed", "failed", "failed"), ("unfit", "does not\nfit", "does not fit")],
)
def test_points_without_a_result_are_empty_and_told(why: str, shown: str, told: str) -> None:
    lost = {"cluster.nodes": 4, "cluster.network.bandwidth": "1 Gbit/s"}
    chosen: dict[str, Any] = {why: lambda values: values == lost}
    result = swept_over(GRID, pays, **chosen)
    for figure in (winner_figure(result), gain_figure(result)):
        cells: Any = np.ma.asarray(figure.axes[0].collections[0].get_array())
        mask = np.ma.getmaskarray(np.ma.masked_invalid(cells))
        assert np.argwhere(mask).tolist() == [[1, 1]]
        assert shown in texts(figure)
        notes = " ".join(" ".join(text.get_text() for text in figure.texts).split())
        assert f"1 point of 12 {told}: left empty" in notes


def test_one_key_is_drawn_as_lines_with_a_ring_around_the_method_to_use() -> None:
    result = swept_over(RATES, pays, failed=lambda v: "1 Gbit/s" in v.values())
    axes = gain_figure(result).axes[0]
    lines = {str(line.get_label()): np.array(line.get_ydata(), dtype=float) for line in axes.lines}
    assert lines["fast"] == pytest.approx([2.0, np.nan, 0.5], nan_ok=True)
    assert lines["dense"] == pytest.approx([1.0, np.nan, 1.0], nan_ok=True)
    assert lines["use"].tolist() == [2.0, 1.0]
    assert axes.lines[0].get_color() == BLACK
    assert "failed " in texts(axes.figure)
    # 100 Mbit/s, 1 Gbit/s, 10 Gbit/s: equal steps of the logarithm
    steps = np.diff(axes.xaxis.get_majorticklocs())
    assert steps[0] == pytest.approx(steps[1])


def test_other_keys_have_panels_and_what_is_too_much_stays_and_is_told() -> None:
    a = ["x", {"like": "y"}, [1, 2]]
    grid: dict[str, Sequence[Any]] = {"seed": range(5), "a": a, "b": [True, False], **GRID}
    shown = picture_of(swept_over(grid, pays))
    assert [key.name for key in (shown.x, shown.y)] == ["seed", "cluster.nodes"]  # type: ignore[union-attr]
    assert [key.name for key in shown.panel_keys] == ["a", "cluster.network.bandwidth"]
    assert [key.name for key in shown.fixed] == ["b"]
    assert len(shown.panels()) == 9 <= PANELS
    figure = winner_figure(shown.result)
    assert len(figure.axes) == 9
    assert figure.axes[3].get_title("left") == "a: {like: y}\nbandwidth: 100 Mbit/s"
    assert "b = true, the first of 2 values" in " ".join(t.get_text() for t in figure.texts)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([8, 0.5], (8.0, 0.5)),
        (["10 Gbit/s", "1 GB/s"], (1.25e9, 1e9)),
        (["1 ms", "10 us"], (1e-3, 1e-5)),
        (["10 Gbit/s", "10gbe"], None),
        ([1, True], None),
    ],
)
def test_numbers_and_quantities_have_an_order(values: list[Any], wanted: object) -> None:
    assert numbers_of(values) == wanted


def test_eighteen_methods_have_a_colour_each() -> None:
    assert len(set(colours_of(range(19), dense={3}).values())) == 19


# --- the command ---------------------------------------------------------------------------------


def stored(result: SweepResult, folder: Path) -> None:
    (folder / POINTS).mkdir(parents=True)
    (folder / HEADER).write_text("{}")
    (folder / JSON).write_text(result.to_json())
    for point in result.points:
        if point.result is not None:
            (folder / point.file).write_text(point.result.to_json())


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"),
                                              ("pdf", b"%PDF")])  # fmt: skip
def test_a_stored_sweep_is_drawn_the_same_each_time(
    tmp_path: Path, form: str, begins: bytes
) -> None:
    stored(swept_over(GRID, pays, failed=lambda v: v["cluster.nodes"] == 2), tmp_path / "swept")
    pictures = []
    for folder in ("one", "two"):
        done = gcsim("plot", "swept", "--format", form, "-o", folder, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "3 points of the sweep failed" in done.stderr
        paths = sorted((tmp_path / folder).iterdir())
        assert [path.name for path in paths] == [f"speedup.{form}", f"winner.{form}"]
        pictures.append([path.read_bytes() for path in paths])
    assert pictures[0] == pictures[1]
    assert all(picture.startswith(begins) for picture in pictures[0])


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda folder: (folder / JSON).unlink(), "repeat the command to continue"),
        (
            lambda folder: (folder / POINTS / "1.json").unlink(),
            "points/1.json: error: cannot be read",
        ),
        (
            lambda folder: (folder / JSON).write_text(
                (folder / JSON).read_text().replace('"cluster.nodes": 4', '"cluster.nodes": 5')
            ),
            "not those of its grid",
        ),
        (
            lambda folder: (folder / JSON).write_text('{"schema": 3, "grid": 3}'),
            "grid = 3: must be",
        ),
    ],
)
def test_a_broken_sweep_is_refused(
    tmp_path: Path, break_it: Callable[[Path], object], said: str
) -> None:
    stored(swept_over(GRID, pays), tmp_path / "swept")
    break_it(tmp_path / "swept")
    done = gcsim("plot", "swept", "-o", "pictures", folder=tmp_path, COLUMNS="200")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert not (tmp_path / "pictures").exists()


def test_of_a_sweep_without_results_nothing_is_drawn(tmp_path: Path) -> None:
    stored(swept_over(GRID, pays, failed=lambda values: True), tmp_path / "swept")
    done = gcsim("plot", "swept", folder=tmp_path)
    assert done.returncode == 2
    assert "no point of this sweep has a result" in done.stderr


@pytest.mark.parametrize("nodes", [[2, 4], [2, 4, 8, 16]])
def test_the_legend_is_next_to_the_cells_of_a_map_of_any_size(nodes: list[int]) -> None:
    grid: dict[str, Sequence[Any]] = {"cluster.nodes": nodes, "cluster.network": ["1gbe", "10gbe"]}
    figure = winner_figure(swept_over(grid, lambda _: 0.1))
    figure.canvas.draw()
    (legend,) = figure.legends
    right = figure.axes[0].get_window_extent().x1
    assert 0 < legend.get_window_extent().x0 - right < 0.5 * figure.dpi
