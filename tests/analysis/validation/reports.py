"""A report with known errors, for tests of what shows it; and what no report may show."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from gcsim.analysis.validation.judge import Report, judge
from gcsim.analysis.validation.suite import (
    Bound,
    Excluded,
    Factor,
    Findings,
    Point,
    Statement,
    Suite,
)
from gcsim.simulator.training import DENSE

SOURCE = "Somebody et al., 2020, table 3"


def point(
    number: int, error: float, *, method: str = "", series: str = "ring", fitted: bool = False
) -> Point:
    """Measured 1 s, predicted as wrong as that."""
    return Point(
        name=f"{series} {number}",
        series=series,
        unit="s",
        measured=1.0,
        predicted=1.0 + error,
        unfitted=1.5,
        fitted=fitted,
        source=SOURCE,
        workers=2**number,
        setting="ResNet-50" if method else "",
        method=method,
        panel="10GbE",
        curve=series,
        x=2.0**number,
    )


def suite(*bounds: Bound) -> Suite:
    """Finds nothing by itself."""
    return Suite(
        name="example",
        title="Rings somewhere",
        about="Rings were measured.",
        fitted_on="the first points",
        missing="everything else",
        bounds=bounds,
        find=Findings,
        figure_x="workers",
    )


def report(*, limit: float = 0.05) -> Report:
    """Errors of 1, 2, -3 and 10 % (a fifth point served the fit), one wrong choice of one, one
    wrong statement that we say is wrong."""
    points = (
        point(0, 0.5, fitted=True),
        point(1, 0.01),
        point(2, 0.02),
        point(3, -0.03),
        point(4, 0.10),
        point(5, 0.0, method=DENSE, series="dense"),
        replace(point(6, 0.2, method="topk", series="top-k"), measured=0.9),
    )
    found = Findings(
        points=points,
        statements=(
            Statement(
                name="244 MB at 50 Mbit/s",
                source="a paper",
                unit="s",
                stated=10.0,
                digit=1.0,
                computed=39.04,
                formula=39.04,
                wrong=True,
                note="megabytes were counted as megabits",
            ),
        ),
        factors=(
            Factor("ring", "goodput", 0.95e9, "B/s", 2, catalogue=0.94e9),
            Factor("ring", "step", 0.1, "s", 1, given=True),
        ),
        excluded=(Excluded("rows", 12, "they contradict themselves"),),
    )
    bounds = (
        Bound("rings", ("ring",), limit=limit),
        Bound("right choices", statistic="decisions", limit=0.9),
        Bound("arithmetic", statistic="statements"),
    )
    return judge(suite(*bounds), found)


def hides_opposites(points: Sequence[Point]) -> bool:
    """Whether the points up to some number of ranks, or size (three digits: padding tells no two
    apart), and those beyond, six or more each, have medians of opposite signs, both larger than
    3 %."""
    for values in ([p.workers for p in points], [float(f"{p.nbytes:.3g}") for p in points]):
        for limit in set(values):
            sides = [
                [p.error for p, value in zip(points, values, strict=True) if (value > limit) == up]
                for up in (False, True)
            ]
            if min(map(len, sides)) >= 6:
                low, high = map(median, sides)
                if (low > 0.03 and high < -0.03) or (low < -0.03 and high > 0.03):
                    return True
    return False
