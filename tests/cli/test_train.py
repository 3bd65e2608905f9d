"""`gcsim train` as people use it: the screen, the files, kills, Ctrl-C, mistakes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.dask import running_cluster
from tests.command import Finished
from tests.command import gcsim as in_this_process

SCENARIO = """\
name: small
model: lenet
batch_size: 8
cluster: {nodes: [2, 4], devices_per_node: 1, device: v100, network: 1gbe}
compressors: [none, {kind: topk, ratio: 0.1, label: Top-k 10 %}]
uncertainty: {draws: 8}
train: {task: digits, workers: 2, steps: 60, evaluate_every: 10, target: {accuracy: 0.2}, seeds: 2}
"""
FILES = {
    "training.json", "training.csv", "scenario.yaml", "accuracy.png", "speedup_to_target.png",
    "report.html", "curves.csv",
}  # fmt: skip


def process(folder: Path, cache: Path, *options: str) -> subprocess.Popen[str]:
    own = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    return subprocess.Popen(
        [sys.executable, "-m", "gcsim", "train", "small.yaml", *options],
        cwd=folder, env={**own, "GCSIM_CACHE_DIR": str(cache)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, str, str]:
    """A folder with a training, and what was said."""
    folder = tmp_path_factory.mktemp("done")
    (folder / "small.yaml").write_text(SCENARIO)
    trained = process(folder, cache, "--jobs", "1")
    out, err = trained.communicate(timeout=900)
    assert trained.returncode == 0, err
    return folder, out, err


@pytest.mark.long
def test_the_answer_stands_on_stdout_and_files_in_the_folder(done: tuple[Path, str, str]) -> None:
    folder, out, err = done
    assert out.startswith("small: time to accuracy 0.2, 4 nodes, 4 workers, NCCL")
    assert "Top-k 10 %" in out
    assert "Trained with 2 workers" in out
    assert "steps of training: 240 of 240" in err  # two methods, two seeds, 60 steps
    assert {path.name for path in (folder / "runs/small_train").iterdir()} == FILES


@pytest.mark.long
def test_once_more_nothing_is_trained_and_results_are_the_same(
    done: tuple[Path, str, str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out, _ = done
    monkeypatch.delattr("gcsim.scenarios.sweeps.processes._Worker")  # no process trains
    again = in_this_process(
        "train", "small.yaml", "-o", "again", "-q", folder=folder, GCSIM_CACHE_DIR=str(cache)
    )
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == out
    first, second = (
        json.loads((folder / name / "training.json").read_text())
        for name in ("runs/small_train", "again")
    )
    del first["wall"], second["wall"]
    assert (first.pop("from_cache"), second.pop("from_cache")) == ([], ["dense", "Top-k 10 %"])
    assert first == second


@pytest.mark.long
def test_json_is_the_file(done: tuple[Path, str, str], cache: Path) -> None:
    shown = in_this_process(
        "train", "small.yaml", "-o", "json", "--json", "-q", folder=done[0],
        GCSIM_CACHE_DIR=str(cache),
    )  # fmt: skip
    assert shown.stdout == (done[0] / "json/training.json").read_text()


@pytest.mark.long
def test_a_cluster_gives_the_results_of_one_machine_and_they_are_kept_here(
    done: tuple[Path, str, str], tmp_path: Path
) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    client = tmp_path / "cache of the client"
    with running_cluster(tmp_path, os.environ, workers=1) as address:
        trained = process(tmp_path, client, "--dask", address, "-q")
        _, err = trained.communicate(timeout=900)
        assert trained.returncode == 0, err
    assert len(list((tmp_path / "cache of the cluster/trajectories").glob("*.json"))) == 4
    gone = process(
        tmp_path, client, "--dask", address, "-q", "-o", "again"
    )  # nothing is left to do
    _, err = gone.communicate(timeout=900)
    assert gone.returncode == 0, err
    folders = (done[0] / "runs/small_train", tmp_path / "runs/small_train", tmp_path / "again")
    found = [json.loads((folder / "training.json").read_text()) for folder in folders]
    for one in found:
        del one["wall"], one["from_cache"]
    assert found[0] == found[1] == found[2]


def test_methods_that_need_more_steps_are_named_with_their_number_before_training(
    tmp_path: Path,
) -> None:
    """A hundredth per step in 1,000 steps is 10 whole gradients; what is lost asks for 100."""
    some = "compressors=[none, {kind: randomk, ratio: 0.01}]"
    shown = in_this_process("train", "digits_8", "--set", some, folder=tmp_path)
    first = " ".join(shown.stderr.split()).partition(" A delay is ")[0]
    why = "1,000 steps span only 10 delays; 100 (10,000 steps) are needed."
    assert first == f"randomk: inconclusive: {why}"


def killed(folder: Path, cache: Path, number: signal.Signals, after: float) -> int:
    """The exit code of a training that gets a signal some seconds after its first checkpoint, or
    after its end."""
    running = process(folder, cache, "--jobs", "1", "-q")
    try:
        deadline = time.monotonic() + 600
        while running.poll() is None and time.monotonic() < deadline:
            if list(cache.glob("trajectories/*")):
                time.sleep(after)
                break
            time.sleep(0.02)
        running.send_signal(number)
        running.communicate(timeout=600)
    finally:
        running.kill()
        running.communicate()
    return running.returncode


@pytest.mark.long
def test_killed_at_any_moment_it_ends_with_the_same_results(
    done: tuple[Path, str, str], tmp_path: Path
) -> None:
    """SIGKILL of the command: its workers leave too, and what they trained is kept."""
    (tmp_path / "small.yaml").write_text(SCENARIO)
    empty = tmp_path / "cache"
    drawn = random.Random(0)
    for _ in range(12):
        killed(tmp_path, empty, signal.SIGKILL, drawn.uniform(0, 1))
    last = process(tmp_path, empty)
    _, err = last.communicate(timeout=900)
    assert last.returncode == 0, err
    first, second = (
        json.loads((folder / "runs/small_train/training.json").read_text())
        for folder in (done[0], tmp_path)
    )
    del first["wall"], second["wall"], first["from_cache"], second["from_cache"]
    assert first == second


@pytest.mark.long
def test_an_interrupt_is_one_line_and_exit_130(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO.replace("steps: 60", "steps: 100000"))
    running = process(tmp_path, tmp_path / "cache", "--jobs", "1", "-q")
    time.sleep(6)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=600)
    assert running.returncode == 130
    assert out == ""
    assert err == "interrupted; finished training runs are stored: repeat the command to continue\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("train.steps=ten", "error: train.steps = 'ten': must be a whole number"),
        ("train.task=digitz", "did you mean 'digits'?"),
        ("train.target={accurcy: 0.9}", "error: unknown key 'accurcy' in train.target"),
    ],
)
def test_mistakes_are_exit_2_and_nothing_is_written(
    change: str, said: str, tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    found: Finished = in_this_process(
        "train", "small.yaml", "-q", "--jobs", "1", "--set", "train.steps=20", "--set", change,
        "--set", "train.seeds=1",
        folder=tmp_path, GCSIM_CACHE_DIR=str(cache),
    )  # fmt: skip
    assert found.returncode == 2
    assert said in found.stderr
    assert found.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_without_a_train_section_it_says_what_to_write(tmp_path: Path) -> None:
    found = in_this_process("train", "lenet_2node", "-q", folder=tmp_path)
    assert found.returncode == 2
    assert "key 'train' is missing" in found.stderr
    assert "write train: {steps" in found.stderr
