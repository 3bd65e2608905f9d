"""`gcsim validate` whole: are all bounds kept, and is docs/validation.md what it would write?"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.registry import SUITES
from gcsim.analysis.validation.report.series import lines
from gcsim.analysis.validation.report.write import page_text
from gcsim.analysis.validation.statistics import by_series
from tests.analysis.validation.reports import hides_opposites
from tests.command import gcsim

PAGE = Path(__file__).resolve().parents[3] / "docs" / "validation.md"
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
pytestmark = pytest.mark.long


def test_the_page_in_docs_is_current(report_of: Callable[[str], Report]) -> None:
    """Texts to the letter, and numbers to their last digits, which a fit may turn elsewhere."""
    written = PAGE.read_text(encoding="utf-8").splitlines()
    now = page_text([report_of(name) for name in SUITES], "images/validation/").splitlines()
    assert [_NUMBER.sub("#", line) for line in written] == [_NUMBER.sub("#", line) for line in now]
    for old, new in zip(written, now, strict=True):
        for one, other in zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True):
            assert float(one) == pytest.approx(float(other), rel=0.02, abs=0.15), new


def test_the_command_keeps_all_bounds(
    report_of: Callable[[str], Report], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gcsim.analysis.validation.judge.run_suite", lambda suite: report_of(suite.name)
    )
    ran = gcsim("validate", "-o", "out", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    shown = json.loads((tmp_path / "out" / "validation.json").read_text(encoding="utf-8"))
    assert [suite["name"] for suite in shown["suites"]] == list(SUITES)


@pytest.mark.parametrize("name", SUITES)
def test_no_line_of_a_shipped_suite_hides_opposites(
    report_of: Callable[[str], Report], name: str
) -> None:
    report = report_of(name)
    parts = lines(by_series(report.findings.points))
    assert set(parts) == set(report.lines)
    assert [line for line, part in parts.items() if hides_opposites(part)] == []
