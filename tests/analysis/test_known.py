"""What is not known of a device is told: in the sentences, the table, the figures, the sources."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcsim.analysis.answer import answer
from gcsim.analysis.known import iteration_known, speedup_known
from gcsim.analysis.plot_breakdown import breakdown_figure
from gcsim.analysis.plot_speedup import speedup_figure
from gcsim.analysis.selection import at_largest, best, may_beat, told_apart
from gcsim.analysis.sources import provenance_notes
from gcsim.analysis.table import footnotes, render
from gcsim.scenarios.result import Result, Row

Times = tuple[float, float, float]
"""As stated, fastest, slowest; in seconds an iteration."""


def open_result(result: Result, over: dict[str, float] | None = None, **times: Times) -> Result:
    """Only these compressors, at every size with these iterations; the dense one is exact.

    `over` gives the smallest ratio to the fastest, where it is not that of the intervals.
    """
    dense = times.get("none", (None,))[0]
    fastest = min(times, key=lambda kind: times[kind][0])
    rows = []
    for row in result.rows:
        if row.compressor not in times:
            continue
        stated, low, high = times[row.compressor]
        ratio = low / times[fastest][2]
        rows.append(
            replace(
                row,
                iteration_s=stated,
                iteration_fastest_s=low,
                iteration_slowest_s=high,
                speedup_vs_dense=None if dense is None else dense / stated,
                speedup_lowest=None if dense is None else dense / high,
                speedup_highest=None if dense is None else dense / low,
                over_fastest_lowest=None
                if row.compressor == fastest
                else (over or {}).get(row.compressor, ratio),
            )
        )
    return replace(result, rows=tuple(rows))


DENSE = (0.4, 0.4, 0.4)


def of(result: Result, compressor: str) -> Row:
    return next(row for row in at_largest(result) if row.compressor == compressor)


# --- intervals -----------------------------------------------------------------------------------


def test_an_interval_has_the_digits_of_its_value(result: Result) -> None:
    row = of(open_result(result, none=DENSE, topk=(0.05, 0.0448, 0.0656)), "topk")
    assert speedup_known(row) == "6.10x to 8.93x"
    assert iteration_known(row) == "44.8 ms to 65.6 ms"


def test_what_is_narrower_than_the_digits_is_not_told(result: Result) -> None:
    row = of(open_result(result, none=DENSE, topk=(0.05, 0.049999, 0.050001)), "topk")
    assert (speedup_known(row), iteration_known(row)) == ("", "")
    assert (speedup_known(result.rows[0]), iteration_known(result.rows[0])) == ("", "")


# --- who wins ------------------------------------------------------------------------------------


def test_a_winner_beyond_doubt_stands_with_its_interval(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=(0.05, 0.04, 0.08), fp16=(0.2, 0.19, 0.21))
    said = answer(shown)
    assert said[0] == (
        "On 32 nodes (64 workers) Top-k 1% is fastest: 8.00x the speed of dense (5.00x to 10.0x, "
        "by what is known of the device), 50.0 ms an iteration against 400 ms."
    )
    assert any("FP16 is fastest: 2.00x (1.90x to 2.11x; NMSE" in sentence for sentence in said)
    assert best(at_largest(shown)).unclear == ()


def test_a_method_that_may_be_faster_leaves_no_winner(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=(0.05, 0.04, 0.08), dgc=(0.06, 0.055, 0.065))
    found = best(at_largest(shown))
    assert [row.compressor for row in found.unclear] == ["topk", "dgc"]
    assert (found.by_device, found.by_luck) == (True, False)
    said = answer(shown)
    assert said[0] == (
        "On 32 nodes (64 workers) Top-k 1% and DGC 0.1% cannot be told apart given what is known "
        "of the device: each may be the fastest within the device's ranges. An iteration takes: "
        "Top-k 1% 50.0 ms (40.0 ms to 80.0 ms), DGC 0.1% 60.0 ms (55.0 ms to 65.0 ms)."
    )
    assert said[1] == (
        "Faster than dense (400 ms): Top-k 1% 8.00x (5.00x to 10.0x), DGC 0.1% 6.67x (6.15x to "
        "7.27x). Measured figures of the device would tell them apart; results.json lists the "
        "estimates."
    )
    assert said[-1] == (
        "At no size can it be told which method is fastest, given what is known of the device."
    )


def test_intervals_that_overlap_on_devices_that_do_not_are_told_apart(result: Result) -> None:
    # whatever the device is, DGC takes 1.2 times as long: both are slow on a slow one
    shown = open_result(
        result, {"dgc": 1.2}, none=DENSE, topk=(0.05, 0.04, 0.08), dgc=(0.06, 0.048, 0.096)
    )
    assert best(at_largest(shown)).unclear == ()
    assert "Top-k 1% is fastest" in answer(shown)[0]


def test_less_than_the_tie_is_no_doubt(result: Result) -> None:
    def unclear(ratio: float) -> int:
        times = {"topk": (0.05, 0.049, 0.051), "dgc": (0.0515, 0.05, 0.052)}
        return len(best(at_largest(open_result(result, {"dgc": ratio}, **times))).unclear)

    assert (unclear(0.995), unclear(0.98)) == (0, 2)


def test_whether_compression_pays_may_be_open(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=(0.35, 0.3, 0.5))
    said = " ".join(answer(shown))
    assert "Top-k 1% and dense cannot be told apart given what is known of the device" in said
    assert "So it is not known whether compression pays." in said
    assert not told_apart(of(shown, "topk"), of(shown, "none"))


def test_dense_does_not_win_over_what_may_be_faster(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=(0.45, 0.3, 0.5))
    assert "does not pay" not in " ".join(answer(shown))
    sure = open_result(result, none=DENSE, topk=(0.45, 0.42, 0.5))
    assert "compression does not pay" in answer(sure)[0]


def test_a_nearer_method_that_may_be_slower_than_dense_is_not_recommended(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=(0.05, 0.04, 0.08), fp16=(0.38, 0.3, 0.41))
    assert (
        "No method without memory that has an NMSE of at most 0.1 can be told from dense given "
        "what is known of the device."
    ) in answer(shown)


def test_against_another_than_the_fastest_intervals_decide(result: Result) -> None:
    shown = open_result(
        result, none=DENSE, topk=(0.05, 0.04, 0.08), fp16=(0.2, 0.19, 0.25), qsgd=(0.23, 0.2, 0.26)
    )
    assert may_beat(of(shown, "qsgd"), of(shown, "fp16"))
    later = open_result(
        result, none=DENSE, topk=(0.05, 0.04, 0.08), fp16=(0.2, 0.19, 0.25), qsgd=(0.3, 0.26, 0.31)
    )
    assert not may_beat(of(later, "qsgd"), of(later, "fp16"))


def test_both_kinds_of_doubt_are_named(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=(0.05, 0.04, 0.08), dgc=(0.052, 0.05, 0.065))
    rows = tuple(
        replace(row, iteration_error_s=0.004, iteration_p5_s=0.04, iteration_p95_s=0.09)
        for row in shown.rows
    )
    noisy = replace(shown, rows=rows, provenance={"averages": {"iterations": 50}})
    said = " ".join(answer(noisy))
    assert "cannot be told apart with 50 iterations and given what is known of the device:" in said
    assert "Set training.iterations higher" in said
    assert "Measured figures of the device" in said


def test_a_result_without_ranges_says_nothing_of_them(result: Result) -> None:
    said = " ".join([*answer(result), render(result, 120), *provenance_notes(result)])
    assert "range" not in said
    assert "known of the device" not in said


# --- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 120, 240])
def test_the_interval_stands_beside_the_speedup(result: Result, width: int) -> None:
    shown = open_result(result, none=DENSE, topk=(0.05, 0.04, 0.08), fp16=(0.2, 0.19, 0.21))
    text = render(shown, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "8.00  5.00-10.00" in " ".join(text.split()).replace("8.00 5.00", "8.00  5.00")
    assert "range: what is left open" in " ".join(footnotes(shown))


def test_without_a_dense_row_the_iterations_interval_is_shown(result: Result) -> None:
    shown = open_result(result, topk=(0.05, 0.04, 0.08), fp16=(0.2, 0.19, 0.21))
    assert "50.0 40.0-80.0" in " ".join(render(shown, 240).split())


def test_those_that_may_be_fastest_are_marked(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=(0.05, 0.04, 0.08), dgc=(0.06, 0.055, 0.065))
    marked = [line for line in render(shown, 240).splitlines() if line.startswith("> ")]
    assert [line[2:7] for line in marked[:2]] == ["Top-k", "DGC 0"]
    assert marked[-1].strip() == "> cannot be told apart given what is known of the device"


# --- the figures ---------------------------------------------------------------------------------


def heights(axes: Axes) -> list[tuple[float, float]]:
    """Of each band at the largest size."""
    found = []
    for band in axes.collections:
        corners = np.asarray(band.get_paths()[0].vertices)
        last = corners[corners[:, 0] == corners[:, 0].max()][:, 1]
        found.append((float(last.min()), float(last.max())))
    return found


def test_bands_are_the_intervals_of_the_speedups(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=(0.05, 0.04, 0.08))
    (axes,) = speedup_figure(shown).axes
    row = of(shown, "topk")
    height = row.scaling_efficiency * row.workers
    # 5 to 10 times dense, where the line is at 8 times dense
    assert heights(axes)[1] == pytest.approx((height * 5 / 8, height * 10 / 8))
    bottom, top = axes.get_ylim()
    assert bottom < height * 5 / 8
    assert height * 10 / 8 < top
    assert "by what is known of the device" in axes.get_xlabel()


def test_bars_end_in_lines_that_can_be_seen(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=(0.05, 0.04, 0.08), fp16=(0.2, 0.1999, 0.2001))
    figure = breakdown_figure(shown)
    ends = [line.get_xdata() for line in figure.axes[0].lines]
    assert [list(map(float, np.asarray(end))) for end in ends] == [[40.0, 80.0]]
    texts = [text.get_text().strip() for text in figure.axes[0].texts]
    assert "50.0 ms   8.00x (5.00-10.0)" in texts


def figures(result: Result) -> list[Figure]:
    return [speedup_figure(result), breakdown_figure(result)]


def test_nothing_of_the_figures_is_outside_of_them(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=(0.05, 0.04, 0.08), fp16=(0.2, 0.19, 0.21))
    for figure in figures(shown):
        figure.canvas.draw()
        box = figure.bbox
        for axes in figure.axes:
            label = axes.xaxis.get_label().get_window_extent()
            assert label.y0 >= box.y0
            for text in axes.texts:
                assert text.get_window_extent().x1 <= box.x1


def test_figures_without_ranges_have_no_bands_and_no_notes(result: Result) -> None:
    for figure in figures(result):
        assert not figure.axes[0].collections
        assert "device" not in figure.axes[0].get_xlabel()


# --- the sources ---------------------------------------------------------------------------------


def test_figures_with_ranges_are_listed_in_units_for_people(result: Result) -> None:
    device = {"setting": "cluster.device"}
    estimates = [
        {"setting": "cluster.network"},
        {**device, "kernels": "sort", "figure": "launch", "value": 1, "unit": "s", "range": None},
        {**device, "kernels": "sort", "figure": "launch", "value": 5e-5, "unit": "s",
         "range": [2e-5, 1e-4]},
        {**device, "kernels": "sort", "figure": "bandwidth", "value": 1e10, "unit": "B/s",
         "range": [1e10, 3e10]},
        {**device, "kernels": "random", "figure": "bandwidth", "value": 2e11, "unit": "B/s",
         "range": [1.5e11, 4.4e11]},
        {"setting": "compute", "figure": "forward and backward", "value": 0.0153, "unit": "s",
         "range": [0.011, 0.0212]},
    ]  # fmt: skip
    (note,) = [
        note
        for note in provenance_notes(replace(result, provenance={"estimates": estimates}))
        if note.startswith("known within ranges")
    ]
    assert note == (
        "known within ranges: launch in us: sort 50 (20-100); bandwidth in GB/s: sort 10 (10-30), "
        "random 200 (150-440); forward and backward in ms: 15.3 (11-21.2)"
    )
