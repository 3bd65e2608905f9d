"""The report of the suite that a file of tests calls `NAME`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gcsim.analysis.validation.judge import Report


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest, report_of: Callable[[str], Report]) -> Report:
    return report_of(request.module.NAME)
