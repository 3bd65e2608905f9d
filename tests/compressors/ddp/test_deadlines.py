"""Ranks that do not come, fall asleep or ask for other things: all others say so, in time."""

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gcsim
from gcsim.compressors.ddp.model import timeout_of
from tests.compressors.ddp.late_ranks import DEADLINE, JOBS, LONG, ODD
from tests.compressors.ddp.plan import planned, start_ranks

SCRIPT = Path(__file__).with_name("late_ranks.py")
COUNT = 4
LATE = "does_not_come"
"""A job of the long test alone."""
Results = Callable[[str], list[Any]]
SOON = DEADLINE + 20
"""Seconds: far from the job's own timeout, also on a busy machine."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """By job: what each rank met; they start once, also when they fail, those of `LATE` apart."""

    @cache
    def outcome(jobs: tuple[str, ...]) -> list[list[Any]] | AssertionError | OSError:
        folder = tmp_path_factory.mktemp("ranks")
        try:
            return start_ranks(folder, COUNT, *jobs, timeout=LONG, script=SCRIPT)
        except (AssertionError, OSError) as error:
            return error

    def found(job: str) -> list[Any]:
        jobs = (LATE,) if job == LATE else tuple(one for one in JOBS if one != LATE)
        results = outcome(jobs)
        if isinstance(results, Exception):
            raise results
        return results[jobs.index(job)]

    return found


@pytest.mark.long
def test_ranks_that_did_not_come_are_named_by_all_that_came(ranks: Results) -> None:
    for said, seconds in ranks(LATE)[: COUNT // 2]:
        wanted = f"ranks 2, 3 did not come to register() within {DEADLINE:g} s, the job's timeout"
        assert said.startswith(f"InputError: register: error: {wanted}")
        assert DEADLINE <= seconds < SOON


def test_a_rank_that_sleeps_is_noticed_after_the_timeout(ranks: Results) -> None:
    for said, seconds in ranks("falls_asleep")[:-1]:
        assert said.startswith("RuntimeError")
        assert seconds < SOON
    assert max(seconds for _, seconds in ranks("falls_asleep")[:-1]) > DEADLINE - 0.5


@pytest.mark.parametrize("how", ODD)
def test_ranks_that_ask_for_other_things_are_named_on_all(ranks: Results, how: str) -> None:
    asked = "nothing more" if how == "more" else "AllReduce (sum) of float32 ["
    instead = {
        "kind": "AllGather of",
        "later": "AllGather of",
        "dtype": "AllReduce (sum) of float16 [",
        "length": "AllReduce (sum) of float32 [",
        "operation": "AllReduce (max) of float32 [",
        "more": "AllReduce (sum) of float32 [",
    }
    for of_rank in ranks("asks"):
        said, seconds = of_rank[ODD.index(how)]
        assert f"ask for different collectives: ranks 0, 1, 2 for bucket 0, {asked}" in said
        assert f"; rank {COUNT - 1} for bucket 0, {instead[how]}" in said
        assert seconds < SOON


def test_the_group_beside_the_job_s_has_its_timeout(tmp_path: Path) -> None:
    limit = timedelta(seconds=77)
    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1, timeout=limit)
    try:
        hook = gcsim.ddp_hook("topk").register(planned())
        assert timeout_of(hook._collectives.group, torch.device("cpu")) == limit
    finally:
        dist.destroy_process_group()
