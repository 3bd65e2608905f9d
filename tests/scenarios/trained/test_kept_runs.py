"""What is kept of a training can be read back, and what cannot be read is as good as none."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gcsim.errors import InputError
from gcsim.files import sealed, unsealed
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.trained.runs import Run
from gcsim.scenarios.trained.study import train
from gcsim.traces.training import checkpoint, loop, shipped
from gcsim.traces.training.team import Team
from gcsim.traces.training.trajectory import Trajectory

TEXT = """
model: {build: "tests.traces.training.world:small", input_shape: [64], classes: 10}
batch_size: 8
cluster: {nodes: 2, devices_per_node: 1, device: v100, network: 1gbe}
compressors:
  - none
  - {kind: "tests.traces.training.world:NoNumber", label: no number}
  - {kind: "tests.traces.training.world:NoNumberLater", label: no number later}
uncertainty: {draws: 0}
train: {task: digits, workers: 2, steps: 8, evaluate_every: 2, target: {accuracy: 0.01}, seeds: 1,
        learning_rate: 0.05, device: cpu}
"""
NAIVE = ["train.loss='tests.traces.training.world:naive'", "train.learning_rate=500",
         "train.evaluate_every=1"]  # fmt: skip


@pytest.fixture(autouse=True)
def _kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(loop, "KEEP_EVERY", 0.0)  # a state after each evaluation
    (tmp_path / "small.yaml").write_text(TEXT)


@pytest.mark.parametrize(
    ("method", "same"),
    [("cser", True), ("torch_post_local_sgd", True), ("topk", False), ("fp16", False)],
)
def test_a_method_with_its_own_momentum_is_one_training_for_all_optimizers(
    method: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Team` gives it, and replicas that differ, plain steps (docs/training.md, "Settings")."""
    given = f"compressors=[none, {method}]"
    changes = ["train.optimizer.momentum=0", "train.optimizer.name=adamw"]
    runs = [asked(tmp_path, given, *changes[:more], method=1) for more in range(3)]
    assert len({run.path.name for run in runs}) == (1 if same else 3)
    losses = set()
    for place, run in enumerate(runs):
        monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / f"cache {place}"))
        losses.add(performed(run).losses)
    assert len(losses) == (1 if same else 3)


def asked(folder: Path, *changes: str, method: int = 0, until: int = 8) -> Run:
    scenario = load_scenario(folder / "small.yaml", changes)
    assert scenario.train is not None
    return Run(
        scenario=scenario, choice=scenario.compressors[method], seed=0, until=until,
        rate=scenario.train.learning_rate.values[0],
    )  # fmt: skip


def performed(run: Run) -> Trajectory:
    found = run.perform(SilentProgress())
    assert isinstance(found, Trajectory), found
    return found


def numbers(found: Trajectory) -> list[float]:
    judged = [one.loss for one in found.evaluations]
    return [*found.losses, *judged, *(w.quality.nmse for w in found.windows if w.quality)]


@pytest.mark.parametrize(
    ("changes", "method", "said"),
    [
        (NAIVE, 0, "the loss is inf on the samples held out"),
        ([], 1, "step 3: the loss is not a number"),
        (["train.evaluate_every=1"], 1, "step 3: an update is not a number"),
        ([], 2, "step 4: the loss is nan on the samples held out"),
        (["training.accumulation=2"], 2, "step 4: the loss is nan on the samples held out"),
        (["train.stop.diverged=false", *NAIVE], 0, "the loss is inf on the samples held out"),
    ],
)
def test_a_training_that_leaves_the_numbers_has_diverged_and_is_kept(
    changes: list[str], method: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = asked(tmp_path, *changes, method=method)
    found = performed(run)
    assert found.ended == "diverged"
    assert said in found.why
    assert len(found.evaluations) == len(found.windows) + 1
    assert all(map(math.isfinite, numbers(found)))
    (file,) = run.path.parent.iterdir()  # and no state
    body = unsealed(file.read_bytes())
    assert body is not None
    json.loads(body, parse_constant=pytest.fail)  # no NaN, no Infinity
    monkeypatch.setattr(Team, "step", None)  # nothing is trained again
    assert run.known == (found, "")
    assert performed(run) == found


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_held_out_loss_that_is_no_number_ends_a_training(
    loss: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first evaluation it is the user's mistake, later a divergence."""
    evaluate = Team.evaluate
    monkeypatch.setattr(Team, "evaluate", lambda self: (loss, 0.5))
    found = asked(tmp_path).perform(SilentProgress())
    with pytest.raises(InputError, match=r"the loss of untrained weights is -?(nan|inf) on the"):
        raise InputError(found.problems)  # type: ignore[union-attr]
    count = iter(range(9))
    monkeypatch.setattr(
        Team, "evaluate", lambda self: evaluate(self) if next(count) < 2 else (loss, 0.5)
    )
    trained = performed(asked(tmp_path))
    assert (trained.ended, len(trained.losses), len(trained.windows)) == ("diverged", 4, 1)
    assert asked(tmp_path).known == (trained, "")


def test_a_result_with_such_a_training_is_json(tmp_path: Path) -> None:
    result = train(load_scenario(tmp_path / "small.yaml"))
    rows = json.loads(result.to_json(), parse_constant=pytest.fail)["rows"]
    assert [row["ended"] for row in rows] == [["finished"], ["diverged"], ["diverged"]]
    assert [row.reached for row in result.rows] == [1, 0, 0]


# --- what cannot be read -------------------------------------------------------------------------


def without_numbers(one: Trajectory) -> Trajectory:
    last = replace(one.evaluations[-1], loss=math.nan)
    return replace(one, evaluations=(*one.evaluations[:-1], last))


def damaged(body: bytes) -> list[bytes]:
    """Sealed, as a version that wrote otherwise may have left it."""
    return [b"", b"\xff", b"{}", b"null", b"[1]", body[: len(body) // 2]]


@pytest.mark.parametrize("number", range(8))
def test_an_ended_trajectory_that_does_not_validate_is_trained_again(
    number: int, tmp_path: Path
) -> None:
    run = asked(tmp_path)
    found = performed(run)
    file = run.path.with_suffix(".json")
    whole = file.read_bytes()
    body = unsealed(whole)
    assert body is not None
    nan, odd = body.replace(b'"loss":', b'"loss":NaN,"x":', 1), body.replace(b":8", b":-8")
    file.write_bytes(sealed([*damaged(body), nan, odd][number]))
    assert run.known is None
    assert performed(run) == found
    assert file.read_bytes() == whole


@pytest.mark.parametrize("number", range(13))
def test_a_state_that_does_not_validate_is_trained_again(number: int, tmp_path: Path) -> None:
    """Whether what is known of it or the state itself is of no use."""
    performed(asked(tmp_path, until=4))
    run = asked(tmp_path)
    file = run.path.with_suffix(".state")
    body, read = unsealed(file.read_bytes()), checkpoint.read(file)
    assert body is not None
    assert read is not None
    about, _ = read
    shapes: list[Any] = [
        {},
        {"replicas": [torch.zeros(3)], "buffers": [], "optimizers": [{}], "members": []},
        {"replicas": [], "buffers": []},
    ]
    if number < 6:
        file.write_bytes(sealed(damaged(body)[number]))
    elif number < 9:
        checkpoint.write(file, about, shapes[number - 6])
    elif number == 9:
        checkpoint.write(file, {**about, "losses": [math.nan] * 4}, {})
    else:  # a class, a tensor, a kind that are not there
        old, new = (
            (b"compressors.dense", b"compressors.densf"),
            (b'["tensor", "', b'["tensor", "x'),
            (b'["tensor"', b'["tonsor"'),
        )[number - 10]
        length = int.from_bytes(body[:8], "little")
        text = body[8 : 8 + length].replace(old, new)
        file.write_bytes(sealed(len(text).to_bytes(8, "little") + text + body[8 + length :]))
    found = performed(run)
    assert found.ended == "finished"
    file.with_suffix(".json").unlink()
    assert performed(run) == found  # from nothing


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    run = asked(tmp_path)
    found = without_numbers(performed(run))
    before = run.path.with_suffix(".json").read_bytes()
    assert not loop.write(run.path, found)
    run.keep(found)
    assert run.path.with_suffix(".json").read_bytes() == before
    with pytest.raises(ValueError, match=r"evaluations\.4\.loss"):
        shipped.write(
            tmp_path / "a.json.xz", shipped.Shipped(code="", made="", trajectories=(found,))
        )
    assert not (tmp_path / "a.json.xz").exists()
