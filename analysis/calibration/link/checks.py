"""Checks of a link fitted to a network: the bus inside a machine, the errors, the rate.

Times of several machines with several devices include an unfitted bus: stated, known by the GPU's
name, or assumed. A bus that alone exceeds a measured time is wrong. A driver's name contains the
catalogue's (`NVIDIA A100-SXM4-40GB` -> `nvlink3`); "PCIe" and "NVL" tell cards from modules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from gcsim.analysis.calibration.link.direct import FASTEST, ethernet_like
from gcsim.analysis.calibration.link.fit import LinkFit
from gcsim.analysis.calibration.link.model import Model
from gcsim.analysis.calibration.measurements.collectives import Measurement, Reading
from gcsim.analysis.report.numbers import duration, rate
from gcsim.errors import InputError, printable
from gcsim.scenarios import catalog
from gcsim.simulator.network.links import Link

ASSUMED = "pcie3_x16"
MOST_ERROR = 0.5  # median relative error of an acceptable fit
_BUSES = ("pcie3_x16", "pcie4_x16", "pcie5_x16", "nvlink1", "nvlink2", "nvlink3", "nvlink4")
_FAST = tuple(
    Link(name="fast", bandwidth=Fraction(rate), latency=Fraction(0))
    for rate in (10**11, 4 * 10**11, 10**12)
)
"""Networks of next to no cost: libraries choose by rate, not always the shortest."""
_BEYOND = 1.5  # factor on measured time that proves the bus wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Link between a machine's devices, and its reason."""

    link: Link
    why: str


def inside_of(stated: str | None, readings: Sequence[Reading]) -> Inside:
    """Stated bus, that of a file's GPU, or the assumed one; `InputError` for an unknown link."""
    if stated is not None:
        return Inside(link=catalog.link(stated), why="--intra-node")
    for device in (reading.device for reading in readings if reading.device):
        if bus := bus_of(device):
            return Inside(link=catalog.link(bus), why=f"of {printable(device)[:60]}")
    return Inside(link=catalog.link(ASSUMED), why="assumed: no file names a known GPU")


def check_inside(points: Sequence[Measurement], inside: Inside) -> None:
    """Raise `InputError` where the bus alone exceeds a measured time."""
    within = _within(points)
    if not within or (wrong := _contradicted(within, inside.link)) is None:
        return
    point, least = wrong
    agreeing = [name for name in _BUSES if _contradicted(within, catalog.link(name)) is None]
    known = f"{agreeing[0]} agrees with the times" if agreeing else "gcsim list links"
    raise InputError(
        f"{point.nbytes:,} bytes took {duration(point.seconds)}, but {inside.link.name} "
        f"({inside.why}) between the {point.devices_per_node} devices of a machine alone takes "
        f"{duration(least)}",
        place=point.place,
        hint=f"name the link between them with --intra-node: {known}",
    )


def _within(points: Sequence[Measurement]) -> list[Measurement]:
    """Measurements of several machines with several devices each."""
    return [p for p in points if 1 < p.devices_per_node < p.ranks and p.collective != "send"]


def _contradicted(points: Sequence[Measurement], inside: Link) -> tuple[Measurement, float] | None:
    """Longest message and its time over the bus alone, if in contradiction."""
    longest = max(points, key=lambda point: point.nbytes)
    model = Model([longest], inside)
    least = min(float(model.seconds(network)[0]) for network in _FAST)
    return (longest, least) if least > _BEYOND * longest.seconds else None


def settled(fit: LinkFit, place: str) -> LinkFit:
    """The fit, with the catalogue's efficiency where only the line rate is known. Raises
    `InputError` for a median error above `MOST_ERROR`, an undetermined goodput without a line rate,
    or an impossible one."""
    if fit.median_error > MOST_ERROR:
        raise InputError(
            f"the median error of the fit is {fit.median_error:,.0%}; above {MOST_ERROR:.0%} no "
            "link is written",
            place=place,
            hint="another --algorithm, --collective, --ranks or --devices-per-node may fit; or the "
            "times include more than the collective (waiting, a busy host)",
        )
    if fit.goodput_told:
        return _possible(fit, place)
    if fit.line_rate is None:
        raise InputError(
            "these sizes do not determine the goodput, so no link is written",
            place=place,
            hint="measure longer messages, or state --line-rate RATE"
            + (" and --intra-node LINK" if _within([p.measurement for p in fit.points]) else ""),
        )
    like = ethernet_like(fit.line_rate)
    link = fit.link.exactly(
        bandwidth=Fraction(round(fit.line_rate * 8)) / 8,
        efficiency=like.efficiency,
        efficiency_range=like.efficiency_range,
    )
    return replace(fit, link=link)


def _possible(fit: LinkFit, place: str) -> LinkFit:
    goodput = float(fit.link.bandwidth * fit.link.efficiency)
    several = [p.measurement for p in fit.points if p.measurement.devices_per_node == 1]
    within = _within([point.measurement for point in fit.points])
    if goodput > FASTEST and (several or within):
        raise InputError(
            f"no network reaches a goodput of {rate(goodput)}",
            place=place,
            hint="name the link between the devices of a machine with --intra-node LINK"
            if within
            else "are the ranks on one machine? say --devices-per-node N",
        )
    return fit


_FORM = re.compile(r"pcie|sxm\d*|\d+gb")  # words of names that tell boards of one chip apart
_CARD = {"pcie", "nvl"}


def bus_of(driver_name: str) -> str | None:
    """Link between two such GPUs, if known."""
    words = set(re.findall(r"[a-z0-9]+", driver_name.lower()))
    card = not words.isdisjoint(_CARD)
    found: list[tuple[int, bool, str]] = []
    for name, device in catalog.devices().items():
        own = name.split("_")
        chip = {word for word in own if not _FORM.fullmatch(word)}
        bus = device.bus or "pcie3_x16"
        if device.processor == "gpu" and chip <= words and not (card and bus.startswith("nvlink")):
            found.append((len(chip), ("pcie" in own) == card, bus))
    return max(found)[2] if found else None
