"""What does the live suite say? Points, factors and the suite itself."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from fractions import Fraction

from gcsim.analysis.live.calibrate import Sample
from gcsim.analysis.live.launch import Times
from gcsim.analysis.live.machine import machine
from gcsim.analysis.live.plan import Plan
from gcsim.analysis.live.predict import PREDICTIONS, Predicted
from gcsim.analysis.live.suite import MISSING, bounds
from gcsim.analysis.validation.suite import DENSE, Factor, Findings, Point, Suite
from gcsim.simulator.host import Host


def points(predicted: Sequence[Predicted], measured: Mapping[str, Times]) -> tuple[Point, ...]:
    """Medians of what was measured, beside the predictions."""
    source = f"measured here on {date.today().isoformat()}: {machine()}"
    found = []
    for one in predicted:
        times = measured[one.name].seconds
        kind = one.name.partition(" ")[0]
        found.append(
            Point(
                name=one.name,
                series=one.series,
                unit="s",
                measured=statistics.median(times),
                predicted=one.seconds,
                unfitted=one.unfitted,
                source=f"{source}, median of {len(times)}",
                workers=one.ranks,
                setting=f"{one.ranks} ranks, {one.rate // 10**6} Mbit/s" if one.method else "",
                method=DENSE if one.method == "dense" else one.method,
                panel="" if one.nbytes is None else f"{kind}, {one.ranks} ranks",
                curve="" if one.nbytes is None else f"{one.rate // 10**6} Mbit/s",
                x=None if one.nbytes is None else one.nbytes / 1e6,
            )
        )
    return tuple(found)


def factors(host: Host, samples: Sequence[Sample]) -> tuple[Factor, ...]:
    """What the host costs, fitted on these: Gloo copies in all-gathers alone, which give that cost
    and no other."""
    copying = sum(sample.task.kind == "all_gather" for sample in samples)
    others = len(samples) - copying
    costs: tuple[tuple[str, Fraction, float, str, int], ...] = (
        ("processor time a message", host.per_message, 1e6, "us", others),
        ("processor time a byte", host.per_byte, 1e9, "ns", others),
        ("processor time a rank and collective", host.per_call, 1e6, "us", others),
        ("processor time a copied byte", host.per_copied_byte, 1e9, "ns", copying),
    )
    return tuple(
        Factor("all", name, float(value) * scale, unit, fitted_on, catalogue=0.0)
        for name, value, scale, unit, fitted_on in costs
    )


def live_suite(
    plan: Plan, findings: Findings, others: float | None, stolen: float | None = None
) -> Suite:
    """The suite of these findings; `others`: see `machine.busy_share`; `stolen`: the share of
    processor time that other virtual machines had meanwhile."""
    present = Counter(point.series for point in findings.points)
    calibration = sum(len(one.tasks) for one in plan.calibration)
    busy = "" if others is None else f" Other programs took {others:.0%} of them just before."
    if stolen:
        busy += f" Meanwhile other virtual machines had {stolen:.1%} of their time."
    return Suite(
        name="live",
        title="Gloo and DDP in network namespaces, here and now",
        about=(
            f"Real ranks of torch.distributed (Gloo, CPU) on this machine ({machine()}), one in "
            "each network namespace, joined by virtual cards that are shaped in both directions "
            "(tc tbf), and real DDP training with gcsim's compressors as communication hooks. All "
            f"ranks share this machine's cores.{busy} Predictions were on the disk "
            f"({PREDICTIONS}) before the first of these ranks was started."
        ),
        fitted_on=(
            f"what the host costs: {calibration} collectives of other sizes at 4 Gbit/s; what "
            "the links give: one message each way; kernels, passes and hooks: measured before, "
            "without any exchange. None of it is judged"
        ),
        missing=MISSING,
        bounds=bounds(present),
        find=lambda: findings,
        figure_x="MB that each rank hands over",
    )
