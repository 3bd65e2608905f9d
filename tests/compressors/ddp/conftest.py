"""Shared by the hook's tests."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.compressors.ddp.plan import start_ranks


@pytest.fixture(scope="module")
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str], list[Any]]:
    """What each of so many ranks made of a job; they start once for all jobs of the file's `JOBS`,
    also when they fail."""
    jobs: dict[int, tuple[str, ...]] = request.module.JOBS

    @cache
    def outcome(count: int) -> list[list[Any]] | AssertionError:
        try:
            return start_ranks(tmp_path_factory.mktemp(f"{count}"), count, *jobs[count])
        except AssertionError as error:
            return error

    def found(count: int, job: str) -> list[Any]:
        results = outcome(count)
        if isinstance(results, AssertionError):
            raise results
        return results[jobs[count].index(job)]

    return found


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()
