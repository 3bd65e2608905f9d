"""Overflows and restarts under DDP leave no trace: every method, in processes on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.compressors.ddp.plan import carried, start_ranks

CASES = carried()


def problems(of_ranks: list[list[list[str]]]) -> dict[str, Any]:
    """By method and rank."""
    assert [len(found) for found in of_ranks] == [len(CASES)] * len(of_ranks)
    return {
        f"{name} {parameters}, rank {rank}": found[number]
        for rank, found in enumerate(of_ranks)
        for number, (name, parameters) in enumerate(CASES)
        if found[number]
    }


def test_overflows_and_restarts_leave_no_trace(tmp_path: Path) -> None:
    """Each method with a scaler, with one way of skipping and one of saving."""
    (found,) = start_ranks(tmp_path, 2, "trials", timeout=200)
    assert not (wrong := problems(found)), "\n".join(f"{k}: {v}" for k, v in wrong.items())


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_whatever_way_is_taken(tmp_path: Path, count: int) -> None:
    """Each method with all ways of skipping and saving."""
    (found,) = start_ranks(tmp_path, count, "all_trials", timeout=900)
    assert not (wrong := problems(found)), "\n".join(f"{k}: {v}" for k, v in wrong.items())
