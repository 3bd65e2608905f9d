"""The suite shaped-collectives: are its rows the measured ones, is its fit honest, does it keep its
bounds, and does each call become what Gloo does for it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.suites.shaped_collectives import suite
from gcsim.analysis.validation.suites.shaped_collectives.fit import Floats, fit, host_of, is_fitted
from gcsim.analysis.validation.suites.shaped_collectives.simulation import (
    Conditions,
    Setting,
    cluster_of,
    copied,
    predicted,
    settings,
    traffic,
)
from gcsim.analysis.validation.suites.shaped_collectives.suite import SUITE
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.network.links import Link

NAME = "shaped-collectives"
LINK = Link(
    name="100 Mbit/s", bandwidth=Fraction(12_500_000), latency=Fraction(0), efficiency=Fraction(1)
)
IDEAL = Conditions(link=LINK)


def one(collective: str, ranks: int, rate: int, nbytes: int, **more: object) -> Setting:
    wanted = {"shape": "", "block": None, "slow_mbit": None, **more}
    (found,) = [
        setting
        for setting in settings()
        if (setting.collective, setting.ranks, setting.rate_mbit, setting.nbytes)
        == (collective, ranks, rate, nbytes)
        and all(getattr(setting, key) == value for key, value in wanted.items())
    ]
    return found


# --- the data ------------------------------------------------------------------------------------


def test_the_rows_are_the_measured_ones() -> None:
    """Medians and repeats looked up in the measurement: quiet repeats where there are some."""
    assert len(settings()) == 916
    assert sum(setting.repeats for setting in settings()) < 10_031
    assert one("allreduce", 2, 100, 64).seconds == pytest.approx(0.001132, abs=1e-6)
    assert one("allreduce", 2, 100, 64).repeats == 9
    assert one("allreduce", 16, 100, 16_000_000).seconds == pytest.approx(2.59041)
    assert one("broadcast", 16, 100, 1_000_000).seconds == pytest.approx(0.76396, rel=1e-4)
    assert one("allreduce", 4, 100, 4_000_000, slow_mbit=50).seconds == pytest.approx(1.15447)
    assert one("ps_push", 4, 100, 999_996, slow_mbit=20).seconds == pytest.approx(0.14263, rel=1e-4)
    assert one("send_0_to_1", 4, 100_000, 16_000_000).seconds == pytest.approx(0.00506, rel=1e-2)
    heavy = one("ring_allgatherv", 16, 1000, 15_999_995, shape="heavy", block=65536)
    assert heavy.seconds == pytest.approx(0.27416, rel=1e-4)


def test_every_row_lies_between_its_shortest_and_its_longest_repeat() -> None:
    text = (files("gcsim.analysis.validation") / "data" / "shaped_collectives.csv").read_text()
    lines = [line.split(",") for line in text.splitlines() if not line.startswith("#")]
    columns = {name: place for place, name in enumerate(lines[0])}
    for line in lines[1:]:
        low, middle, high = (float(line[columns[name]]) for name in ("min_s", "median_s", "max_s"))
        assert 0 < low <= middle <= high
        assert int(line[columns["repeats"]]) >= 3
        assert line[columns["pass"]] in {"c1", "c2", "unshaped", "slow20", "slow50"}


def test_blocks_are_those_that_were_gathered() -> None:
    """The longest and shortest blocks that the measurement's notes name."""
    linear = one("ring_allgatherv", 4, 1000, 16_000_000, shape="linear", block=0).sizes()
    assert (max(linear), min(linear), sum(linear)) == (6_400_000, 1_600_000, 16_000_000)
    heavy = one("ring_allgatherv", 8, 100, 999_996, shape="heavy", block=0).sizes()
    assert abs(max(heavy) - 500_000) <= 2
    assert min(heavy) == 71_428
    assert Counter(heavy)[71_428] == 7


# --- the fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_a_judged_measurement_changes_no_prediction(
    report: Report, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Nor does any one where nothing is fitted."""
    wrong = tuple(
        setting if is_fitted(setting) else replace(setting, seconds=7 * setting.seconds)
        for setting in settings()[::every]
    )
    monkeypatch.setattr(suite, "settings", lambda: wrong)
    before, after = report.findings, SUITE.find()
    known = [(p.predicted, p.unfitted) for p in before.points[::every]]
    assert before.factors == after.factors
    assert [(p.predicted, p.unfitted) for p in after.points] == known
    assert before.points[::every] != after.points
    longer = tuple(replace(setting, seconds=3 * setting.seconds) for setting in settings()[::90])
    monkeypatch.setattr(suite, "settings", lambda: longer)
    assert [p.unfitted for p in SUITE.find().points] == [p.unfitted for p in before.points[::90]]


def test_the_fit_finds_the_host_that_made_the_times() -> None:
    """Times of a made-up host and goodput, at the fitted settings, give these back."""
    prices = (1e-4, 3e-10, 5e-4, 8e-10)
    made = Conditions(link=replace(LINK, efficiency=Fraction(9, 10)), host=host_of(prices))
    own = [setting for setting in settings() if is_fitted(setting)]
    times = [
        replace(setting, seconds=predicted(setting, cluster_of(setting, made)), wire_bytes=None)
        for setting in own
    ]
    found = fit(times, LINK)
    host = found.host
    # The goodput is read off messages that also cost the host something, 1 ms of 360.
    assert float(found.conditions.link.efficiency) == pytest.approx(0.9, rel=0.01)
    assert float(host.per_message) == pytest.approx(1e-4, rel=0.05)
    assert float(host.per_call) == pytest.approx(5e-4, rel=0.05)
    assert float(host.per_byte) == pytest.approx(3e-10, rel=0.1)
    assert float(host.per_copied_byte) == pytest.approx(8e-10, rel=0.1)


def test_bounds_are_kept(report: Report) -> None:
    assert [(kept.bound.limit, kept.kept) for kept in report.bounds] == [
        (0.03, True), (0.20, True), (0.15, True)
    ]  # fmt: skip
    assert sum(kept.points for kept in report.bounds) > 600
    assert all(len(name) <= 36 for name in report.series)


def test_a_factor_says_how_many_points_it_was_fitted_on(report: Report) -> None:
    """NICs were not counted in the first runs: fewer points than the goodput has."""
    said = {factor.name: factor.points for factor in report.findings.factors}
    sends = [
        one
        for one in settings()
        if one.collective == "send_0_to_1" and one.nbytes == 4_000_000 and is_fitted(one)
    ]
    at_100 = [one for one in sends if one.rate_mbit == 100]
    assert said["goodput over line rate"] == len(at_100)
    counted = [one for one in at_100 if one.wire_bytes]
    assert said["acknowledgements a byte, 100 Mbit/s"] == len(counted) < len(at_100)


def test_the_catalogue_knows_hosts_of_few_cores_as_well_as_the_fit(report: Report) -> None:
    """Its figures of them come from these measurements, too."""
    decided = [kept for kept in report.bounds if "1 Gbit/s" in kept.bound.name]
    decided += [kept for kept in report.bounds if "less than 1 MB" in kept.bound.name]
    assert len(decided) == 2
    for kept in decided:
        assert kept.unfitted is not None
        assert 2 / 3 < kept.reached / kept.unfitted < 3 / 2, kept.bound.name


# --- mechanisms ----------------------------------------------------------------------------------


def bytes_over_rate(copies: float) -> Callable[[Setting], float]:
    return lambda setting: copies * setting.nbytes * 8 / 100e6


LARGE = 16_000_000


@pytest.mark.parametrize(
    ("collective", "ranks", "nbytes", "copies"),
    [
        ("allreduce", 4, LARGE, 1.5),
        ("reduce_scatter", 4, LARGE, 1.5),
        ("broadcast", 4, LARGE, 3),
        ("broadcast", 16, LARGE, 10),
        ("gather", 16, LARGE, 15 / 16),
        ("scatter", 8, LARGE, 7 / 8),
        ("ps_push", 8, 15_999_984, 1),
        ("ps_pull", 8, 15_999_984, 1),
        ("ps_pushpull", 2, LARGE, 2),
        ("allgather", 4, LARGE, 3 / 4),
        ("allgather", 2, LARGE, 3 / 4),
        ("send_0_to_1", 16, LARGE, 1),
    ],
)
def test_without_latency_a_call_takes_what_its_protocol_sends(
    collective: str, ranks: int, nbytes: int, copies: float
) -> None:
    """Bytes through the busiest NIC; a broadcast's copies share NICs, and the all-gather of two
    ranks takes three halves of a block where two would do."""
    setting = one(collective, ranks, 100, nbytes)
    time = predicted(setting, cluster_of(setting, IDEAL))
    assert time == pytest.approx(copies * setting.nbytes * 8 / 100e6, rel=1e-6)


def test_a_slow_card_slows_a_ring_but_no_incast() -> None:
    ring = one("allreduce", 4, 100, 1_000_000, slow_mbit=50)
    assert predicted(ring, cluster_of(ring, IDEAL)) == pytest.approx(1.5 * 8e6 / 50e6, rel=0.02)
    push = one("ps_push", 4, 100, 999_996, slow_mbit=50)
    assert predicted(push, cluster_of(push, IDEAL)) == pytest.approx(0.08, rel=1e-3)


def test_acknowledgements_at_a_rate_that_was_not_counted_lie_between_those_that_were() -> None:
    """A tenth at 100 Mbit/s, a fortieth at 400: a twentieth at 300, two thirds of the way."""
    counted = replace(
        IDEAL, acknowledgements={400: Fraction(1, 40), 100: Fraction(1, 10)}
    ).acknowledged
    assert counted(100) == Fraction(1, 10)
    assert counted(300) == Fraction(1, 20)
    assert (counted(50), counted(1000)) == (Fraction(1, 10), Fraction(1, 40))
    assert IDEAL.acknowledged(100) == 0


def test_acknowledgements_slow_rings_alone() -> None:
    more = replace(IDEAL, acknowledgements={100: Fraction(1, 10)})
    for collective, factor in (("allreduce", 1.1), ("broadcast", 1.0)):
        setting = one(collective, 4, 100, LARGE)
        times = [predicted(setting, cluster_of(setting, each)) for each in (IDEAL, more)]
        assert times[1] / times[0] == pytest.approx(factor, rel=1e-9)


@pytest.mark.parametrize(
    ("collective", "messages"),
    [
        ("allreduce", 16 * 30 * 2), ("allgather", 16 * 15 * 2), ("broadcast", 15), ("gather", 15),
        ("scatter", 15), ("ps_push", 15), ("ps_pushpull", 30), ("send_0_to_1", 1),
    ],
)  # fmt: skip
def test_messages_of_sixteen_ranks(collective: str, messages: int) -> None:
    rows = [s for s in settings() if (s.collective, s.ranks) == (collective, 16)]
    setting = next(s for s in rows if 9000 < s.nbytes <= 10_000 and s.rate_mbit == 1000)
    assert traffic(setting, cluster_of(setting, IDEAL)).messages == messages


def test_a_barrier_is_four_rounds_of_sixteen_ranks() -> None:
    setting = one("barrier", 16, 100, 0)
    cluster = cluster_of(setting, replace(IDEAL, link=replace(LINK, latency=Fraction(1, 1000))))
    assert traffic(setting, cluster).messages == 16 * 4
    assert predicted(setting, cluster) == pytest.approx(0.004)


def test_all_ranks_share_the_two_cores() -> None:
    """15 messages of 1 ms and 16 calls of 2 ms on two cores; no network to speak of."""
    setting = one("gather", 16, 100, 64)
    fast = replace(LINK, efficiency=Fraction(10**6))
    host = host_of((1e-3, 0, 2e-3, 0))
    cluster = cluster_of(setting, Conditions(link=fast, host=host))
    assert predicted(setting, cluster) == pytest.approx((15 * 1e-3 + 16 * 2e-3) / 2, rel=1e-6)


def test_copies_around_a_call_take_turns_on_the_cores() -> None:
    host = host_of((0, 0, 0, 1e-9))
    for collective, turns in (("reduce_scatter", 2), ("allreduce", 0), ("allgather", 2)):
        setting = one(collective, 4, 1000, 4_000_000)
        with_copies = predicted(setting, cluster_of(setting, replace(IDEAL, host=host)))
        more = with_copies - predicted(setting, cluster_of(setting, IDEAL))
        assert more == pytest.approx(turns * 4e-3, abs=1e-9)
    assert copied(one("reduce_scatter", 4, 1000, 4_000_000)) == 4_000_000


def test_a_prediction_is_that_of_the_simulator() -> None:
    """The shortcut of the fit, which tries hosts on numbers, is the same function."""
    from gcsim.analysis.validation.suites.shaped_collectives.fit import _Points

    own = [setting for setting in settings() if is_fitted(setting)][::7]
    prices = np.array([2e-4, 4e-10, 3e-4, 5e-10])
    made = Conditions(link=LINK, host=host_of(prices.tolist()))
    times = [predicted(setting, cluster_of(setting, made)) for setting in own]
    points = _Points(
        [replace(s, seconds=t) for s, t in zip(own, times, strict=True)], Conditions(link=LINK)
    )
    assert points.distance(prices) < len(own) * 1e3 / PS_PER_SECOND


def test_each_half_of_the_points_chooses_the_same_costs_of_the_host() -> None:
    """Of the fifteen forms with some of the four prices, each fitted on the points that serve the
    fit: so either half is judged by what the other one chose."""
    from scipy.optimize import minimize

    from gcsim.analysis.validation.suites.shaped_collectives.fit import _START, _Points, fitted

    shaped = replace(fitted().conditions, host=None)
    served, *halves = (
        _Points([s for s in settings() if which(s)], shaped)
        for which in (
            is_fitted,
            lambda s: not is_fitted(s) and s.ranks in {2, 8},
            lambda s: not is_fitted(s) and s.ranks in {4, 16},
        )
    )
    forms = [form for count in range(1, 5) for form in combinations(range(4), count)]
    reached: dict[tuple[int, ...], list[float]] = {}
    for form in forms:

        def prices(logarithms: Floats, form: tuple[int, ...] = form) -> Floats:
            found = np.zeros(4)
            found[list(form)] = np.exp(logarithms)
            return found

        solved = minimize(
            lambda x, prices=prices: served.distance(prices(x)),
            np.log([_START[place] for place in form]),
            method="Nelder-Mead",
            options={"maxiter": 1000, "xatol": 1e-3, "fatol": 1e-5},
        )
        reached[form] = [half.distance(prices(solved.x)) for half in halves]
    assert len(forms) == 15
    for half in (0, 1):
        assert min(forms, key=lambda form: reached[form][half]) == (0, 1, 2, 3)
