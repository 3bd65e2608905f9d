"""The suite `scaling`: efficiency of larger sizes of a cluster relative to the smallest.

The points are training steps of the suites in `SOURCES`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gcsim.analysis.validation.folder import suite_of
from gcsim.analysis.validation.statistics import grouped
from gcsim.analysis.validation.suite import Findings, Point
from gcsim.simulator.training import DENSE

SOURCES = (
    "shaped-training", "ddl-benchmarks", "grace", "other-clusters", "raysgd", "bagua",
    "global-qsgd",
)  # fmt: skip
_SIZE = re.compile(r"\b(\d+|one) (GPU|worker|host|rank|node)s?\b")


def find() -> Findings:
    """Return the efficiency at each size but the smallest, by job."""
    from gcsim.analysis.validation.registry import chosen

    found = [
        point
        for suite in chosen(SOURCES)
        for sizes in _jobs(suite.find().points)
        for point in efficiencies(suite.name, sizes)
    ]
    return Findings(points=tuple(found))


def _jobs(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield the training steps of a job, by size; jobs with a single size are omitted."""
    steps = (point for point in points if point.worlds and point.method in {DENSE, ""})
    for sizes in grouped(steps, lambda point: _SIZE.sub("N", point.name)).values():
        if len({one.workers for one in sizes}) == len(sizes) > 1:
            yield sorted(sizes, key=lambda one: one.workers)


def efficiencies(suite: str, sizes: Sequence[Point]) -> Iterator[Point]:
    """Yield measured and predicted throughput per worker relative to the first point's."""
    first, *larger = sizes

    def efficiency(value: float, of_first: float, workers: int) -> float:
        if first.less_is_better:  # a step's time: each worker has its own batch
            return of_first / value
        return value / of_first * first.workers / workers

    for one in (each for each in larger if not each.fitted):
        alone = None
        if one.unfitted is not None and first.unfitted is not None:
            alone = efficiency(one.unfitted, first.unfitted, one.workers)
        yield Point(
            name=f"{suite}: {one.name} over {first.workers}",
            series=suite,
            unit="x",
            measured=efficiency(one.measured, first.measured, one.workers),
            predicted=efficiency(one.predicted, first.predicted, one.workers),
            unfitted=alone,
            source=one.source,
            workers=one.workers,
            nbytes=one.nbytes,
        )


SUITE = suite_of(Path(__file__).parent, "scaling", find)
