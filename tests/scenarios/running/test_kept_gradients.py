"""A run that is cut off keeps the profiles that it has made, and gradients are trained once."""

import os
import shutil
from pathlib import Path

import pytest

from gcsim.files import in_use
from gcsim.scenarios import run as running
from gcsim.scenarios.result import FROM_CACHE
from gcsim.scenarios.running import gradients
from gcsim.scenarios.running.keys import profile_keys
from gcsim.traces.stage1 import cache, measure
from tests.scenarios.files import load

SCENARIO = """
model: lenet
batch_size: 4
cluster: {nodes: 2, devices_per_node: 1, device: v100, network: 1gbe}
gradients: {source: live, workers: 2, iterations: 2, warmup_steps: 1, device: cpu}
uncertainty: {draws: 0}
ddp: {first_bucket: 16 KiB, bucket: 64 KiB}
compressors: [none, fp16, topk, qsgd, powersgd, signsgd, terngrad, variance]
"""
METHODS = 7


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "gradients").iterdir())


def count_trainings(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    done: list[None] = []
    real = gradients.record

    def counted(*args: object, **given: object) -> Path:
        done.append(None)
        return real(*args, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(gradients, "record", counted)
    return done


@pytest.mark.parametrize("after", range(1, METHODS + 1))
def test_a_run_that_is_cut_off_keeps_each_profile_that_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The model has several buckets; SIGTERM and Ctrl-C raise `KeyboardInterrupt`."""
    scenario = load(
        tmp_path, SCENARIO, "compressors=[none, fp16, topk, qsgd, powersgd, signsgd, terngrad]"
    )
    real, begun = measure._measure_bucket, []

    def cut(subject: measure.Subject, *rest: object) -> object:
        begun.append(subject.kind)
        if len(dict.fromkeys(begun)) > after:
            raise KeyboardInterrupt
        return real(subject, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(measure, "_measure_bucket", cut)
    if after < len(scenario.compressors):
        with pytest.raises(KeyboardInterrupt):
            running.run(scenario)
    else:
        running.run(scenario)
    keys = profile_keys(scenario)
    made = [key for key in keys if cache.load(key) is not None]
    assert made == keys[:after]
    monkeypatch.setattr(measure, "_measure_bucket", real)
    trained = count_trainings(monkeypatch)
    result = running.run(scenario)
    labels = [choice.label for choice in scenario.compressors]
    assert result.provenance[FROM_CACHE]["profiles"] == labels[:after]
    assert not trained
    assert result.rows == running.run(scenario, cache=False).rows


@pytest.mark.parametrize("first", ["fp16", "variance"])
def test_a_method_more_trains_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Gradients with second moments serve methods that ask for none, too."""
    running.run(load(tmp_path, SCENARIO, f"compressors=[none, {first}]"))
    trained = count_trainings(monkeypatch)
    whole = load(tmp_path, SCENARIO)
    found = running.run(whole)
    assert len(trained) == (first == "fp16")  # for the moments, once
    assert found.rows == running.run(whole, cache=False).rows


def test_damaged_gradients_are_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = load(tmp_path, SCENARIO, "compressors=[none]")
    rows = running.run(scenario).rows
    (folder,) = kept(tmp_path)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        for path in (tmp_path / "cache").glob("*.json"):
            path.unlink()
        shutil.rmtree(tmp_path / "cache" / "results", ignore_errors=True)
        file.write_bytes(file.read_bytes()[:-3] + b"abc")
        trained = count_trainings(monkeypatch)
        assert running.run(scenario).rows == rows
        assert len(trained) == 1
        assert kept(tmp_path) == [folder]


def test_kept_gradients_stay_within_their_bound_and_the_oldest_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except those that another run reads."""

    def run(seed: int) -> Path:
        before = set(kept(tmp_path)) if seed else set()
        running.run(load(tmp_path, SCENARIO, "compressors=[none]", f"seed={seed}"))
        (new,) = set(kept(tmp_path)) - before
        os.utime(new, (seed, seed))
        return new

    first = run(0)
    size = gradients._nbytes(first)
    monkeypatch.setattr(gradients, "KEPT_BYTES", 3 * size + size // 2)
    others = [run(seed) for seed in (1, 2)]
    with in_use(first):
        newest = run(3)
        assert kept(tmp_path) == sorted([first, others[1], newest])
    last = run(4)
    assert kept(tmp_path) == sorted([others[1], newest, last])
    monkeypatch.setattr(gradients, "KEPT_BYTES", size // 2)
    running.run(load(tmp_path, SCENARIO, "compressors=[none]", "seed=5"))
    assert kept(tmp_path) == sorted([others[1], newest, last])


def test_without_the_cache_nothing_is_kept(tmp_path: Path) -> None:
    running.run(load(tmp_path, SCENARIO, "compressors=[none]"), cache=False)
    assert not (tmp_path / "cache" / "gradients").exists()


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_a_warm_up_whose_loss_rises_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rate: float
) -> None:
    """LeNet learns at 0.01; a hundred times that multiplies its loss, which stays finite."""
    changes = (f"gradients.learning_rate={rate}", "gradients.warmup_steps=4", "compressors=[none]")
    scenario = load(tmp_path, SCENARIO, *changes)
    losses = running.run(scenario).provenance["gradients"]["warmup_losses"]
    rises = max(losses) > 2 * losses[0]
    assert rises is (rate == 1)
    assert ("in the warm-up" in caplog.text) is rises
