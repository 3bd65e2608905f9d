"""The live suite, from calibration to report.

calibrate this machine ─► predict everything ─► predictions.json ─► measure ─► judge

The predictions are on disk before the first measured rank starts, and are read back from there.

Compressors run in stage 1 on gradients of the training that is measured later.

The costs of this machine's host are fitted on a few collectives that no bound judges. Each measured
time T, with the time that the network alone would take, determines the host's work W
(`Host.together`, solved for W). If nothing is copied afterwards, W is linear in the costs of a
call, a message and a byte, which non-negative least squares then gives. The residuals of the other
times give the cost of a copied byte. Residuals are relative to T, as errors are when judged.

The bounds are wider than for measurements on idle machines: other programs use the same cores, and
a virtual machine's clock and cores belong to its host.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gcsim.analysis.live import calibrate, predict
from gcsim.analysis.live.calibrate import Sample, busy_share, cores, machine, stolen
from gcsim.analysis.live.launch import Times, run_tasks, times_of
from gcsim.analysis.live.namespaces import missing, network
from gcsim.analysis.live.plan import CollectiveTask, Plan, TrainingTask, default_plan
from gcsim.analysis.validation.judge import Report, judge
from gcsim.analysis.validation.suite import Bound, Factor, Findings, Point, Suite
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InputError, InternalError
from gcsim.files import json_text, temporary_folder, write_text
from gcsim.scenarios.progress import Progress, SilentProgress, Task
from gcsim.signals import stoppable
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, picoseconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import execute, traffic_of
from gcsim.simulator.host import Host
from gcsim.simulator.training import DENSE
from gcsim.traces.profile import TrafficProfile

MEASUREMENTS = "measurements.json"
_PATIENCE = 6.0  # multiple of a round's predicted time that is allowed, plus the ranks' start
_START = 60.0


def run_live(
    folder: Path, *, quick: bool = False, progress: Progress | None = None, plan: Plan | None = None
) -> Report:
    """Calibrate, predict, measure and judge; leave both files in the new `folder`. Raises
    `InputError` for missing rights or tools, or a failing rank."""
    problems = missing()
    if problems:
        raise InputError(problems)
    watcher, chosen = progress or SilentProgress(), plan or default_plan(quick=quick)
    begun = time.perf_counter()
    with network(1, 10**9):  # a missing capability is reported before minutes are spent
        pass
    with stoppable():
        host, samples = _predict(chosen, folder / predict.PREDICTIONS, watcher)
        predicted = predict.read_predictions(folder / predict.PREDICTIONS)
        others, before = busy_share(), stolen()
        measured = _measure(chosen, predicted, watcher)
        after = stolen()
        _write_measurements(measured, folder / MEASUREMENTS)
    findings = Findings(points=_points(predicted, measured), factors=_factors(host, samples))
    away = (after[0] - before[0]) / max(1, after[1] - before[1]) if before and after else None
    suite = _live_suite(chosen, findings, others, away)
    return judge(suite, findings, time.perf_counter() - begun)


def _predict(plan: Plan, path: Path, progress: Progress) -> tuple[Host, list[calibrate.Sample]]:
    """Calibrate this machine and write the predictions; return host and samples."""
    from gcsim.scenarios.catalog import device, link

    own = calibrate.calibrate_kernels([task.compressor for task in plan.training], progress)
    with temporary_folder("gcsim-live-") as temporary:
        trace = temporary / "trace"
        passes = calibrate.calibrate_passes(plan, trace, progress)
        profiles = _traffic_profiles(plan, trace, progress)
    goodput = calibrate.calibrate_links(plan, progress)
    samples = calibrate.calibrate_messages(plan, progress)
    alone = predict.Knowledge(link=None, host=None, device=own)
    host = fit_host(
        [
            Observation(
                record=predict.record_of(sample.task, sample.ranks),
                cluster=alone.cluster(sample.ranks, sample.rate),
                seconds=sample.seconds,
            )
            for sample in samples
        ],
        cores=cores(),
    )
    here = predict.Knowledge(link=None, host=host, device=own, goodput=goodput)
    catalogue = predict.Knowledge(link=link("1gbe"), host=None, device=device("cpu_2core"))
    with progress.task("live: predict", 1) as task:
        found = predict.predictions(plan, here, catalogue, passes, profiles)
        known = {
            "passes": asdict(passes),
            "host": {key: str(value) for key, value in asdict(host).items()},
            "goodput": goodput,
            "samples": [asdict(sample) for sample in samples],
        }
        predict.write_predictions(found, path, known)
        task.advance()
    return host, samples


def _measure(
    plan: Plan, predicted: Sequence[predict.Predicted], progress: Progress
) -> dict[str, Times]:
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
    write_text(path, json_text(document))


def _traffic_profiles(plan: Plan, trace: Path, progress: Progress) -> dict[str, TrafficProfile]:
    """Return the profiles of the plan's methods by label; `trace` has one worker per rank."""
    import yaml

    from gcsim.scenarios.load import load_scenario
    from gcsim.scenarios.run import traffic_profiles as run_compressors
    from gcsim.scenarios.running.keys import profile_keys

    file = trace.parent / "live.yaml"
    file.write_text(yaml.safe_dump(_scenario(plan, plan.training, trace)), encoding="utf-8")
    scenario = load_scenario(file)
    keys = profile_keys(scenario)
    found = run_compressors(scenario, keys, use_cache=False, progress=progress)
    return {task.label: profile for task, profile in zip(plan.training, found, strict=True)}


def _scenario(plan: Plan, tasks: Sequence[TrainingTask], trace: Path) -> dict[str, Any]:
    """Return a scenario that only measures traffic; its cluster does not matter."""
    return {
        "name": "live",
        "model": "recorded",
        "batch_size": plan.batch,
        "gradients": {"source": "recorded", "trace": str(trace)},
        "cluster": {
            "nodes": plan.most_ranks,
            "devices_per_node": 1,
            "device": "cpu_2core",
            "network": "1gbe",
            "intra_node": "host_memory",
        },
        "compressors": [
            {"kind": task.compressor, "label": task.label, **task.parameters} for task in tasks
        ],
        "seed": plan.seed,
    }


_DIGITS = 6
_BYTES = 10**6  # costs per million bytes are of similar size to the others, for conditioning


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A measured collective."""

    record: CollectiveRecord
    cluster: Cluster  # without a host
    seconds: float


def fit_host(observations: Sequence[Observation], cores: int) -> Host:
    """Fit the host that all ranks share, a machine with this number of cores."""
    from scipy.optimize import nnls

    free = Host(cores=cores, per_message=Fraction(0), ranks="all")
    units = [
        replace(free, per_call=Fraction(1)),
        replace(free, per_message=Fraction(1)),
        replace(free, per_byte=Fraction(1, _BYTES)),
    ]
    handled = [
        (seen, traffic_of(seen.record, seen.cluster), _network(seen)) for seen in observations
    ]
    rows, works = [], []
    for seen, traffic, alone in handled:
        if not traffic.copied:
            row = [unit.work(traffic).concurrent / PS_PER_SECOND for unit in units]
            work = work_of(free, alone, picoseconds(seen.seconds)) / PS_PER_SECOND
            rows.append(np.array(row) / seen.seconds)
            works.append(work / seen.seconds)
    costs, _ = nnls(np.array(rows), np.array(works))
    call, message, byte = map(_digits, costs.tolist())
    host = replace(free, per_call=call, per_message=message, per_byte=byte / _BYTES)
    copies, rests = [], []
    for seen, traffic, alone in handled:
        if traffic.copied:
            expected = host.combined_time(alone, host.work(traffic).concurrent) / PS_PER_SECOND
            unit = replace(free, per_copied_byte=Fraction(1, _BYTES))
            copies.append(unit.work(traffic).after / PS_PER_SECOND / seen.seconds)
            rests.append((seen.seconds - expected) / seen.seconds)
    if copies:
        copy, _ = nnls(np.array(copies)[:, None], np.array(rests))
        host = replace(host, per_copied_byte=_digits(float(copy[0])) / _BYTES)
    return host


def _network(seen: Observation) -> Picoseconds:
    entry = np.zeros(seen.cluster.workers, dtype=np.int64)
    return int(execute(seen.record, entry, seen.cluster).max())


def _digits(value: float) -> Fraction:
    return Fraction(f"{value:.{_DIGITS}g}")


def work_of(host: Host, alone: Picoseconds, total: Picoseconds) -> Picoseconds:
    """Return the largest W for which `host.together(alone, W)` is at most `total`, or 0."""
    works = range(max(total, 0) + 1)  # T(N, W) is at least W
    return max(0, bisect_right(works, total, key=partial(host.combined_time, alone)) - 1)


def _points(
    predicted: Sequence[predict.Predicted], measured: Mapping[str, Times]
) -> tuple[Point, ...]:
    """Return the medians of measurements as points with their predictions."""
    source = f"measured here on {date.today().isoformat()}: {machine()}"
    found = []
    for one in predicted:
        times = measured[one.name].seconds
        kind = one.name.partition(" ")[0]
        found.append(
            Point(
                name=one.name,
                series=one.series,
                unit="s",
                measured=statistics.median(times),
                predicted=one.seconds,
                unfitted=one.unfitted,
                source=f"{source}, median of {len(times)}",
                workers=one.ranks,
                setting=f"{one.ranks} ranks, {one.rate // 10**6} Mbit/s" if one.method else "",
                method=DENSE if one.method == "dense" else one.method,
                panel="" if one.nbytes is None else f"{kind}, {one.ranks} ranks",
                curve="" if one.nbytes is None else f"{one.rate // 10**6} Mbit/s",
                x=None if one.nbytes is None else one.nbytes / 1e6,
            )
        )
    return tuple(found)


def _factors(host: Host, samples: Sequence[Sample]) -> tuple[Factor, ...]:
    """Costs of the host, fitted on these; all-gathers, where alone Gloo copies, give that one."""
    copying = sum(sample.task.kind == "all_gather" for sample in samples)
    others = len(samples) - copying
    costs: tuple[tuple[str, Fraction, float, str, int], ...] = (
        ("CPU time per message", host.per_message, 1e6, "us", others),
        ("CPU time per byte", host.per_byte, 1e9, "ns", others),
        ("CPU time per rank and collective", host.per_call, 1e6, "us", others),
        ("CPU time per copied byte", host.per_copied_byte, 1e9, "ns", copying),
    )
    return tuple(
        Factor("all", name, float(value) * scale, unit, fitted_on, catalogue=0.0)
        for name, value, scale, unit, fitted_on in costs
    )


def _live_suite(
    plan: Plan, findings: Findings, others: float | None, stolen: float | None = None
) -> Suite:
    """Make the suite of these findings. `others` is from `busy_share`; `stolen`: share of processor
    time lost to other virtual machines."""
    present = Counter(point.series for point in findings.points)
    calibration = sum(len(one.tasks) for one in plan.calibration)
    busy = "" if others is None else f" Other programs took {others:.0%} of them just before."
    if stolen:
        busy += f" Meanwhile other virtual machines had {stolen:.1%} of their time."
    return Suite(
        name="live",
        title="Gloo and DDP in network namespaces, here and now",
        about=(
            f"Real ranks of torch.distributed (Gloo, CPU) on this machine ({machine()}), one in "
            "each network namespace, joined by virtual NICs that are shaped in both directions "
            "(tc tbf), and real DDP training with gcsim's compressors as communication hooks. All "
            f"ranks share this machine's cores.{busy} Predictions were on the disk "
            f"({predict.PREDICTIONS}) before the first of these ranks was started."
        ),
        fitted_on=(
            f"what the host costs: {calibration} collectives of other sizes at 4 Gbit/s; what "
            "the links give: one message each way; kernels, passes and hooks: measured before, "
            "without any exchange. None of it is judged"
        ),
        missing=_MISSING,
        bounds=bounds(present),
        find=lambda: findings,
        figure_x="MB that each rank hands over",
    )


_MISSING = (
    "Collectives below 1 MB, and all at 1 Gbit/s, wait for processors: which rank is woken when is "
    "the kernel's choice, and times have several modes. The shaper lets a frame pass for free "
    "after a pause (about a millisecond of data), and a pause of the whole machine that is longer "
    "takes the time away from a link for good. What Python and DDP do around a compressor is "
    "measured on as many ranks as there are cores, which exchange nothing; of more ranks each has "
    "a fair share of the cores, where a real scheduler lets them wait for each other. "
    "Gloo's all-gather of two ranks takes two or three halves of a block, as "
    "they enter; three are predicted. The model knows no other programs on this machine."
)

_LIMITS: tuple[tuple[str, tuple[str, ...], float, float | None], ...] = (
    (
        "collectives of 1 MB and more, 50 and 100 Mbit/s",
        ("all-reduce >= 1 MB, 50, 100 Mbit/s", "all-gather >= 1 MB, 50, 100 Mbit/s"),
        0.10,
        None,
    ),
    (
        "collectives below 1 MB, 50 and 100 Mbit/s",
        ("all-reduce < 1 MB, 50, 100 Mbit/s", "all-gather < 1 MB, 50, 100 Mbit/s"),
        0.25,
        None,
    ),
    ("training steps, 100 Mbit/s", ("training steps, 100 Mbit/s",), 0.20, 0.08),
    ("training steps, 1 Gbit/s", ("training steps, 1 Gbit/s",), 0.25, 0.12),
)
_FEWEST = 4  # least points behind a bounded median: fewer are spoiled by one with two modes
_DECISIONS = 0.8  # required share of right decisions in training


def bounds(series: Mapping[str, int]) -> tuple[Bound, ...]:
    """Return the bounds for the measured series, given their numbers of points."""
    found = [
        Bound(name, tuple(one for one in wanted if one in series), limit=limit, target=target)
        for name, wanted, limit, target in _LIMITS
    ]
    found = [bound for bound in found if sum(series[name] for name in bound.series) >= _FEWEST]
    trained = tuple(sorted(one for one in series if one.startswith("training")))
    if trained:
        found.append(
            Bound("decisions of training", trained, statistic="decisions", limit=_DECISIONS)
        )
    return tuple(found)
