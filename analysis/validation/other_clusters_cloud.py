"""Does the simulator predict all-reduces over slow Ethernet? mlbench in the cloud, MG-WFBP's fit.

mlbench (T4, cloud machines whose network iperf shows at 7.5 Gbit/s): PyTorch with MPI, Gloo and
NCCL, read off a chart, about 5 % off. Fitted for each library and precision: the link, by the
smallest, the middle and the largest vector on four workers, the middle of two, four and eight.

MG-WFBP's table: latency and time a byte of all-reduces on 1-Gbit/s Ethernet, fitted by its authors;
compared at the sizes for which they use them, but for rows that claim more than the line rate.
Nothing is fitted: the catalogue's link as it is.
"""

from __future__ import annotations

from fractions import Fraction

from gcsim.analysis.link_measurements import Measurement
from gcsim.analysis.link_model import Model
from gcsim.analysis.validation.other_clusters_allreduce import (
    compared,
    fit,
    link_factors,
    measurement,
    size,
    three,
)
from gcsim.analysis.validation.other_clusters_runs import Run, runs
from gcsim.analysis.validation.suite import Excluded, Factor, Findings, Point
from gcsim.scenarios import catalog
from gcsim.simulator.network.links import Link

CLOUD_RANKS = 4
CLOUD_RATE = Fraction(75 * 10**8, 8)
"""Bytes a second, by iperf, as mlbench states."""
LIBRARIES = {"gloo": "Gloo", "nccl": "NCCL", "mpi": "MPI"}
_ALGORITHM = {"gloo": "gloo", "nccl": "nccl", "mpi": "mpich"}
LINE_1GBE = 8e-9
"""Seconds a byte of 1 Gbit/s."""
MGWFBP_SIZES = {"1gbe-small": (100_000, 1_000_000), "1gbe-large": (10_000_000, 100_000_000)}
"""Bytes: the authors use the one up to 1 MB, the other beyond."""
KINDS = (("mpi", "fp32"), ("gloo", "fp32"), ("nccl", "fp32"), ("gloo", "fp16"), ("nccl", "fp16"))
"""Library and precision."""
MGWFBP = "all-reduce, 1 GbE, MG-WFBP's fit"
SHOWN = 40_000_000
"""Bytes of the vectors that the figure has."""


def _series(library: str, precision: str) -> str:
    return f"all-reduce, cloud, {LIBRARIES[library]} {precision}"


CLOUD_SERIES = tuple(_series(library, precision) for library, precision in KINDS)


def findings() -> Findings:
    """Both."""
    cloud, table = _cloud(), _table()
    return Findings(
        points=(*cloud.points, *table.points),
        factors=cloud.factors,
        excluded=(
            Excluded(
                what="rows of MG-WFBP's tables",
                count=len(runs("mgwfbp")) - 2 * len(usable_pairs()),
                rule="their time a byte is below what a ring needs at the line rate that they are "
                "labelled with, 2 (p - 1) / p bytes through each card",
            ),
        ),
    )


def _cloud() -> Findings:
    points: list[Point] = []
    factors: list[Factor] = []
    line = catalog.link("10gbe")
    stated = Link(
        name="7.5 Gbit/s",
        bandwidth=CLOUD_RATE,
        latency=line.latency,
        efficiency=line.efficiency,
    )
    for library, precision in KINDS:
        series = _series(library, precision)
        own = [
            run for run in runs("mlbench") if (run.method, run.precision) == (library, precision)
        ]
        element = 2 if precision == "fp16" else 4
        measured = [measurement(run, _ALGORITHM[library], element) for run in own]
        chosen = {run.id for run in three(own, CLOUD_RANKS)}
        served = [point for point in measured if point.place in chosen]
        found = fit(served, catalog.link("pcie3_x16"), float(CLOUD_RATE))
        model = Model(measured, catalog.link("pcie3_x16"))
        bare = model.seconds(stated)
        for run, time, without in zip(own, model.seconds(found.link), bare, strict=True):
            points.append(
                compared(
                    run,
                    series,
                    float(time),
                    float(without),
                    fitted=run.id in chosen,
                    place=_place(run),
                )
            )
        factors += link_factors(series, "between machines", found, stated)
    return Findings(points=tuple(points), factors=tuple(factors))


def usable_pairs() -> list[tuple[str, int, float, float, str]]:
    """Table, ranks, latency, seconds a byte and source, of MG-WFBP's rows that can be."""
    tables: dict[tuple[str, int], dict[str, Run]] = {}
    for run in runs("mgwfbp"):
        tables.setdefault((run.method, run.gpus), {})[run.metric] = run
    found = []
    for (table, ranks), rows in tables.items():
        latency, beta = rows["allreduce_alpha"].value, rows["allreduce_beta"].value
        least = LINE_1GBE / (10 if table.startswith("10") else 1) * 2 * (ranks - 1) / ranks
        if beta >= least:
            found.append((table, ranks, latency, beta, rows["allreduce_beta"].source))
    return found


def _table() -> Findings:
    series = MGWFBP
    link = catalog.link("1gbe")
    points = []
    for table, ranks, latency, beta, source in usable_pairs():
        for nbytes in MGWFBP_SIZES[table]:
            point = Measurement(
                collective="all_reduce",
                ranks=ranks,
                nbytes=nbytes,
                seconds=latency + beta * nbytes,
                element=4,
                algorithm="ring",
                place=table,
            )
            time = float(Model([point], link).seconds(link)[0])
            points.append(
                Point(
                    name=f"{size(nbytes)}, {ranks} ranks, 1 GbE ({table})",
                    series=series,
                    unit="s",
                    measured=point.seconds,
                    predicted=time,
                    unfitted=time,
                    source=source,
                    workers=ranks,
                )
            )
    return Findings(points=tuple(points))


def _place(run: Run) -> tuple[str, str] | None:
    shown = run.nbytes == SHOWN and run.precision == "fp32"
    return (f"all-reduce, cloud, {size(SHOWN)}", LIBRARIES[run.method]) if shown else None
