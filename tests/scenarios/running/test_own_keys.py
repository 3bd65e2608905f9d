"""Names in the cache follow all that a user's functions read and make, and nothing else."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gcsim
from gcsim import opened
from gcsim.scenarios.running.keys import profile_keys
from gcsim.scenarios.trained.runs import Run
from gcsim.traces.models import losses
from gcsim.traces.stage1 import own_code
from tests.scenarios.files import load

SCENARIO = """
model: {build: 'own_net:build', input_shape: [4], classes: 2}
batch_size: 5
cluster: {nodes: 2, devices_per_node: 1, device: v100, network: 1gbe}
compressors: [none, {kind: 'own_method:Mine'}]
gradients: {source: live, workers: 2, iterations: 1, warmup_steps: 0, device: cpu}
uncertainty: {draws: 0}
train: {workers: 2, steps: 4, evaluate_every: 2, target: {accuracy: 0.9}, seeds: 1,
        learning_rate: 0.03, device: cpu, task: 'own_data:splits', loss: 'own_loss:loss'}
"""
MODULES = {
    "own_net": """
from torch import nn
HERE
def build():
    WIDTH
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
""",
    "own_data": """
import torch
from torch.utils.data import Dataset
HERE
class Points(Dataset):
    def __len__(self):
        return 90
    def __getitem__(self, index):
        if index == 80:  # a file that is opened late
            LATE
        return torch.full((4,), float(index % 2)), index % 2
def splits():
    WIDTH
    return Points(), Points()
""",
    "own_loss": """
from torch import nn
HERE
def loss(output, labels):
    return nn.functional.cross_entropy(output, labels)
""",
    "own_method": """
from gcsim.compressors.dense import Dense
HERE
class Mine(Dense):
    def exchange(self, bucket, step):
        WIDTH
        return (yield from super().exchange(bucket, step))
""",
}
READ = "width = int((pathlib.Path(__file__).parent / '{name}.{when}').read_text())"
TIMES = [
    (name, when)
    for name, text in MODULES.items()
    for when, word in (("import", "HERE"), ("call", "WIDTH"), ("late", "LATE"))
    if word in text
]


def forget() -> None:
    """As a new process is."""
    own_code._calls.clear()
    opened._notes.clear()
    losses._function.cache_clear()
    for name in MODULES:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in MODULES.items():
        words = {"HERE": "import", "WIDTH": "call", "LATE": "late"}
        for word, when in words.items():
            text = text.replace(word, READ.format(name=name, when=when))  # noqa: PLW2901
            (folder / f"{name}.{when}").write_text("3")
        (folder / f"{name}.py").write_text("import pathlib\n" + text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    forget()
    yield folder
    forget()


def names() -> tuple[list[str], str]:
    """Of profiles, and of a trajectory."""
    scenario = load(Path(".."), SCENARIO)
    run = Run(scenario=scenario, choice=scenario.compressors[1], rate=0.03, seed=0, until=4)
    return profile_keys(scenario), run.path.name


@pytest.mark.parametrize(("name", "when"), TIMES)
def test_a_file_that_any_function_of_the_user_reads_is_in_the_names(
    project: Path, name: str, when: str
) -> None:
    (dense, mine), trajectory = names()
    forget()
    assert names() == ([dense, mine], trajectory)
    forget()
    (project / f"{name}.{when}").write_text("4")
    (other_dense, other_mine), other_trajectory = names()
    assert other_trajectory != trajectory
    assert (other_mine != mine) == (name in ("own_net", "own_method"))
    assert (other_dense != dense) == (name == "own_net")


@pytest.mark.parametrize("name", ["unrelated.py", "own_net_copy.py", "notes.txt"])
def test_a_file_saved_beside_them_changes_no_name(project: Path, name: str) -> None:
    before = names()
    forget()
    (project / name).write_text("X = 1\n")
    assert names() == before


def test_a_run_and_a_training_follow_the_file_that_a_builder_reads(project: Path) -> None:
    """A linear layer of 4 x 3 + 3 and one of 3 x 2 + 2, or of 4 x 5 + 5 and 5 x 2 + 2: 92 bytes
    and 148, in float32."""
    found = []
    for width in ("3", "5", "3"):
        forget()
        (project / "own_net.call").write_text(width)
        result = gcsim.run(load(Path(".."), SCENARIO))
        assert result.rows == gcsim.run(load(Path(".."), SCENARIO), cache=False).rows
        found.append([row.wire_bytes_per_worker for row in result.rows])
    assert found == [[92, 92], [148, 148], [92, 92]]


def test_a_module_that_the_process_has_changed_is_built_again(project: Path) -> None:
    """In a notebook: the file is the same, the variable is not."""
    text = (project / "own_net.py").read_text()
    (project / "own_net.py").write_text(text.replace("return", "width = width * SCALE\n    return"))
    with (project / "own_net.py").open("a") as file:
        file.write("SCALE = 1\n")
    before = names()[0]
    vars(sys.modules["own_net"])["SCALE"] = 2
    assert names()[0] != before
    vars(sys.modules["own_net"])["SCALE"] = 1
    assert names()[0] == before
