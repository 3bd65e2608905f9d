"""Rows and timelines of a result, built from predictions and spans.

A timeline has the facts that all ranks of a collective share (algorithm, bytes) only once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.compressors.options.method import method_of
from gcsim.scenarios.result import Collective, Row, Span, Timeline
from gcsim.scenarios.running.simulate import Simulated, Stage2, Uncertainty, in_worlds
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.uncertainty.approximation import Approximation
from gcsim.scenarios.uncertainty.drawn import Drawn
from gcsim.scenarios.uncertainty.figures import Column
from gcsim.scenarios.uncertainty.ranges import interval
from gcsim.simulator.as_trained import gradient_bytes_sent
from gcsim.simulator.clock import seconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives import dispatch
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.faults import FaultyRun
from gcsim.simulator.goodput import goodput
from gcsim.simulator.luck import (
    as_probability,
    error_of_difference,
    probability_shorter,
    standard_error,
)
from gcsim.simulator.predict import Prediction
from gcsim.simulator.steps import step_plan
from gcsim.traces.profile import Compute, Exchange, Phase, Step, TrafficProfile


def make_rows(
    subject: Stage2,
    simulated: Sequence[Sequence[Simulated]],
    faulty_runs: Sequence[Sequence[FaultyRun | None]],
    uncertainty: Uncertainty,
) -> tuple[Row, ...]:
    """Build the rows by compressor and size, as `simulated` and `faulty_runs` are ordered."""
    scenario, profiles = subject.scenario, subject.profiles
    dense = scenario.dense
    samples = scenario.batch_size * scenario.training.accumulation
    uncompressed = _without_exchange(profiles[0]) if dense is None else profiles[dense]
    one_device = _OneDevice(subject, uncompressed, uncertainty)
    stored = scenario.training.gradient_bytes * profiles[0].model.parameters
    failures = scenario.training.failures
    of_first = _of_first(scenario.cluster, subject.stated)
    rows = []
    for number, (choice, profile) in enumerate(zip(scenario.compressors, profiles, strict=True)):
        of_sizes = simulated[number]
        method, parameters = method_of(choice.kind, choice.parameters)
        scale_free = method.properties(parameters).scale_free
        for size, (nodes, found) in enumerate(zip(scenario.node_counts, of_sizes, strict=True)):
            times = found.prediction
            alone, luck, scale = (
                one_device.with_iterations_of(times),
                found.luck,
                found.ratio_to_stated,
            )
            efficiency, before = alone.iteration / times.iteration, one_device.draws(alone)
            if before and found.draws:
                efficiency = float(np.median(before)) / found.iteration
            cluster = scenario.cluster_at(nodes)
            workers, batches = cluster.workers, float(cluster.batches)
            wire = gradient_bytes_sent(profile, workers)
            faulty = faulty_runs[number][size]
            largest = max(layout.numel for layout in profile.buckets)
            here = replace(scenario, cluster=cluster)
            _, holds = here.tightest(choice, largest)
            baseline = None if dense is None else simulated[dense][size]
            rows.append(
                Row(
                    compressor=choice.kind,
                    label=choice.label,
                    nodes=nodes,
                    workers=workers,
                    iteration_s=found.iteration,
                    forward_s=times.forward,
                    backward_s=times.backward,
                    encode_s=times.encode,
                    communication_s=times.communication,
                    exposed_communication_s=times.exposed,
                    decode_s=times.decode,
                    throughput_samples_per_s=batches * samples / found.iteration,
                    speedup_vs_dense=None
                    if baseline is None
                    else baseline.prediction.iteration / times.iteration,
                    scaling_efficiency=of_first * efficiency,
                    wire_bytes_per_worker=wire,
                    compression_ratio=stored / wire if wire else None,
                    nmse=None if scale_free else profile.quality.nmse,
                    cosine_similarity=profile.quality.cosine_similarity,
                    steps_run=sum(len(phase.steps) for phase in profile.phases),
                    memory=method.memory(parameters),
                    device_memory_low_bytes=None if holds is None else holds.low,
                    device_memory_high_bytes=None if holds is None else holds.high,
                    fits=None if holds is None else holds.fits,
                    period=profile.period,
                    optimizer_s=times.optimizer,
                    input_s=times.input,
                    iteration_p5_s=_scaled(times.iteration_p5, scale),
                    iteration_p95_s=_scaled(times.iteration_p95, scale),
                    throughput_with_faults_samples_per_s=faulty.throughput if faulty else None,
                    lost_to_faults_s=faulty.lost if faulty else None,
                    goodput=None if failures is None else goodput(failures, nodes),
                    iteration_error_s=luck.error,
                    scaling_efficiency_error=_scaling_error(alone, times),
                    algorithms="; ".join(times.algorithms),
                    via=choice.via,
                    iterations=times.iterations,
                    iteration_batches_s=tuple(luck.batches),
                )
            )
            over = _over_draws(found, baseline, [one[size] for one in simulated])
            rows[-1] = replace(rows[-1], **over)
            if scenario.cost_per_hour is not None:
                cost = scenario.cost_per_hour * nodes * 1000 * rows[-1].iteration_s / 3600
                cost /= rows[-1].goodput or 1.0
                rows[-1] = replace(rows[-1], cost_per_1000_iterations=cost)
    return tuple(rows)


def _scaled(seconds: float | None, scale: float) -> float | None:
    return None if seconds is None else scale * seconds


def _of_first(cluster: Cluster, compute: ComputeTimes) -> float:
    """Return the factor from an efficiency relative to copies of the first group's device to one
    relative to the actual devices: the ratio of both clusters' samples per second."""
    counts = zip(cluster.ranks_of_groups, cluster.groups, strict=True)
    shares = [float(ranks * group.batch) for ranks, group in counts]
    passes = [compute.of_group(number).total for number in range(len(shares))]
    alone = [share * passes[0] / own for share, own in zip(shares, passes, strict=True)]
    return sum(shares) / sum(alone) if shares else 1.0


def _over_draws(
    found: Simulated, dense: Simulated | None, of_size: Sequence[Simulated]
) -> dict[str, Any]:
    """Return the fields that depend on the draws; methods are compared within each world."""
    if not found.draws:
        return {}
    times = np.array(found.widened_draws)
    fastest = np.array([one.widened_draws for one in of_size]).min(axis=0)
    shapes = _ends(found) if found.ring_and_tree else ()
    low, high = interval(times)
    fields: dict[str, Any] = {
        "iteration_draws_s": found.widened_draws,
        "iteration_low_s": min([float(low), *shapes]),
        "iteration_high_s": max([float(high), *shapes]),
        "iteration_as_stated_s": found.prediction.iteration,
        "probability_fastest": 1.0
        if len(of_size) == 1
        else as_probability(np.mean(times <= fastest)),
    }
    if shapes:
        fields |= dict(zip(("iteration_ring_s", "iteration_tree_s"), shapes, strict=True))
    if dense is not None:
        low, high = interval(np.array(dense.widened_draws) / times)
        ends = [before / after for before, after in zip(_ends(dense), _ends(found), strict=True)]
        if dense.ring_and_tree is None and found.ring_and_tree is None:
            ends = []
        if found is not dense:
            error = error_of_difference(dense.luck, found.luck)
            pays = probability_shorter(times, np.array(dense.widened_draws), error)
            fields["probability_pays"] = pays
        fields |= {
            "speedup_vs_dense": float(np.median(np.divide(dense.draws, found.draws))),
            "speedup_low": min([float(low), *ends]),
            "speedup_high": max([float(high), *ends]),
            "speedup_as_stated": dense.prediction.iteration / found.prediction.iteration,
        }
    return fields


def _ends(found: Simulated) -> tuple[float, float]:
    """Return the iteration with rings and with trees; equal where NCCL's choice is certain."""
    ring, tree = found.ring_and_tree or (found.prediction.iteration,) * 2
    return ring * found.ratio_to_stated, tree * found.ratio_to_stated


class _OneDevice:
    """Uncompressed training on one device, the base of scaling efficiency. With a dense profile it
    is DDP with one worker, which still fills buckets; without, a step with no exchange. The device
    is not slowed down and has worker 0's random factors, so no cluster's iteration is shorter."""

    def __init__(self, subject: Stage2, profile: TrafficProfile, uncertainty: Uncertainty) -> None:
        self._subject, self._profile, self._uncertainty = subject, profile, uncertainty
        scenario = subject.scenario
        self._cluster = replace(scenario.cluster_at(1), devices_per_node=1, sizes=())
        self._training = replace(scenario.training, slow_nodes={}, slow_workers={}, faults=None)
        self._known: dict[int, Prediction] = {}

    @cached_property
    def _worlds(self) -> Column:
        """Iteration in each drawn world divided by the stated one."""
        known = self._uncertainty
        about = Approximation(
            Drawn(self._cluster, self._training, known.inputs, known.worlds),
            1, self._training, self._subject.stated, [self._profile],
            prices=self._subject.prices, seed=self._subject.scenario.seed,
        )  # fmt: skip
        times = about.iteration(self._profile)
        ratios: Column = times[1 : 1 + known.draws] / times[0]
        return ratios

    def draws(self, alone: Prediction) -> tuple[float, ...]:
        """Return seconds per iteration, by drawn world."""
        if not self._uncertainty.draws:
            return ()
        return in_worlds(alone.iteration, self._worlds)

    def with_iterations_of(self, other: Prediction) -> Prediction:
        """Predict one device over as many iterations as `other` has."""
        iterations = other.iterations or self._training.iterations
        if iterations not in self._known:
            training = replace(self._training, iterations=iterations)
            found = self._subject.predict(self._profile, self._cluster, training)
            self._known[iterations] = found
        return self._known[iterations]


def _scaling_error(alone: Prediction, found: Prediction) -> float | None:
    """Return the standard error of alone / found, from batches with the same random factors."""
    if len(alone.batches) == len(found.batches) > 1:
        return standard_error(np.divide(alone.batches, found.batches).tolist())
    errors = [(each.iteration_error or 0.0) / each.iteration for each in (alone, found)]
    return alone.iteration / found.iteration * math.hypot(*errors) if any(errors) else None


def _without_exchange(profile: TrafficProfile) -> TrafficProfile:
    """Return a profile without computation and traffic, for the same model and buckets."""
    nothing = Exchange(computes=(Compute(stage="encode", fixed=()),), collectives=())
    step = Step(number=0, exchanges=(nothing,) * len(profile.buckets))
    phase = Phase(name="step", count=1, steps=(step,))
    return replace(profile, period=1, phases=(phase,), order=(0,))


def make_timelines(
    scenario: Scenario, simulated: Sequence[Sequence[Simulated]]
) -> tuple[Timeline, ...]:
    """Return sample iterations at the largest size; `simulated` is by compressor, then size."""
    nodes = scenario.node_counts[-1]
    facts = _CollectiveFacts(scenario.cluster_at(nodes))
    return tuple(
        _timeline(choice.kind, choice.label, nodes, of_sizes[-1].prediction, facts)
        for choice, of_sizes in zip(scenario.compressors, simulated, strict=True)
    )


def _timeline(
    kind: str, label: str, nodes: int, prediction: Prediction, facts: _CollectiveFacts
) -> Timeline:
    records: dict[tuple[int, int], CollectiveRecord] = {}
    last: dict[tuple[int, int], list[int]] = {}
    for span in prediction.spans:
        if span.carried is not None and span.bucket is not None:
            name = (span.bucket, span.carried.place)
            records[name] = span.carried.record
            if not span.carried.waited:
                last.setdefault(name, []).extend([span.rank] * span.ranks)
    number = {name: place for place, name in enumerate(sorted(records))}
    return Timeline(
        compressor=kind,
        label=label,
        nodes=nodes,
        phase=prediction.sample_phase,
        spans=tuple(_span(span, number) for span in prediction.spans),
        collectives=tuple(
            facts.collective(records[name], tuple(last.get(name, ()))) for name in number
        ),
    )


def _span(span: step_plan.Span, number: dict[tuple[int, int], int]) -> Span:
    carried, bucket = span.carried, span.bucket
    return Span(
        rank=span.rank,
        resource=span.resource,
        kind=span.kind,
        name=span.name,
        start_s=seconds(span.start),
        end_s=seconds(span.end),
        slot=span.slot,
        bucket=bucket,
        collective=None if carried is None or bucket is None else number[bucket, carried.place],
        waited_s=0.0 if carried is None else seconds(carried.waited),
        ranks=span.ranks,
    )


class _CollectiveFacts:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[CollectiveRecord, Collective] = {}

    def collective(self, record: CollectiveRecord, last: tuple[int, ...]) -> Collective:
        """Return the facts of a collective that the ranks `last` entered last."""
        found = self._known.get(record)
        if found is None:
            found = self._known[record] = self._described(record)
        return replace(found, last=last)

    def _of_all(self, values: tuple[int, ...], record: CollectiveRecord) -> tuple[int, ...]:
        return tuple(dispatch.of_all_ranks(values, record, self._cluster).tolist())

    def _described(self, record: CollectiveRecord) -> Collective:
        workers = self._cluster.workers
        sent = dispatch.sizes_sent(record, dispatch.participants(record, self._cluster).workers)
        received = tuple(dispatch.sizes_received(record, sent))
        if record.kind == "all_gather":  # the rank's own part does not travel
            received = tuple(size - own for size, own in zip(received, sent, strict=True))
        handled = dispatch.traffic_of(record, self._cluster).nbytes
        return Collective(
            algorithm=dispatch.algorithm_of(record, self._cluster).title,
            sent=self._of_all(sent, record),
            received=self._of_all(received, record),
            moved=tuple(handled[:workers].tolist()),
            messages=int(handled.sum()) // 2,
        )
