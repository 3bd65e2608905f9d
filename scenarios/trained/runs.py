"""Trajectories of a scenario's trainings, cached or shipped.

There is one per method, learning rate and seed, in a file named by a hash of everything that it
depends on (not the cluster). Each is trained on one thread, so that its bits do not depend on
parallel trainings. Shipped trajectories are used on every kind of processor.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from threading import Lock

from gcsim.compressors.options.method import code_of, method_of
from gcsim.compressors.registry import REGISTRY
from gcsim.compressors.state import CannotBeKeptError
from gcsim.errors import InputError, Problem
from gcsim.files import cache_folder
from gcsim.scenarios.progress import Progress
from gcsim.scenarios.running.keys import own_compressor, own_model
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.sweeps.tasks import Failure, failure
from gcsim.traces.models.registry import ModelEntry, trained_on
from gcsim.traces.stage1 import cache, machine
from gcsim.traces.stage1.own_code import own_code
from gcsim.traces.tasks.folder import PREFIX, fingerprint
from gcsim.traces.training import shipped
from gcsim.traces.training.loop import Rules, advance, asked_for, load, write
from gcsim.traces.training.plan import Optimizer, Partition, Plan
from gcsim.traces.training.trajectory import Trajectory

_READ = 64  # samples at a time
_OTHERWISE = ("learning_rate", "seeds", "target", "patience", "stop")
"""Fields of a plan that are part of a trajectory's name in another way, or change no training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A trajectory to train, perhaps in another process."""

    scenario: Scenario
    choice: CompressorChoice
    rate: float
    seed: int
    until: int  # number of steps to train now; it may continue later
    fresh: bool = False  # do not use a shipped trajectory

    @property
    def plan(self) -> Plan:
        """Training plan; `InputError` without one."""
        return plan_of(self.scenario)

    @property
    def path(self) -> Path:
        """Files, without suffix."""
        return cache_folder() / "trajectories" / self._key()

    @property
    def facts(self) -> dict[str, object]:
        """Facts of the training that do not depend on learning rate, seed and machine."""
        plan, scenario = self.plan, self.scenario
        if takes_plain_steps(self.choice):
            plan = replace(plan, optimizer=Optimizer(weight_decay=plan.optimizer.weight_decay))
        micro_batches, precision = scenario.training.accumulation, scenario.training.precision
        partition = _stated(plan.partition)
        return {
            "compressor": self.choice.kind,
            "parameters": self.choice.parameters,
            "model": _stated(learner(scenario)),
            "batch_size": scenario.batch_size,
            "buckets": asdict(scenario.buckets),
            **({"accumulation": micro_batches} if micro_batches > 1 else {}),
            **({"precision": precision} if precision != "fp32" else {}),
            "plan": {
                **{k: v for k, v in _stated(plan).items() if k not in _OTHERWISE},
                **({"partition": partition} if partition else {}),
            },
            "stop": plan.stop.diverged,
        }

    @property
    def code(self) -> str:
        """Hash of the code that trains (`shipped.code_of`)."""
        return shipped.code_of(learner(self.scenario), REGISTRY.get(self.choice.kind))

    def _key(self) -> str:
        one = {
            **self.facts,
            "rate": self.rate,
            "seed": self.seed,
            "machine": {**machine.facts(), "threads": 1},
            "gpu": self.plan.device != "cpu" and Path("/proc/driver/nvidia/version").exists(),
        }
        entry = learner(self.scenario)
        own = {**own_model(self.scenario), **own_compressor(self.choice)}
        token = _performing.set(True)
        try:
            if entry.task.startswith(PREFIX):
                one["images"] = fingerprint(Path(entry.task.removeprefix(PREFIX)))
            elif ":" in entry.task:
                own[entry.task] = own_code(entry.task, lambda: _data(entry))
            if entry.loss:
                own[entry.loss] = own_code(entry.loss, lambda: _imported(entry.loss))
        finally:
            _performing.reset(token)
        compressor = code_of(self.choice.kind, self.choice.parameters)
        return cache.key(one, own, compressor=compressor)

    @property
    def known(self) -> tuple[Trajectory, str] | None:
        """Known trajectory, if it is long enough, with processor and libraries of a shipped one (""
        for one of this machine's cache)."""
        came = None if self.fresh else shipped.read(shipped.path_of(self.facts))
        if came is not None and came.code == self.code:
            one = asked_for(came.one(self.rate, self.seed), self.rules, self.until)
            if one is not None:
                return one, came.made
        kept = load(self.path, self.rules, self.until)
        return None if kept is None else (kept, "")

    @property
    def rules(self) -> Rules:
        """Rules that end the training."""
        plan = self.plan
        return Rules(
            evaluate_every=plan.evaluate_every,
            schedule=plan.schedule,
            target=plan.target,
            stop=plan.stop,
        )

    def keep(self, found: Trajectory) -> None:
        """Store the trajectory for `known`."""
        write(self.path, found)

    def perform(self, progress: Progress) -> Trajectory | Failure:
        """Train; return errors as a `Failure`."""
        token = _performing.set(True)
        try:
            with _one:
                try:
                    return self._trained(progress)
                except CannotBeKeptError:  # its state no longer exists
                    return self._trained(progress)
        except Exception as error:
            return failure(error)
        finally:
            _performing.reset(token)

    def _trained(self, progress: Progress) -> Trajectory:
        import torch

        from gcsim.traces.tasks.registry import make_split
        from gcsim.traces.timing.allocator import keep_freed_memory
        from gcsim.traces.training.team import Method, Team

        torch.set_num_threads(1)
        keep_freed_memory()
        plan, scenario, entry = self.plan, self.scenario, learner(self.scenario)
        method = method_of(self.choice.kind, self.choice.parameters).of_steps(plan.steps)
        with _named("train.task"):
            split = make_split(entry, self.seed)
        team = Team(
            entry,
            split,
            Method(
                kind=self.choice.kind, compressor=method.compressor, parameters=method.parameters
            ),
            workers=plan.workers,
            batch=scenario.batch_size,
            accumulation=scenario.training.accumulation,
            optimizer=plan.optimizer,
            limits=(scenario.buckets.first, scenario.buckets.cap),
            seed=self.seed,
            partition=plan.partition,
            device=plan.device,
            clip=plan.clip,
            autocast=scenario.training.precision == "bf16",
        )
        method.require_names(piece.name for layout in team.layouts for piece in layout.slices)
        fresh = Trajectory(
            compressor=self.choice.kind,
            parameters=method.parameters.model_dump(mode="json"),
            seed=self.seed,
            learning_rate=self.rate,
            workers=plan.workers,
            steps=plan.steps,
            data=split.source,
            model=team.facts,
            buckets=team.layouts,
        )
        with progress.task(self.choice.label, self.until) as stage:
            return advance(team, fresh, self.rules, self.path, until=self.until, told=stage.advance)


def takes_plain_steps(choice: CompressorChoice) -> bool:
    """Whether a method of gcsim trains in the same way with every optimizer (`Team`)."""
    if choice.kind not in REGISTRY:
        return False
    method = method_of(choice.kind, choice.parameters)
    cls, parameters = method.compressor, method.parameters
    return cls.momentum(parameters)[0] > 0 or cls.properties(parameters).replicas != "identical"


def _stated(value: ModelEntry | Plan | Partition) -> dict[str, object]:
    """Return the fields that are not defaults, so that a new field renames no file."""
    default = {field.name: field.default for field in fields(value)}
    return {k: v for k, v in asdict(value).items() if getattr(value, k) != default[k]}


def _data(entry: ModelEntry) -> object:
    """Return facts of a user's data; reads each sample, since some data open files only then."""
    import numpy as np

    from gcsim.traces.tasks.own import own_split

    with suppress(Exception):  # training says why
        split = own_split(entry)
        parts = (split.train, split.test)
        for part in parts:
            for first in range(0, len(part), _READ):
                part.taken(np.arange(first, min(first + _READ, len(part))))
        return [(len(part), *(list(t.shape) for t in part.taken(np.array([0])))) for part in parts]
    return None


def _imported(function: str) -> None:
    with suppress(Exception):  # training says why
        importlib.import_module(function.partition(":")[0])


def cache_name(run: Run) -> str:
    """Return the name of a trajectory in this machine's cache."""
    return run.path.name


_one = Lock()
"""Serialises trainings of a process's threads (dask's): torch has one generator for all."""
_performing: ContextVar[bool] = ContextVar("performing", default=False)


def check_not_inside() -> None:
    """Raise `InputError` if a script imported for its function trains in turn."""
    if _performing.get():
        raise InputError(
            "training processes import your script, which would train again",
            place="gcsim.train",
            hint='call it under if __name__ == "__main__":',
        )


@contextmanager
def _named(key: str) -> Iterator[None]:
    """Name the key in errors by the task instead of the gradients."""
    try:
        yield
    except InputError as error:
        task = "gradients.task"
        raise InputError(
            replace(p, place=key if p.place == task else p.place) for p in error.problems
        ) from error


def plan_of(scenario: Scenario) -> Plan:
    """Training plan of the scenario's model; `InputError` without one."""
    if scenario.train is None:
        raise InputError(
            "key 'train' is missing: it says how the model is trained",
            place=scenario.name,
            hint="write train: {steps: 1000, target: {accuracy: 0.95}}, or give "
            "--set train.steps=1000; docs/training.md lists all keys",
        )
    return scenario.train


def unsupported(scenario: Scenario) -> list[Problem]:
    """Return problems of settings that training cannot follow: they change the mathematics of a
    step, or leave too few evaluations for a target."""
    training, found = scenario.training, []
    for key in ("gradients", "precision"):
        stated = getattr(training, key)
        if stated != "fp32" and (key, stated) != ("precision", "bf16"):
            known = "float32, or with bfloat16 products: training.precision=bf16"
            message = f"gcsim train does not train in {stated}: trajectories are in {known}"
            hint = f"give --set training.{key}=fp32, or estimate an iteration with: gcsim run"
            found.append(Problem(place=f"training.{key}", message=message, hint=hint))
            break
    if training.local_steps > 1:
        message = "gcsim train exchanges in every step"
        hint = "give --set training.local_steps=1, or a method that synchronises every few steps"
        found.append(Problem(place="training.local_steps", message=message, hint=hint))
    inside = training.strategy == "hsdp"
    if training.between != "workers" or inside:
        message = "gcsim train exchanges between all workers"
        key, usual = ("strategy", "zero3") if inside else ("between", "workers")
        hint = f"give --set training.{key}={usual}, or estimate an iteration with: gcsim run"
        found.append(Problem(place=f"training.{key}", message=message, hint=hint))
    if training.gathered != "stored":
        message = f"gcsim train does not round weights to {training.gathered}"
        hint = "give --set training.gathered=stored, or estimate an iteration with: gcsim run"
        found.append(Problem(place="training.gathered", message=message, hint=hint))
    plan = plan_of(scenario)
    evaluations = math.ceil(plan.steps / plan.evaluate_every)
    if plan.patience > evaluations:
        message = f"{plan.steps:,} steps have {evaluations} evaluations, not {plan.patience}"
        hint = "lower it or train.evaluate_every, or raise train.steps"
        found.append(Problem(place="train.patience", message=message, hint=hint))
    if training.faults is not None:
        message = "a trajectory cannot lose workers, because its mean gradient would change"
        hint = "give --set training.faults=null, or estimate the deaths with: gcsim run"
        found.append(Problem(place="training.faults", message=message, hint=hint))
    return found


def mid_round(scenario: Scenario) -> list[str]:
    """Return, in words, the methods whose workers change clients between synchronisations."""
    plan, found = plan_of(scenario), []
    every = plan.partition.round
    for choice in scenario.compressors if plan.partition.clients else ():
        method, parameters = method_of(choice.kind, choice.parameters)
        ends = range(every - 1, plan.steps - 1, every)
        if any(method.phase(parameters, end) == "local" for end in ends):
            found.append(
                f"{choice.label}: workers change clients between two synchronisations; each "
                f"round (train.partition.round = {every}) must end with one."
            )
    return found


def learner(scenario: Scenario) -> ModelEntry:
    """Return the model with the task and loss of the training."""
    entry = trained_on(scenario.model, scenario.train_task or None)
    return replace(entry, loss=scenario.train_loss)
