"""Maker of the shipped trajectories: `python -m tests.benchmarks.shipped_trajectories`.

An hour on one core: the scenario's methods, and all with their defaults (a warm-up takes a tenth of
the steps); methods of papers' tables. Files of this code are kept, so the command resumes. A file
of other code that trains alike (`confirmed`) becomes one of this code, with its kernels. One
thread: equal seeds give equal files on processors of one kind with equal versions, which the files
name.

    nice python -m tests.benchmarks.shipped_trajectories --long [characters_long | …]

Hours for the long ones (`LONG`): every method with one seed, then with the next, each trajectory
written at once. A kill loses seconds; the same command continues, and begins anew by itself where
gcsim's code changes. Two commands with different names train side by side.
"""

import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained import make_shipped
from gcsim.scenarios.trained.runs import Run, plan_of
from gcsim.scenarios.trained.search import MethodTraining, train_all
from gcsim.traces.profile import Exchange, Phase
from gcsim.traces.stage1 import cache, machine
from gcsim.traces.training import shipped
from gcsim.traces.training.loop import asked_for
from gcsim.traces.training.trajectory import Trajectory

_SAME, _NEAR = 0.001, 0.1
"""Relative differences of one training on two processors: median of losses, most of the rest."""
_FIRST = 20
"""Steps whose losses are compared: later ones grow apart, as rounding does in any training."""


def files(folder: Path = shipped.FOLDER) -> Iterator[tuple[Path, str, Scenario]]:
    """Files to make, with code and a scenario of the method."""
    asked = [(one, make_shipped.wanted(one)) for one in map(load_scenario, make_shipped.SCENARIOS)]
    papers = (*make_shipped.PAPERS, *make_shipped.ALIKE)
    asked += [(one, [*one.compressors]) for one in map(make_shipped.of_paper, papers)]
    for scenario, choices in asked:
        for choice in choices:
            alone = replace(scenario, compressors=(choice,))
            run = first_run(alone)
            yield shipped.path_of(run.facts, folder), run.code, alone


def first_run(alone: Scenario) -> Run:
    """Return the training of a scenario with one method, without a learning rate."""
    return Run(scenario=alone, choice=alone.compressors[0], rate=0, seed=0, until=0)


def long_trainings(names: Collection[str] = ()) -> Iterator[Scenario]:
    """Yield scenarios of one method each: all with the first seed, then with two, and so on;
    `names`: of some scenarios, by default all."""
    every = [load_scenario(*one) for one in make_shipped.LONG]
    loaded = [one for one in every if not names or one.name in names]
    if unknown := {*names} - {one.name for one in every}:
        raise InputError(f"no long training {min(unknown)!r}")
    plans = [plan_of(scenario) for scenario in loaded]
    for seeds in range(1, 1 + max((plan.seeds for plan in plans), default=0)):
        for scenario, plan in zip(loaded, plans, strict=True):
            for choice in scenario.compressors if seeds <= plan.seeds else ():
                yield replace(scenario, compressors=(choice,), train=replace(plan, seeds=seeds))


def stale(folder: Path = shipped.FOLDER) -> list[Path]:
    """Return damaged, outdated or unused files, except outdated long trainings."""
    asked = {path: code for path, code, _ in files(folder)}
    long = {shipped.path_of(first_run(one).facts, folder) for one in long_trainings()}
    found = {path: shipped.read(path) for path in folder.glob("*.json.xz")}
    return sorted(
        path
        for path, one in found.items()
        if not one or (path not in long and one.code != asked.get(path))
    )


def made_here() -> str:
    """Processor and libraries in words."""
    libraries = (f"{name} {cache.version(name)}" for name in ("torch", "numpy", "numba"))
    return ", ".join([" ".join(filter(None, machine.processor()[:4])), *libraries])


def keep(path: Path, code: str, tried: MethodTraining) -> None:
    """Write a method's file, or add to the file of this code."""
    found = shipped.read(path)
    before = found.trajectories if found and found.code == code else ()
    each = [*before, *(one for seeds in tried.rates.values() for one in seeds.values())]
    each.sort(key=lambda one: len(one.losses), reverse=True)  # of equal ones those before
    longest = {(one.learning_rate, one.seed): one for one in reversed(each)}
    if len(before) < len(longest) or any(one not in before for one in longest.values()):
        made = shipped.Shipped(code=code, made=made_here(), trajectories=tuple(longest.values()))
        shipped.write(path, made)


def confirmed(found: shipped.Shipped, scenario: Scenario) -> shipped.Shipped | None:
    """The file as this code's, if this code trains the same until steps of every kind have come,
    with the kernels of this code's first step. Another processor adds in another order: half of the
    first losses are equal to `_SAME`, and bytes and held-out results to `_NEAR`."""
    (choice,) = scenario.compressors
    first, came, until = found.trajectories[0], set[object](), 0
    for window in first.windows:
        kinds = {_kind(phase) for phase in window.phases}
        if not kinds <= came:
            came, until = came | kinds, window.first + window.steps
    run = Run(
        scenario=scenario, choice=choice, rate=first.learning_rate, seed=first.seed, until=until,
        fresh=True,
    )  # fmt: skip
    known, trained = asked_for(first, run.rules, until), run.perform(SilentProgress())
    if known is None or not isinstance(trained, Trajectory):
        return None
    if len(known.losses) != len(trained.losses):
        return None
    shown = replace(trained, losses=tuple(map(shipped.shown, trained.losses)))
    pairs = zip(known.losses[:_FIRST], shown.losses[:_FIRST], strict=True)
    apart = (abs(a - b) / max(a, b, _SAME) for a, b in pairs)
    before, now = (asdict(replace(_launching(one, None), losses=())) for one in (known, shown))
    if median(apart) > _SAME or not _alike(before, now):
        return None
    phases = (phase for window in reversed(trained.windows) for phase in window.phases)
    launched = {_kind(phase): phase.steps[0].exchanges for phase in phases}
    trajectories = tuple(_launching(one, launched) for one in found.trajectories)
    return replace(found, code=run.code, trajectories=trajectories)


def _alike(one: object, other: object, name: str = "") -> bool:
    """Whether plain values are equal, bytes and figures that are no whole numbers to `_NEAR`."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key], key) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_alike(*pair, name) for pair in pairs)
    if isinstance(one, float) or name in ("sent", "pulled"):
        return math.isclose(one, other, rel_tol=_NEAR, abs_tol=1e-6)  # type: ignore[arg-type]
    return one == other


def _kind(phase: Phase) -> object:
    """Kind of step: name, and collectives without bytes."""
    (step,) = phase.steps
    sent = tuple(tuple((c.kind, c.dtype) for c in each.collectives) for each in step.exchanges)
    return phase.name, sent


def _launching(one: Trajectory, kernels: Mapping[object, Sequence[Exchange]] | None) -> Trajectory:
    """The trajectory with these kernels by kind of step (others keep theirs), or without."""

    def own(phase: Phase) -> Phase:
        (step,) = phase.steps
        bare = [replace(each, computes=(), servers=(), moments=None) for each in step.exchanges]
        others = bare if kernels is None else kernels.get(_kind(phase), step.exchanges)
        exchanges = [
            replace(each, computes=other.computes, servers=other.servers, moments=other.moments)
            for each, other in zip(step.exchanges, others, strict=True)
        ]
        return replace(phase, steps=(replace(step, exchanges=tuple(exchanges)),))

    windows = [replace(each, phases=tuple(map(own, each.phases))) for each in one.windows]
    return replace(one, windows=tuple(windows))


def make(folder: Path = shipped.FOLDER) -> None:
    """Train stale or missing files, and remove unused ones."""
    left = set(stale(folder))
    for path, code, scenario in files(folder):
        if path.exists() and path not in left:
            continue
        left.discard(path)
        name = f"{scenario.name}, {scenario.compressors[0].label}"
        if (found := shipped.read(path)) and (same := confirmed(found, scenario)):
            shipped.write(path, same)
            print(f"{name}: as it was", flush=True)
            continue
        try:
            (tried,) = train_all(scenario, jobs=1, fresh=True, progress=SilentProgress())
        except InputError as error:
            print(f"{name}: left out: {error}", flush=True)
            continue
        keep(path, code, tried)
        print(f"{name}: {path.stat().st_size:,} bytes", flush=True)
    for path in left:
        path.unlink()


class ChangedError(Exception):
    """Code that trains changed since the start: a trajectory may be of both."""


def make_long(names: Collection[str] = ()) -> None:
    """Train long trajectories that are missing or of other code, and write each at once. Raises
    `ChangedError`."""
    before = _changed()
    for scenario in long_trainings(names):
        run = first_run(scenario)
        path, (choice,) = shipped.path_of(run.facts), scenario.compressors
        name = f"{path.name}: {scenario.name}, {choice.label}, seed {run.plan.seeds - 1}"
        found = shipped.read(path)
        if found and found.code != run.code and (same := confirmed(found, scenario)):
            shipped.write(path, same)
        try:
            (tried,) = train_all(scenario, jobs=1, widen=True, progress=SilentProgress())
        except InputError as error:
            print(f"{name}: left out: {error}", flush=True)
            continue
        if _changed() != before:
            raise ChangedError
        keep(path, run.code, tried)
        print(f"{name}: {path.stat().st_size:,} bytes", flush=True)


def _changed() -> float:
    """Time of the last change to code that trains."""
    root = Path(__file__).parents[2]
    files = (path for room in ("compressors", "traces") for path in (root / room).rglob("*.py"))
    return max(path.stat().st_mtime for path in files)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--long"]:
        try:
            make_long(sys.argv[2:])
        except ChangedError:
            os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this command
    else:
        make()
