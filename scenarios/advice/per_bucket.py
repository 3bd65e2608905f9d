"""Plans that compress only the buckets whose exchange the backward pass does not hide.

Early buckets travel while the rest of backward is computed, so compressing them costs time and
accuracy for nothing. Each bucket is sent dense, in half precision, or by the method. The engine
simulates whole iterations with overlap and queues; the mean over some drawn worlds counts, since a
plan for only the stated network is slow on slower ones.

The search starts from the fastest single method and changes one bucket at a time, the last ready
first, until nothing improves: none of the 3^buckets plans that differs in one bucket is faster.
Source of the question: Wang et al. 2023 (EuroSys), "Hi-Speed DNN Training with Espresso"; Bai et
al. 2021 (SOSP), "Gradient Compression Supercharged High-Performance Data Parallel DNN Training".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from gcsim.compressors.options.method import method_of
from gcsim.scenarios.advice.engine import Engine, KnownTraffic
from gcsim.scenarios.result import Row
from gcsim.scenarios.scenario import CompressorChoice
from gcsim.simulator.as_trained import as_stored
from gcsim.traces.profile import Step, TrafficProfile

_ALIKE = 1e-3  # least gain, as a share of an iteration, for which a bucket gets less exact
_PASSES = 4
_WORLDS = 8  # number of draws over which plans are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Method for each bucket."""

    label: str  # the method used in addition to dense and half precision
    choices: tuple[CompressorChoice, ...]  # methods of the buckets, in order of readiness
    elements: tuple[int, ...]  # elements of the buckets
    row: Row  # row of the plan; its error is at most that of the method on all buckets
    alone: Row  # row of the fastest single method for all buckets

    def share(self, label: str) -> float:
        """Return the share of the gradient that this method sends."""
        sizes = Counter[str]()
        for choice, size in zip(self.choices, self.elements, strict=True):
            sizes[choice.label] += size
        return sizes[label] / sum(self.elements)


def can_share(choice: CompressorChoice) -> bool:
    """Whether other buckets may use other methods: if all workers take the same step with the mean
    gradient, and the method has no momentum or scale of its own."""
    cls, checked = method_of(choice.kind, choice.parameters)
    promised = cls.properties(checked)
    return (
        promised.replicas == "identical"
        and not promised.scale_free
        and not cls.requires
        and cls.momentum(checked)[0] == 0
    )


def plan(engine: Engine, choices: Sequence[CompressorChoice]) -> Plan | None:
    """Return the fastest plan that is found for these methods (most exact first; only the last may
    have a period of several steps). None for unknown traffic or a single bucket."""
    scenario = engine.scenario
    known = [engine.known(choice, scenario) for choice in choices]
    methods = [
        replace(one, profile=as_stored(one.profile, scenario.training))
        for one in known
        if one is not None
    ]
    if len(methods) < len(choices) or len(methods[0].profile.buckets) == 1:
        return None
    buckets = len(methods[0].profile.buckets)
    times: dict[tuple[int, ...], float] = {}

    def of(chosen: tuple[int, ...]) -> KnownTraffic:
        return methods[chosen[0]] if len(set(chosen)) == 1 else mixed(methods, chosen)

    def row(chosen: tuple[int, ...], most_draws: int) -> Row:
        return engine.row_of(choices[max(chosen)], of(chosen), most_draws=most_draws)

    def seconds(chosen: tuple[int, ...]) -> float:
        if chosen not in times:
            found = row(chosen, _WORLDS)
            times[chosen] = mean(found.iteration_draws_s or (found.iteration_s,))
        return times[chosen]

    def descended(now: tuple[int, ...]) -> tuple[int, ...]:
        for _ in range(_PASSES):
            before = now
            for bucket in reversed(range(buckets)):
                others = [(*now[:bucket], m, *now[bucket + 1 :]) for m in range(len(choices))]
                least = min(map(seconds, others))
                now = next(one for one in others if seconds(one) <= least * (1 + _ALIKE))
            if now == before:
                break
        return now

    alone = [(number,) * buckets for number in range(len(choices))]
    single = min(alone, key=seconds)
    now = min(map(descended, alone), key=seconds)
    return Plan(
        label=choices[-1].label,
        choices=tuple(choices[number] for number in now),
        elements=tuple(layout.numel for layout in methods[0].profile.buckets),
        row=row(now, scenario.draws),
        alone=row(single, scenario.draws),
    )


def mixed(methods: Sequence[KnownTraffic], chosen: Sequence[int]) -> KnownTraffic:
    """Return the traffic of buckets with different methods, of which only the last varies over
    steps. Its quality is the last one's, which is a lower bound."""
    last = methods[-1].profile
    others = {number: methods[number].profile for number in set(chosen) - {len(methods) - 1}}
    if any(profile.period != 1 for profile in others.values()):
        raise ValueError("only the last method may have a period")
    phases = []
    for phase in last.phases:
        steps = [
            replace(
                step,
                exchanges=tuple(
                    (_step(others[number], place) if number in others else step).exchanges[bucket]
                    for bucket, number in enumerate(chosen)
                ),
            )
            for place, step in enumerate(phase.steps)
        ]
        phases.append(replace(phase, steps=tuple(steps)))
    names = " ".join(map(str, chosen))
    key = f"by bucket {names} of {' | '.join(one.key for one in methods)}"
    return KnownTraffic(key, replace(last, phases=tuple(phases)))


def _step(profile: TrafficProfile, place: int) -> Step:
    steps = profile.phases[0].steps
    return steps[place % len(steps)]
