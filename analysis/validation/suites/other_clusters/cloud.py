"""All-reduces over slow Ethernet: mlbench in the cloud, MG-WFBP's fit.

mlbench (T4, cloud machines whose network iperf shows at 7.5 Gbit/s): PyTorch with MPI, Gloo and
NCCL, read off a chart, about 5 % off. Fitted for each library: the link, by the smallest, middle
and largest vector of float32 on four workers. NCCL adds on the GPU: its float16 has a link of
its own. Gloo adds on the host: its float16 goes over float32's link, and one constant says how fast
an element is added, fitted on the same three vectors. What a call costs is the catalogue's
(`transports.yaml`), which took it from the vectors of up to 4 kB here.

MG-WFBP's table: latency and time a byte of all-reduces on 1-Gbit/s Ethernet, fitted by its authors;
compared at the sizes for which they use them, but for rows that claim more than the line rate.
Nothing is fitted: the catalogue's link as it is.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from gcsim.analysis.calibration.link.model import Model
from gcsim.analysis.calibration.link.sums import SumRate, fit_sums
from gcsim.analysis.calibration.measurements.collectives import Measurement
from gcsim.analysis.validation.interval import ends, intervals
from gcsim.analysis.validation.suite import Excluded, Factor, Findings, Point
from gcsim.analysis.validation.suites.other_clusters.allreduce import (
    Fit,
    compared,
    fit,
    link_factors,
    measurement,
    size,
    three,
)
from gcsim.analysis.validation.suites.other_clusters.prediction import cluster_of
from gcsim.analysis.validation.suites.other_clusters.runs import Run, runs
from gcsim.errors import InternalError
from gcsim.scenarios import catalog
from gcsim.scenarios.sections.transports import defaults
from gcsim.simulator.cluster import Collectives, TransportName
from gcsim.simulator.host import Host, Sums

CLOUD_RANKS = 4
CLOUD_RATE = Fraction(75 * 10**8, 8)
"""Bytes a second, by iperf, as mlbench states."""
LIBRARIES = {"gloo": "Gloo", "nccl": "NCCL", "mpi": "MPI"}
_ALGORITHM: dict[str, TransportName] = {"gloo": "gloo", "nccl": "nccl", "mpi": "mpich"}
FLOAT16 = 2
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


GLOO_HALF = _series("gloo", "fp16")
CLOUD_SERIES = tuple(_series(library, precision) for library, precision in KINDS)


def findings() -> Findings:
    """Both."""
    cloud, table = _cloud(), _table()
    return Findings(
        points=(*cloud.points, *table.points),
        factors=cloud.factors,
        excluded=(
            Excluded(
                "rows of MG-WFBP's tables",
                len(runs("mgwfbp")) - 2 * len(usable_pairs()),
                "their time a byte is below what a ring needs at the line rate that they are "
                "labelled with, 2 (p - 1) / p bytes through each NIC",
            ),
        ),
    )


def _cloud() -> Findings:
    points: list[Point] = []
    factors: list[Factor] = []
    bus = catalog.link("pcie3_x16")
    links: dict[str, Fit] = {}
    for library, precision in KINDS:
        line = catalog.link("10gbe_gloo_cloud", _ALGORITHM[library])
        stated = line.exactly(name="7.5 Gbit/s", bandwidth=CLOUD_RATE)
        series = _series(library, precision)
        own = [
            run for run in runs("mlbench") if (run.method, run.precision) == (library, precision)
        ]
        half = precision == "fp16"
        measured = [
            measurement(run, _ALGORITHM[library], *((2, "float16") if half else (4, "float32")))
            for run in own
        ]
        chosen = {run.id for run in three(own, CLOUD_RANKS)}
        served = [point for point in measured if point.place in chosen]
        known, host = defaults(_collectives(library))
        # What a byte costs the host is in the fitted goodput.
        calls = None if host is None else Host(dispatch=host.dispatch)
        sums = Sums()
        if half and library in links:
            found = links[library]
            added = fit_sums(served, found.link, inside=bus, host=calls, dtype="float16")
            if added is None:
                raise InternalError(f"{series}: nothing tells what an addition costs")
            sums = added.sums
            factors.append(_sum_factor(series, added, known.gamma("float16")))
        else:
            found = fit(served, bus, float(CLOUD_RATE), calls)
            factors += link_factors(series, "between machines", found, stated)
            if library != "nccl":
                links[library] = found
        fitted = Model(measured, bus, sums, calls).seconds(found.link)
        bare = Model(measured, bus, known, host).seconds(stated)
        within = intervals(
            replace(cluster_of(2, 2, stated, bus, _collectives(library)), sums=known, host=host),
            lambda one, measured=measured: (  # type: ignore[misc]
                Model(measured, one.intra_node, one.sums, one.host).seconds(one.network).tolist()
            ),
        )
        for run, time, without, found_ends in zip(own, fitted, bare, within, strict=True):
            points.append(
                compared(
                    run,
                    series,
                    float(time),
                    float(without),
                    fitted=run.id in chosen,
                    place=_place(run),
                    within=found_ends,
                )
            )
    return Findings(points=tuple(points), factors=tuple(factors))


def _collectives(library: str) -> Collectives:
    return Collectives(transport=_ALGORITHM[library], library="pytorch1")


def _sum_factor(series: str, found: SumRate, known: Fraction) -> Factor:
    """Seconds that the addition of an element takes; `known` are the catalogue's, of a byte."""
    return Factor(
        series=series,
        name="addition of an element",
        value=FLOAT16 / found.rate,
        unit="s",
        points=found.points,
        catalogue=FLOAT16 * float(known),
    )


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
            (within,) = intervals(
                cluster_of(ranks, ranks, link, link, Collectives(transport="gloo")),
                lambda one, point=point: (  # type: ignore[misc]
                    Model([point], one.network).seconds(one.network).tolist()
                ),
            )
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
                    nbytes=nbytes,
                    **ends(within),
                )
            )
    return Findings(points=tuple(points))


def _place(run: Run) -> tuple[str, str] | None:
    shown = run.nbytes == SHOWN and run.precision == "fp32"
    return (f"all-reduce, cloud, {size(SHOWN)}", LIBRARIES[run.method]) if shown else None
