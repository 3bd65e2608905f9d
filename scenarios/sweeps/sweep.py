"""A sweep: one scenario at every combination of some values, on one machine or on many.

scenario, grid ─► points, all checked ─► stage 1 for each new compressor and gradients, once
                                                │
      results.csv, results.json ◄─ points/ ◄────┴─► each point from its profiles, in parallel

Every row equals that of `gcsim.run` with the same values, to the last bit, for any number of
workers. Points are stored as they finish; stored points are not run again.

Stage 1 runs every compressor once on each set of gradients, before any point. Points that differ
only in the cluster share all profiles; points that differ in a compressor's parameters share the
gradients, which are made once for a whole batch of compressors. A batch that fails is repeated
compressor by compressor, so that only points with the faulty one fail.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gcsim.errors import InternalError
from gcsim.files import temporary_folder
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.reading import document
from gcsim.scenarios.result import SCHEMA
from gcsim.scenarios.running.gradients import check_trace
from gcsim.scenarios.running.keys import profile_key
from gcsim.scenarios.running.result_cache import versions
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.sweeps import store
from gcsim.scenarios.sweeps.grid import Grid, Point, named, points, read_grid
from gcsim.scenarios.sweeps.processes import LocalWorkers, Workers, check_jobs, default_jobs, drive
from gcsim.scenarios.sweeps.result import SweepPoint, SweepResult
from gcsim.scenarios.sweeps.tasks import (
    Failure,
    Judge,
    Outcome,
    PointOutput,
    Task,
    done,
    failure,
    profile_key_here,
)
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.stage1 import cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A checked sweep that has not started."""

    name: str
    grid: Grid
    points: tuple[Point, ...]
    header: dict[str, Any]  # `sweep.json`


def prepare(
    scenario: str | os.PathLike[str] | Scenario,
    grid: Mapping[str, Sequence[Any]] | Sequence[str],
    *,
    overrides: Mapping[str, str] | Sequence[str] = (),
    seed: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Check every point of a sweep."""
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={text}" for key, text in overrides.items()]
    values = read_grid(grid)
    with _as_file(scenario) as source:
        found = points(source, values, overrides, seed, progress)
    _check_traces(found)
    first = found[0].scenario
    shown = first.name if isinstance(scenario, Scenario) else os.fspath(scenario)
    header = {
        "schema": SCHEMA,
        "scenario": shown,
        "overrides": list(overrides),
        "seed": seed,
        "grid": {key: [value.text for value in entries] for key, entries in values.items()},
        "points": len(found),
        "versions": versions("torch", "numpy", "simpy"),
        "first_point": first.resolved,
    }
    return Sweep(name=first.name, grid=values, points=tuple(found), header=header)


def execute(
    plan: Sweep,
    folder: Path | None,
    *,
    jobs: int | None = None,
    dask: str | None = None,
    judge: type[Judge] = Judge,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> SweepResult:
    """Run the points that are not stored; `tell` names the others, a `judge` completes results."""
    check_jobs(jobs, dask)
    with ExitStack() as stack:
        at = folder or stack.enter_context(temporary_folder("gcsim-sweep-"))
        stack.enter_context(store.locked(at))
        running = _Running(plan, at, judge, progress or SilentProgress())
        if running.done:
            tell(f"{running.done} of {len(plan.points)} points are done already, in {at}")
        running.run(jobs, dask)
        return running.finish(folder)


@contextmanager
def _as_file(scenario: str | os.PathLike[str] | Scenario) -> Iterator[str | os.PathLike[str]]:
    """Write a loaded scenario to a file, whose values can be changed."""
    if not isinstance(scenario, Scenario):
        yield scenario
        return
    with temporary_folder("gcsim-sweep-") as folder:
        path = folder / f"{scenario.name}.yaml"
        path.write_text(document.write(scenario.resolved), encoding="utf-8")
        yield path


def _check_traces(found: Sequence[Point]) -> None:
    """Check each trace once per set of compressors, since checks read it whole."""
    distinct: dict[tuple[Hashable, ...], Scenario] = {}
    for point in found:
        kinds = {choice.kind for choice in point.scenario.compressors}
        distinct.setdefault((_gradients_of(point.scenario), frozenset(kinds)), point.scenario)
    for scenario in distinct.values():
        check_trace(scenario)


class _Running:
    """One call of `execute`."""

    def __init__(self, plan: Sweep, at: Path, judge: type[Judge], progress: Progress) -> None:
        self._plan, self._at, self._progress = plan, at, progress
        self._judge = judge()
        codes, every = store.Codes(), [point.scenario for point in plan.points]
        self._codes = [codes.of(one, self._judge.facts(one)) for one in every]
        self._results = store.stored(at, plan.points, self._codes)
        unfit = ((point.key, point.unfit) for point in plan.points)
        self._failures = {key: failure(error) for key, error in unfit if error is not None}

    @property
    def done(self) -> int:
        """Number of points with a result."""
        return len(self._results)

    def run(self, jobs: int | None, dask: str | None) -> None:
        """Run the points without a result."""
        known = self._results.keys() | self._failures.keys()
        todo = [n for n, point in enumerate(self._plan.points) if point.key not in known]
        if not todo:
            store.begin(self._at, self._plan.header)
            return
        scenarios = [self._plan.points[number].scenario for number in todo]
        if dask is not None:
            from gcsim.scenarios.sweeps.dask_cluster import ClusterWorkers

            with closing(ClusterWorkers(dask, partial(profile_key_here, scenarios[0]))) as cluster:
                store.begin(self._at, self._plan.header)
                stage1 = Stage1(scenarios, shared_cache=False)
                stage1.run(cluster, self._progress)
                self._simulate(todo, stage1, cluster, judge_here=True)
            return
        store.begin(self._at, self._plan.header)
        stage1 = Stage1(scenarios, shared_cache=True)
        if stage1.missing:
            with closing(LocalWorkers(1)) as alone:  # its memory is free afterwards
                stage1.run(alone, self._progress)
        jobs = min(jobs or default_jobs(), len(todo))
        with closing(LocalWorkers(jobs, side_by_side=True)) as workers:
            self._simulate(todo, stage1, workers)

    def _simulate(
        self, todo: Sequence[int], stage1: Stage1, workers: Workers, *, judge_here: bool = False
    ) -> None:
        judge = Judge if judge_here else type(self._judge)  # its files may be only on this machine
        waiting: deque[tuple[int, Task]] = deque()
        # writing a file waits for the disk, while the next points run
        with self._progress.task("points", len(todo)) as stage, ThreadPoolExecutor(1) as disk:
            written: list[Future[None]] = []

            def ended(number: int, outcome: Outcome) -> None:
                point = self._plan.points[number]
                if judge_here and isinstance(outcome, PointOutput):
                    prices = PriceList(point.scenario.cluster.device)
                    head, result = self._head(number), outcome.result
                    outcome = done(self._judge, point.scenario, head, result, prices)
                self._keep(number, outcome)
                if isinstance(outcome, PointOutput):
                    while written and written[0].done():
                        written.pop(0).result()
                    written.append(disk.submit(store.store, self._at, point, outcome.text))
                failed = " failed" if isinstance(outcome, Failure) else ""
                stage.advance(note=f"{named(point.values)}{failed}")

            for number in todo:
                point = self._plan.points[number]
                failure = stage1.failure(point.scenario)
                if failure is None:
                    task = stage1.task(point.scenario, self._head(number))
                    waiting.append((number, replace(task, judge=judge)))
                else:
                    ended(number, failure)
            drive(workers, waiting, ended)
            for file in written:
                file.result()

    def _head(self, number: int) -> dict[str, Any]:
        point = self._plan.points[number]
        return {"point": point.values, "key": point.key, "code": self._codes[number]}

    def _keep(self, number: int, outcome: Outcome) -> None:
        point = self._plan.points[number]
        if isinstance(outcome, Failure):
            self._failures[point.key] = outcome
        elif isinstance(outcome, PointOutput):
            self._results[point.key] = outcome.result
        else:
            raise InternalError("profiles came back where a result was asked for")

    def finish(self, folder: Path | None) -> SweepResult:
        """Write the results of all points."""
        found = SweepResult(
            grid={k: tuple(value.data for value in v) for k, v in self._plan.grid.items()},
            versions=self._plan.header["versions"],
            points=tuple(
                SweepPoint(
                    values=point.values,
                    result=self._results.get(point.key),
                    failure=self._failures.get(point.key),
                    file=store.path_of(point),
                )
                for point in self._plan.points
            ),
            folder=folder,
        )
        store.finish(self._at, found.to_csv(), found.to_json())
        return found


_BATCH = 16  # most compressors that share gradients, and that an interrupt loses

_Key = tuple[Hashable, str]  # key of gradients, and a compressor with parameters


def _gradients_of(scenario: Scenario) -> Hashable:
    """Return a key of everything that a scenario's bucketed gradients depend on."""
    return (
        scenario.model,
        scenario.batch_size,
        scenario.gradients,
        scenario.buckets,
        scenario.seed,
    )


def _keys(scenario: Scenario) -> list[_Key]:
    gradients = _gradients_of(scenario)
    return [(gradients, _written(choice)) for choice in scenario.compressors]


def _written(choice: CompressorChoice) -> str:
    return json.dumps([choice.kind, choice.parameters], sort_keys=True, default=str)


class Stage1:
    """Measurement of the profiles that some scenarios need. With `shared_cache` the workers use
    this process's cache, and cached profiles are skipped; otherwise profiles come back here, to be
    sent with points."""

    def __init__(self, scenarios: Sequence[Scenario], *, shared_cache: bool) -> None:
        self._shared_cache = shared_cache
        self._failures: dict[_Key, Failure] = {}
        self._made: dict[_Key, tuple[str, str]] = {}
        wanted: dict[Hashable, tuple[Scenario, dict[_Key, CompressorChoice]]] = {}
        seen: set[_Key] = set()
        for scenario in scenarios:
            for key, choice in zip(_keys(scenario), scenario.compressors, strict=True):
                if key not in seen:
                    seen.add(key)
                    if not (shared_cache and cache.load(profile_key(scenario, choice))):
                        wanted.setdefault(key[0], (scenario, {}))[1][key] = choice
        self._batches = [
            (scenario, list(choices.items())[start : start + _BATCH])
            for scenario, choices in wanted.values()
            for start in range(0, len(choices), _BATCH)
        ]
        self.missing = sum(len(choices) for _, choices in self._batches)  # profiles to measure

    def run(self, workers: Workers, progress: Progress) -> None:
        """Measure the missing profiles."""
        waiting: deque[tuple[int, Task]] = deque()
        batches: dict[int, tuple[Scenario, list[tuple[_Key, CompressorChoice]]]] = {}

        def add(scenario: Scenario, choices: list[tuple[_Key, CompressorChoice]]) -> None:
            number = len(batches)
            batches[number] = scenario, choices
            asked = replace(scenario, compressors=tuple(choice for _, choice in choices))
            waiting.append(
                (
                    number,
                    Task(scenario=asked, measure_only=True, set_threads=not self._shared_cache),
                )
            )

        for batch in self._batches:
            add(*batch)
        with progress.task("compressors", self.missing) as stage:

            def done(number: int, outcome: Outcome) -> None:
                scenario, choices = batches[number]
                if isinstance(outcome, Failure) and len(choices) > 1:
                    for pair in choices:
                        add(scenario, [pair])
                    return
                self._note([key for key, _ in choices], outcome)
                stage.advance(len(choices), note=choices[-1][1].label)

            drive(workers, waiting, done, lambda text: stage.advance(0, note=text))

    def _note(self, keys: Sequence[_Key], outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self._failures.update(dict.fromkeys(keys, outcome))
        elif isinstance(outcome, PointOutput):
            raise InternalError("a result came back where profiles were asked for")
        elif not self._shared_cache:
            self._made.update(zip(keys, outcome, strict=True))

    def failure(self, scenario: Scenario) -> Failure | None:
        """Return why this scenario cannot be simulated, if so."""
        return next((self._failures[k] for k in _keys(scenario) if k in self._failures), None)

    def task(self, scenario: Scenario, head: Mapping[str, Any]) -> Task:
        """Return the task that simulates this scenario, with the profiles that it must carry, for a
        file that begins with `head`."""
        profiles = tuple(self._made[key] for key in _keys(scenario) if key in self._made)
        return Task(
            scenario=scenario, head=head, profiles=profiles, set_threads=not self._shared_cache
        )
