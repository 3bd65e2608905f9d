"""Does the simulator predict all-reduces alone? DeepBench's, over PCIe, InfiniBand and Omni-Path.

DeepBench (Baidu, 2016-2018): NCCL 2.0 on one to four machines of eight GPUs (PCIe inside, FDR
InfiniBand between), and Intel's MLSL on up to 32 Xeon Phi nodes (Omni-Path); the rows that other
libraries won are among them, as published.

Fitted: a link, by the smallest, the middle and the largest vector on the middle number of ranks: on
four of two, four and eight GPUs in a machine, then on sixteen of sixteen and 32 for the network
between machines; on eight nodes with Omni-Path. As `gcsim calibrate link` does: latency and
goodput, least squares of the logarithms of times. NCCL 2.0 had rings only; Intel's library is
simulated with what MPICH, of which its MPI is made, would choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gcsim.analysis.calibration.link.model import Model
from gcsim.analysis.calibration.link.shape import Shape, start
from gcsim.analysis.calibration.link.solver import Problem
from gcsim.analysis.calibration.measurements.collectives import Measurement
from gcsim.analysis.validation.interval import Interval, ends, intervals
from gcsim.analysis.validation.suite import Factor, Findings, Point
from gcsim.analysis.validation.suites.other_clusters.prediction import cluster_of
from gcsim.analysis.validation.suites.other_clusters.runs import Run, runs
from gcsim.scenarios import catalog
from gcsim.simulator.cluster import Collectives
from gcsim.simulator.host import Host
from gcsim.simulator.network.links import Link

INSIDE_RANKS, BETWEEN_RANKS = 4, 16
OMNIPATH_RANKS = 8
DEEPBENCH = {
    "db_1080ti": "GTX 1080 Ti",
    "db_titanxp": "Titan X Pascal",
    "db_titanx": "Titan X Maxwell",
    "db_p100": "P100 PCIe",
}
_RING = "nccl_ring_simple"
"""NCCL 2.0 had rings only, and large messages only of the Simple protocol."""


OMNIPATH = "all-reduce, Omni-Path"
SHOWN = ("all-reduce, GTX 1080 Ti", "all-reduce, P100 PCIe", OMNIPATH)
SHOWN_SIZES = (400_000, 16_777_216, 258_000_000)
"""What the figure has: series, and bytes."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A link, and how many measurements it was fitted on."""

    link: Link
    points: int


def measurement(run: Run, algorithm: str, element: int = 4, dtype: str = "float32") -> Measurement:
    """As the link calibration takes it."""
    return Measurement(
        collective="all_reduce",
        ranks=run.gpus,
        devices_per_node=run.gpus // run.nodes,
        nbytes=run.nbytes,
        seconds=run.seconds,
        element=element,
        dtype=dtype,
        algorithm=algorithm,
        place=run.id,
    )


def fit(
    points: Sequence[Measurement],
    inside: Link,
    line_rate: float | None = None,
    host: Host | None = None,
) -> Fit:
    """Latency and goodput of the link that these measurements see.

    From one guess, a ring of the smallest and of the largest vector: three sizes that one link
    explains have no valleys to search.
    """
    measured = np.log(np.array([point.seconds for point in points]))
    problem = Problem(Model(list(points), inside, host=host), measured)
    small = min(points, key=lambda point: point.nbytes)
    large = max(points, key=lambda point: point.nbytes)
    latency = small.seconds / (2 * (small.ranks - 1))
    rate = 2 * (large.ranks - 1) / large.ranks * large.nbytes / large.seconds
    shape = Shape(scale=latency, line_rate=line_rate)
    solution = problem.solve(shape, start(shape, latency, rate))
    return Fit(shape.link(solution.x), len(points))


def findings() -> Findings:
    """Four kinds of GPU, and Omni-Path."""
    points: list[Point] = []
    factors: list[Factor] = []
    for key, title in DEEPBENCH.items():
        found = _gpus(key, title)
        points += found.points
        factors += found.factors
    nodes = _omnipath()
    return Findings(points=(*points, *nodes.points), factors=(*factors, *nodes.factors))


def three(own: Sequence[Run], ranks: int) -> list[Run]:
    """The smallest, the middle and the largest vector on so many ranks."""
    sizes = sorted((run for run in own if run.gpus == ranks), key=lambda run: run.nbytes)
    return [sizes[0], sizes[len(sizes) // 2], sizes[-1]]


def _gpus(key: str, title: str) -> Findings:
    series = f"all-reduce, {title}"
    own = runs(key)
    pcie = catalog.link("pcie3_x16", "nccl")
    near, far = three(own, INSIDE_RANKS), three(own, BETWEEN_RANKS)
    inside = fit([measurement(run, _RING) for run in near], pcie)
    between = fit([measurement(run, _RING) for run in far], inside.link)
    model = Model([measurement(run, _RING) for run in own], inside.link)
    predicted = model.seconds(between.link)
    alone = [run for run in own if run.nodes == 1]
    ids = [run.id for run in alone]
    here = Model([measurement(run, _RING) for run in alone], pcie)
    bare = dict(zip(ids, here.seconds(pcie), strict=True))
    one = dict(zip(ids, here.seconds(inside.link), strict=True))  # it sees the link inside only
    intervals_of = intervals(
        cluster_of(1, INSIDE_RANKS, pcie, pcie, Collectives(transport="nccl")),
        lambda drawn: here.seconds(drawn.intra_node).tolist(),
    )
    within = dict(zip(ids, intervals_of, strict=True))
    fitted = {run.id for run in (*near, *far)}
    points = tuple(
        compared(
            run,
            series,
            float(one.get(run.id, time)),
            float(bare[run.id]) if run.id in bare else None,
            fitted=run.id in fitted,
            place=_place(run, series),
            within=within.get(run.id),
        )
        for run, time in zip(own, predicted, strict=True)
    )
    return Findings(
        points=points,
        factors=(
            *link_factors(series, "inside a machine", inside, pcie),
            *link_factors(series, "between machines", between, None),
        ),
    )


def _omnipath() -> Findings:
    series = OMNIPATH
    own = runs("db_knl")
    chosen = three(own, OMNIPATH_RANKS)
    memory = catalog.link("host_memory")
    found = fit([measurement(run, "mpich") for run in chosen], memory)
    model = Model([measurement(run, "mpich") for run in own], memory)
    points = tuple(
        compared(run, series, float(time), None, fitted=run in chosen, place=_place(run, series))
        for run, time in zip(own, model.seconds(found.link), strict=True)
    )
    return Findings(
        points=points, factors=tuple(link_factors(series, "between nodes", found, None))
    )


def compared(
    run: Run,
    series: str,
    predicted: float,
    bare: float | None,
    *,
    fitted: bool,
    place: tuple[str, str] | None = None,
    within: Interval | None = None,
) -> Point:
    """A measured all-reduce; `place` is the panel and the curve that show it."""
    panel, curve = place or ("", "")
    return Point(
        name=f"{size(run.nbytes)}, {run.gpus} ranks, {series.partition(', ')[2]}",
        series=series,
        unit="s",
        measured=run.seconds,
        predicted=predicted,
        unfitted=bare,
        fitted=fitted,
        source=run.source,
        workers=run.gpus,
        nbytes=run.nbytes,
        panel=panel,
        curve=curve,
        x=run.gpus if place else None,
        **ends(within),
    )


def _place(run: Run, series: str) -> tuple[str, str] | None:
    shown = series in SHOWN and run.nbytes in SHOWN_SIZES
    return (series, size(run.nbytes)) if shown else None


def size(nbytes: int) -> str:
    """For people."""
    return f"{nbytes / 1e6:.3g} MB" if nbytes >= 10**6 else f"{nbytes / 1e3:.3g} kB"


def link_factors(series: str, where: str, found: Fit, known: Link | None) -> Iterator[Factor]:
    """Latency and goodput of a fitted link."""
    link = found.link
    for name, value, unit, catalogue in (
        ("latency", link.latency, "s", None if known is None else float(known.latency)),
        (
            "goodput",
            link.bandwidth * link.efficiency,
            "bytes/s",
            None if known is None else float(known.bandwidth * known.efficiency),
        ),
    ):
        yield Factor(
            series, f"{name} {where}", float(value), unit, found.points, catalogue=catalogue
        )
