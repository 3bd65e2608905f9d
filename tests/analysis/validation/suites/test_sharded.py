"""Sharded training: are the data as published, do the numbers hold that the page states?"""

from pathlib import Path

import pytest

from gcsim.analysis.validation import data_files
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.rows import Row, read_rows
from gcsim.traces.models.registry import MODELS

NAME = "sharded"
ROWS = 177
"""Published: 78 llm-foundry, 40 ZeRO++, 20 TorchTitan, 20 SDP4Bit, 8 fms-fsdp, 11 others."""
FILE = Path(data_files.__file__).parent / "suites" / "sharded" / "rows.csv"
OF_MPT = [row for row in read_rows(FILE) if row["_mfu"]]
PEAK = {"A100": 312e12, "H100": 989.4e12}  # dense bfloat16 products, data sheets


def test_bounds_hold_over_all_series(report: Report) -> None:
    assert [kept.bound.name for kept in report.bounds if not kept.kept] == []
    assert {name for bound in report.suite.bounds for name in bound.series} == set(report.series)
    assert max(map(len, report.series)) <= 34


def test_every_row_is_compared_or_left_out_by_a_rule(report: Report) -> None:
    found = report.findings
    assert len(found.points) + sum(one.count for one in found.excluded) == ROWS
    for point in found.points:
        assert "https://" in point.source
        assert "read-in-source" in point.source


@pytest.mark.parametrize("row", OF_MPT, ids=[row["name"] for row in OF_MPT])
def test_a_step_has_the_published_share_of_the_peak(row: Row) -> None:
    """llm-foundry's README: 3 times a forward pass of 2 N a token and 4 L d s^2 for attention."""
    model = MODELS[row["model"]]
    network = model.transformer
    assert network is not None
    assert model.parameters is not None
    attention = 4 * network.blocks * network.width * network.sequence
    flops = 3 * (2 * model.parameters + attention)
    tokens = row.number("batch_size") * row.number("training.accumulation") * network.sequence
    rate = tokens / row.number("measured")
    assert rate == pytest.approx(row.number("_tokens_per_s"))  # cut to a whole number there
    reached = flops * rate / PEAK[row["group"][:4]]
    assert 100 * reached == pytest.approx(row.number("_mfu"), rel=1 / rate + 5e-4)


def test_passes_are_most_of_a_step_and_nearly_the_catalogues(report: Report) -> None:
    """By the row that gives them: the measured step is theirs to 5 %, the same share of the
    catalogue's, in which a node's devices slow each other by 4 % (loops.yaml)."""
    given = {
        (one.series, one.name.removeprefix("passes of ")): one.value
        for one in report.findings.factors
        if one.given
    }
    checked = 0
    for point in report.findings.points:
        factor = given.get((point.series, point.name.split(",")[0]))
        if point.fitted and factor is not None and point.unfitted is not None:
            assert 1.04 * point.measured / point.unfitted == pytest.approx(factor, rel=0.05)
            assert 0.8 < factor < 1.5
            checked += 1
    assert checked == 14
