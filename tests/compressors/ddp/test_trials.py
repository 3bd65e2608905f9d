"""Two ranks for quick tests: overflows and restarts leave no trace, and options are those of
lockstep. `test_ddp.py` has every method."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.compressors.ddp.plan import SOME, carried_with_options, demand_lockstep
from tests.compressors.ddp.trials import SITUATIONS

JOBS = {2: ("situations", "some_with_options")}


@pytest.mark.parametrize("number", range(len(SITUATIONS)), ids=list(SITUATIONS))
def test_situation(ranks: Callable[[int, str], list[Any]], number: int) -> None:
    assert [found[number] for found in ranks(2, "situations")] == [[], []]


def test_updates_with_options_equal_those_of_lockstep(
    ranks: Callable[[int, str], list[Any]],
) -> None:
    cases = carried_with_options(*SOME)
    assert len(cases) > 2 * len(SOME)
    for case, found in zip(cases, zip(*ranks(2, "some_with_options"), strict=True), strict=True):
        demand_lockstep(case, found)
