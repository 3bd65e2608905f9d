"""One estimate everywhere: the median of the drawn worlds, in every shipped scenario.

Traffic is that of the shipped profiles, so no compressor runs. The scenario whose methods have none
is measured in the long test.
"""

import csv
import io
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import gcsim
from gcsim.analysis.advice.advice import Advice
from gcsim.analysis.page.charts import speedup_chart
from gcsim.analysis.plots.speedup import relative_throughput
from gcsim.analysis.report.answer import answer, html
from gcsim.analysis.report.numbers import fixed
from gcsim.analysis.report.selection import Verdict, verdicts
from gcsim.analysis.report.table import SPEEDUP, TO_TARGET, brief_columns
from gcsim.analysis.report.wording import SENDS_NOTHING, uncompressed
from gcsim.analysis.write import to_csv
from gcsim.scenarios.advice.question import shipped_profile
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.result import Result, Row, estimate, fastest_first
from gcsim.scenarios.run import run, simulated_run
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.passes import measured_passes
from gcsim.scenarios.trained.known import with_training_results

FOLDER = Path(gcsim.__file__).parent.parent / "scenarios"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
MEASURED = "characters_widths"
"""Its model is in no shipped profile."""
OTHERS = {"characters_8", "characters_sgd", "characters_long_sgd", "textures_long_sgd"}
"""Those of `characters_adamw`, `characters_long` and `textures_long` with another optimizer or
target."""


OWN = ["uncertainty.discrepancy=false", "uncertainty.draws=48"]
"""Factors that no input explains widen the worlds of a range, and move no estimate, which is the
median of as many worlds as there are."""


@cache
def result_of(name: str) -> Result:
    """At the smallest and the largest size, of the methods whose traffic is shipped."""
    scenario = load_scenario(name, OWN)
    ends = (scenario.node_counts[0], scenario.node_counts[-1])
    known = [(one, shipped_profile(scenario, one)) for one in scenario.compressors]
    choices, profiles = zip(*((c, p) for c, p in known if p is not None), strict=True)
    scenario = replace(scenario, compressors=choices, node_counts=ends)
    found = simulated_run(
        scenario, [""] * len(choices), profiles, measured_passes(scenario, profiles[0]),
        progress=SilentProgress(), timelines=False,
    )  # fmt: skip
    return with_training_results(scenario, found)


def check_rows(result: Result) -> None:
    """The estimate is the median of the worlds, and lies in its range."""
    dense = {row.nodes: row for row in result.rows if row.speedup_vs_dense == 1}
    for row in result.rows:
        assert row.iteration_draws_s, "nothing is uncertain"
        assert row.iteration_s == pytest.approx(np.median(row.iteration_draws_s), rel=1e-8)
        assert row.iteration_low_s <= row.iteration_s <= row.iteration_high_s  # type: ignore[operator]
        samples = row.throughput_samples_per_s * row.iteration_s / row.workers
        assert samples == pytest.approx(round(samples))
        ratios = np.divide(dense[row.nodes].iteration_draws_s, row.iteration_draws_s)
        assert row.speedup_vs_dense == pytest.approx(np.median(ratios), rel=1e-8)
        assert row.speedup_low <= row.speedup_vs_dense <= row.speedup_high  # type: ignore[operator]
        parts = (row.input_s, row.forward_s, row.backward_s, row.encode_s, row.decode_s,
                 row.exposed_communication_s, row.optimizer_s)  # fmt: skip
        assert sum(parts) == pytest.approx(row.iteration_as_stated_s)
        if row.speedup_to_target_low is not None:
            assert row.speedup_to_target is not None
            assert row.speedup_to_target_low <= row.speedup_to_target
            assert row.speedup_to_target <= (row.speedup_to_target_high or 0)


def chance(row: Row, found: Verdict) -> float:
    """Probability of being faster than dense training, as it is printed."""
    pays = row.probability_pays_to_target if found.until_target else row.probability_pays
    return 0.0 if pays is None else pays


def check_verdict(found: Verdict) -> None:
    """Rows are in the order of what is printed; nothing improbable is to be tried or marked."""
    printed = [
        row.speedup_to_target if found.until_target else row.speedup_vs_dense for row in found.rows
    ]
    known = [value for value in printed if value is not None]
    assert known == sorted(known, reverse=True)
    assert printed[: len(known)] == known  # others come last
    for row in (found.to_try, *found.rivals, *found.foremost):
        assert row is None or row is found.dense or chance(row, found) >= 0.5
    if found.to_try is not None and not found.until_target:
        assert (found.to_try.speedup_vs_dense or 0) >= 1
    assert (found.pays == "likely") <= ((found.probability or 0) >= 2 / 3)


def check_forms(result: Result) -> None:
    """Text, page, CSV and JSON have the number of the row."""
    text = " ".join(answer(result))
    for found in verdicts(result)[-1:]:
        column = TO_TARGET if found.until_target else SPEEDUP
        assert brief_columns(found.rows)[0] is column
        cells = column.cells(found.rows)
        notebook = html(result)
        for row, cell in zip(found.rows, cells, strict=True):
            value = column.value(row)
            assert cell == ("-" if value is None else fixed(value, 2))
            assert f"<td>{cell}</td>" in notebook
        assert ("Try: train uncompressed" in text) <= (found.to_try is None and found.safe is None)
    stored = json.loads(result.to_json())["rows"]
    tabled = list(csv.DictReader(io.StringIO(to_csv(result))))
    for row, in_json, in_csv in zip(result.rows, stored, tabled, strict=True):
        for name in ("iteration_s", "speedup_vs_dense", "throughput_samples_per_s",
                     "iteration_as_stated_s", "speedup_as_stated"):  # fmt: skip
            assert in_json[name] == getattr(row, name)
            assert float(in_csv[name]) == getattr(row, name)
    chart = {trace["name"]: trace["y"] for trace in speedup_chart(result, [])["data"]}
    for label, heights in chart.items():
        rows = sorted((r for r in result.rows if r.label == label), key=lambda row: row.workers)
        assert list(heights) == [row.speedup_vs_dense for row in rows]


def check_advice(result: Result, scenario: Scenario) -> None:
    """Advice has the number of the run and tries nothing improbable."""
    for found in verdicts(result):
        assert found.dense is not None
        nodes = found.dense.nodes
        at_size = replace(scenario, cluster=scenario.cluster_at(nodes))
        rows = tuple(row for row in result.rows if row.nodes == nodes)
        advice = Advice(scenario=at_size, result=replace(result, rows=rows), verdict=found)
        assert advice.to_try is None or chance(advice.to_try, found) >= 0.5
        for row, told in zip(found.rows, advice.document()["rows"], strict=True):
            assert told["iteration_s"] == row.iteration_s
            if row is not found.dense:
                assert told["against_dense"]["speedup"] == estimate(row)
        lines = [line for line in advice.summary(100).splitlines() if line.startswith("Try")]
        assert len(lines) == (found.dense.workers > 1)
        if found.dense.workers == 1:
            assert SENDS_NOTHING in " ".join(advice.summary(100).split())
        elif found.to_try is None and found.safe is None:
            assert (
                uncompressed(found)[:60].replace("\xa0", " ") in lines[0]
            )  # one text with a run's
            assert uncompressed(found) in " ".join(answer(replace(result, rows=rows)))


def check_curves(result: Result) -> None:
    """A curve's height is that of the row whose iteration it is, in the same worlds."""
    for found in verdicts(result):
        assert found.dense is not None
        for row in found.rows:
            height = relative_throughput(row)
            unit = height / (row.speedup_vs_dense or 1)  # dense training's, about
            assert unit == pytest.approx(relative_throughput(found.dense), rel=0.35)
            assert 0 < height <= row.workers * 1.001


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name in OTHERS))
        for name in NAMES
        if name != MEASURED
    ],
)
def test_text_page_csv_json_and_advice_have_the_estimate_of_the_worlds(name: str) -> None:
    result = result_of(name)
    check_rows(result)
    for found in verdicts(result):
        check_verdict(found)
    check_forms(result)
    check_advice(result, load_scenario(name, OWN))
    check_curves(result)


@pytest.mark.long
def test_what_is_measured_here_has_one_number_too() -> None:
    few = [*OWN, "gradients.workers=1", "gradients.iterations=1"]  # their traffic is about the same
    result = run(load_scenario(MEASURED, few))
    check_rows(result)
    check_forms(result)
    for found in verdicts(result):
        check_verdict(found)


QUICK = ("CSER 1/96", "EF-signSGD")


def test_methods_are_first_at_the_target_before_they_are_fast() -> None:
    """digits_8: CSER or EF-signSGD has the fastest iteration of those that get there, and needs
    twice the steps."""
    result = result_of("digits_8")
    for found in verdicts(result):
        assert found.until_target
        there = [row for row in found.rows if row.speedup_to_target is not None]
        quick_row = min(there, key=lambda row: row.iteration_s)
        assert quick_row.label in QUICK
        assert found.to_try is not None
        assert found.to_try.speedup_to_target > 1 > quick_row.speedup_to_target  # type: ignore[operator]
        assert quick_row not in found.foremost
        assert found.rows == fastest_first(found.rows)
    text = " ".join(answer(result))
    assert any(f"{label} has the fastest iteration" in text for label in QUICK)
    assert not any(f"Try: {label}" in text for label in QUICK)
