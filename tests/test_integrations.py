"""A framework that is not installed is named, with what to install."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gcsim.cli.app import app


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
