"""The report of the suite that a file of tests calls `NAME`, made once a file."""

from __future__ import annotations

import pytest

from gcsim.analysis.validation.judge import Report, run_suite
from gcsim.analysis.validation.registry import chosen


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Report:
    return run_suite(*chosen([request.module.NAME]))
