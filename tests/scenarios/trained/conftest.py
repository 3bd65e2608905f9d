"""Training in this process, for all tests of this folder."""

from typing import Any

import pytest

from gcsim.scenarios.trained import search as searching
from tests.scenarios.trained.here import here


@pytest.fixture(autouse=True)
def work(digits_read_once: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The trajectories that were trained, in their order."""
    found: list[Any] = []
    monkeypatch.setattr(searching, "LocalWorkers", here(found))
    return found
