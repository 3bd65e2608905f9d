"""Rows of a scenario with changed settings, simulated as in a run.

Changes are settings as in `gcsim run --set`. Stage 1 does not run again: profiles are the
scenario's, or shipped ones. Results are cached like those of runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gcsim.compressors.registry import REGISTRY
from gcsim.errors import InputError
from gcsim.scenarios.advice.question import Question, name_of, shipped_profile
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.run import simulated_run, traffic_profiles
from gcsim.scenarios.running import result_cache
from gcsim.scenarios.running.gradients import check_trace
from gcsim.scenarios.running.keys import profile_keys
from gcsim.scenarios.scenario import (
    CompressorChoice,
    LiveGradients,
    RecordedGradients,
    Scenario,
    SyntheticGradients,
)
from gcsim.scenarios.sections.passes import measured_passes
from gcsim.simulator.devices.clocks import with_shared_objects
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.profile import TrafficProfile
from gcsim.traces.stage1 import cache as profile_cache
from gcsim.traces.stage1 import shipped

_APART, _ROWS = "advice", "rows"
"""Parts of the key of a cached result without timelines; and without provenance and times with
rings and trees."""


@dataclass(frozen=True, slots=True)
class KnownTraffic:
    """A method's traffic profile and its cache key."""

    key: str
    profile: TrafficProfile

    def __post_init__(self) -> None:
        object.__setattr__(self, "profile", with_shared_objects(self.profile))


class Engine:
    """Simulation of variants of one scenario."""

    def __init__(
        self,
        question: Question,
        *,
        cache: bool = True,
        progress: Progress | None = None,
        tell: Callable[[str], None] = lambda _: None,
        known: Sequence[KnownTraffic] = (),
    ) -> None:
        """Use the profiles in `known` (of all methods, in order), or else those cached by runs of
        this scenario, if complete, or else shipped ones; the rest is measured, which `tell`
        announces. Raises `InputError` as a run does."""
        self._tell = tell
        self.question, self.scenario = question, question.scenario
        self._cache, self._progress = cache, progress or SilentProgress()
        self.came: tuple[str, ...] = ()  # labels of methods with shipped profiles
        self.measured: tuple[str, ...] = ()  # methods that were measured now, and how long it took
        self.measured_s = 0.0
        check_trace(self.scenario)
        chosen = self.scenario.compressors[: len(known)]
        self._known: dict[tuple[object, ...], KnownTraffic] = {
            _which(self.scenario, choice): one for choice, one in zip(chosen, known, strict=True)
        }
        if not known:
            self._find()
        first = self._known[_which(self.scenario, self.scenario.compressors[0])]
        self.passes = measured_passes(self.scenario, first.profile)
        """Times of the passes, if measured."""
        self._prices = PriceList(self.scenario.cluster.device)

    @property
    def keys(self) -> list[str]:
        """Keys of the methods' traffic, in order."""
        choices = self.scenario.compressors
        return [self._known[_which(self.scenario, choice)].key for choice in choices]

    def _find(self) -> None:
        scenario = self.scenario
        keys = [""] * len(scenario.compressors)
        kept_here: list[TrafficProfile | None] = [None] * len(keys)
        if self._cache and profile_cache.holds_any():
            keys = profile_keys(scenario)
            kept_here = [profile_cache.load(key) for key in keys]
        recorded = isinstance(scenario.gradients, RecordedGradients)
        left: list[CompressorChoice] = []
        for choice, key, here in zip(scenario.compressors, keys, kept_here, strict=True):
            came = None if all(kept_here) or recorded else self._shipped(scenario, choice)
            if came is not None:
                self.came += (choice.label,)
            found = came or (None if here is None else KnownTraffic(key, here))
            if found is None:
                left.append(choice)
            else:
                self._known[_which(scenario, choice)] = found
        if not left:
            return
        self._tell(_before(scenario, left))
        started = time.perf_counter()
        alone = replace(scenario, compressors=tuple(left))
        wanted = profile_keys(alone)
        profiles = traffic_profiles(alone, wanted, use_cache=self._cache, progress=self._progress)
        for choice, key, profile in zip(left, wanted, profiles, strict=True):
            self._known[_which(scenario, choice)] = KnownTraffic(key, profile)
        self.measured = tuple(choice.label for choice in left)
        self.measured_s = time.perf_counter() - started

    @staticmethod
    def _shipped(scenario: Scenario, choice: CompressorChoice) -> KnownTraffic | None:
        profile = shipped_profile(scenario, choice)
        if profile is None:
            return None
        name = name_of(scenario.model, choice, scenario.buckets)
        code = shipped.code_of(scenario.model, REGISTRY.get(choice.kind))
        return KnownTraffic(
            f"shipped {name} {code} {scenario.batch_size} {profile.model.tokens}", profile
        )

    def known(self, choice: CompressorChoice, scenario: Scenario) -> KnownTraffic | None:
        """Return a method's traffic if it is known without running the method."""
        which = _which(scenario, choice)
        if which not in self._known:
            recorded = isinstance(scenario.gradients, RecordedGradients)
            came = None if recorded else self._shipped(scenario, choice)
            if came is None:
                return None
            self._known[which] = came
        return self._known[which]

    def result(self) -> Result:
        """Result of the unchanged scenario; raises `InputError` as a run does."""
        return self._simulated(self.scenario, self.scenario.compressors, sources=True)

    def rows(
        self, overrides: Sequence[str], labels: Sequence[str] = (), *, draws: bool = False
    ) -> dict[str, Row] | None:
        """Return rows by label with these settings, of all methods or of `labels` and the dense
        one, as stated or with the scenario's draws. None if the scenario is not valid or dense
        traffic is unknown; other methods without known traffic are left out."""
        scenario = self.question.changed(overrides)
        if scenario is None:
            return None
        choices = [
            choice
            for number, choice in enumerate(scenario.compressors)
            if (not labels or choice.label in labels or number == scenario.dense)
            and self.known(choice, scenario) is not None
        ]
        if scenario.dense is None or scenario.compressors[scenario.dense] not in choices:
            return None
        try:
            drawn = scenario if draws else replace(scenario, draws=0)
            found = self._simulated(drawn, choices)
        except InputError:  # a transport that cannot carry one of them
            return None
        return {row.label: row for row in found.rows}

    def row_of(self, choice: CompressorChoice, known: KnownTraffic, *, most_draws: int) -> Row:
        """Return the row of one method with known traffic, with at most `most_draws` draws."""
        draws = min(self.scenario.draws, most_draws)
        whole = draws == self.scenario.draws
        scenario = replace(self.scenario, draws=draws)
        return self._with(scenario, [choice], [known], sources=whole).rows[0]

    def _simulated(
        self, scenario: Scenario, choices: Sequence[CompressorChoice], *, sources: bool = False
    ) -> Result:
        methods = [self._known[_which(scenario, choice)] for choice in choices]
        return self._with(scenario, choices, methods, sources=sources)

    def _with(
        self,
        scenario: Scenario,
        choices: Sequence[CompressorChoice],
        methods: Sequence[KnownTraffic],
        *,
        sources: bool = False,
    ) -> Result:
        scenario = replace(scenario, compressors=tuple(choices))
        keys = [one.key for one in methods]
        apart = _APART if sources else _ROWS
        name = result_cache.result_key(scenario, [apart, *keys], self.passes) if self._cache else ""
        found = result_cache.load(name) if name else None
        if found is not None:
            return found
        started = time.perf_counter()
        profiles = [one.profile for one in methods]
        if not sources:
            from gcsim.scenarios.uncertainty.approximation import with_few_steps  # compiles loops

            profiles = list(map(with_few_steps, profiles))
        found = simulated_run(
            scenario,
            keys,
            profiles,
            self.passes,
            progress=SilentProgress(),
            timelines=False,
            sources=sources,
            prices=self._prices,
        )
        if name:
            result_cache.save(name, found, time.perf_counter() - started)
        return found


def _before(scenario: Scenario, left: Sequence[CompressorChoice]) -> str:
    """Return the announcement of the coming measurements, with their duration if known."""
    named = ", ".join(choice.label for choice in left[:_NAMED])
    more = f" and {len(left) - _NAMED} others" if len(left) > _NAMED else ""
    source = scenario.gradients
    takes = "which trains the model for some steps: minutes for a large one"
    if not isinstance(source, LiveGradients):
        takes = "which takes seconds to minutes"
    by_formula = scenario.model.transformer is not None  # a few rows of each kind of bucket
    if isinstance(source, SyntheticGradients) and scenario.model.parameters and not by_formula:
        drawn = scenario.model.parameters * source.workers * source.iterations
        takes = f"about {duration_of(drawn * (_DRAWN_S + len(left) * _COMPRESSED_S))}"
    return f"gcsim has no shipped traffic for {named}{more}: measured now, {takes}"


def duration_of(seconds: float) -> str:
    """Return a duration in words, in seconds or minutes."""
    return f"{max(5, round(seconds, -1)):.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


_NAMED = 3
_DRAWN_S, _COMPRESSED_S = 90e-9, 30e-9
"""Approximate core seconds per element to draw a gradient, and to run a method."""


def _which(scenario: Scenario, choice: CompressorChoice) -> tuple[object, ...]:
    return choice.kind, str(choice.parameters), scenario.buckets
