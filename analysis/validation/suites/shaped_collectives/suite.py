"""Collectives of Gloo on links shaped by tc: all ranks on one machine with two cores."""

from __future__ import annotations

from pathlib import Path

from gcsim.analysis.validation.folder import suite_of
from gcsim.analysis.validation.suite import Excluded, Factor, Findings, Point
from gcsim.analysis.validation.suites.shaped_collectives.fit import (
    fitted,
    is_fitted,
    unfitted,
    unfitted_link,
)
from gcsim.analysis.validation.suites.shaped_collectives.simulation import (
    UNSHAPED,
    Setting,
    cluster_of,
    predicted,
    settings,
)
from gcsim.simulator.host import Host

LARGE = 990_000
"""Bytes: 1 MB, cut to whole elements a rank."""
_SOURCE = (
    "data/shaped_collectives.csv: PyTorch 2.13, Gloo, network name spaces and tc tbf; measured for "
    "this project, {repeats} repeats"
)
_KINDS = {
    "allreduce": "all-reduce",
    "reduce_scatter": "all-reduce",
    "allgather": "all-gather",
    "allgather_padded": "all-gather",
    "ring_allgatherv": "ring gatherv",
    "broadcast": "broadcast",
    "gather": "gather, scatter",
    "scatter": "gather, scatter",
    "ps_push": "server",
    "ps_pull": "server",
    "ps_pushpull": "server",
    "send_0_to_1": "point to point",
    "barrier": "barrier",
}
_SMALL, _BIG = "100 Mbit/s, < 1 MB", "100 Mbit/s, >= 1 MB"
_SLOW, _HOST = "all, one slow NIC", "1 Gbit/s"
_RINGS = {"all-reduce", "all-gather"}
_SHOWN = {"allreduce", "allgather", "broadcast", "ps_pushpull", "send_0_to_1"}
"""Collectives with curves, at the rates that all of them were measured at."""


_EXCLUDED = (
    Excluded(
        "repeats of the first pass",
        2450,
        "their setting was repeated in the second pass, on a machine that did nothing else",
    ),
    Excluded(
        "repeats of side experiments",
        953,
        "they are about the shaper's burst, offload, congestion control, queue or call loops",
    ),
)


def _series(setting: Setting) -> str:
    kind = _KINDS[setting.collective]
    if setting.slow_mbit:
        return _SLOW
    if setting.rate_mbit == UNSHAPED:
        return "all, no shaper"
    if setting.rate_mbit > 1000:
        return f"{kind if kind in _RINGS else 'others'}, 2.5 and 10 Gbit/s"
    if setting.rate_mbit == 1000:
        return f"{kind}, {_HOST}"
    return f"{kind}, {_BIG if setting.nbytes >= LARGE else _SMALL}"


def _panel(setting: Setting) -> str:
    shown = setting.collective in _SHOWN and setting.rate_mbit <= 1000
    if not shown or setting.slow_mbit:
        return ""
    return f"{_KINDS[setting.collective]}, {setting.rate_mbit} Mbit/s"


def _find() -> Findings:
    measured = settings()
    link, found, known = unfitted_link(), fitted(), unfitted()
    prices_known = known.host or Host()
    points = []
    for setting in measured:
        cluster = cluster_of(setting, found.conditions)
        bare = cluster_of(setting, known)
        points.append(
            Point(
                name=setting.name,
                series=_series(setting),
                unit="s",
                measured=setting.seconds,
                predicted=predicted(setting, cluster),
                unfitted=predicted(setting, bare),
                fitted=is_fitted(setting),
                source=_SOURCE.format(repeats=setting.repeats),
                workers=setting.ranks,
                nbytes=setting.nbytes,
                panel=_panel(setting),
                curve=f"{setting.ranks} ranks",
                x=float(setting.nbytes),
            )
        )
    host = found.host
    prices = (
        ("processor time a message", host.per_message, prices_known.per_message, "s"),
        ("processor time a byte", host.per_byte, prices_known.per_byte, "s/B"),
        ("processor time a rank and call", host.per_call, prices_known.per_call, "s"),
        ("processor time a copied byte", host.per_copied_byte, prices_known.per_copied_byte, "s/B"),
    )
    return Findings(
        points=tuple(points),
        excluded=_EXCLUDED,
        factors=(
            Factor(
                series="all",
                name="goodput over line rate",
                value=float(found.conditions.link.efficiency),
                unit="",
                points=found.goodput_points,
                catalogue=float(link.efficiency),
            ),
            *(
                Factor(
                    series="rings",
                    name=f"acknowledgements a byte, {rate} Mbit/s",
                    value=float(share),
                    unit="",
                    points=found.acknowledgement_points[rate],
                    catalogue=0.0,
                )
                for rate, share in found.conditions.acknowledgements.items()
            ),
            *(
                Factor(
                    "all", name, float(value), unit, found.host_points, catalogue=float(catalogued)
                )
                for name, value, catalogued, unit in prices
            ),
        ),
    )


SUITE = suite_of(Path(__file__).parent, "shaped-collectives", _find)
