"""A framework that is not installed is named, with what to install."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from gcsim.cli.app import app
from gcsim.integrations import Recorder
from gcsim.traces.storage.store import Trace


@pytest.mark.parametrize(
    ("extra", "packages"),
    [("huggingface", ["transformers"]), ("lightning", ["lightning", "pytorch_lightning"])],
)
def test_a_missing_framework_is_named(
    extra: str, packages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*packages, "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"gcsim.integrations.{extra}", raising=False)
    says = rf"needs {packages[0]}, which is not installed: pip install 'gcsim\[{extra}\]'"
    with pytest.raises(ModuleNotFoundError, match=says):
        importlib.import_module(f"gcsim.integrations.{extra}")


def test_missing_tensorboard_is_told_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["train", "digits_8", "--tensorboard", "events"])
    assert done.exit_code == 2
    assert done.output.startswith("--tensorboard: error: needs tensorboard, which is not installed")
    assert "pip install 'gcsim[tensorboard]'" in done.output
    assert not list(tmp_path.iterdir())


def test_a_recording_ends_with_its_training_whatever_ends_it(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)

    def train(recorder: Recorder, steps: int) -> list[bool]:
        recorder.begin(net, None)
        done = []
        for _ in range(steps):
            net.zero_grad()
            net(torch.ones(4, 3)).sum().backward()
            done.append(recorder.step())
        return done

    recorder = Recorder(tmp_path / "trace", {"iterations": 3, "timed": 1, "quiet": True})
    for noticed in (True, False):
        assert train(recorder, 2) == [False, False]
        if noticed:
            recorder.end(KeyboardInterrupt())
    assert train(recorder, 4) == [False, False, False, True]
    recorder.end()
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]
    assert Trace.open(tmp_path / "trace").iterations == 3
    assert train(recorder, 5) == [False] * 5  # a complete trace stays as it is
    recorder.end()
    assert not net._forward_pre_hooks
    assert not any(parameter._backward_hooks for parameter in net.parameters())
