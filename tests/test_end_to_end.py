"""The commands as scripts use them: exit codes, files, what lands on stdout, what survives.

Everything runs on LeNet with real gradients and a method of each kind of exchange; in fresh
processes where the process matters.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.trace_rules import checked
from tests.command import Finished, advised
from tests.command import gcsim as in_this_process
from tests.process import printed

ALL = ("none", "fp16", "randomk", "topk", "qsgd", "variance", "powersgd", "qsparse_local_sgd")
SCENARIO = """\
name: small
model: lenet
batch_size: 8
gradients: {{{gradients}}}
cluster:
  nodes: [1, 2, 4]
  devices_per_node: {devices}
  device: p100_pcie
  network: {{bandwidth: 10 Gbit/s, latency: 50 us}}
  intra_node: pcie3_x16
compressors: [{compressors}]
"""
LIVE = "source: live, workers: 2, warmup_steps: 2, iterations: 2, device: cpu"
Run = Callable[..., Finished]


def write_scenario(
    folder: Path, *, gradients: str = LIVE, devices: int = 2, compressors: tuple[str, ...] = ALL
) -> Path:
    path = folder / "small.yaml"
    path.write_text(
        SCENARIO.format(gradients=gradients, devices=devices, compressors=", ".join(compressors))
    )
    return path


@pytest.fixture(scope="module")
def gcsim(cache: Path) -> Run:
    def run(*arguments: object, folder: Path) -> Finished:
        return in_this_process(*arguments, folder=folder, GCSIM_CACHE_DIR=str(cache))

    return run


def process(*arguments: object, folder: Path, cache: Path) -> Finished:
    return subprocess.run(
        [sys.executable, "-m", "gcsim", *map(str, arguments)],
        cwd=folder, env={**os.environ, "GCSIM_CACHE_DIR": str(cache)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the whole comparison has been run once."""
    folder = tmp_path_factory.mktemp("run")
    write_scenario(folder)
    shown = process("run", "small.yaml", folder=folder, cache=cache)
    assert shown.returncode == 0, shown.stderr
    return folder


def results(folder: Path, name: str = "runs/small") -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / name / "results.json").read_text())
    return document


def test_a_second_run_from_the_cache_is_identical_and_imports_no_torch(
    done: Path, cache: Path
) -> None:
    code = (
        "import sys\n"
        "from gcsim.scenarios.load import load_scenario\n"
        "from gcsim.scenarios.run import run\n"
        "result = run(load_scenario('small.yaml', ['cluster.network.bandwidth=1 Gbit/s']))\n"
        "print(len(result.rows), 'torch' in sys.modules)"
    )
    shown = printed("-c", code, folder=done, GCSIM_CACHE_DIR=str(cache))
    assert shown.split() == ["24", "False"]  # another network: no compressor ran
    options = ("-q", "-o", "again")
    ended = advised("run", "small.yaml", *options, folder=done, GCSIM_CACHE_DIR=str(cache))
    assert ended.returncode == 0, ended.stderr
    first, again = results(done), results(done, "again")
    assert first.pop("wall") != again.pop("wall")
    came = [each["provenance"].pop("from_cache") for each in (first, again)]
    labels = list(dict.fromkeys(row["label"] for row in first["rows"]))
    assert came[0] == {"profiles": [], "simulation": False}
    assert came[1] == {"profiles": labels, "simulation": True}
    assert first == again
    assert first["advice"]["limits"]


@pytest.mark.long
def test_equal_seeds_give_equal_bytes_without_the_cache(done: Path, cache: Path) -> None:
    options = ("-q", "--no-cache", "-o", "fresh")
    shown = process("run", "small.yaml", *options, folder=done, cache=cache)
    assert shown.returncode == 0, shown.stderr
    first, fresh = results(done), results(done, "fresh")
    del first["wall"], fresh["wall"]
    assert json.dumps(first) == json.dumps(fresh)


def test_the_resolved_scenario_gives_the_same_rows(done: Path, gcsim: Run) -> None:
    shown = gcsim("run", "runs/small/scenario.yaml", "-q", "-o", "resolved", folder=done)
    assert shown.returncode == 0, shown.stderr
    assert results(done, "resolved")["rows"] == results(done)["rows"]


def test_the_timeline_shows_each_method_communicating(done: Path) -> None:
    events = checked((done / "runs/small/timeline.json").read_text())
    processes = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    communicating = {processes[e["pid"]] for e in events if "algorithm" in e.get("args", {})}
    for name in ("dense", *ALL[1:]):
        assert any(process.startswith(f"{name}, ") for process in communicating)


@pytest.fixture(scope="module")
def trace(done: Path, gcsim: Run) -> Path:
    shown = gcsim("record", "small.yaml", "-o", "trace", "--second-moments", folder=done)
    assert shown.returncode == 0, shown.stderr
    return done / "trace"


def replay(folder: Path, trace: Path, extra: str = "") -> Path:
    return write_scenario(folder, gradients=f"source: recorded, trace: {trace}{extra}")


def test_a_recorded_trace_replays_to_the_rows_of_the_live_run(
    done: Path, trace: Path, tmp_path: Path, gcsim: Run
) -> None:
    replay(tmp_path, trace)
    shown = gcsim("run", "small.yaml", "-q", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert results(tmp_path)["rows"] == results(done)["rows"]
    assert results(tmp_path)["provenance"]["gradients"]["source"] == "recorded"


def test_a_damaged_trace_is_refused_also_when_profiles_are_cached(
    trace: Path, tmp_path: Path, gcsim: Run
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trace, copy)
    replay(tmp_path, copy)
    assert gcsim("run", "small.yaml", "-q", folder=tmp_path).returncode == 0
    before = (tmp_path / "runs/small/results.json").read_bytes()
    victim = sorted(copy.glob("*.safetensors"))[0]
    whole = victim.read_bytes()
    for damaged in (whole[:-10], whole[:-1] + bytes([whole[-1] ^ 1])):
        victim.write_bytes(damaged)
        shown = gcsim("run", "small.yaml", "-q", folder=tmp_path)
        assert shown.returncode == 2
        assert victim.name in shown.stderr
        assert "Traceback" not in shown.stderr
    victim.unlink()
    assert gcsim("run", "small.yaml", "-q", folder=tmp_path).returncode == 2
    assert (tmp_path / "runs/small/results.json").read_bytes() == before


MODEL = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 5))
"""
OWN = """\
name: own
model: {build: my_model:build, input_shape: [3, 4, 4], classes: 5}
batch_size: 8
gradients: {source: live, workers: 2, warmup_steps: 1, iterations: 2, device: cpu}
cluster: {nodes: [1, 2], devices_per_node: 1, device: p100_pcie, network: 10gbe,
          intra_node: pcie3_x16}
compressors: [none, my_compressor:Halves]
"""
COMPRESSOR = """
from gcsim.compressors.base import About, Compressor
from gcsim.compressors.requests import AllReduce

class Halves(Compressor):
    about = About(title="halves", family="dense", collective="all-reduce", bits="16",
                  unbiased=False, state="none", paper="none")

    def exchange(self, bucket, step):
        total = yield AllReduce(tensor=bucket.gradient.half())
        return total.float() / self.worker.count
"""


def test_a_users_model_and_compressor_run_and_a_change_of_their_code_is_noticed(
    tmp_path: Path, gcsim: Run
) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    (tmp_path / "my_model.py").write_text(MODEL)
    (tmp_path / "my_compressor.py").write_text(COMPRESSOR)
    shown = gcsim("run", "own.yaml", "-q", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    rows = results(tmp_path, "runs/own")["rows"]
    parameters = 48 * 16 + 16 + 16 * 5 + 5
    assert rows[0]["wire_bytes_per_worker"] == 4 * parameters
    assert rows[-1]["wire_bytes_per_worker"] == 2 * parameters
    (tmp_path / "my_model.py").write_text(MODEL.replace("16", "32"))
    assert gcsim("run", "own.yaml", "-q", folder=tmp_path).returncode == 0
    parameters = 48 * 32 + 32 + 32 * 5 + 5
    assert results(tmp_path, "runs/own")["rows"][0]["wire_bytes_per_worker"] == 4 * parameters


@contextmanager
def endless_run(folder: Path, cache: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that has begun to record gradients in `cache`; killed at the end."""
    endless = ["--set", "gradients.warmup_steps=100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gcsim", "run", "small.yaml", *endless],
        cwd=folder,
        env={**os.environ, "GCSIM_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 600
        while not list(cache.glob("gradients-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_an_interrupt_exits_130_and_leaves_earlier_results_whole(
    done: Path, tmp_path: Path, number: signal.Signals
) -> None:
    write_scenario(tmp_path)
    shutil.copytree(done / "runs", tmp_path / "runs")
    before = (tmp_path / "runs/small/results.json").read_bytes()
    empty = tmp_path / "cache"
    with endless_run(tmp_path, empty) as process:
        process.send_signal(number)
        output, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert output == ""
    assert {path.name for path in empty.iterdir()} <= {"code.hashes"}  # no profile
    assert (tmp_path / "runs/small/results.json").read_bytes() == before
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"small"}


def test_what_a_killed_run_left_is_removed_by_the_next(done: Path, cache: Path, gcsim: Run) -> None:
    with endless_run(done, cache):
        assert gcsim("run", "small.yaml", "-o", "other", folder=done).returncode == 0
        assert len(list(cache.glob("gradients-*"))) == 1
    assert len(list(cache.glob("gradients-*"))) == 1
    assert gcsim("run", "small.yaml", "-o", "other", folder=done).returncode == 0
    assert not list(cache.glob("gradients-*"))
