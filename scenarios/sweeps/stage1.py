"""Stage 1 of a sweep: every compressor on every gradients once, before any point runs.

Points that differ in the cluster alone share all their profiles; points that differ in a
compressor's parameters share the gradients, which are then made once for a whole batch of
compressors. A batch that fails is tried again compressor by compressor, so that only the points
which contain the faulty one fail.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import replace

from gcsim.errors import InternalError
from gcsim.scenarios.progress import Progress
from gcsim.scenarios.result import Result
from gcsim.scenarios.running.keys import profile_key
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.sweeps.processes import Workers, drive
from gcsim.scenarios.sweeps.tasks import Failure, Outcome, Task
from gcsim.traces.stage1 import cache

BATCH = 16
"""Compressors that share one making of the gradients: what an interrupt can lose."""

Key = tuple[Hashable, str]
"""Gradients, and a compressor with its parameters."""


def gradients_of(scenario: Scenario) -> Hashable:
    """All that the gradients of a scenario, cut into buckets, depend on."""
    return (
        scenario.model,
        scenario.batch_size,
        scenario.gradients,
        scenario.buckets,
        scenario.seed,
    )


def _keys(scenario: Scenario) -> list[Key]:
    gradients = gradients_of(scenario)
    return [(gradients, _written(choice)) for choice in scenario.compressors]


def _written(choice: CompressorChoice) -> str:
    return json.dumps([choice.kind, choice.parameters], sort_keys=True, default=str)


class Stage1:
    """The profiles that some scenarios need, and what became of them.

    With `shared_cache` the workers see this process's cache, and what is in it is left out; without
    it the profiles come back here, to travel with the points.
    """

    def __init__(self, scenarios: Sequence[Scenario], *, shared_cache: bool) -> None:
        self._shared_cache = shared_cache
        self._failures: dict[Key, Failure] = {}
        self._made: dict[Key, tuple[str, str]] = {}
        wanted: dict[Hashable, tuple[Scenario, dict[Key, CompressorChoice]]] = {}
        seen: set[Key] = set()
        for scenario in scenarios:
            for key, choice in zip(_keys(scenario), scenario.compressors, strict=True):
                if key not in seen:
                    seen.add(key)
                    if not (shared_cache and cache.load(profile_key(scenario, choice))):
                        wanted.setdefault(key[0], (scenario, {}))[1][key] = choice
        self._batches = [
            (scenario, list(choices.items())[start : start + BATCH])
            for scenario, choices in wanted.values()
            for start in range(0, len(choices), BATCH)
        ]
        self.missing = sum(len(choices) for _, choices in self._batches)
        """Profiles to make."""

    def run(self, workers: Workers, progress: Progress) -> None:
        """Make what is missing."""
        waiting: deque[tuple[int, Task]] = deque()
        batches: dict[int, tuple[Scenario, list[tuple[Key, CompressorChoice]]]] = {}

        def add(scenario: Scenario, choices: list[tuple[Key, CompressorChoice]]) -> None:
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

    def _note(self, keys: Sequence[Key], outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self._failures.update(dict.fromkeys(keys, outcome))
        elif isinstance(outcome, Result):
            raise InternalError("a result came back where profiles were asked for")
        elif not self._shared_cache:
            self._made.update(zip(keys, outcome, strict=True))

    def failure(self, scenario: Scenario) -> Failure | None:
        """Why this scenario cannot be simulated, if so."""
        return next((self._failures[k] for k in _keys(scenario) if k in self._failures), None)

    def task(self, scenario: Scenario) -> Task:
        """The simulation of this scenario, with the profiles that must travel with it."""
        profiles = tuple(self._made[key] for key in _keys(scenario) if key in self._made)
        return Task(scenario=scenario, profiles=profiles, set_threads=not self._shared_cache)
