"""Is what was predicted also measured, here and now? The live suite, from nothing to its report.

    calibrate this machine ─► predict everything ─► predictions.json ─► measure ─► judge

Predictions are on the disk before the first rank is started that is judged, and are read back from
there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from gcsim.analysis.live import calibrate
from gcsim.analysis.live.host_fit import Observation, fit_host
from gcsim.analysis.live.launch import Times, run_tasks, times_of
from gcsim.analysis.live.machine import busy_share, cores, stolen
from gcsim.analysis.live.namespaces import missing, network
from gcsim.analysis.live.plan import CollectiveTask, Plan, TrainingTask, default_plan
from gcsim.analysis.live.predict import (
    PREDICTIONS,
    Knowledge,
    Predicted,
    predictions,
    read_predictions,
    record_of,
    write_predictions,
)
from gcsim.analysis.live.profiles import traffic_profiles
from gcsim.analysis.live.report import factors, live_suite, points
from gcsim.analysis.validation.judge import Report, judge
from gcsim.analysis.validation.suite import Findings
from gcsim.errors import InputError, InternalError
from gcsim.files import temporary_folder, write_text
from gcsim.scenarios.progress import Progress, SilentProgress, Task
from gcsim.signals import stoppable
from gcsim.simulator.host import Host

MEASUREMENTS = "measurements.json"
_PATIENCE = 6.0
"""How many times the predicted time a round may take, beside what starting its ranks takes."""
_START = 60.0


def run_live(
    folder: Path, *, quick: bool = False, progress: Progress | None = None, plan: Plan | None = None
) -> Report:
    """Calibrate, predict, measure and judge; both files are left in `folder`, a new one.

    Raises `InputError` where rights or tools are missing, and where a rank fails.
    """
    problems = missing()
    if problems:
        raise InputError(problems)
    watcher, chosen = progress or SilentProgress(), plan or default_plan(quick=quick)
    begun = time.perf_counter()
    with network(1, 10**9):  # what cannot be made is said before minutes are spent
        pass
    with stoppable():
        host, samples = _predict(chosen, folder / PREDICTIONS, watcher)
        predicted = read_predictions(folder / PREDICTIONS)
        others, before = busy_share(), stolen()
        measured = _measure(chosen, predicted, watcher)
        after = stolen()
        _write_measurements(measured, folder / MEASUREMENTS)
    findings = Findings(points=points(predicted, measured), factors=factors(host, samples))
    away = (after[0] - before[0]) / max(1, after[1] - before[1]) if before and after else None
    suite = live_suite(chosen, findings, others, away)
    return judge(suite, findings, time.perf_counter() - begun)


def _predict(plan: Plan, path: Path, progress: Progress) -> tuple[Host, list[calibrate.Sample]]:
    """Calibrate this machine and write the predictions; its host, and what that was fitted on."""
    from gcsim.scenarios.catalog import device, link

    own = calibrate.calibrate_kernels([task.compressor for task in plan.training], progress)
    with temporary_folder("gcsim-live-") as temporary:
        trace = temporary / "trace"
        passes = calibrate.calibrate_passes(plan, trace, progress)
        profiles = traffic_profiles(plan, trace, progress)
    goodput = calibrate.calibrate_links(plan, progress)
    samples = calibrate.calibrate_messages(plan, progress)
    alone = Knowledge(link=None, host=None, device=own)
    host = fit_host(
        [
            Observation(
                record=record_of(sample.task, sample.ranks),
                cluster=alone.cluster(sample.ranks, sample.rate),
                seconds=sample.seconds,
            )
            for sample in samples
        ],
        cores=cores(),
    )
    here = Knowledge(link=None, host=host, device=own, goodput=goodput)
    catalogue = Knowledge(link=link("1gbe"), host=None, device=device("cpu_2core"))
    with progress.task("live: predict", 1) as task:
        found = predictions(plan, here, catalogue, passes, profiles)
        known = {
            "passes": asdict(passes),
            "host": {key: str(value) for key, value in asdict(host).items()},
            "goodput": goodput,
            "samples": [asdict(sample) for sample in samples],
        }
        write_predictions(found, path, known)
        task.advance()
    return host, samples


def _measure(plan: Plan, predicted: Sequence[Predicted], progress: Progress) -> dict[str, Times]:
    """By name."""
    by_name = {one.name: one for one in predicted}
    found: dict[str, Times] = {}
    for one in plan.rounds:
        names = [f"{task.name}, {one.name}" for task in one.tasks]
        turns = [
            task.repeats + 1 if isinstance(task, CollectiveTask) else task.steps + task.warm_up
            for task in one.tasks
            if isinstance(task, CollectiveTask | TrainingTask)
        ]
        needed = sum(by_name[name].seconds * turn for name, turn in zip(names, turns, strict=True))
        with (
            progress.task(f"live: {one.name}", len(names)) as watched,
            network(one.ranks, one.rate) as place,
        ):
            of_tasks = run_tasks(
                place,
                one,
                batch=plan.batch,
                seed=plan.seed,
                seconds=_START + _PATIENCE * needed,
                advance=partial(_advance, watched, names),
            )
        found |= dict(zip(names, map(times_of, of_tasks), strict=True))
    differ = [name for name, times in found.items() if not times.replicas_agree]
    if differ:
        raise InternalError(f"the ranks' parameters differ after {differ}")
    return found


def _advance(watched: Task, names: Sequence[str], number: int) -> None:
    watched.advance(note=names[number])


def _write_measurements(measured: Mapping[str, Times], path: Path) -> None:
    document = {
        "made": datetime.now(UTC).isoformat(timespec="microseconds"),
        "measurements": {name: list(times.seconds) for name, times in measured.items()},
    }
    write_text(path, json.dumps(document, indent=1) + "\n")
