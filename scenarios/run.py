"""The main job: compute the result of a scenario.

    scenario ─► gradients ─► real compressors (stage 1) ─► traffic profiles, cached
                                                              │
    devices, links, sizes ──► simulated cluster (stage 2) ◄───┘ ─► rows

Stage 1 measures the traffic of those compressors whose profile is not in the cache; only stage 1
imports torch. If some input figures are known only as ranges, stage 2 also draws sets of values
from them ("worlds") and simulates an iteration in each (`running/simulate.py`).
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from gcsim.compressors.options.method import method_of
from gcsim.scenarios.checks.doubtful import warn_of_traffic
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.result import FROM_CACHE, Result
from gcsim.scenarios.running import result_cache
from gcsim.scenarios.running.gradients import check_trace, open_gradients, remove_left_gradients
from gcsim.scenarios.running.keys import profile_keys
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.sections.passes import measured_passes
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.profile import PassTimes, TrafficProfile
from gcsim.traces.stage1 import cache as profile_cache


def run(scenario: Scenario, *, cache: bool = True, progress: Progress | None = None) -> Result:
    """Run the compressors that are not cached, simulate every cluster size, and assemble the rows.
    With `cache`, a run that was already simulated is returned from the cache; `cache=False` runs
    everything again and stores nothing. Raises `InputError` early for unusable gradients."""
    return measured_run(scenario, cache=cache, progress=progress)[0]


def measured_run(
    scenario: Scenario, *, cache: bool = True, progress: Progress | None = None
) -> tuple[Result, list[str], list[TrafficProfile]]:
    """Return the result of `run` with the cache keys and traffic profiles of its compressors."""
    watcher = progress or SilentProgress()
    started = time.perf_counter()
    remove_left_gradients()
    check_trace(scenario)
    keys = profile_keys(scenario)
    known = profile_cache.load_all(keys) if cache else {}
    profiles = traffic_profiles(scenario, keys, use_cache=cache, progress=watcher, known=known)
    warn_of_traffic(scenario, profiles)
    passes = measured_passes(scenario, profiles[0])
    simulating = time.perf_counter()
    wall = {"gradients_and_compressors_s": simulating - started}
    name = result_cache.result_key(scenario, keys, passes) if cache else ""
    result = result_cache.load(name) if cache else None
    methods = zip(scenario.compressors, keys, strict=True)
    came = {
        "profiles": [choice.label for choice, key in methods if key in known],
        "simulation": result is not None,
    }
    if result is None:
        with result_cache.collected_warnings() as heard:
            result = simulated_run(scenario, keys, profiles, passes, progress=watcher)
        if cache and not heard:
            result_cache.save(name, result, time.perf_counter() - simulating)
    wall["simulation_s"] = time.perf_counter() - simulating
    result = replace(result, wall=wall, provenance={**result.provenance, FROM_CACHE: came})
    return result, keys, profiles


def simulated_run(
    scenario: Scenario,
    keys: Sequence[str],
    profiles: Sequence[TrafficProfile],
    passes: PassTimes | None,
    *,
    progress: Progress,
    timelines: bool = True,
    sources: bool = True,
    prices: PriceList | None = None,
) -> Result:
    """Run stage 2. `keys` and `profiles` belong to the scenario's compressors, in order; `passes`
    is the result of `measured_passes`.

    `timelines=False` omits the timelines, each of which needs a simulation of all ranks.
    `sources=False` omits the provenance, the times with a ring and with a tree, and the draws of
    the scaling efficiency. `prices`: an existing price list of the scenario's device, if any.
    """
    # imported here because a result from the cache does not need them
    from gcsim.scenarios.running.faults import fault_report, faulty_runs
    from gcsim.scenarios.running.installed import as_installed
    from gcsim.scenarios.running.provenance import provenance
    from gcsim.scenarios.running.rows import make_rows, make_timelines
    from gcsim.scenarios.running.simulate import (
        Stage2,
        as_carried,
        compute_times,
        simulate,
        with_batches_by_speed,
    )

    started = time.perf_counter()
    scenario, profiles = as_installed(scenario, profiles)
    scenario, keys, profiles = as_carried(scenario, keys, profiles)
    scenario = with_batches_by_speed(scenario, profiles[0].model)
    prices = prices or PriceList(scenario.cluster.device)
    compute = compute_times(scenario, profiles[0], passes, prices)
    subject = Stage2(scenario, profiles, compute, prices)
    simulated, uncertainty = simulate(subject, progress, spans=timelines, shapes=sources)
    faulty = faulty_runs(subject, simulated)
    drawn = uncertainty if sources else replace(uncertainty, draws=0)
    rows = make_rows(subject, simulated, faulty, drawn)
    predictions = [[found.prediction for found in of_sizes] for of_sizes in simulated]
    return Result(
        scenario=scenario.resolved,
        provenance=provenance(subject, keys, predictions, uncertainty.inputs) if sources else {},
        rows=rows,
        wall={"gradients_and_compressors_s": 0.0, "simulation_s": time.perf_counter() - started},
        timelines=make_timelines(scenario, simulated) if timelines else (),
        faulty=fault_report(scenario, faulty),
        inputs=uncertainty.reported(),
        left_out=scenario.left_out,
    )


def traffic_profiles(
    scenario: Scenario,
    keys: Sequence[str],
    *,
    use_cache: bool,
    progress: Progress,
    known: Mapping[str, TrafficProfile] | None = None,
) -> list[TrafficProfile]:
    """Run stage 1: take each profile from `known` or the cache, or measure and store it."""
    if known is None:
        known = profile_cache.load_all(keys) if use_cache else {}
    found = dict(known)
    missing = {
        key: choice
        for key, choice in zip(keys, scenario.compressors, strict=True)
        if key not in found
    }
    if missing:
        names = list(missing)

        def made(number: int, profile: TrafficProfile) -> None:
            found[names[number]] = profile
            if use_cache:
                with warnings.catch_warnings(record=True) as noted:
                    profile_cache.save(names[number], profile)
                for warning in noted:
                    _warn_once(str(warning.message))

        measured(scenario, list(missing.values()), progress, made=made, keep=use_cache)
    return [found[key] for key in keys]


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def measured(
    scenario: Scenario,
    choices: Sequence[CompressorChoice],
    progress: Progress,
    *,
    made: Callable[[int, TrafficProfile], None] = lambda number, profile: None,
    keep: bool = False,
) -> list[TrafficProfile]:
    """Measure profiles on the scenario's gradients, which `keep` caches; `made` as in `measure`."""
    from gcsim.compressors.conformance import refuse_side_channels
    from gcsim.traces.buckets import bucket_layouts
    from gcsim.traces.stage1.alike import measure_alike
    from gcsim.traces.stage1.measure import Subject, measure
    from gcsim.traces.timing.allocator import keep_freed_memory

    keep_freed_memory()
    for choice in choices:
        refuse_side_channels(choice.kind, choice.parameters)
    methods = [method_of(choice.kind, choice.parameters) for choice in choices]
    subjects = [
        Subject(kind=choice.kind, compressor=method.compressor, parameters=method.parameters)
        for choice, method in zip(choices, methods, strict=True)
    ]
    moments = any("second_moments" in s.compressor.requires for s in subjects)
    with open_gradients(scenario, second_moments=moments, progress=progress, keep=keep) as trace:
        layouts = bucket_layouts(
            trace.parameters,
            trace.facts.ready_order,
            first=scenario.buckets.first,
            cap=scenario.buckets.cap,
        )
        for method in methods:
            method.require_names(piece.name for layout in layouts for piece in layout.slices)
        source = scenario.gradients
        workers = source.workers or trace.workers
        part = Fraction(1, len(layouts))
        with progress.task("methods", len(subjects)) as task:
            run = measure if scenario.model.transformer is None else measure_alike
            return run(
                subjects,
                trace,
                layouts,
                workers=workers,
                seed=scenario.seed,
                provenance={
                    "source": type(source).__name__.removesuffix("Gradients").lower(),
                    **trace.source,
                    "workers": workers,
                    "iterations": trace.iterations,
                },
                advance=lambda kind: task.advance(part, note=kind),
                made=made,
            )
