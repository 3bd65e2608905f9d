"""NCCL's all-reduces over TCP, EFA, RoCE and InfiniBand, from 1 kB to 2 GB.

Each network is a latency and a goodput, fitted as `gcsim calibrate link` does. What joins the GPUs
of a node is the catalogue's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from gcsim.analysis.calibration.link.model import Model
from gcsim.analysis.calibration.measurements.collectives import Measurement
from gcsim.analysis.validation.data_files import data_values
from gcsim.analysis.validation.interval import ends, intervals
from gcsim.analysis.validation.suite import Bound, Factor, Findings, Point, Suite
from gcsim.analysis.validation.suites.cluster_runs.runs import Run, runs
from gcsim.analysis.validation.suites.other_clusters.allreduce import (
    Fit,
    fit,
    link_factors,
    measurement,
    size,
)
from gcsim.analysis.validation.suites.other_clusters.prediction import cluster_of, nearest
from gcsim.scenarios import catalog
from gcsim.simulator.cluster import Collectives
from gcsim.simulator.network.links import Link

MEGABYTE = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network of a source."""

    title: str
    source: str
    library: str
    algorithm: str
    inside: str
    """The catalogue's link between the GPUs of a node."""
    known: str
    """The catalogue's link of a card."""
    cards: int = 1
    fitted_ranks: int
    """The smallest and the largest vector on so many ranks serve the fit, and the middle one of
    those of 1 MB and more."""
    latency: bool
    """Is fitted; else it is the catalogue's, and the two largest vectors tell the goodput."""


NETWORKS = tuple(data_values("nccl_networks", Network))


def find() -> Findings:
    """All networks."""
    found = [_compared(network) for network in NETWORKS]
    return Findings(
        points=tuple(point for points, _ in found for point in points),
        factors=tuple(factor for _, factors in found for factor in factors),
    )


def _compared(network: Network) -> tuple[list[Point], list[Factor]]:
    own = [run for run in runs(network.source) if run.library == network.library]
    served = chosen(network, own)
    inside = catalog.link(network.inside)
    measured = [measurement(run, network.algorithm) for run in served]
    known = _known(network)
    found = fit(measured, inside) if network.latency else _goodput(measured, inside, known)
    model = Model([measurement(run, network.algorithm) for run in own], inside)
    predicted = model.seconds(found.link)
    bare = model.seconds(known).tolist()
    drawn = intervals(
        cluster_of(2, 2, known, known, Collectives(transport="nccl")),
        lambda one: model.seconds(one.network).tolist(),
    )
    points = [
        Point(
            name=f"{size(run.nbytes)}, {run.gpus} ranks, {network.title}",
            series=_series(network, run),
            unit="s",
            measured=run.seconds,
            predicted=float(time),
            unfitted=alone,
            fitted=run in served,
            source=run.source,
            workers=run.gpus,
            nbytes=run.nbytes,
            panel=network.title,
            curve=f"{run.gpus} ranks",
            x=float(run.nbytes),
            **ends(found_ends),
        )
        for run, time, alone, found_ends in zip(own, predicted, bare, drawn, strict=True)
    ]
    factors = list(link_factors(network.title, "between machines", found, known))
    return points, factors if network.latency else factors[1:]


def _goodput(points: list[Measurement], inside: Link, known: Link) -> Fit:
    """A link of the known one's latency."""
    model, line = Model(points, inside), float(known.bandwidth)

    def at(rate: float) -> Link:
        return known.exactly(efficiency=Fraction(round(rate)) / known.bandwidth)

    rate = nearest(
        lambda rate: model.seconds(at(rate)).tolist(),
        [point.seconds for point in points],
        line / 50,
        line,
    )
    return Fit(at(rate), len(points))


def chosen(network: Network, own: Sequence[Run]) -> list[Run]:
    """Those that serve the fit."""
    sizes = sorted(
        (run for run in own if run.gpus == network.fitted_ranks), key=lambda run: run.nbytes
    )
    if not network.latency:
        return sizes[-2:]
    large = [run for run in sizes if run.nbytes > MEGABYTE]
    return [sizes[0], large[len(large) // 2], sizes[-1]]


def _known(network: Network) -> Link:
    card = catalog.link(network.known, "nccl")
    return replace(card, bandwidth=network.cards * card.bandwidth)


def _series(network: Network, run: Run) -> str:
    if network.source == "eks":
        return f"{network.title}, {'>=' if run.nbytes > MEGABYTE else '<'} 1 MB"
    return f"{network.title}, {run.gpus} ranks"


SUITE = Suite(
    name="nccl-clusters",
    title="NCCL over TCP, EFA, RoCE and InfiniBand",
    about=(
        "nccl-tests: two nodes of EC2 with a T4 each (assumed) and 50 Gbit/s, over TCP and over "
        "EFA (aws-do-eks); two DGX-1 with two cards of 100 Gbit/s RoCE (deepops; less than 4 MB "
        "alternates between two times in the source and is not in the data); four servers of two "
        "V100 with two cards of HDR InfiniBand (optcast; read off a chart, the mapping of ranks to "
        "servers is inferred). The catalogue's figures of the first three networks are from the "
        "same pages, so that the catalogue alone knows their largest vectors."
    ),
    fitted_on=(
        "latency and goodput of each network: the smallest vector, the largest, and the middle one "
        "of 1 MB and more; of InfiniBand the goodput alone, by the two largest on one GPU a server"
    ),
    missing=(
        "Which protocol NCCL runs is what its tuner says of the fitted link; where the versions "
        "differ, messages of 16 to 512 kB are off. What a GPU writes through two cards at once "
        "(HDR) is one goodput here."
    ),
    bounds=(
        Bound(
            "1 MB and more, TCP and EFA",
            ("TCP, 50 Gbit/s, >= 1 MB", "EFA, 50 Gbit/s, >= 1 MB"),
            limit=0.06,
        ),
        Bound(
            "less than 1 MB, TCP and EFA (regression)",
            ("TCP, 50 Gbit/s, < 1 MB", "EFA, 50 Gbit/s, < 1 MB"),
            limit=0.3,
        ),
        Bound("RoCE", ("RoCE, 2 x 100 Gbit/s, 16 ranks",), limit=0.06),
        Bound("InfiniBand", ("HDR InfiniBand, 4 ranks", "HDR InfiniBand, 8 ranks"), limit=0.06),
    ),
    find=find,
    figure_x="bytes",
)
