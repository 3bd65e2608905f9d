"""Do draws stay in ranges, part by part, does the interval follow what they do, and is a step's
interval that of exact simulations?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from gcsim.analysis.validation.coverage import broken, coverages
from gcsim.analysis.validation.interval import DRAWS, StepIntervals, intervals
from gcsim.analysis.validation.judge import judge
from gcsim.analysis.validation.registry import SUITES
from gcsim.analysis.validation.statistics import errors
from gcsim.analysis.validation.suite import Findings, Point
from gcsim.scenarios.stated import BARE
from gcsim.scenarios.uncertainty.figures import uncertain_inputs
from gcsim.scenarios.uncertainty.worlds import cluster_in, draw
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.network.links import Link
from tests.analysis.validation.reports import point, suite
from tests.scenarios.test_stated import run


def cluster(latency_range: tuple[int, int] | None) -> Cluster:
    """Latencies in microseconds."""
    bounds = None
    if latency_range is not None:
        bounds = Fraction(latency_range[0], 10**6), Fraction(latency_range[1], 10**6)
    network = Link(
        name="net", bandwidth=Fraction(10**9), latency=Fraction(1, 10**4), latency_range=bounds
    )
    return Cluster(nodes=2, devices_per_node=1, device=BARE, network=network, intra_node=network)


def test_each_tenth_of_a_range_is_drawn_once_and_the_interval_is_the_middle_eight() -> None:
    seen: list[float] = []

    def latency(one: Cluster) -> list[float]:
        assert one.network.latency == one.intra_node.latency  # one link
        seen.append(float(one.network.latency))
        return seen[-1:]

    (found,) = intervals(cluster((10, 1000)), latency)
    assert found is not None
    shares = np.log(np.array(sorted(seen)) / 10e-6) / np.log(100)
    assert [int(share * DRAWS) for share in shares] == list(range(DRAWS))
    # of ten draws, one in each tenth, the lowest and the highest are about at 5 and 95 %
    seen.sort()
    assert seen[0] <= found.low <= seen[1]
    assert seen[-2] <= found.high <= seen[-1]
    assert found.kind == "latency under others"


def test_what_no_range_moves_has_no_interval() -> None:
    assert intervals(cluster(None), lambda one: [float(one.network.latency)]) == [None]
    same = intervals(cluster((10, 1000)), lambda one: [1.0, float(one.network.latency)])
    assert same[0] is None
    assert same[1] is not None


def test_a_steps_draws_are_those_of_exact_simulations() -> None:
    """The ring of a step without overlap is linear in what is drawn."""
    job = run({"grouping": "whole"}, network="10gbe")
    on = job.cluster
    inputs = [
        one
        for one in uncertain_inputs(on, job.training, {"stated": job.passes})
        if one.main.key_path[0] == "cluster"
    ]
    worlds = draw(inputs, DRAWS, 0)
    exact = [replace(job, cluster=cluster_in(world, on, inputs)).seconds for world in worlds]
    drawn = StepIntervals(on, job.training, [job.profile])
    drawing = drawn.draw(job.profile, {"stated": job.passes}, job.seconds)
    assert drawing.seconds == pytest.approx(exact, rel=0.01)


def test_coverage_counts_judged_points_that_have_an_interval() -> None:

    inside = replace(point(1, 0.1), low=0.9, high=1.1)
    outside = replace(point(2, 0.1), low=1.05, high=1.5)
    fitted = replace(point(3, 0.1, fitted=True), low=0.9, high=1.1)
    found = errors([inside, outside, fitted, point(4, 0.1)])
    assert found is not None
    assert found.coverage == pytest.approx(1 / 2)
    bare = errors([point(4, 0.1)])
    assert bare is not None
    assert bare.coverage is None


def _held(number: int, low: float, high: float, kind: str) -> Point:
    return replace(point(number, 0.0), low=low, high=high, kind=kind)


def test_coverage_by_suite_and_kind_says_on_which_side_the_others_are() -> None:
    points = (
        _held(1, 0.5, 2.0, "host"),
        _held(2, 1.1, 1.2, "host"),
        replace(_held(3, 1.1, 2.2, "bus"), unit="samples/s"),  # a rate below: slower
        point(4, 0.0),
    )
    found = judge(suite(), Findings(points=points))
    by_suite, by_kind, whole = coverages([found])
    assert whole is not None
    assert (whole.points, whole.held, whole.faster, whole.slower) == (3, 1, 1, 1)
    assert [one.share for one in by_suite] == [pytest.approx(1 / 3)]
    assert {one.name: one.held for one in by_kind} == {"bus": 0, "host": 1}
    widths = {one.name: one.width for one in by_kind}
    assert widths == pytest.approx({"bus": 2.0, "host": (4.0 + 1.2 / 1.1) / 2})


@pytest.mark.parametrize(("held", "right"), [(6, False), (7, True), (9, True), (10, False)])
def test_seven_to_nine_of_ten_are_asked_of_all_suites_together(held: int, right: bool) -> None:
    points = tuple(
        _held(number, 0.5 if number < held else 1.5, 2.0, "host") for number in range(10)
    )
    whole = judge(suite(), Findings(points=points))
    reports = [
        replace(
            whole,
            suite=replace(whole.suite, name=name),
            findings=Findings(points=points if not place else ()),
        )
        for place, name in enumerate(SUITES)
    ]
    assert bool(broken(reports)) != right
    assert not broken(reports[:3])  # of some suites nothing is asked
