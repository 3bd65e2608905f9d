"""Tests that make network namespaces: only as root on Linux, with ip and tc."""

import pytest

from gcsim.analysis.live import namespaces
from gcsim.errors import InputError


@pytest.fixture(scope="session")
def _namespaces_work() -> str:
    """What hinders; "" where nothing does."""
    problems = namespaces.missing()
    if problems:
        return "; ".join(str(problem) for problem in problems)
    try:
        with namespaces.network(1, 10**8):
            return ""
    except InputError as error:
        return str(error)


@pytest.fixture
def rights(_namespaces_work: str) -> None:
    """Skip the test where no shaped namespaces are possible."""
    if _namespaces_work:
        pytest.skip(f"no network namespaces here: {_namespaces_work}")
