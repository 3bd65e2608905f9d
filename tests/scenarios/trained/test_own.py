"""A user's own model, data and loss, in few lines of Python and in a scenario."""

import importlib
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gcsim
from gcsim.analysis.trained.write import draw_training
from gcsim.errors import InputError
from gcsim.traces.models import losses

CODE = '''
"""A straight line through points, which is no question of classes."""
import torch
from torch import nn
from torch.utils.data import TensorDataset


def build_model():
    return nn.Linear(4, 1)


def splits():
    drawn = torch.Generator().manual_seed(0)
    points = torch.randn(240, 4, generator=drawn)
    values = points @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
    return TensorDataset(points[:200], values[:200]), TensorDataset(points[200:], values[200:])


def loss(output, labels):
    return nn.functional.mse_loss(output, labels)


def each_loss(output, labels):
    return nn.functional.mse_loss(output, labels, reduction="none").mean(1)


def wrong(output, labels):
    return output


def two_classes():
    train, test = splits()
    return tuple(TensorDataset(x, (y[:, 0] > 0).long()) for x, y in (p[:] for p in (train, test)))


def classifier():
    return nn.Linear(4, 2)
'''
SCENARIO = """
model: lenet
batch_size: 5
cluster: {nodes: 2, devices_per_node: 1, device: v100, network: 1gbe}
compressors: [none, {kind: topk, ratio: 0.5}]
uncertainty: {draws: 0}
train: {workers: 2, steps: 40, evaluate_every: 10, target: {loss: 0.5}, seeds: 1,
        learning_rate: 0.03, device: cpu}
"""
YAML = SCENARIO.replace(
    "model: lenet", "model: {build: 'my_training:build_model', input_shape: [4], classes: 2}"
).replace("train: {", "train: {task: 'my_training:splits', loss: 'my_training:loss', ")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "line.yaml").write_text(SCENARIO)
    (tmp_path / "whole.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    (tmp_path / "my_training.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    losses._function.cache_clear()
    yield importlib.import_module("my_training")
    del sys.modules["my_training"]


def train(mine: ModuleType, **changes: Any) -> gcsim.TrainingResult:
    own = {"build_model": mine.build_model, "splits": mine.splits, "loss": mine.loss, **changes}
    return gcsim.train("line.yaml", **own)


def test_the_lines_of_the_page_train_ones_own_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[3] / "docs/training.md"
    text = page.read_text(encoding="utf-8")
    data, training = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_data.py").write_text(data)
    (tmp_path / "my_training.py").write_text(training)
    asked = SCENARIO.replace("{loss: 0.5}", "{accuracy: 0.9}")
    (tmp_path / "my_cluster.yaml").write_text(asked)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        result = runpy.run_path("my_training.py", run_name="__main__")["result"]
    finally:
        for name in ("my_data", "my_training"):
            sys.modules.pop(name, None)
    assert result.data == "my_data:splits (800 samples)"
    assert result.rows[0].reached == 1


def test_a_regression_is_trained_to_a_loss(mine: ModuleType, tmp_path: Path) -> None:
    """Without noise the loss goes to 0; there are no classes, and nothing says accuracy."""
    result = train(mine)
    dense, _ = result.rows
    assert dense.reached == 1
    assert dense.final_loss[0] < 0.05 * result.curves[0].loss[0]
    assert dense.final_accuracy == (None,)
    assert result.data == "my_training:splits (200 samples)"
    shown = result.summary(80)
    assert "time to loss 0.5" in shown
    assert "accuracy" not in shown
    assert len(draw_training(result, tmp_path)) == 3  # the report and two figures


def test_a_scenario_says_the_same(mine: ModuleType) -> None:
    first, second = train(mine), gcsim.train("whole.yaml")
    assert (first.rows, first.curves) == (second.rows, second.curves)
    (Path("again.yaml")).write_text(str(first.scenario).replace("None", "null"))
    assert gcsim.load_scenario("again.yaml").train_loss == "my_training:loss"


def test_each_samples_loss_is_as_good_as_the_mean(mine: ModuleType) -> None:
    mean, each = train(mine), train(mine, loss=mine.each_loss)
    for one, other in zip(mean.curves, each.curves, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-4)


def test_labels_that_are_classes_have_an_accuracy_and_cross_entropy(mine: ModuleType) -> None:
    result = train(mine, build_model=mine.classifier, splits=mine.two_classes, loss=None)
    assert all(last is not None and last > 0.8 for last in result.rows[0].final_accuracy)


def loaded(*changes: str) -> Any:
    return gcsim.load_scenario("line.yaml", changes)


def test_a_method_that_needs_each_samples_loss_says_so(mine: ModuleType) -> None:
    scenario = loaded("compressors=[none, variance]")
    own = {"build_model": mine.build_model, "splits": mine.splits}
    with pytest.raises(InputError, match="variance needs each sample's loss, my_training:loss giv"):
        gcsim.train(scenario, loss=mine.loss, **own)
    assert gcsim.train(scenario, loss=mine.each_loss, **own).rows[1].ended == ("finished",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": "wrong"}, r"wrong returned \[5, 1\] for a batch of 5; return the mean loss"),
        ({"splits": None}, "your own model needs your own data; give splits, too"),
        ({"splits": "build_model"}, r"splits\(\) returns two datasets of pairs"),
    ],
)
def test_mistakes_say_what_to_write(
    changes: dict[str, str | None], said: str, mine: ModuleType
) -> None:
    own = {key: name and getattr(mine, name) for key, name in changes.items()}
    with pytest.raises(InputError, match=said):
        train(mine, **own)


def test_an_accuracy_of_what_has_no_classes_is_refused(mine: ModuleType) -> None:
    scenario = loaded("train.target={accuracy: 0.9}")
    with pytest.raises(InputError, match=r"the labels are not classes; write target: \{loss"):
        gcsim.train(scenario, build_model=mine.build_model, splits=mine.splits, loss=mine.loss)


def test_what_other_processes_cannot_import_is_refused(mine: ModuleType) -> None:
    with pytest.raises(InputError, match=r"loss, \S+test_own.py:\d+: .*cannot import .*lambda"):
        train(mine, loss=lambda output, labels: 0)


def test_a_script_is_the_module_of_its_file_and_needs_a_guard(
    mine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `python my_script.py` runs it: a process that trains imports it for its functions."""
    call = "gcsim.train('line.yaml', build_model=build_model, splits=splits, loss=loss)"
    (tmp_path / "guarded.py").write_text(
        f"{CODE}\nimport gcsim\nif __name__ == '__main__':\n    found = {call}\n"
    )
    (tmp_path / "bare.py").write_text(f"{CODE}\nimport gcsim\nfound = {call}\n")
    found = runpy.run_path("guarded.py", run_name="__main__")["found"]
    assert found.rows == replace(train(mine)).rows
    with pytest.raises(InputError, match=r"call it under if __name__ == \"__main__\":"):
        runpy.run_path("bare.py", run_name="__main__")
