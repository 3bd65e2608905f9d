"""Tensors of a profile or a recording are those of the model that a scenario states beside it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.running.gradients import check_trace, record
from gcsim.scenarios.sections.model_table import known_parameters
from gcsim.traces.models.registry import shipped_model
from gcsim.traces.storage.manifest import MANIFEST, manifest_text, read_manifest
from tests.command import gcsim
from tests.scenarios.files import load

TEXT = """\
model: MODEL
batch_size: 4
gradients: {source: synthetic}
compute: {profile: profile.json}
cluster: {nodes: 2, device: cpu_2core, network: 1gbe}
compressors: [none]
"""
GRADIENT = "torch::autograd::AccumulateGrad"


def profile_of(path: Path, name: str, *, shapes: bool) -> None:
    """A step of a model as torch.profiler writes it: gradients from the last tensor to the first,
    each with its shape where `record_shapes` was set."""
    events = [{"ph": "X", "name": "ProfilerStep#1", "cat": "user_annotation", "ts": 0, "dur": 1e6}]
    for number, (_, shape) in enumerate(reversed(known_parameters(shipped_model(name)) or ())):
        event = {"ph": "X", "cat": "cpu_op", "ts": 1000 + 10 * number, "dur": 5, "pid": 1, "tid": 1}
        arguments = {"Input Dims": [list(shape)]} if shapes else {}
        events.append({**event, "name": GRADIENT, "args": arguments})
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize("name", ["lenet", "resnet20_cifar10", "resnet50"])
def test_a_profile_is_of_the_model(tmp_path: Path, name: str, *, shapes: bool) -> None:
    profile_of(tmp_path / "profile.json", name, shapes=shapes)
    check_trace(load(tmp_path, TEXT.replace("MODEL", name)))
    for other in {"lenet", "resnet20_cifar10", "resnet50", "alexnet"} - {name}:
        with pytest.raises(InputError, match=r"gradients in an iteration; the model has|is of an"):
            check_trace(load(tmp_path, TEXT.replace("MODEL", other)))


def test_the_command_refuses_it(tmp_path: Path) -> None:
    profile_of(tmp_path / "profile.json", "resnet20_cifar10", shapes=False)
    (tmp_path / "a.yaml").write_text(TEXT.replace("MODEL", "resnet50"))
    told = gcsim("check", "a.yaml", folder=tmp_path)
    assert told.returncode == 2
    assert "the model has 161 trained parameters" in told.stderr


def recorded(tmp_path: Path, name: str) -> Path:
    """A recording of LeNet that says to be of another model."""
    folder = tmp_path / "trace"
    if not folder.exists():
        text = TEXT.replace("compute: {profile: profile.json}\n", "").replace("MODEL", "lenet")
        text = text.replace("synthetic", "live, workers: 2, warmup_steps: 0, iterations: 1")
        record(load(tmp_path, text), folder)
    manifest = read_manifest(folder)
    facts = replace(manifest.facts, name=name)
    (folder / MANIFEST).write_text(manifest_text(replace(manifest, facts=facts)))
    path = tmp_path / "b.yaml"
    path.write_text(
        TEXT.replace("compute: {profile: profile.json}\n", "")
        .replace("MODEL", name)
        .replace("{source: synthetic}", "{source: recorded, trace: trace}")
    )
    return path


def test_a_recording_is_of_the_model_that_it_names(tmp_path: Path) -> None:
    """Its name alone says nothing: count, names and shapes of its tensors do."""
    check_trace(load_scenario(recorded(tmp_path, "lenet")))
    with pytest.raises(InputError, match="not of the scenario's model: it has a tensor"):
        check_trace(load_scenario(recorded(tmp_path, "resnet20_cifar10")))
