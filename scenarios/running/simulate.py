"""Iteration times of every method at every size, as stated and in each drawn world.

The stated times are simulated exactly; where they are random, methods whose order is uncertain are
simulated for more iterations (`uncertainty/close_pairs.py`). The times in a drawn world
(`uncertainty/worlds.py`) are the stated ones, scaled as an approximate model of the iteration
changes in that world (`uncertainty/approximation.py`).

Push-pulls become the cluster's collectives. If parameter servers are named and used, uncompressed
training through them gets a row of its own, so that their gain is not credited to compression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial

import numpy as np

from gcsim.scenarios.progress import Progress
from gcsim.scenarios.result import UncertainInput
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.uncertainty import discrepancy
from gcsim.scenarios.uncertainty.approximation import approximations, slowest
from gcsim.scenarios.uncertainty.close_pairs import luck_of, resolve_close_pairs
from gcsim.scenarios.uncertainty.drawn import Drawn
from gcsim.scenarios.uncertainty.figures import PASSES, Column, Input, significant, uncertain_inputs
from gcsim.scenarios.uncertainty.worlds import Worlds, draw
from gcsim.simulator.as_trained import as_trained
from gcsim.simulator.cluster import Cluster, NodeGroup, whole_batches
from gcsim.simulator.devices.device import End
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.step_time import step_time
from gcsim.simulator.devices.training_time import ComputeTimes, training_times
from gcsim.simulator.luck import Luck
from gcsim.simulator.plans import pass_slowdown
from gcsim.simulator.predict import Prediction, carriers, predict
from gcsim.simulator.push_pull import SERVED, WAYS, as_collectives, by_servers, ways
from gcsim.simulator.steps.averages import Averager
from gcsim.simulator.training import DENSE, Training
from gcsim.traces.profile import ModelFacts, PassTimes, TrafficProfile, every

MATTERS = 1e-6
"""Least relative change of some iteration for which an input is reported."""


@dataclass(frozen=True, slots=True)
class Stage2:
    """Subject of stage 2: a scenario's methods with their traffic, passes and prices."""

    scenario: Scenario
    profiles: Sequence[TrafficProfile]  # result of `as_carried`
    compute: Mapping[str, ComputeTimes]  # result of `compute_times`
    prices: PriceList  # of the scenario's device

    @property
    def stated(self) -> ComputeTimes:
        """Stated passes."""
        return self.compute["stated"]

    def predict(
        self, profile: TrafficProfile, cluster: Cluster, training: Training,
        averager: Averager | None = None, *, spans: bool = False,
    ) -> Prediction:  # fmt: skip
        """Predict a method with the stated passes."""
        return predict(
            profile, cluster, self.stated, training=training, seed=self.scenario.seed, spans=spans,
            averager=averager, prices=self.prices,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """One method at one size."""

    prediction: Prediction  # prediction as stated
    draws: tuple[float, ...] = ()  # seconds per iteration by drawn world; estimates use these
    widened_draws: tuple[float, ...] = ()
    """The draws times a random factor on each whole step; ranges and probabilities use these."""
    ring_and_tree: tuple[float, float] | None = None
    """Stated seconds per iteration with a ring and with a tree, if NCCL's choice is uncertain
    within `Collectives.ring_over_tree_range`."""

    @cached_property
    def iteration(self) -> float:
        """Estimated seconds per iteration: the median of the draws, if any."""
        return float(np.median(self.draws)) if self.draws else self.prediction.iteration

    @property
    def ratio_to_stated(self) -> float:
        """Estimated over stated iteration, which scales errors, faults, ring and tree."""
        return self.iteration / self.prediction.iteration

    @property
    def luck(self) -> Luck:
        """Statistics of the estimate."""
        return luck_of(self.prediction, self.ratio_to_stated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """Uncertain inputs and the worlds drawn from them."""

    inputs: tuple[Input, ...]
    worlds: Worlds  # result of `Worlds.with_stated`
    draws: int  # number of drawn worlds; they follow the stated one
    unexplained: tuple[Input, ...] = ()
    """Random factors on whole steps (`uncertainty/discrepancy.py`)."""

    def reported(self) -> tuple[UncertainInput, ...]:
        """Return the inputs as values of the result."""
        inputs = (*self.inputs, *self.unexplained)
        return tuple(
            UncertainInput(
                name=one.name,
                unit=one.unit,
                stated=float(one.main.stated),
                low=one.main.low,
                high=one.main.high,
                draws=tuple(drawn[1 : 1 + self.draws].tolist()),
                measure=one.measure,
            )
            for one, (drawn, *_) in zip(inputs, self.worlds.values(inputs), strict=True)
        )


def compute_times(
    scenario: Scenario,
    profile: TrafficProfile,
    passes: PassTimes | None,
    prices: PriceList | None = None,
) -> dict[str, ComputeTimes]:
    """Return forward and backward times for `simulate`: stated, and at both ends of the range.
    `prices`: of the scenario's device, whose cache keeps the times."""
    training = scenario.training
    again = training.computed_again(scenario.model.transformer, profile.model.forward_flops)

    def on(group: NodeGroup, end: End | None) -> ComputeTimes:
        if prices is None or scenario.cluster.groups:
            return made(group, end)
        name = "passes", end, passes, training.timed_as, again
        return prices.once(name, profile, partial(made, group, end))

    def made(group: NodeGroup, end: End | None) -> ComputeTimes:
        samples = max(1, round(group.batch * profile.model.samples_per_worker))
        model, device = replace(profile.model, samples_per_worker=samples), group.device
        if end is not None:
            device = device.at(kernels="fastest", training=end)
        precision = training.timed_as
        return training_times(model, profile.buckets, device, passes, precision, again=again)

    alike = NodeGroup(nodes=1, device=scenario.cluster.device)
    ends: dict[str, End | None] = {"stated": None, "fastest": "fastest", "slowest": "slowest"}
    found = {}
    for name, end in ends.items():
        first, *others = (on(group, end) for group in scenario.cluster.groups or (alike,))
        found[name] = replace(first, other_groups=tuple(others))
    return found


def with_batches_by_speed(scenario: Scenario, model: ModelFacts) -> Scenario:
    """The scenario with its groups' batches by speed, if it wants that: as many samples of all
    workers as with equal ones, to a sample a worker, each in proportion to what the device computes
    per second of a batch of the scenario's size, in its node."""
    cluster, batch = scenario.cluster, scenario.batch_size
    if not scenario.by_speed or not cluster.groups:
        return scenario
    facts, training = replace(model, samples_per_worker=batch), scenario.training
    speeds = [
        1
        / step_time(facts, group.device, training.timed_as).seconds
        / pass_slowdown(cluster, training, number)
        for number, group in enumerate(cluster.groups)
    ]
    shares = whole_batches(batch * cluster.workers, speeds, cluster.ranks_of_groups)
    groups = tuple(
        replace(group, batch=Fraction(share, batch))
        for share, group in zip(shares, cluster.groups, strict=True)
    )
    return replace(scenario, cluster=replace(cluster, groups=groups))


def simulate(
    subject: Stage2, progress: Progress, *, spans: bool = True, shapes: bool = True
) -> tuple[list[list[Simulated]], Uncertainty]:
    """Run stage 2; the result is indexed by compressor, then cluster size. `spans` adds timelines
    at the largest size, `shapes` the times `ring_and_tree`.

    Inputs that change no method's iteration at any size are not reported.
    """
    subject = replace(subject, scenario=_with_waits(subject.scenario))
    scenario, profiles, compute = subject.scenario, subject.profiles, subject.compute
    inputs = uncertain_inputs(scenario.cluster, scenario.training, compute)
    unexplained: list[Input] = []
    if scenario.draws and scenario.discrepancy:
        unexplained = discrepancy.inputs(
            discrepancy.shipped().widths,
            stated=not any(one.main.key_path == PASSES for one in inputs),
            kinds=[profile.compressor for profile in profiles],
        )
    if not scenario.draws:
        inputs = []
    worlds = draw([*inputs, *unexplained], scenario.draws, scenario.seed)
    every = worlds.with_stated(inputs)
    drawn = Drawn(scenario.cluster, scenario.training, inputs, every)
    wider = {
        kind: discrepancy.factors(worlds, unexplained, kind)
        for kind in {profile.compressor for profile in profiles}
    }
    found: list[list[Simulated]] = []
    moved = np.zeros(len(inputs))
    part = Fraction(1, 2 * len(profiles))  # progress per method: half as stated, half in all worlds
    with progress.task("cluster sizes", len(scenario.node_counts)) as task:
        for nodes in scenario.node_counts:
            cluster, training = scenario.cluster_at(nodes), scenario.training_at(nodes)
            averager = Averager.of(cluster, training, scenario.seed)
            about = approximations(
                drawn, nodes, training, subject.stated, profiles,
                prices=subject.prices, seed=scenario.seed,
            ) if inputs else []  # fmt: skip
            first = []
            for profile in profiles:
                shown = spans and nodes == scenario.node_counts[-1]
                first.append(subject.predict(profile, cluster, training, averager, spans=shown))
                task.advance(part, note=f"{nodes} nodes, {profile.compressor}")
            ring_and_tree: list[tuple[float, float] | None] = [None] * len(profiles)
            if shapes:
                ring_and_tree = _ring_or_tree(subject, nodes, first)
            again = partial(_over_longer_run, subject, cluster, training)
            of_size = []
            for profile, prediction, ends in zip(
                profiles,
                resolve_close_pairs(first, scenario.dense, again),
                ring_and_tree,
                strict=True,
            ):
                ratios = np.ones(len(worlds))
                if about:
                    times = slowest(about, profile)
                    single_input = times[1 + len(worlds) :]  # one input at its farther end
                    moved = np.maximum(moved, abs(single_input / times[0] - 1))
                    ratios = times[1 : 1 + len(worlds)] / times[0]
                task.advance(part)
                stated = prediction.iteration
                known = Simulated(
                    prediction=prediction,
                    draws=in_worlds(stated, ratios),
                    widened_draws=in_worlds(stated, ratios * wider[profile.compressor]),
                    ring_and_tree=ends,
                )
                of_size.append(known)
            found.append(of_size)
    kept = tuple(one for one, by in zip(inputs, moved, strict=True) if by > MATTERS)
    if not kept and not unexplained:
        found = [[replace(one, draws=(), widened_draws=()) for one in of_size] for of_size in found]
        worlds = worlds[:0]
    uncertainty = Uncertainty(
        inputs=kept, worlds=every, draws=len(worlds), unexplained=tuple(unexplained)
    )
    return [list(of_method) for of_method in zip(*found, strict=True)], uncertainty


def _with_waits(scenario: Scenario) -> Scenario:
    """Return the scenario with the waits that its kind of training has in any case."""
    training = scenario.training
    if scenario.train is not None and scenario.train.clip is not None:  # needs the whole gradient
        training = replace(training, exposed=Fraction(1), exposed_range=None)
    if training.sharded:  # `steps/sharded.py` has its own rules for starting collectives
        training = replace(training, overlap=None, exposed=Fraction(0), exposed_range=None)
    return replace(scenario, training=training)


def in_worlds(stated: float, ratios: Column) -> tuple[float, ...]:
    """Return seconds by world, rounded so that the number of summing threads does not matter."""
    return tuple(significant(stated * ratios, 9).tolist())


def _ring_or_tree(
    subject: Stage2, nodes: int, stated: Sequence[Prediction]
) -> list[tuple[float, float] | None]:
    """Return `Simulated.ring_and_tree` of each method, given its stated prediction."""
    scenario, profiles = subject.scenario, subject.profiles
    cluster, training = scenario.cluster_at(nodes), scenario.training_at(nodes)
    chosen = cluster.collectives
    if chosen.ring_over_tree_range is None or cluster.workers == 1 or not scenario.draws:
        return [None] * len(profiles)
    averagers = [
        Averager(
            replace(cluster, collectives=replace(chosen, ring_over_tree=end)),
            training,
            scenario.seed,
        )
        for end in chosen.ring_over_tree_range
    ]
    found: list[tuple[float, float] | None] = []
    for profile, known in zip(profiles, stated, strict=True):
        carried = [carriers(profile, averager.cluster) for averager in averagers]
        if carried[0] == carried[1]:
            found.append(None)
            continue
        usual = carriers(profile, cluster)
        ring, tree = (
            known.iteration
            if carrier == usual
            else subject.predict(profile, averager.cluster, training, averager).iteration
            for carrier, averager in zip(carried, averagers, strict=True)
        )
        found.append((ring, tree))
    return found


def _over_longer_run(
    subject: Stage2, cluster: Cluster, training: Training, number: int, factor: int
) -> Prediction:
    """Predict a method over `factor` times as many random iterations."""
    longer = replace(training, iterations=factor * training.iterations)
    return subject.predict(subject.profiles[number], cluster, longer)


def as_carried(
    scenario: Scenario, keys: Sequence[str], profiles: Sequence[TrafficProfile]
) -> tuple[Scenario, list[str], list[TrafficProfile]]:
    """Replace push-pulls by the cluster's collectives; return the scenario, whose choices say which
    (`via`), and keys and profiles. Dense training through parameter servers is added at the end."""
    cluster = scenario.cluster
    profiles = [as_trained(profile, scenario.training, cluster) for profile in profiles]
    methods = list(zip(scenario.compressors, keys, profiles, strict=True))
    dense = next((method for method in methods if method[0].kind == DENSE), None)
    served = [SERVED in ways(profile, cluster) for profile in profiles]
    if dense is not None and any(served) and not served[methods.index(dense)]:
        choice, key, profile = dense
        label = f"{choice.label}, {WAYS[SERVED]}"
        methods.append((replace(choice, label=label), key, by_servers(profile)))

    def with_carrier(choice: CompressorChoice, profile: TrafficProfile) -> CompressorChoice:
        return replace(choice, via="; ".join(WAYS[key_path] for key_path in ways(profile, cluster)))

    return (
        replace(scenario, compressors=tuple(with_carrier(choice, p) for choice, _, p in methods)),
        [key for _, key, _ in methods],
        [
            every(as_collectives(profile, cluster), scenario.training.local_steps)
            for _, _, profile in methods
        ],
    )
