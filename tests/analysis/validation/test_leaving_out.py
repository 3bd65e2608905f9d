"""Widths come from other sources alone, and hold what they promise."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcsim.analysis.validation import leaving_out
from gcsim.analysis.validation.judge import Report, judge
from gcsim.analysis.validation.registry import SUITES
from gcsim.analysis.validation.suite import Findings
from gcsim.scenarios.uncertainty import discrepancy
from tests.analysis.validation.reports import point, suite
from tests.benchmarks.discrepancy import file_text

WORLDS = (1.0,) * 10


def source(name: str, dense: float, *compressed: float) -> Report:
    """Measured over predicted of a dense step, and of compressed ones; of both kinds of passes."""
    methods = ["none", *(f"method {n}" for n in range(len(compressed)))]
    points = [
        replace(
            point(number, 0.0, method=method), source=f"github.com/{name}/runs", measured=measured,
            worlds=WORLDS, stated_worlds=WORLDS, setting="a cluster",
        )
        for number, (method, measured) in enumerate(zip(methods, (dense, *compressed), strict=True))
    ]  # fmt: skip
    return judge(replace(suite(), name=name), Findings(points=tuple(points)))


def test_a_citation_names_its_work() -> None:
    assert leaving_out.work_of("Table 1, https://github.com/a/b-c/blob/0/x.md, 2020", "") == "a/b-c"
    assert leaving_out.work_of("Shi et al., arXiv 1, HKBU-HPML/ddl-benchmarks@30de, x", "") == (
        "HKBU-HPML/ddl-benchmarks"
    )
    assert leaving_out.work_of("data/mine.csv: measured here", "mine") == "mine"


def test_of_sources_that_are_all_twice_as_slow_the_one_held_out_has_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(discrepancy.shipped.cache_clear)
    twice = [source(f"s{n}", 2.0, 4.0, 4.0) for n in range(5)]
    for odd in (1.0, 50.0):
        reports = [*twice, source("odd", odd, odd, odd)]
        found = [leaving_out.misses(reports, stated=stated) for stated in (False, True)]
        others = [one.of([f"s{n}/runs" for n in range(5)]) for one in found]
        known = leaving_out.widths(*others)
        # by hand: gains are half of those predicted, two methods alike, dense steps twice as long;
        # compressed ones, a factor of 4, lie at twice the 90th percentile of their own factor
        assert known.compressor == pytest.approx(1, rel=2e-3)
        assert known.compressed == pytest.approx(2, rel=2e-3)
        assert known.stated == known.catalogue > 2
        file = tmp_path / "discrepancy.yaml"
        file.write_text(file_text(*found), encoding="utf-8")
        monkeypatch.setattr(discrepancy, "FILE", file)
        discrepancy.shipped.cache_clear()
        without = discrepancy.shipped().without("odd/runs")
        assert dict(without) == pytest.approx(dict(known), rel=1e-3)
        by_name = {one.source: one for one in leaving_out.left_out(reports)["catalogue alone"]}
        assert by_name["odd/runs"].steps_held == (odd == 1.0)
        assert by_name["odd/runs"].error == pytest.approx(1 - 1 / odd)
        assert by_name["s1/runs"].steps_held == 1


@settings(max_examples=3)
@given(
    between=st.floats(0.05, 0.5), inside=st.floats(0.05, 0.5), drawn=st.floats(0.0, 0.3),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_four_of_five_measurements_of_a_new_source_are_held(
    between: float, inside: float, drawn: float, seed: int
) -> None:
    """Sources that are drawn alike: without a place among the others of its own, a new one lies
    within between 0.8 n / (n + 1) and 1 of n sources' widths, and a source has as much weight."""
    rng = np.random.default_rng(seed)
    held = []
    for _ in range(12):
        found = []
        for name in range(11):
            bias = rng.normal(0, between)
            for miss in rng.normal(bias, inside, 1 + 5 * (name % 3)):
                found.append(leaving_out.Miss(str(name), miss + rng.normal(0, drawn, 10)))
        for name in range(11):
            factor = leaving_out.width([one for one in found if one.source != str(name)])
            at = leaving_out.places(
                np.array([one.logs for one in found if one.source == str(name)]), factor
            )
            held.append(np.mean((at >= 0.1) & (at <= 0.9)))
    assert 0.66 <= np.mean(held) <= 0.92


def test_a_source_has_one_weight_however_many_rows() -> None:
    few = [leaving_out.Miss(str(n), np.full(10, math.log(1.1))) for n in range(4)]
    many = [leaving_out.Miss("large", np.full(10, math.log(5.0)))] * 100
    assert leaving_out.width([*few, *many]) == pytest.approx(1.1, rel=2e-3)
    assert leaving_out.width([*few[:3], *many]) == pytest.approx(5, rel=2e-3)
    assert leaving_out.width([]) == 1


def test_scores_of_probabilities_are_those_by_hand() -> None:
    said = ((0.95, True), (0.95, False), (0.05, False), (0.2, False))
    assert leaving_out.brier(said) == pytest.approx((0.05**2 + 0.95**2 + 0.05**2 + 0.2**2) / 4)
    assert leaving_out.base_rate(said) == pytest.approx(0.25 * 0.75)
    assert list(leaving_out.reliability(said)) == [
        (0.0, 0.1, 1, 0.0),
        (0.1, 0.3, 1, 0.0),
        (0.9, 1.0, 2, 0.5),
    ]


def test_p_of_paying_is_never_sure() -> None:
    report = source("s", 1.0, 0.01, 100.0)
    right = tuple(
        replace(one, stated_worlds=(one.measured,) * 10) for one in report.findings.points
    )
    report = replace(report, findings=Findings(points=right))
    (found,) = leaving_out.left_out([report])["own passes stated"]
    assert [one[0] for one in found.pays] == pytest.approx([0.99, 0.01])
    assert [one[1] for one in found.pays] == [True, False]


def test_a_file_of_other_predictions_is_a_fault_once_all_suites_are_run() -> None:
    wide = [source(name, 9.0, 1.0, 20.0) for name in SUITES]
    assert leaving_out.COMMAND in leaving_out.fault(wide)
    assert not leaving_out.fault(wide[:-1])
