"""Factors on whole steps: as wide as the catalogue says, shared as said, and no shift."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.run import run
from gcsim.scenarios.uncertainty.discrepancy import factors, inputs, shipped
from gcsim.scenarios.uncertainty.worlds import draw

WIDTHS = shipped().widths


def drawn(kinds: tuple[str, ...], kind: str, *, stated: bool = False) -> np.ndarray:
    found = inputs(WIDTHS, stated=stated, kinds=kinds)
    return factors(draw(found, 64, 7), found, kind)


@pytest.mark.parametrize("stated", [False, True])
def test_eighty_percent_of_the_shared_factors_are_within_the_catalogues_width(stated: bool) -> None:
    shared = drawn(("none", "topk"), "none", stated=stated)
    width = WIDTHS.stated if stated else WIDTHS.catalogue
    inside = np.mean((shared >= 1 / width) & (shared <= width))
    assert inside == pytest.approx(0.8, abs=0.04)
    assert np.sort(shared) == pytest.approx(np.sort(1 / shared), rel=0.05)


def test_compressors_share_a_factor_and_have_one_each_whatever_else_runs() -> None:
    kinds = ("none", "topk", "fp16")
    dense, topk, fp16 = (drawn(kinds, kind) for kind in kinds)
    assert drawn(("topk",), "topk") == pytest.approx(topk)
    spread = np.std(np.log(topk / dense))
    assert 0 < np.std(np.log(topk / fp16)) < spread * np.sqrt(2)  # in part the same
    end = 1.25 * np.log(WIDTHS.compressor)
    assert abs(np.log(topk / fp16)).max() <= 2 * end


def _run(path: Path, *settings: str) -> Result:
    return run(load_scenario(path, settings), cache=False)


def _gain(result: Result) -> Row:
    return next(row for row in result.rows if row.compressor == "topk")


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "model: lenet5\nbatch_size: 8\ngradients: {source: synthetic, workers: 2, iterations: 2}\n"
        "cluster: {nodes: [1, 2], device: v100, network: 1gbe}\n"
        "compressors: [none, {kind: topk, ratio: 0.01}]\n",
        encoding="utf-8",
    )
    return path


def test_factors_widen_ranges_move_no_time_and_can_be_taken_away(path: Path) -> None:
    known, bare = _run(path), _run(path, "uncertainty.discrepancy=false")
    wide, narrow = _gain(known), _gain(bare)
    spread, before = ((row.speedup_high or 0) / (row.speedup_low or 1) for row in (wide, narrow))
    assert spread > 1.1 * before > 1
    assert wide.iteration_as_stated_s == narrow.iteration_as_stated_s
    assert wide.iteration_s == pytest.approx(narrow.iteration_s)
    assert wide.speedup_vs_dense == pytest.approx(narrow.speedup_vs_dense)
    assert wide.scaling_efficiency == pytest.approx(narrow.scaling_efficiency)
    named = {one.name for one in known.inputs} - {one.name for one in bare.inputs}
    assert len(named) == 3  # shared, of compressors, of top-k


def test_factors_leave_the_median_of_a_speedup_that_no_input_moves(path: Path) -> None:
    """Symmetric factors on a ratio of nearly one value: half of the worlds stay on each side."""
    passes = ("cluster.device=raspberry_pi_4b", "cluster.network=10gbe", "batch_size=256")
    dense, topk = sorted(
        (row for row in _run(path, *passes).rows if row.workers == 2),
        key=lambda row: row.compressor == "topk",
    )
    ratios = np.array(dense.iteration_draws_s) / np.array(topk.iteration_draws_s)
    assert np.median(ratios) == pytest.approx(topk.speedup_vs_dense, rel=0.02)


def test_stated_passes_take_the_narrower_factor_and_p_is_never_sure(path: Path) -> None:
    stated = ("compute.forward=1 ms", "compute.backward=2 ms")
    for settings, width in (((), WIDTHS.catalogue), (stated, WIDTHS.stated)):
        found = _run(path, *settings)
        (shared,) = [one for one in found.inputs if one.name.startswith("measured steps over")]
        assert shared.high == pytest.approx(width**1.25)
        for row in found.rows:
            assert row.probability_pays is None or 0.01 <= row.probability_pays <= 0.99


def test_a_switch_is_true_or_false(path: Path) -> None:
    with pytest.raises(InputError, match="discrepancy"):
        load_scenario(path, ["uncertainty.discrepancy=wide"])
