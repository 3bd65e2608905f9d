"""Points, factors and bounds of the live suite.

They are wider than those of measurements that were made in peace: other programs take the same
cores, and a virtual machine's clock and cores are its host's.
"""

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
from gcsim.analysis.validation.suite import DENSE, Bound, Factor, Findings, Point, Suite
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
            "each network namespace, joined by virtual NICs that are shaped in both directions "
            "(tc tbf), and real DDP training with gcsim's compressors as communication hooks. All "
            f"ranks share this machine's cores.{busy} Predictions were on the disk "
            f"({PREDICTIONS}) before the first of these ranks was started."
        ),
        fitted_on=(
            f"what the host costs: {calibration} collectives of other sizes at 4 Gbit/s; what "
            "the links give: one message each way; kernels, passes and hooks: measured before, "
            "without any exchange. None of it is judged"
        ),
        missing=_MISSING,
        bounds=bounds(present),
        find=lambda: findings,
        figure_x="MB that each rank hands over",
    )


_MISSING = (
    "Collectives below 1 MB, and all at 1 Gbit/s, wait for processors: which rank is woken when is "
    "the kernel's choice, and times have several modes. The shaper lets a frame pass for free "
    "after a pause (about a millisecond of data), and a pause of the whole machine that is longer "
    "takes the time away from a link for good. What Python and DDP do around a compressor is "
    "measured on as many ranks as there are cores, which exchange nothing; of more ranks each has "
    "a fair share of the cores, where a real scheduler lets them wait for each other. "
    "Gloo's all-gather of two ranks takes two or three halves of a block, as "
    "they enter; three are predicted. Other programs on this machine are in nobody's model."
)

_LIMITS: tuple[tuple[str, tuple[str, ...], float, float | None], ...] = (
    (
        "collectives of 1 MB and more, 50 and 100 Mbit/s",
        ("all-reduce >= 1 MB, 50, 100 Mbit/s", "all-gather >= 1 MB, 50, 100 Mbit/s"),
        0.10,
        None,
    ),
    (
        "collectives below 1 MB, 50 and 100 Mbit/s",
        ("all-reduce < 1 MB, 50, 100 Mbit/s", "all-gather < 1 MB, 50, 100 Mbit/s"),
        0.25,
        None,
    ),
    ("training steps, 100 Mbit/s", ("training steps, 100 Mbit/s",), 0.20, 0.08),
    ("training steps, 1 Gbit/s", ("training steps, 1 Gbit/s",), 0.25, 0.12),
)
_FEWEST = 4
"""Points that a median is bounded over: fewer say nothing when one of them has two modes."""
_DECISIONS = 0.8
"""Share of decisions, of training."""


def bounds(series: Mapping[str, int]) -> tuple[Bound, ...]:
    """Those over series that were measured, on so many points each."""
    found = [
        Bound(name, tuple(one for one in wanted if one in series), limit=limit, target=target)
        for name, wanted, limit, target in _LIMITS
    ]
    found = [bound for bound in found if sum(series[name] for name in bound.series) >= _FEWEST]
    trained = tuple(sorted(one for one in series if one.startswith("training")))
    if trained:
        found.append(
            Bound("decisions of training", trained, statistic="decisions", limit=_DECISIONS)
        )
    return tuple(found)
