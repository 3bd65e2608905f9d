"""The main job: from a scenario to its result.

    scenario ─► gradients ─► real compressors (stage 1) ─► traffic profiles, cached
                                                              │
    devices, links, sizes ──► simulated cluster (stage 2) ◄───┘ ─► rows

Stage 1 runs for the compressors whose profile is not in the cache; only it imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.scenarios.keys import profile_key
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.provenance import provenance
from gcsim.scenarios.record import check_trace, open_gradients
from gcsim.scenarios.result import Result, Row, Span, Timeline
from gcsim.scenarios.scenario import CompressorChoice, RecordedGradients, Scenario
from gcsim.scenarios.survivors import with_faults
from gcsim.simulator.clock import seconds
from gcsim.simulator.predict import Prediction, predict
from gcsim.simulator.training import Noise
from gcsim.simulator.training_time import ComputeTimes, training_times
from gcsim.traces import cache as profile_cache
from gcsim.traces.profile import Compute, Exchange, Phase, Step, TrafficProfile


def run(scenario: Scenario, *, cache: bool = True, progress: Progress | None = None) -> Result:
    """Run the compressors where needed, simulate every size, and put the rows together.

    `cache=False` runs every compressor again and stores nothing. Raises `InputError` for
    gradients that cannot be used, before anything is simulated.
    """
    watcher = progress or SilentProgress()
    started = time.perf_counter()
    check_trace(scenario)
    keys = [profile_key(scenario, choice) for choice in scenario.compressors]
    profiles = traffic_profiles(scenario, keys, use_cache=cache, progress=watcher)
    measured = time.perf_counter()
    compute = training_times(
        profiles[0].model, profiles[0].buckets, scenario.cluster.device, scenario.compute
    )
    predictions = _simulate(scenario, profiles, compute, watcher)
    rows = _rows(scenario, profiles, predictions, compute)
    timelines = _timelines(scenario, predictions)
    return Result(
        scenario=scenario.resolved,
        provenance=provenance(scenario, profiles, keys, compute, predictions),
        rows=rows,
        wall={
            "gradients_and_compressors_s": measured - started,
            "simulation_s": time.perf_counter() - measured,
        },
        timelines=timelines,
    )


def traffic_profiles(
    scenario: Scenario, keys: Sequence[str], *, use_cache: bool, progress: Progress
) -> list[TrafficProfile]:
    """Stage 1: each compressor's profile, from the cache or measured now."""
    found: dict[str, TrafficProfile] = {}
    for key in keys if use_cache else ():
        stored = profile_cache.load(key)
        if stored is not None:
            found[key] = stored
    missing = {
        key: choice
        for key, choice in zip(keys, scenario.compressors, strict=True)
        if key not in found
    }
    if missing:
        profiles = _measure(scenario, list(missing.values()), progress)
        for key, profile in zip(missing, profiles, strict=True):
            found[key] = profile
            if use_cache:
                profile_cache.save(key, profile)
    return [found[key] for key in keys]


def _measure(
    scenario: Scenario, choices: Sequence[CompressorChoice], progress: Progress
) -> list[TrafficProfile]:
    from gcsim.traces.allocator import keep_freed_memory
    from gcsim.traces.buckets import bucket_layouts
    from gcsim.traces.measure import Subject, measure

    keep_freed_memory()
    subjects = [
        Subject(
            kind=choice.kind,
            compressor=compressor_class(choice.kind),
            parameters=check_parameters(choice.kind, choice.parameters),
        )
        for choice in choices
    ]
    needs_moments = any("second_moments" in s.compressor.requires for s in subjects)
    with open_gradients(scenario, second_moments=needs_moments, progress=progress) as trace:
        layouts = bucket_layouts(
            trace.parameters, first=scenario.buckets.first, cap=scenario.buckets.cap
        )
        source = scenario.gradients
        workers = source.workers or trace.workers
        with progress.task("compressors", len(subjects) * len(layouts)) as task:
            return measure(
                subjects,
                trace,
                layouts,
                workers=workers,
                seed=scenario.seed,
                provenance={
                    "source": "recorded" if isinstance(source, RecordedGradients) else "live",
                    **trace.source,
                    "workers": workers,
                    "iterations": trace.iterations,
                },
                advance=lambda kind: task.advance(note=kind),
            )


def _simulate(
    scenario: Scenario,
    profiles: Sequence[TrafficProfile],
    compute: ComputeTimes,
    progress: Progress,
) -> list[list[Prediction]]:
    """Stage 2: by compressor, then by cluster size."""
    sizes = scenario.node_counts
    with progress.task("cluster sizes", len(sizes) * len(profiles)) as task:
        predictions = []
        for profile in profiles:
            of_sizes = []
            for nodes in sizes:
                prediction = predict(
                    profile,
                    scenario.cluster_at(nodes),
                    compute,
                    training=scenario.training_at(nodes),
                    seed=scenario.seed,
                    spans=nodes == sizes[-1],  # the only timeline that is kept
                )
                of_sizes.append(prediction)
                task.advance()
            predictions.append(of_sizes)
    return predictions


def _rows(
    scenario: Scenario,
    profiles: Sequence[TrafficProfile],
    predictions: Sequence[Sequence[Prediction]],
    compute: ComputeTimes,
) -> tuple[Row, ...]:
    dense = next(
        (n for n, choice in enumerate(scenario.compressors) if choice.kind == "none"), None
    )
    samples = scenario.batch_size * scenario.training.accumulation
    uncompressed = _without_exchange(profiles[0]) if dense is None else profiles[dense]
    single = samples / _one_device(scenario, uncompressed, compute)
    rows = []
    for choice, profile, of_sizes in zip(scenario.compressors, profiles, predictions, strict=True):
        method = compressor_class(choice.kind)
        parameters = check_parameters(choice.kind, choice.parameters)
        scale_free = method.laws(parameters).scale_free
        for size, (nodes, times) in enumerate(zip(scenario.node_counts, of_sizes, strict=True)):
            workers = nodes * scenario.cluster.devices_per_node
            throughput = workers * samples / times.iteration
            wire = profile.wire_bytes(workers)
            faulty = with_faults(scenario, profile, compute, times, nodes)
            rows.append(
                Row(
                    compressor=choice.kind,
                    label=choice.label,
                    nodes=nodes,
                    workers=workers,
                    iteration_s=times.iteration,
                    forward_s=times.forward,
                    backward_s=times.backward,
                    encode_s=times.encode,
                    communication_s=times.communication,
                    exposed_communication_s=times.exposed,
                    decode_s=times.decode,
                    throughput_samples_per_s=throughput,
                    speedup_vs_dense=(
                        None
                        if dense is None
                        else predictions[dense][size].iteration / times.iteration
                    ),
                    scaling_efficiency=throughput / (workers * single),
                    wire_bytes_per_worker=wire,
                    compression_ratio=profile.model.gradient_bytes / wire,
                    nmse=None if scale_free else profile.quality.nmse,
                    cosine_similarity=profile.quality.cosine_similarity,
                    steps_run=sum(len(phase.steps) for phase in profile.phases),
                    memory=method.memory(parameters),
                    period=profile.period,
                    optimizer_s=times.optimizer,
                    input_s=times.input,
                    iteration_p5_s=times.iteration_p5,
                    iteration_p95_s=times.iteration_p95,
                    throughput_with_faults_samples_per_s=faulty.throughput if faulty else None,
                    lost_to_faults_s=faulty.lost if faulty else None,
                    iteration_error_s=times.iteration_error,
                    algorithms="; ".join(times.algorithms),
                )
            )
    return tuple(rows)


def _one_device(scenario: Scenario, profile: TrafficProfile, compute: ComputeTimes) -> float:
    """Seconds an iteration of uncompressed training on one device, which has nobody to talk to.

    With a dense profile that is DDP with a single worker (it still fills its buckets); without
    one, what a step takes beside its exchange. The device is one that is not slow.

    In expectation, so that no luck of its own is in it: nothing is drawn, the device computes at
    its mean pace. That is exact where it only computes; where it also waits (for input, or for a
    side stream), the mean of the longer of two times is taken for the longer of their means.
    """
    alone = replace(scenario.cluster_at(1), devices_per_node=1)
    pace = Fraction(1) if scenario.training.noise is None else mean_pace(scenario.training.noise)
    training = replace(
        scenario.training, slow_nodes={} if pace == 1 else {0: pace}, noise=None, faults=None
    )
    seed = scenario.seed
    return predict(profile, alone, compute, training=training, seed=seed, spans=False).iteration


def mean_pace(noise: Noise) -> Fraction:
    """How many times as long a worker computes, in expectation; the variation has mean 1."""
    return 1 + noise.slow_probability * (noise.slow_factor - 1)


def _without_exchange(profile: TrafficProfile) -> TrafficProfile:
    """A method that computes and sends nothing, for the same model and buckets."""
    nothing = Exchange(computes=(Compute(stage="encode", fixed=()),), collectives=())
    step = Step(number=0, exchanges=(nothing,) * len(profile.buckets))
    return replace(profile, period=1, phases=(Phase(name="step", count=1, steps=(step,)),))


def _timelines(
    scenario: Scenario, predictions: Sequence[Sequence[Prediction]]
) -> tuple[Timeline, ...]:
    """A sample iteration of each compressor at the largest size."""
    return tuple(
        Timeline(
            compressor=choice.kind,
            label=choice.label,
            nodes=scenario.node_counts[-1],
            phase=of_sizes[-1].sample_phase,
            spans=tuple(
                Span(
                    rank=span.rank,
                    resource=span.resource,
                    name=span.name,
                    start_s=seconds(span.start),
                    end_s=seconds(span.end),
                )
                for span in of_sizes[-1].spans
            ),
        )
        for choice, of_sizes in zip(scenario.compressors, predictions, strict=True)
    )
