"""Predictions: textbook arithmetic where it must hold, and on the disk before anything is
measured."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gcsim.analysis.live import calibrate, live
from gcsim.analysis.live.calibrate import Passes, Sample
from gcsim.analysis.live.launch import Times
from gcsim.analysis.live.live import bounds
from gcsim.analysis.live.plan import CollectiveTask, Plan, Round, TrainingTask
from gcsim.analysis.live.predict import (
    PREDICTIONS,
    Knowledge,
    Predicted,
    collective_seconds,
    kernels_alone,
    predictions,
    read_predictions,
    series_of,
    step_seconds,
    write_predictions,
)
from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InputError, Problem
from gcsim.scenarios.catalog import device
from gcsim.simulator.host import Host
from gcsim.traces.profile import Compute, Exchange, Layer, ModelFacts, TrafficProfile
from tests.simulator.traffic import traffic

HERE = Knowledge(link=None, host=None, device=device("cpu_2core"))
PASSES = Passes(forward=0.010, backward=0.020, optimizer=0.003)


def _profile(label: str, sent: int) -> TrafficProfile:
    """One bucket of a million parameters, of which that many bytes are all-reduced; its
    arithmetic costs nothing."""
    piece = TensorSlice(name="weight", shape=(1000, 1000), offset=0, index=0)
    record = CollectiveRecord(kind="all_reduce", sent=(sent,) * 2, element=4)
    nothing = Compute(stage="encode", fixed=())
    exchange = Exchange(
        computes=(nothing, Compute(stage="decode", fixed=())), collectives=(record,)
    )
    return traffic(
        exchange,
        compressor=label,
        model=ModelFacts(
            name="one layer",
            parameters=1_000_000,
            layers=(Layer(name="layer", parameters=(0,), forward_flops=2_000_000),),
            samples_per_worker=16,
        ),
        buckets=(BucketLayout(index=0, slices=(piece,)),),
    )


def _task(kind: Any, nbytes: int) -> CollectiveTask:
    return CollectiveTask(kind=kind, nbytes=nbytes, repeats=1)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("rate", [50, 100, 1000])
def test_a_large_all_reduce_takes_what_a_ring_moves_at_the_goodput(ranks: int, rate: int) -> None:
    nbytes = 16_000_000
    frame = {50: 4, 100: 8, 1000: 44}[rate]  # segments; an acknowledgement for each
    goodput = rate * 1e6 / 8 * frame * 1448 / (frame * 1514 + 66)
    ring = 2 * (ranks - 1) / ranks * nbytes / goodput
    found = collective_seconds(_task("all_reduce", nbytes), HERE.cluster(ranks, rate * 10**6))
    assert found == pytest.approx(ring, rel=0.002)


def test_a_host_makes_every_collective_longer_and_small_ones_most() -> None:
    host = Host(cores=2, per_message=Fraction(1, 10_000), ranks="all")
    slow = Knowledge(link=HERE.link, host=host, device=HERE.device)
    ratios = []
    for nbytes in (4_000, 400_000, 40_000_000):
        task = _task("all_reduce", nbytes)
        alone, shared = (collective_seconds(task, k.cluster(4, 10**8)) for k in (HERE, slow))
        ratios.append(shared / alone)
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] > 1


def test_a_step_is_passes_then_what_is_exchanged_then_the_optimiser() -> None:
    # One bucket, ready when the backward pass ends: nothing overlaps.
    cluster = HERE.cluster(2, 10**8)
    alone = collective_seconds(_task("all_reduce", 4_000_000), cluster)
    found = step_seconds(_profile("dense", 4_000_000), cluster, PASSES)
    assert found == pytest.approx(0.010 + 0.020 + 0.003 + alone, abs=1e-9)


def test_what_a_hook_takes_alone_is_paid_once_kernels_included() -> None:
    cluster = HERE.cluster(2, 10**8)
    one = _profile("none", 2_000_000)
    bare, paid = (step_seconds(one, cluster, PASSES, hook=hook) for hook in (0.0, 0.005))
    assert paid - bare == pytest.approx(0.005, abs=1e-9)
    [exchange] = one.phases[0].steps[0].exchanges
    kernel = KernelCost(kind="streaming", launches=1, elements=10**6, nbytes=8 * 10**6)
    working = replace(exchange.computes[0], fixed=(kernel,))
    exchange = replace(exchange, computes=(working, exchange.computes[1]))
    step = replace(one.phases[0].steps[0], exchanges=(exchange,))
    busy = replace(one, phases=(replace(one.phases[0], steps=(step,)),))
    kernels = float(kernels_alone(busy, cluster.device))
    assert 0 < kernels < 0.005
    assert step_seconds(busy, cluster, PASSES, hook=0.005) == pytest.approx(paid, abs=1e-9)
    assert step_seconds(busy, cluster, PASSES) == pytest.approx(bare + kernels, abs=1e-9)
    in_place = kernels / 3  # faster than they are priced
    found = step_seconds(busy, cluster, PASSES, hook=in_place)
    assert found == pytest.approx(bare + in_place, abs=1e-9)


def test_four_ranks_on_two_cores_compute_at_half_the_speed() -> None:
    host = Host(cores=2, per_message=Fraction(0), ranks="all")
    shared = Knowledge(link=HERE.link, host=host, device=HERE.device)
    one = _profile("dense", 4_000_000)
    apart, together = (step_seconds(one, k.cluster(4, 10**9), PASSES) for k in (HERE, shared))
    assert together - apart == pytest.approx(0.033, abs=1e-6)


def _plan() -> Plan:
    training = [
        TrainingTask(compressor="none", label="dense", steps=2),
        TrainingTask(compressor="fp16", label="half", steps=2),
    ]
    collective = _task("all_reduce", 1_000_000)
    return Plan(
        rounds=(
            Round(ranks=2, rate=10**8, tasks=(collective, *training)),
            Round(ranks=4, rate=10**9, tasks=(collective, *training)),
        ),
        calibration=(Round(ranks=2, rate=4 * 10**9, tasks=(_task("all_reduce", 4_000),)),),
        links=(),
        batch=4,
    )


def _profiles() -> dict[str, TrafficProfile]:
    return {"dense": _profile("dense", 4_000_000), "half": _profile("half", 2_000_000)}


def test_predictions_read_back_as_they_were_written(tmp_path: Path) -> None:
    made = predictions(_plan(), HERE, HERE, PASSES, _profiles())
    assert len(made) == len({one.name for one in made}) == 6
    assert all(one.seconds == one.unfitted for one in made)  # the same knowledge
    path = tmp_path / "predictions.json"
    write_predictions(made, path, {"passes": "as stated"})
    assert read_predictions(path) == made
    document = json.loads(path.read_text(encoding="utf-8"))
    assert datetime.fromisoformat(document["made"]) <= datetime.now(UTC)


def test_every_series_that_a_bound_may_name_is_one_that_a_plan_has() -> None:
    from gcsim.analysis.live.plan import default_plan

    plan = default_plan(quick=False)
    series = Counter(series_of(one, task) for one in plan.rounds for task in one.tasks)
    assert all(len(name) <= 34 for name in series)
    found = bounds(series)
    assert len(found) == 5
    assert {name for bound in found for name in bound.series} <= set(series)
    assert bounds({"all-reduce >= 1 MB, 50, 100 Mbit/s": 4})[0].limit <= 0.10
    assert bounds({"all-reduce >= 1 MB, 50, 100 Mbit/s": 3}) == ()


class _Machine:
    """In the place of namespaces and ranks: notes what is on the disk when a round starts."""

    def __init__(self, folder: Path, measure: Callable[[Predicted], float]) -> None:
        self.file = folder / PREDICTIONS
        self.seen: list[list[Predicted]] = []
        self._measure = measure

    def run_tasks(self, place: object, one: Round, **_: object) -> list[Times]:
        self.seen.append(read_predictions(self.file))
        by_name = {p.name: p for p in self.seen[-1]}
        return [
            Times(seconds=(self._measure(by_name[f"{task.name}, {one.name}"]),) * 3)
            for task in one.tasks
        ]


@contextmanager
def _no_network(ranks: int, rate: int) -> Iterator[None]:
    yield


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Machine:
    def of(plan: Plan) -> Sequence[Sample]:
        task = plan.calibration[0].tasks[0]
        assert isinstance(task, CollectiveTask)
        return [Sample(ranks=2, rate=4 * 10**9, task=task, seconds=0.002)]

    fake = _Machine(tmp_path, lambda p: p.seconds * (1.25 if p.method == "half" else 1.0))
    monkeypatch.setattr(live, "missing", list)
    monkeypatch.setattr(live, "network", _no_network)
    monkeypatch.setattr(live, "run_tasks", fake.run_tasks)
    monkeypatch.setattr(live, "times_of", lambda times: times)
    monkeypatch.setattr(live, "_traffic_profiles", lambda plan, trace, progress: _profiles())
    monkeypatch.setattr(calibrate, "calibrate_kernels", lambda names, progress: HERE.device)
    monkeypatch.setattr(calibrate, "calibrate_passes", lambda plan, trace, progress: PASSES)
    monkeypatch.setattr(calibrate, "calibrate_links", lambda plan, progress: {})
    monkeypatch.setattr(calibrate, "calibrate_messages", lambda plan, progress: of(plan))
    return fake


def test_all_predictions_are_on_the_disk_before_the_first_rank_is_started(
    machine: _Machine, tmp_path: Path
) -> None:
    report = live.run_live(tmp_path, plan=_plan())
    assert len(machine.seen) == 2
    assert all(len(seen) == 6 for seen in machine.seen)
    assert machine.seen[0] == machine.seen[1] == read_predictions(tmp_path / PREDICTIONS)
    files = [
        json.loads((tmp_path / name).read_text(encoding="utf-8"))
        for name in (PREDICTIONS, live.MEASUREMENTS)
    ]
    assert files[0]["made"] < files[1]["made"]
    stated = {one.name: one.seconds for one in machine.seen[0]}
    assert {p.name: p.predicted for p in report.findings.points} == stated
    assert not any(point.fitted for point in report.findings.points)


def test_the_report_compares_what_was_measured_with_what_was_said(
    machine: _Machine, tmp_path: Path
) -> None:
    report = live.run_live(tmp_path, plan=_plan())
    errors = {point.name: point.error for point in report.findings.points}
    half = [error for name, error in errors.items() if "half" in name]
    assert half == pytest.approx([1 / 1.25 - 1] * 2)
    assert [e for name, e in errors.items() if "half" not in name] == pytest.approx([0.0] * 4)
    assert report.kept
    assert report.decisions is not None
    assert report.decisions.decided + report.decisions.ties == 2


def test_ranks_whose_parameters_differ_are_no_measurement(
    machine: _Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gcsim.errors import InternalError

    def differ(place: object, one: Round, **_: object) -> list[Times]:
        return [Times(seconds=(1.0,), replicas_agree=False) for _ in one.tasks]

    monkeypatch.setattr(live, "run_tasks", differ)
    with pytest.raises(InternalError, match="parameters differ"):
        live.run_live(tmp_path, plan=_plan())


def test_without_rights_nothing_is_begun(
    machine: _Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "missing", lambda: [Problem(message="no rights", hint="sudo")])
    with pytest.raises(InputError, match="no rights; sudo"):
        live.run_live(tmp_path, plan=_plan())
    assert list(tmp_path.iterdir()) == []
    assert machine.seen == []
