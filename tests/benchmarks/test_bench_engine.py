"""What does simulating cost, and how does it grow with the number of workers? `make bench`.

The rows of docs/performance.md: `engine_speed.py` says how they are measured and writes them.
CPU seconds, targets and ratios to the yardstick are in `extra_info` and printed; pytest-benchmark's
own seconds are wall clock and count what is compiled and imported.
"""

from __future__ import annotations

from functools import cache

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.benchmarks.engine_speed import HEAD, Row, line, rows
from tests.benchmarks.engine_work import yardstick
from tests.benchmarks.kernel_curve import KERNELS, head

unit = cache(yardstick)


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row.name)
def test_engine(benchmark: BenchmarkFixture, row: Row) -> None:
    measured = benchmark.pedantic(row.run, rounds=1)
    benchmark.extra_info.update(
        measured=measured * row.scale,
        unit=row.unit,
        target=row.target,
        yardstick_seconds=unit(),
        messages=row.messages(),
    )
    print("", *HEAD, line(row, measured, unit()), sep="\n")


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(benchmark: BenchmarkFixture, name: str) -> None:
    printed = benchmark.pedantic(KERNELS[name].line, args=(name,), rounds=1)
    benchmark.extra_info["curve"] = printed
    print("", *head(), printed, sep="\n")
