"""What `gcsim train` and `gcsim reproduce` are given: plans, names, trajectories that are kept."""

import io
import shutil
from contextlib import redirect_stderr
from pathlib import Path
from random import Random
from typing import Any

from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.papers.preset import PRESETS
from gcsim.scenarios.sections.file import schema_json
from tests.command import gcsim
from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.generation import drawn
from tests.fuzz.mutation import as_yaml, damaged, tree, value
from tests.fuzz.small import small, written

_TRAIN = 0.4
_PRESET = "ce_sgd_fig4"
"""The quickest."""
_PLAN: dict[str, Any] = {
    "task": "digits", "workers": 2, "steps": 2, "evaluate_every": 1, "target": {"accuracy": 0.02},
    "learning_rate": 0.01, "seeds": 1, "device": "cpu",
}  # fmt: skip
_LIVE = {"source": "live", "workers": 2, "iterations": 1, "warmup_steps": 1}
_ARGUMENTS = ("-q", "--jobs", "1", "-o", "out")


def _scenario(plan: Any) -> dict[str, Any]:
    return small(model="cnn_digits", batch_size=4, gradients=_LIVE, train=plan)


def _train(rng: Random, one: Try) -> None:
    if choose(rng, 0.1):
        _damage(rng, one)
        written(one.folder, **_scenario(_PLAN))
        done = one.gcsim("train", "s.yaml", *_ARGUMENTS)
        if done is not None and done.returncode != 0:
            one.found.append(f"a damaged trajectory is refused: {done.stderr.splitlines()[:1]}")
        return
    known = schema_json()["$defs"]
    plan: Any = dict(_PLAN)
    keys = known["Train"]["properties"]
    for key in rng.sample(sorted(keys), rng.choice((0, 1, 2))):
        plan[key] = drawn(rng, keys[key], known)
    plan = tree(rng, plan) if choose(rng, 0.5) else plan
    path = write(one.folder / "s.yaml", as_yaml(_scenario(plan)))
    done = one.gcsim("check", path.name)
    if done is not None and done.returncode == 0 and choose(rng, _TRAIN):
        one.gcsim("train", path.name, *_ARGUMENTS, *_shorter(path))


def _shorter(path: Path) -> list[str]:
    """Options that make a plan one that takes a second."""
    with redirect_stderr(io.StringIO()):  # warnings, which `check` gave
        plan, found = load_scenario(path).train, []
    if plan is None:
        return []
    if plan.steps > 4:
        found += ["train.steps=2", "train.evaluate_every=1"]
    if plan.workers > 4:
        found.append("train.workers=2")
    if plan.seeds > 1:
        found.append("train.seeds=1")
    if len(plan.learning_rate.values) > 2:
        found.append("train.learning_rate=0.01")
    return [word for change in found for word in ("--set", change)]


def _reproduce(rng: Random, one: Try) -> None:
    if choose(rng, 0.05):
        _damage(rng, one)
        done = one.gcsim("reproduce", _PRESET, "--quick", *_ARGUMENTS)
        if done is not None and done.returncode != 0:
            one.found.append(f"a damaged trajectory is refused: {done.stderr.splitlines()[:1]}")
        return
    name = rng.choice([_PRESET, *PRESETS])
    name = str(value(rng, name)).replace("\0", "").encode("utf-8", "replace").decode()
    name = _PRESET if name in PRESETS or choose(rng, 0.3) else name
    output = rng.choice(("out", "out", ".", "s.txt", "s.txt/out", "/dev/null", "a/b/c"))
    write(one.folder / "s.txt", "mine")
    more = rng.choice(([], [], ["--json"], ["--quick"], ["--jobs", "0"], ["--jobs", "x"]))
    one.gcsim("reproduce", name, "--quick", "-q", "--jobs", "1", "-o", output, *more)


def _damage(rng: Random, one: Try) -> None:
    """The kept trajectories, one of them damaged, as the cache of this try."""
    shutil.copytree(one.material / "cache", one.folder / "cache")
    kept = sorted((one.folder / "cache" / "trajectories").glob("*.*"))
    for path in rng.sample(kept, min(len(kept), rng.choice((1, 2)))):
        write(path, damaged(rng, path.read_bytes()))
    one.material = one.folder


def _prepare(folder: Path) -> None:
    written(folder, **_scenario(_PLAN))
    _run(folder, "train", "s.yaml")


def _prepare_preset(folder: Path) -> None:
    _run(folder, "reproduce", _PRESET, "--quick")


def _run(folder: Path, *arguments: str) -> None:
    done = gcsim(*arguments, *_ARGUMENTS, folder=folder, GCSIM_CACHE_DIR=str(folder / "cache"))
    assert done.returncode == 0, done.stderr


TRAIN = Kind(name="train", make=_train, prepare=_prepare)
REPRODUCE = Kind(name="reproduce", make=_reproduce, prepare=_prepare_preset)
