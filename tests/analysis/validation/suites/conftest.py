"""The report of the suite that a file of tests calls `NAME`.

A suite is predicted in up to half a minute. What asks about its predictions is `long`, where the
page needs them all anyway; the papers', the smallest, are asked in `make test` too.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from gcsim.analysis.validation.judge import Report

_PREDICTED = {"report", "reports", "fit"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        asked = _PREDICTED.intersection(getattr(item, "fixturenames", ()))
        if asked and item.path.parent == Path(__file__).parent and "papers" not in item.path.name:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest, report_of: Callable[[str], Report]) -> Report:
    return report_of(request.module.NAME)
