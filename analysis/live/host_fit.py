"""What does this machine's host cost? Fitted on a few collectives that nobody judges.

Each measured time T, beside what the network alone would take, tells how much work W the host had
(`Host.together`, solved for W). Where nothing is copied afterwards, W is linear in the costs of a
call, a message and a byte, so that non-negative least squares gives them. What is left of the
others' times then gives the cost of a copied byte. Residuals count relative to T, as errors are
judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, picoseconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import execute, traffic_of
from gcsim.simulator.host import Host

_DIGITS = 6
_BYTES = 10**6
"""A cost a million bytes is of the size of the others: the fit is better conditioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A collective that was measured."""

    record: CollectiveRecord
    cluster: Cluster
    """Without a host."""
    seconds: float


def fit_host(observations: Sequence[Observation], cores: int) -> Host:
    """The host of all ranks, on one machine of so many cores."""
    from scipy.optimize import nnls

    free = Host(cores=cores, per_message=Fraction(0), ranks="all")
    units = [
        replace(free, per_call=Fraction(1)),
        replace(free, per_message=Fraction(1)),
        replace(free, per_byte=Fraction(1, _BYTES)),
    ]
    handled = [
        (seen, traffic_of(seen.record, seen.cluster), _network(seen)) for seen in observations
    ]
    rows, works = [], []
    for seen, traffic, network in handled:
        if not traffic.copied:
            row = [unit.work(traffic).beside / PS_PER_SECOND for unit in units]
            work = work_of(free, network, picoseconds(seen.seconds)) / PS_PER_SECOND
            rows.append(np.array(row) / seen.seconds)
            works.append(work / seen.seconds)
    costs, _ = nnls(np.array(rows), np.array(works))
    call, message, byte = map(_digits, costs.tolist())
    host = replace(free, per_call=call, per_message=message, per_byte=byte / _BYTES)
    copies, rests = [], []
    for seen, traffic, network in handled:
        if traffic.copied:
            expected = host.together(network, host.work(traffic).beside) / PS_PER_SECOND
            unit = replace(free, per_copied_byte=Fraction(1, _BYTES))
            copies.append(unit.work(traffic).after / PS_PER_SECOND / seen.seconds)
            rests.append((seen.seconds - expected) / seen.seconds)
    if copies:
        copy, _ = nnls(np.array(copies)[:, None], np.array(rests))
        host = replace(host, per_copied_byte=_digits(float(copy[0])) / _BYTES)
    return host


def _network(seen: Observation) -> Picoseconds:
    """What the network alone would take."""
    entry = np.zeros(seen.cluster.workers, dtype=np.int64)
    return int(execute(seen.record, entry, seen.cluster).max())


def _digits(value: float) -> Fraction:
    return Fraction(f"{value:.{_DIGITS}g}")


def work_of(host: Host, network: Picoseconds, total: Picoseconds) -> Picoseconds:
    """The largest W with `host.together(network, W)` at most `total`; 0 where there is none."""
    low, high = 0, max(total, 0)  # T(N, W) is at least W
    while low < high:
        middle = (low + high + 1) // 2
        if host.together(network, middle) <= total:
            low = middle
        else:
            high = middle - 1
    return low
