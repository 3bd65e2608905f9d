"""The suite shaped-training: are its rows the measured ones, is its fit honest, does it keep its
bounds, and do its steps send and share what was measured?"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from importlib.resources import files

import pytest

from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.suites.shaped_training import runs as data
from gcsim.analysis.validation.suites.shaped_training.runs import (
    Run,
    bytes_by_exchange,
    profile,
    runs,
    sent,
)
from gcsim.analysis.validation.suites.shaped_training.suite import (
    COMPRESSED,
    DENSE_SLOW,
    PHANTOM,
    Machine,
    bare_step,
    fit,
    fitted_step,
    measured,
    serves_fit,
    solo,
)
from gcsim.errors import InternalError
from tests.benchmarks import shaped_training_kernels

NAME = "shaped-training"


@pytest.fixture(scope="module")
def machine() -> Machine:
    return fit(runs())


def one(hook: str, model: str = "mlp", *, ranks: int, rate: int, bucket: int = 25) -> Run:
    wanted = (hook, model, ranks, rate, bucket)
    (found,) = [
        run
        for run in runs()
        if (run.hook, run.model, run.ranks, run.rate_mbit, run.bucket_mb) == wanted
    ]
    return found


def test_the_rows_are_the_measured_ones() -> None:
    """39 runs of 20 steps: the 780 rows of the measurement; medians looked up there."""
    assert sum(run.repeats for run in runs()) == 780
    assert [run.number for run in runs()] == list(range(1, 40))
    assert Counter(run.ranks for run in runs()) == {4: 29, 2: 10}
    assert one("none", ranks=2, rate=100).step == pytest.approx(0.793544)
    assert one("none", "cnn", ranks=4, rate=100).step == pytest.approx(0.608346, abs=1e-6)
    signs = one("signsgd", ranks=4, rate=1000)
    assert (signs.step, signs.encode, signs.decode) == pytest.approx(
        (0.180663, 0.039842, 0.081294), rel=1e-4
    )
    assert (signs.forward, signs.backward) == pytest.approx((0.0076, 0.0091), abs=1e-4)


def test_a_step_hands_over_what_its_hook_counted() -> None:
    mlp = (1024 * 1024 + 1024) * 2 + 100 * 1024 + 100
    assert sum(one("none", ranks=2, rate=100).buckets) == 4 * mlp
    assert sent(one("fp16", ranks=2, rate=100), 4 * mlp) == (2 * mlp,)
    assert sent(one("topk", ranks=2, rate=100), 4 * mlp) == (mlp // 100 * 8,)
    assert sent(one("signsgd", ranks=2, rate=100), 4 * mlp) == (-(-mlp // 8) + 4,)
    biases, columns = 1024 + 1024 + 100, 3 * 1024
    powersgd = sent(one("powersgd", ranks=2, rate=100), 4 * mlp)
    assert powersgd == (4 * biases, 4 * 4 * biases, 4 * 4 * columns)
    with pytest.raises(InternalError, match="counted"):
        data._checked(replace(runs()[3], payload=runs()[3].payload + 1))


def test_every_point_is_cited_and_bounds_are_kept(report: Report) -> None:
    assert len(report.findings.points) == 39
    assert all("shaped_training.csv: " in point.source for point in report.findings.points)
    reached = {kept.bound.series[0]: kept for kept in report.bounds}
    assert reached[DENSE_SLOW].kept
    assert reached[PHANTOM].kept
    # The compressed steps' bound of 10 % is missed, `Suite.missing` says why; what is reached
    # is a fifth of the error without core sharing, host and measured hooks.
    unfitted = report.series[COMPRESSED].unfitted_median
    assert unfitted is not None
    assert reached[COMPRESSED].reached < min(0.125, unfitted / 4)
    assert report.decisions is not None
    assert report.decisions.share >= 0.95


def test_no_step_time_and_nothing_of_a_judged_run_has_a_part_in_the_fit(machine: Machine) -> None:
    changed = [
        replace(run, step=3 * run.step)
        if serves_fit(run)
        else replace(
            run,
            step=3 * run.step,
            encode=5 * run.encode,
            decode=run.decode / 2,
            finish=1.0,
            entry_variation=0.9,
        )
        for run in runs()
    ]
    assert fit(changed) == machine
    fitted = one("topk", ranks=2, rate=100)
    slower = [replace(run, encode=2 * run.encode) if run == fitted else run for run in runs()]
    size = sum(fitted.buckets)
    before, after = (dict(each.kernels["topk.encode"])[size] for each in (machine, fit(slower)))
    assert after == pytest.approx(2 * before, rel=0.02)


def test_a_fitted_run_spends_as_long_on_its_hook_as_was_measured(machine: Machine) -> None:
    for run in filter(serves_fit, runs()):
        step = fitted_step(run, machine)
        assert step.encode == pytest.approx(measured(run, "encode"), rel=0.02)
        assert step.decode == pytest.approx(measured(run, "decode"), rel=0.02)


def test_four_ranks_on_two_cores_encode_half_as_fast_as_two(machine: Machine) -> None:
    """Where ranks do not vary. A payload of each rank is decoded, so decoding takes four times."""
    machine = replace(machine, variation=0.0)
    two = fitted_step(one("signsgd", ranks=2, rate=1000), machine)
    four = fitted_step(one("signsgd", ranks=4, rate=1000), machine)
    assert four.encode == pytest.approx(2 * two.encode, rel=1e-9)
    assert four.decode == pytest.approx(4 * two.decode, rel=1e-9)


def test_passes_that_compute_take_as_long_as_without_exchange_and_those_that_sleep_too(
    machine: Machine,
) -> None:
    machine = replace(machine, variation=0.0)
    for run in (one("topk", ranks=4, rate=100), next(run for run in runs() if run.sleeps)):
        step = fitted_step(run, machine)
        assert (step.forward, step.backward) == pytest.approx(solo(run)[:2], rel=1e-9)


def test_powersgd_reduces_what_it_leaves_alone_while_it_computes() -> None:
    run = one("powersgd", ranks=4, rate=100)
    (phase,) = profile(run).phases
    alone, products = phase.steps[0].exchanges
    assert [len(each.collectives) for each in (alone, products)] == [1, 2]
    assert bytes_by_exchange(run) == (sum(run.buckets), 0)
    assert not any(compute.fixed for compute in alone.computes)


def test_without_fit_the_catalogue_prices_our_own_compressors() -> None:
    """Top-k: 4 bytes an element selected at 292 MB/s are the most of it, 30 ms."""
    step = bare_step(one("topk", ranks=2, rate=100))
    assert 0.030 < step.encode < 0.040
    dense = bare_step(one("none", ranks=4, rate=100))
    textbook = 1.5 * 8_806_800 * 8 / 100e6 / (1448 / 1538)
    assert dense.exposed == pytest.approx(textbook, rel=0.002)


def test_the_table_of_kernels_is_what_our_compressors_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = files("gcsim.analysis.validation") / "data" / "shaped_training_kernels.csv"
    shaped_training_kernels.main()
    assert capsys.readouterr().out == path.read_text(encoding="utf-8")
