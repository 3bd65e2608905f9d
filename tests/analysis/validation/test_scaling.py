"""Efficiencies of the suite `scaling`, against numbers by hand."""

import pytest

from gcsim.analysis.validation.suite import Point, Unit
from gcsim.analysis.validation.suites.scaling.suite import efficiencies


def step(workers: int, measured: float, alone: float, unit: Unit, *, fitted: bool = False) -> Point:
    return Point(
        name=f"{workers} GPUs", series="s", unit=unit, measured=measured, predicted=2 * alone,
        unfitted=alone, source="by hand", workers=workers, fitted=fitted,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "one", "eight"),
    [
        ("samples/s", (100.0, 50.0), (600.0, 360.0)),
        ("s", (6.0, 9.0), (8.0, 10.0)),  # a batch per worker: 6/8 of the throughput per worker
    ],
)
def test_a_rate_per_worker_is_taken_over_that_of_the_smallest_size(
    unit: Unit, one: tuple[float, float], eight: tuple[float, float]
) -> None:
    (found,) = efficiencies("own", [step(1, *one, unit), step(8, *eight, unit)])
    assert (found.measured, found.unfitted) == pytest.approx((0.75, 0.9))
    assert found.predicted == pytest.approx(0.9)  # a factor on all sizes has no part in it


def test_what_served_a_fit_is_not_judged() -> None:
    assert not list(efficiencies("own", [step(1, 1, 1, "s"), step(8, 2, 2, "s", fitted=True)]))
