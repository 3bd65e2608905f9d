"""How long do the commands take, and how much memory? `make bench`.

The main job from nothing and from the cache, and the start-up of the command line. Seconds are
wall clock of a fresh process; memory is the largest resident set of any process of the command.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "alexnet_32node.yaml"


def gcsim(arguments: list[str], cache: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "gcsim", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "GCSIM_CACHE_DIR": str(cache)},
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_main_job_from_nothing(benchmark: BenchmarkFixture, cache: Path, tmp_path: Path) -> None:
    arguments = ["run", str(SCENARIO), "-q", "-o", str(tmp_path)]
    benchmark.pedantic(gcsim, args=(arguments, cache), rounds=1)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    benchmark.extra_info["peak_resident_bytes"] = peak
    print(f"\npeak resident set: {peak / 2**30:.2f} GiB")


def test_main_job_from_the_cache(benchmark: BenchmarkFixture, cache: Path, tmp_path: Path) -> None:
    arguments = ["run", str(SCENARIO), "-q", "-o", str(tmp_path)]
    gcsim(arguments, cache)  # fills the cache when run alone
    benchmark.pedantic(gcsim, args=(arguments, cache), rounds=3)


def test_help(benchmark: BenchmarkFixture, cache: Path) -> None:
    benchmark.pedantic(gcsim, args=(["--help"], cache), rounds=5, warmup_rounds=1)


def test_check(benchmark: BenchmarkFixture, cache: Path) -> None:
    arguments = ["check", str(SCENARIO)]
    benchmark.pedantic(gcsim, args=(arguments, cache), rounds=5, warmup_rounds=1)
