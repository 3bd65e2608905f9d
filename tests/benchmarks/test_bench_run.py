"""How long do the commands take, and how much memory? `make bench`.

The main job from nothing and from the cache, the start-up of the command line, and what a small
scenario takes on clusters that were slow. Seconds are wall clock of a fresh process, of the latter
also processor time; memory is the largest resident set of any process of the command.
"""

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


LENET = {
    "10,000 nodes, Gloo": ["cluster.nodes=10000", "cluster.collectives.transport=gloo"],
    "10,000 nodes, textbook": ["cluster.nodes=10000", "cluster.collectives.transport=textbook"],
    "8 x 2 workers that share cores": [
        "cluster.nodes=8",
        "cluster.devices_per_node=2",
        "cluster.host.cores=1",
        "training.on_host=[encode, decode]",
    ],
    "a trace of rates, losses": [
        "cluster.nodes=8",
        "cluster.network={trace: {file: cell.csv, after: repeat}, latency: 25 ms, "
        "loss: {rate: 0.001, model: sampled}}",
    ],
}


def cell(seconds: int = 120) -> str:
    """A rate for each second, of a cell whose load changes."""
    rates = [(5, 10, 30, 60, 200)[second * 7 % 5] + second * 3 % 10 for second in range(seconds)]
    rows = [f"{second},{rate}" for second, rate in enumerate(rates)]
    return "\n".join(["seconds,mbit_per_second", *rows]) + "\n"


def cpu() -> float:
    """Seconds of processor time of all that has been run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("name", LENET)
def test_lenet(benchmark: BenchmarkFixture, cache: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "cell.csv").write_text(cell())
    file = str(tmp_path / "cell.csv")
    settings = [
        text for setting in LENET[name] for text in ("--set", setting.replace("cell.csv", file))
    ]
    arguments = ["run", "lenet_2node", "-q", *settings, "-o", str(tmp_path)]
    gcsim(arguments, cache)  # compiles its loops, and makes gradients and profiles
    for result in (cache / "results").glob("*.z"):
        result.unlink()
    before = cpu()
    benchmark.pedantic(gcsim, args=(arguments, cache), rounds=1)
    print(f"\n{name}: {cpu() - before:.1f} s of processor time")


def test_sweep_of_a_thousand_points(
    benchmark: BenchmarkFixture, cache: Path, tmp_path: Path
) -> None:
    rates = ",".join(f"{rate} Mbit/s" for rate in range(100, 2100, 10))
    grid = ["--grid", f"cluster.network.bandwidth={rates}", "--grid", "cluster.nodes=2,3,4,5,8"]
    gcsim(["run", "lenet_2node", "-q", "-o", str(tmp_path / "run")], cache)
    before = cpu()
    arguments = ["sweep", "lenet_2node", "-q", *grid, "-o", str(tmp_path / "sweep")]
    benchmark.pedantic(gcsim, args=(arguments, cache), rounds=1)
    print(f"\na thousand points: {cpu() - before:.1f} s of processor time")
