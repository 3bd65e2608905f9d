"""Is docs/validation.md what `make validation` would write?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gcsim.analysis.validation.judge import run_suite
from gcsim.analysis.validation.registry import chosen
from gcsim.analysis.validation.report.page import page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "validation.md"
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@pytest.mark.long
def test_the_page_in_docs_is_current() -> None:
    """Texts to the letter, and numbers to their last digits, which a fit may turn elsewhere."""
    written = PAGE.read_text(encoding="utf-8").splitlines()
    now = list(page([run_suite(suite) for suite in chosen()], "images/validation/"))
    assert [_NUMBER.sub("#", line) for line in written] == [_NUMBER.sub("#", line) for line in now]
    for old, new in zip(written, now, strict=True):
        for one, other in zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True):
            assert float(one) == pytest.approx(float(other), rel=0.02, abs=0.15), new
