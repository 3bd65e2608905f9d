"""Is the suite of GRACE's runs what it says: data, payloads, rules, a fit on few points, bounds?

Expected numbers are those of the release (sands-lab/grace-data), or follow from the shapes by hand.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.suites.grace.arithmetic import work
from gcsim.analysis.validation.suites.grace.models import Tensor, networks
from gcsim.analysis.validation.suites.grace.payloads import Method, counted, sent
from gcsim.analysis.validation.suites.grace.runs import (
    Run,
    contradictory,
    implied_gbit,
    runs,
    selection,
    stalled,
)
from gcsim.analysis.validation.suites.grace.steps import Place, Rates, Steps
from gcsim.analysis.validation.suites.grace.suite import (
    KINDS,
    Fit,
    by_class,
    chosen,
    fit,
    predicted,
)
from gcsim.compressors.kernels import KERNEL_CLASSES
from gcsim.errors import InternalError

NAME = "grace"
DENSE = Method(compressor="none")
GIGABIT = 1448 / 1538 * 1e9 / 8
"""TCP's goodput, bytes a second (`links.yaml`)."""


def _run(row: str) -> Run:
    return next(run for run in runs() if run.row == row)


def _find(model: str, compressor: str, **wanted: object) -> Run:
    """The one run of mode throughput with these properties, over MPI."""
    parameter = wanted.pop("parameter", 0.0)
    found = [
        run
        for run in runs()
        if (run.mode, run.model, run.library) == ("throughput", model, "mpi")
        and (run.method.compressor, run.method.parameter) == (compressor, parameter)
        and all(getattr(run, name) == value for name, value in wanted.items())
    ]
    assert len(found) == 1
    return found[0]


# --- data ----------------------------------------------------------------------------------------


def test_rows_are_those_of_the_release() -> None:
    """Values as in GRACE_data_release.pickle; a row is known by the release's own id."""
    assert len(runs()) == len({run.row for run in runs()}) == 1239
    assert _run("w4o68y7c0").value == 227.32  # UNet, dense, 8 workers, 10 Gbit/s
    assert _run("w4o68y7c0").method == DENSE
    assert (_run("w4o68y7c0").workers, _run("w4o68y7c0").gbit) == (8, 10)
    topk = _run("iekn7m1j0")
    assert topk.value == 83.09
    assert topk.method == Method(compressor="topk", parameter=0.5, memory=True)
    inceptionn = _run("bb61nwey0")
    assert (inceptionn.model, inceptionn.value) == ("vgg19", 44.8655)


def test_every_run_is_cited_by_its_row() -> None:
    for run in runs():
        assert "sands-lab/grace-data" in run.source
        assert "ICDCS 2021" in run.source
        assert run.source.endswith(f"project {run.project}, mode {run.mode}, row {run.row}")


def test_every_run_is_compared_or_left_out_by_a_rule(report: Report) -> None:
    left_out = sum(excluded.count for excluded in report.findings.excluded)
    assert left_out + len(report.findings.points) == 1239


# --- payloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "tensors", "elements"),
    [
        ("unet_dagm", 46, 1_850_305),  # 8 bit counts 184 bytes more than SignSGD: 46 scales
        ("resnet50", 161, 25_559_081),
        ("resnet20_v2_cifar10", 51, 269_467),
        ("lstm_ptb_grace", 6, 13_275_200),
        ("ncf_ml20m", 10, 31_832_577),
    ],
)
def test_networks_have_as_many_tensors_and_elements_as_were_counted(
    model: str, tensors: int, elements: int
) -> None:
    assert len(networks()[model].tensors) == tensors
    assert networks()[model].elements == elements


def test_bytes_are_the_counted_ones_to_the_byte() -> None:
    """Of all methods whose payload does not depend on the gradient. (PowerSGD: where the parser's
    iterations fit into the ten that it looks at.)"""
    exact = 0
    for run in selection().volumes:
        if run.method.compressor in {"dgc", "adaq"}:
            continue
        ours = counted(run.method, run.model, run.known)
        if run.method.compressor == "powersgd" and run.model not in {"unet_dagm", "ncf_ml20m"}:
            assert ours == pytest.approx(run.value, rel=0.09)
            continue
        assert ours == pytest.approx(run.value, rel=1e-9), run
        exact += 1
    assert exact == 150


def test_bytes_of_dgc_and_adaq_are_within_the_limits_of_their_search() -> None:
    """Its loop stops between 0.8 and 1.25 times the share. DGC cannot keep half of NCF's elements,
    most of which are 0."""
    for run in selection().volumes:
        half_of_ncf = run.model == "ncf_ml20m" and run.method.parameter == 0.5
        if run.method.compressor in {"dgc", "adaq"} and not half_of_ncf:
            ours = counted(run.method, run.model, run.known)
            assert 0.8 * ours <= run.value <= 1.25 * ours


@pytest.mark.parametrize(
    ("method", "sizes"),
    [
        (DENSE, [4800]),
        (Method(compressor="signsgd"), [1200]),  # a byte a sign, not a bit
        (Method(compressor="qsgd", parameter=64), [1200, 4]),
        (Method(compressor="qsgd", parameter=128), [2400, 4]),
        (Method(compressor="topk", parameter=0.01), [96]),
        (Method(compressor="randomk", parameter=0.0001), [4]),  # at least one element
        (Method(compressor="powersgd"), [24, 3200]),  # 3 x 400
        (Method(compressor="sketch", parameter=64), [1200, 256]),
    ],
)
def test_payload_of_a_convolution(method: Method, sizes: list[int]) -> None:
    """3 x 4 x 10 x 10 elements, by hand."""
    assert [one.nbytes for one in sent(method, Tensor(shape=(3, 4, 10, 10)))] == sizes


def test_what_nobody_knows_is_refused() -> None:
    with pytest.raises(InternalError, match="inceptionn"):
        sent(Method(compressor="inceptionn"), Tensor(shape=(2,)))
    with pytest.raises(InternalError, match="NCF"):
        assert networks()["ncf_ml20m"].samples


def test_kernels_are_those_of_the_public_code() -> None:
    """SignSGD of 1,000 elements: a comparison reads floats and writes bytes; a payload is cut out,
    cast, scaled, shifted (`decompress`), and added up."""
    own = work(Method(compressor="signsgd"), Tensor(shape=(1000,)))
    assert [(cost.kind, cost.launches, cost.nbytes) for cost in own.encode] == [
        ("streaming", 1, 5000)
    ]
    assert [(cost.kind, cost.launches, cost.nbytes) for cost in own.per_payload] == [
        ("streaming", 5, 2000 + 5000 + 8000 + 8000 + 4000)
    ]


def test_error_feedback_decodes_the_own_payload_too() -> None:
    tensor = Tensor(shape=(1000,))
    bare, kept = (
        work(Method(compressor="topk", parameter=0.1, memory=memory), tensor)
        for memory in (False, True)
    )
    assert kept.per_payload == bare.per_payload
    assert sum(c.nbytes for c in kept.encode) - sum(c.nbytes for c in bare.encode) == (
        28 * 1000 + (16 * 100 + 4 * 1000 + 12 * 100) + 20 * 1000
    )


# --- rules ---------------------------------------------------------------------------------------


def test_implied_line_rate_by_hand() -> None:
    """Dense UNet: 7,401,220 bytes, a ring of 8; 16 images in 16 / 89.54 and 16 / 227.32 s."""
    slow = _find("unet_dagm", "none", gbit=1)
    fast = _find("unet_dagm", "none", gbit=10, workers=8)
    received = 7_401_220 * 2 * 7 / 8
    expected = received * 8e-9 * 0.9 / (16 / 89.54 - 16 / 227.32)
    assert implied_gbit(slow, fast) == pytest.approx(expected, rel=1e-12)
    assert 2 / 3 < expected < 3 / 2


def test_methods_of_resnet50_that_are_off_by_two_are_left_out_and_no_others() -> None:
    """The groups that the rates themselves tell apart: dense, top-k, random-k, QSGD and TernGrad
    agree with 128 images."""
    left = [run for run in selection().rates if run.model == "resnet50"]
    assert {run.method.compressor for run in left} == {
        "none",
        "topk",
        "randomk",
        "qsgd",
        "terngrad",
    }
    assert {run.method.compressor for run in selection().rates if run.model == "unet_dagm"} > {
        "signsgd",
        "8bit",
        "dgc",
    }


def test_a_pair_that_contradicts_itself_excludes_its_method() -> None:
    """Twice the rate at 1 Gbit/s alone."""
    own = [run for run in selection().rates if run.model == "unet_dagm"]
    assert contradictory(own) == []
    wrong = [
        replace(run, value=2 * run.value)
        if run.method.compressor == "qsgd" and run.gbit == 1
        else run
        for run in own
    ]
    assert {run.method.compressor for run in contradictory(wrong)} == {"qsgd"}


def test_each_method_says_by_itself_that_it_exchanges_after_the_backward_pass() -> None:
    """From 10 to 1 Gbit/s an iteration of ResNet-50 grows by what all bytes take at 1 Gbit/s, and
    for top-k and random-k that is less than the backward pass, which would have hidden it."""
    rates = [run for run in selection().rates if run.model == "resnet50"]
    fast = {(run.method, run.workers, run.library): run for run in rates if run.gbit == 10}
    implied: dict[str, list[float]] = {}
    for run in rates:
        other = fast.get((run.method, run.workers, run.library))
        if run.gbit == 1 and other is not None and run.method != DENSE:
            implied.setdefault(run.method.compressor, []).append(implied_gbit(run, other))
    assert set(implied) == {"topk", "randomk", "qsgd", "terngrad"}
    for own in implied.values():
        assert median(own) == pytest.approx(1, abs=0.12)


def test_only_the_lstm_stalls_at_one_gigabit() -> None:
    rates = [
        run for run in runs() if run.mode == "throughput" and run.model in {"unet_dagm", "resnet50"}
    ]
    predictable = [run for run in rates if run.method.compressor not in {"threshold", "inceptionn"}]
    assert stalled(predictable) == []
    assert not any(run.model == "lstm_ptb_grace" and run.gbit == 1 for run in selection().rates)


def test_upper_bounds_are_no_bounds() -> None:
    """The stated reason for leaving that mode out."""

    def key(run: Run) -> tuple[object, ...]:
        return run.model, run.method, run.workers, run.gbit, run.library

    bounds = {key(run): run for run in runs() if run.mode == "upper-bound"}
    whole = [run for run in runs() if run.mode == "throughput" and key(run) in bounds]
    slower = [run for run in whole if bounds[key(run)].value < run.value]
    assert (len(slower), len(whole)) == (43, 316)


# --- mechanisms ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resnet() -> Steps:
    return Steps("resnet50", networks()["resnet50"])


def test_one_worker_is_its_passes_alone(resnet: Steps) -> None:
    place = Place(workers=1, gbit=10, library="mpi")
    assert resnet.seconds(place, DENSE, Rates(compute=0.3, beside=1.0)) == 0.3


def test_what_a_slower_line_costs_is_what_the_bytes_take(resnet: Steps) -> None:
    """Random-k of 10 % is not hidden behind the backward pass: 2 x 7/8 of 10,223,308 bytes on a
    ring of 8 take ten times as long, latencies as long as before."""
    method = Method(compressor="randomk", parameter=0.1, memory=True)
    slow, fast = (
        resnet.seconds(Place(workers=8, gbit=gbit, library="mpi"), method, Rates(compute=0.3))
        for gbit in (1, 10)
    )
    assert slow - fast == pytest.approx(1.75 * 10_223_308 / GIGABIT * 0.9, rel=1e-3)


def test_dense_training_hides_bytes_behind_its_backward_pass(resnet: Steps) -> None:
    """At 10 Gbit/s 2 x 7/8 x 102 MB take 152 ms, and the backward pass twice as long."""
    place = Place(workers=8, gbit=10, library="mpi")
    assert resnet.seconds(place, DENSE, Rates(compute=0.45)) < 0.45 + 0.015


def test_dense_training_at_one_gigabit_waits_for_its_bytes(resnet: Steps) -> None:
    seconds = resnet.seconds(Place(workers=8, gbit=1, library="mpi"), DENSE, Rates(compute=0.3))
    alone = 1.75 * 102_236_324 / GIGABIT
    assert alone + 0.1 < seconds < alone + 0.3


def test_host_and_kernels_cost_what_they_take_of_all_gathers(resnet: Steps) -> None:
    """The host handles 7 blocks out and 7 in, each end half of `per_byte`."""
    place = Place(workers=8, gbit=10, library="mpi")
    method = Method(compressor="signsgd")
    bare, loaded = (
        resnet.seconds(place, method, Rates(compute=0.3, per_byte=per_byte))
        for per_byte in (0.0, 1e-9)
    )
    assert loaded - bare == pytest.approx(7 * 25_559_081e-9, rel=1e-3)
    beside = resnet.seconds(place, method, Rates(compute=0.3, beside=0.05))
    assert beside - bare == pytest.approx(0.05, rel=1e-6)
    times = [
        resnet.seconds(place, method, Rates(compute=0.3), dict.fromkeys(KERNEL_CLASSES, slower))
        for slower in (1.0, 2.0, 4.0)
    ]
    assert times[2] - times[1] == pytest.approx(2 * (times[1] - times[0]), rel=1e-6)


def test_nccl_has_no_thread_of_the_host(resnet: Steps) -> None:
    place = Place(workers=8, gbit=10, library="nccl")
    times = {
        resnet.seconds(place, DENSE, Rates(compute=0.3, per_byte=per_byte))
        for per_byte in (0.0, 1e-8)
    }
    assert len(times) == 1


# --- the fit -------------------------------------------------------------------------------------


def _fit(own: list[Run]) -> Fit:
    return fit({own[0].model: Steps(own[0].model, own[0].known)}, own)


@pytest.fixture(scope="module")
def lstm() -> list[Run]:
    return [run for run in selection().rates if run.model == "lstm_ptb_grace"]


def test_what_is_judged_has_no_part_in_the_fit(lstm: list[Run]) -> None:
    """All judged rates at half their value: the same factors, hence the same predictions."""
    served = {run.row for run in chosen(lstm)}
    moved = [run if run.row in served else replace(run, value=run.value / 2) for run in lstm]
    assert _fit(moved) == _fit(lstm)


def test_what_is_fitted_on_has_a_part_in_it(lstm: list[Run]) -> None:
    served = chosen(lstm)[-1]
    moved = [replace(run, value=run.value / 2) if run is served else run for run in lstm]
    assert _fit(moved).per_byte != _fit(lstm).per_byte


def test_the_fit_is_on_what_is_stated(report: Report) -> None:
    for point in report.findings.points:
        if point.fitted:
            assert point.workers in {1, 4, 8}
            assert "1 Gbit/s" not in point.name.replace("10 Gbit/s", "")
            assert "NCCL" not in point.name
        if point.fitted and point.workers == 4:
            assert "dense" in point.name or "QSGD 64" in point.name


def test_planted_factors_are_found(lstm: list[Run]) -> None:
    """Rates that the simulator makes with known factors: they come back, and with them every
    prediction."""
    steps = {"lstm_ptb_grace": Steps("lstm_ptb_grace", networks()["lstm_ptb_grace"])}
    planted = Fit(
        alone={"lstm_ptb_grace": 0.06},
        per_tensor=2e-3,
        per_byte=5e-10,
        slower=dict(zip(KINDS, (2.5, 6.0, 0.5, 3.0), strict=True)),
    )
    made = [replace(run, value=predicted(steps[run.model], run, planted) / 20) for run in lstm]
    found = fit(steps, made)
    assert found.alone["lstm_ptb_grace"] == pytest.approx(0.06, rel=1e-9)
    assert found.per_tensor == pytest.approx(2e-3, rel=0.05)
    assert found.per_byte == pytest.approx(5e-10, rel=0.02)
    assert found.slower["memory"] == pytest.approx(2.5, rel=0.02)
    assert found.slower["scattered memory"] == pytest.approx(6.0, rel=0.02)
    assert found.slower["selection"] == pytest.approx(0.5, rel=0.02)
    for run in made:
        assert predicted(steps[run.model], run, found) == pytest.approx(run.rate, rel=0.01)


def test_a_kind_is_its_classes_and_all_classes_have_one() -> None:
    of_classes = by_class({kind: float(number) for number, kind in enumerate(KINDS)})
    assert set(of_classes) == set(KERNEL_CLASSES)
    assert of_classes["sort"] == of_classes["gather_scatter"] == 1.0


@pytest.mark.long
def test_methods_are_predicted_without_a_run_of_theirs_as_well_as_the_suite_says(
    report: Report,
) -> None:
    rates = selection().rates
    steps = {model: Steps(model, networks()[model]) for model in {run.model for run in rates}}
    errors = []
    for own in {run.method.compressor for run in rates} - {DENSE.compressor}:
        without = fit(steps, [run for run in rates if run.method.compressor != own])
        errors += [
            abs(predicted(steps[run.model], run, without) / run.rate - 1)
            for run in rates
            if run.method.compressor == own and run.workers > 1
        ]
    assert len(errors) == sum(run.workers > 1 and run.method != DENSE for run in rates)
    judged = [p for p in report.findings.points if not p.fitted and p.unit != "bytes"]
    medians = median(errors), median(abs(point.error) for point in judged)
    assert [f"{100 * one:.1f}" for one in medians] == ["14.7", "12.0"]
    assert all(f"{100 * one:.1f}" in report.suite.fitted_on for one in medians)


# --- the report ----------------------------------------------------------------------------------


def test_bounds_are_kept(report: Report) -> None:
    """As the suite states them: 15 % and 90 %."""
    assert [bound.bound.limit for bound in report.bounds] == [0.15, 0.90, 0.01]
    assert report.kept, report.bounds


def test_every_factor_is_a_finite_time_or_ratio_of_a_fit(report: Report) -> None:
    for factor in report.findings.factors:
        assert 0 <= factor.value < 1000
        assert factor.points >= 1
        assert factor.catalogue is not None


def test_the_fit_has_few_factors_for_its_points_and_none_of_a_methods_own(report: Report) -> None:
    factors = report.findings.factors
    given = [one for one in factors if one.given]
    served = [one for one in report.findings.points if one.fitted and one.unit != "bytes"]
    assert {one.series for one in given} == {"UNet", "ResNet-50", "ResNet-20", "LSTM"}
    assert (len(factors) - len(given), len(served) - len(given)) == (6, 62)
    assert "Six factors" in report.suite.fitted_on
    assert "62 runs" in report.suite.fitted_on
    assert {one.series for one in factors} - {one.series for one in given} == {"all models"}


def test_points_can_be_drawn_and_chosen_between(report: Report) -> None:
    rates = [point for point in report.findings.points if point.unit == "samples/s"]
    assert {point.panel for point in rates if point.panel} == {
        "UNet, 10 Gbit/s",
        "ResNet-50, 10 Gbit/s",
        "ResNet-20, 10 Gbit/s",
        "LSTM, 10 Gbit/s",
    }
    for point in rates:
        assert bool(point.setting) == bool(point.method) == (point.workers > 1)
        assert point.unfitted is not None
    names = [(point.setting, point.method) for point in rates if point.setting]
    assert len(set(names)) == len(names)
    places = [(point.panel, point.curve, point.x) for point in rates if point.panel]
    assert len(set(places)) == len(places)
