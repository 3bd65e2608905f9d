"""How were the shipped trajectories made? `python -m gcsim.scenarios.trained.make_shipped`.

An hour on one core. All methods with their defaults (a warm-up takes a tenth of the steps), and
those of the scenario; a file that is there and whose code is the same is not made again, so the
same command goes on. Nor is one of other code that trains to the same bits as far as the first
evaluation, on the same kind of processor: it is of this code from then on. On one thread: equal
seeds give equal files on processors of one kind with the same versions, which the files name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gcsim.compressors.registry import REGISTRY, check_parameters
from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.trained.runs import Run, plan_of
from gcsim.scenarios.trained.search import Tried, train_all
from gcsim.traces.profile import Step
from gcsim.traces.stage1 import cache, machine
from gcsim.traces.training import shipped
from gcsim.traces.training.loop import asked_for
from gcsim.traces.training.trajectory import Trajectory

SCENARIOS = ("digits_8", "characters_8")
WARM_UP = {"onebit_adam": "freeze_step", "torch_powersgd": "start", "torch_post_local_sgd": "start"}
"""The parameter that counts the steps before a method compresses, where those would be most."""


def wanted(scenario: Scenario) -> list[CompressorChoice]:
    """The scenario's methods, then all others with their defaults."""
    warm_up, others = plan_of(scenario).steps // 10, []
    for choice in with_defaults(scenario.compressors):
        given = {WARM_UP[choice.kind]: warm_up} if choice.kind in WARM_UP else {}
        parameters = check_parameters(choice.kind, given).model_dump()
        others.append(replace(choice, parameters=parameters))
    return [*scenario.compressors, *others]


def with_defaults(known: Iterable[CompressorChoice]) -> Iterator[CompressorChoice]:
    """All methods with their defaults that are not among these."""
    there = [(choice.kind, choice.parameters) for choice in known]
    for kind in REGISTRY:
        parameters = check_parameters(kind, {}).model_dump()
        if (kind, parameters) not in there:
            yield CompressorChoice(kind=kind, label=kind, parameters=parameters)


def made_here() -> str:
    """On what, for people."""
    libraries = (f"{name} {cache.version(name)}" for name in ("torch", "numpy", "numba"))
    return ", ".join([" ".join(filter(None, machine.processor()[:4])), *libraries])


def files(folder: Path = shipped.FOLDER) -> Iterator[tuple[Path, str, Scenario]]:
    """Each file that there is to be, the code that it is to be of, and a scenario of the method."""
    for name in SCENARIOS:
        scenario = load_scenario(name)
        for choice in wanted(scenario):
            alone = replace(scenario, compressors=(choice,))
            run = Run(scenario=alone, choice=choice, rate=0, seed=0, until=0)
            yield shipped.path_of(run.facts, folder), run.code, alone


def stale(folder: Path = shipped.FOLDER) -> list[Path]:
    """Those that are damaged or of other code, and those that nobody asks for."""
    asked = {path: code for path, code, _ in files(folder)}
    found = {path: shipped.read(path) for path in folder.glob("*.json.xz")}
    return sorted(path for path, one in found.items() if not one or one.code != asked.get(path))


def keep(path: Path, code: str, tried: Tried) -> None:
    """Write a method's file."""
    trajectories = tuple(one for seeds in tried.rates.values() for one in seeds.values())
    shipped.write(path, shipped.Shipped(code=code, made=made_here(), trajectories=trajectories))


def confirmed(found: shipped.Shipped, scenario: Scenario) -> bool:
    """Whether this code trains the same up to the first evaluation: losses, what is held out, every
    byte. Kernels stay those that were counted when the trajectory was trained."""
    rate, seed, steps = found.trajectories[0].learning_rate, 0, plan_of(scenario).evaluate_every
    (choice,) = scenario.compressors
    run = Run(scenario=scenario, choice=choice, rate=rate, seed=seed, until=steps, fresh=True)
    came, trained = found.one(rate, seed), run.perform(SilentProgress())
    if came is None or not isinstance(trained, Trajectory):
        return False
    known = asked_for(came, run.rules, steps)
    return known is not None and _sent(known) == replace(
        _sent(trained), losses=tuple(map(shipped.shown, trained.losses))
    )


def _sent(one: Trajectory) -> Trajectory:
    """The trajectory without its kernels."""

    def bare(step: Step) -> Step:
        own = [replace(each, computes=(), servers=(), moments=None) for each in step.exchanges]
        return replace(step, exchanges=tuple(own))

    windows = [
        replace(
            window,
            phases=tuple(
                replace(phase, steps=tuple(map(bare, phase.steps))) for phase in window.phases
            ),
        )
        for window in one.windows
    ]
    return replace(one, windows=tuple(windows))


def make(folder: Path = shipped.FOLDER) -> None:
    """Train what is stale or missing, and remove what nobody asks for."""
    left = set(stale(folder))
    for path, code, scenario in files(folder):
        if path.exists() and path not in left:
            continue
        left.discard(path)
        name = f"{scenario.name}, {scenario.compressors[0].label}"
        if (found := shipped.read(path)) and confirmed(found, scenario):
            shipped.write(path, replace(found, code=code))
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


if __name__ == "__main__":
    make()
