"""Costs of link and host where the shaped collectives were measured.

- Goodput: the median of bytes / (rate x time) of one message of 4 MB at 100 Mbit/s, over its rate.
- Acknowledgements: the median of the bytes that left all NICs in the same transfers over what 1448
  bytes in a frame of 1514 make of the payload, less 1; at each rate.
- Host: the four prices at which the mean of |log(predicted / measured)| over the fitted settings is
  smallest, by the simplex method of Nelder and Mead from one start, over the prices' logarithms.

Latency is not fitted: it is the catalogue's (50 us; base round trips were 30 to 60 us).

Source: J. Nelder and R. Mead 1965 (The Computer Journal 7, 308-313), "A simplex method for function
minimization".
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gcsim.analysis.validation.suites.shaped_collectives.simulation import (
    Conditions,
    Setting,
    cluster_of,
    copied,
    predicted,
    settings,
    traffic,
)
from gcsim.scenarios import catalog
from gcsim.scenarios.sections.transports import with_few_cores
from gcsim.simulator.host import Host
from gcsim.simulator.network.links import Link

CORES = 2
PAYLOAD, FRAME, WIRE = 1448, 1514, 1538
"""Bytes that a frame carries, that the shaper counts, and that a real wire is busy for."""
FITTED = ("allreduce", "allgather", "send_0_to_1")
SIZES = (10_000, 4_000_000)
"""Bytes, about: vectors are whole elements a rank."""
_START = (2e-4, 5e-10, 2e-4, 5e-10)
_STEPS = 4000
Floats = NDArray[np.float64]


def is_fitted(setting: Setting) -> bool:
    """Whether it serves the fit."""
    near = any(size * 0.99 < setting.nbytes <= size for size in SIZES)
    return setting.collective in FITTED and near and setting.slow_mbit is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Results of the fit."""

    conditions: Conditions
    host: Host
    goodput_points: int
    acknowledgement_points: Mapping[int, int]
    """Numbers by Mbit/s."""
    host_points: int


def fit(measured: Sequence[Setting], link: Link) -> Fitted:
    """On those of the settings that serve the fit; `link` is the catalogue's."""
    own = [setting for setting in measured if is_fitted(setting)]
    sends = [
        setting
        for setting in own
        if setting.collective == "send_0_to_1" and setting.nbytes == max(SIZES)
    ]
    at_100 = [setting for setting in sends if setting.rate_mbit == 100]
    shares = [setting.nbytes * 8 / (100e6 * setting.seconds) for setting in at_100]
    more: dict[int, list[float]] = {}
    for setting in sends:
        if setting.wire_bytes:
            framed = setting.nbytes * FRAME / PAYLOAD
            more.setdefault(setting.rate_mbit, []).append(setting.wire_bytes / framed - 1)
    shaped = Conditions(
        link=link.exactly(efficiency=Fraction(statistics.median(shares))),
        acknowledgements={
            rate: Fraction(max(0.0, statistics.median(own))) for rate, own in more.items()
        },
    )
    host = _host(own, shaped)
    return Fitted(
        conditions=replace(shaped, host=host),
        host=host,
        goodput_points=len(shares),
        acknowledgement_points={rate: len(own) for rate, own in more.items()},
        host_points=len(own),
    )


def unfitted_link() -> Link:
    """Gigabit Ethernet of the catalogue, with the goodput of a real wire."""
    return catalog.link("1gbe").exactly(efficiency=Fraction(PAYLOAD, WIRE))


def unfitted() -> Conditions:
    """The catalogue alone: its Gigabit Ethernet, and Gloo's prices where ranks share cores."""
    shared = Host(cores=CORES, ranks="all")
    return Conditions(link=catalog.link("1gbe"), host=with_few_cores("gloo", shared))


@cache
def fitted() -> Fitted:
    """The fit to all measurements; more than one suite is on this machine."""
    return fit(settings(), unfitted_link())


def host_of(prices: Sequence[float]) -> Host:
    """From seconds a message, a byte, a call and a copied byte."""
    message, byte, call, copy = map(Fraction, prices)
    return Host(
        cores=CORES,
        per_message=message,
        per_byte=byte,
        per_call=call,
        per_copied_byte=copy,
        ranks="all",
    )


def _host(settings: Sequence[Setting], conditions: Conditions) -> Host:
    from scipy.optimize import minimize  # slow

    points = _Points(settings, conditions)
    found = minimize(
        lambda logarithms: points.distance(np.exp(logarithms)),
        np.log(_START),
        method="Nelder-Mead",
        options={"maxiter": _STEPS, "maxfev": _STEPS, "xatol": 1e-4, "fatol": 1e-7},
    )
    return host_of(np.exp(found.x).tolist())


class _Points:
    """The settings as numbers, so that a host is tried in microseconds."""

    def __init__(self, settings: Sequence[Setting], conditions: Conditions) -> None:
        clusters = [cluster_of(setting, conditions) for setting in settings]
        of = list(zip(settings, clusters, strict=True))
        handled = [traffic(setting, cluster) for setting, cluster in of]
        self._measured = np.array([setting.seconds for setting in settings])
        self._network = np.array([predicted(setting, cluster) for setting, cluster in of])
        ranks = np.array([setting.ranks for setting in settings])
        self._all = np.array(
            [[each.ends.sum() / 2, each.nbytes.sum() / 2, len(each.ends)] for each in handled]
        )
        self._busiest = np.array(
            [[each.ends.max() / 2, each.nbytes.max() / 2, 1] for each in handled]
        )
        self._copied = np.array(
            [
                (each.copied + copied(setting)) * turns
                for each, setting, turns in zip(
                    handled, settings, np.maximum(1, ranks / CORES), strict=True
                )
            ]
        )
        self._in_flight = host_of(_START).in_flight

    def distance(self, prices: Floats) -> float:
        """Mean of the logarithms' differences; `prices` as of `host_of`."""
        work = np.maximum(self._all @ prices[:3] / CORES, self._busiest @ prices[:3])
        over, under = np.ones_like(work), np.ones_like(work)
        for power in range(1, self._in_flight + 1):
            under, over = over, self._network * over + work**power
        times = over / under + self._copied * prices[3]
        return float(np.abs(np.log(times / self._measured)).mean())
