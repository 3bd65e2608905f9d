"""The figure of a run with deaths shows what `simulator/faults.py` found, for each method.

Iterations of 10 s and one sample, a run of 1000 s: node 3 dies at 205 s and is back at 500 s, a
restart costs 30 s (the numbers of `stretches` follow by hand from the rules of
`simulator/faults.py`).
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from gcsim.analysis.plots.faults import faults_figure, line
from gcsim.analysis.write import FIGURES, REPORT, draw_figures, write_results
from gcsim.errors import InternalError
from gcsim.scenarios.result import FaultyRuns, Outage, Progress, Result

TOGETHER = ((0.0, 200.0, 20), (235.0, 505.0, 27), (535.0, 995.0, 46))
SERVED = ((0.0, 990.0, 99),)


@pytest.fixture
def dying(result: Result) -> Result:
    rows = tuple(
        replace(row, iteration_s=10.0, throughput_samples_per_s=0.1)
        for row in result.rows
        if row.compressor in {"none", "topk"}
    )
    faulty = FaultyRuns(
        horizon_s=1000.0,
        nodes=32,
        outages=(Outage(node=3, start_s=205.0, end_s=500.0),
                 Outage(node=7, start_s=999.0, end_s=None)),
        progress=(Progress(label="dense", stretches=TOGETHER),
                  Progress(label="Top-k 1%", stretches=SERVED)),
    )  # fmt: skip
    return replace(result, rows=rows, faulty=faulty)


def test_a_line_is_flat_where_nothing_counts_and_ends_with_all_samples() -> None:
    times, done = line(Progress(label="dense", stretches=TOGETHER), 1000.0)
    assert np.interp([100, 200, 220, 235, 505, 520, 535, 1000], times, done).tolist() == [
        10, 20, 20, 20, 47, 47, 47, 93,
    ]  # fmt: skip
    assert (np.diff(times) >= 0).all()


def corners(drawn: Line2D) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.asarray(drawn.get_xdata(), float), np.asarray(drawn.get_ydata(), float)


def test_each_method_has_its_line_and_its_share_of_a_run_without_deaths(dying: Result) -> None:
    above, shares, _ = faults_figure(dying).axes
    ends = {str(drawn.get_label()): corners(drawn)[1][-1] for drawn in above.get_lines()}
    assert (ends["dense"], ends["Top-k 1%"]) == (93, 99)
    dense, topk = [corners(one) for one in shares.get_lines() if len(corners(one)[0]) > 2]
    for drawn, stretches in ((dense, TOGETHER), (topk, SERVED)):
        times, done = line(Progress(label="", stretches=stretches), 1000.0)
        found = np.interp(times[2:], *drawn)
        assert found == pytest.approx(100 * done[2:] / (times[2:] / 10), abs=0.5)
    texts = [text.get_text() for text in above.texts]
    assert texts == ["93 (93 %)  dense", "99 (99 %)  Top-k 1%"]


def test_deaths_and_returns_are_marked_on_all_panels_and_nodes_that_die_have_bars(
    dying: Result,
) -> None:
    *lines, outages = axes = faults_figure(dying).axes
    for each in axes:
        drawn = [corners(one)[0].tolist() for one in each.get_lines()]
        marks = [times[0] for times in drawn if len(times) == 2 and times[0] == times[1]]
        assert sorted(marks) == [205.0, 500.0, 999.0]
    bars = [
        bar.get_bbox().intervalx.tolist() for bar in outages.patches if hasattr(bar, "get_bbox")
    ]
    assert bars == [[205.0, 500.0], [999.0, 1000.0]]
    assert [text.get_text() for text in outages.get_yticklabels()] == ["node 3", "node 7"]
    assert all(each.get_xlim() == (0, 1000.0) for each in lines)


@pytest.mark.parametrize(
    ("horizon", "unit"), [(90.0, "time [s]"), (600.0, "time [min]"), (86400.0, "time [h]")]
)
def test_time_is_in_the_unit_that_suits_the_run(dying: Result, horizon: float, unit: str) -> None:
    assert dying.faulty is not None
    shorter = replace(dying.faulty, horizon_s=horizon, outages=())
    *_, below = faults_figure(replace(dying, faulty=shorter)).axes
    assert below.get_xlabel() == unit
    assert "no node dies" in below.texts[0].get_text()


def test_samples_are_told_with_three_digits(dying: Result) -> None:
    assert dying.faulty is not None
    many = replace(dying.faulty, progress=(Progress(label="dense", stretches=((0, 10, 1234567),)),))
    above, *_ = faults_figure(replace(dying, faulty=many)).axes
    assert above.texts[0].get_text().startswith("1.23 M (")


def test_the_file_is_written_with_faults_only_and_does_not_stay(
    dying: Result, tmp_path: Path
) -> None:
    write_results(dying, tmp_path)
    assert {path.name for path in draw_figures(dying, tmp_path)} == {REPORT, *FIGURES}
    first = (tmp_path / "faults.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    draw_figures(dying, tmp_path)
    assert (tmp_path / "faults.png").read_bytes() == first
    write_results(replace(dying, faulty=None), tmp_path)
    draw_figures(replace(dying, faulty=None), tmp_path)
    assert not (tmp_path / "faults.png").exists()


def test_a_result_without_faults_has_no_figure(result: Result) -> None:
    with pytest.raises(InternalError, match="faults"):
        faults_figure(result)
