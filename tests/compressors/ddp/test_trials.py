"""Overflows and restarts under DDP leave no trace: every method, in processes on loopback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.compressors.ddp.plan import carried, each_exchange, start_ranks
from tests.compressors.ddp.trials import SITUATIONS

CASES = carried()


Results = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results of two ranks, by job, each of which starts once."""

    @cache
    def outcome(job: str) -> list[Any]:
        (found,) = start_ranks(tmp_path_factory.mktemp("2"), 2, job, timeout=200)
        return found

    return outcome


def expect_nothing(of_ranks: list[list[list[str]]], cases: Sequence[tuple[str, Any]]) -> None:
    """Of each method, on each rank."""
    assert [len(found) for found in of_ranks] == [len(cases)] * len(of_ranks)
    wrong = [
        f"{name} {parameters}, rank {rank}: {problem}"
        for rank, found in enumerate(of_ranks)
        for (name, parameters), problems in zip(cases, found, strict=True)
        for problem in problems
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("number", range(len(SITUATIONS)), ids=list(SITUATIONS))
def test_situation(ranks: Results, number: int) -> None:
    assert [found[number] for found in ranks("situations")] == [[], []]


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "job", "cases"), [(2, "all_trials", CASES), (4, "some_trials", each_exchange())]
)
def test_each_method_is_skipped_and_saved(
    tmp_path: Path, count: int, job: str, cases: list[tuple[str, Any]]
) -> None:
    """Between four ranks, one method for each kind of exchange."""
    (found,) = start_ranks(tmp_path, count, job, timeout=600)
    expect_nothing(found, cases)
