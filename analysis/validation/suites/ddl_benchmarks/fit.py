"""Which rates make the simulator agree with a few rows of ddl-benchmarks? Least squares, in turn.

| factor | rows | of them |
|---|---|---|
| an iteration without exchange, by model | one device | 1 each |
| rate between devices of a node | BERT-Large, BSP-A2A on one node | 3 |
| the same while the devices compute | BERT, WFBP-A2A on one node | 6 |
| the same in rings between nodes | BERT-Large, BSP-A2A on 8 and 32 devices, InfiniBand | 2 |
| rate of a card under NCCL, 10GbE and 100GbE | BERT-Large, BSP-A2A on 8 and 32 devices | 2 each |
| rate of a card under BytePS, 10GbE | BERT-Large, BSP-PS on 8 and 32 devices | 2 |

InfiniBand is faster than a node's bus, so that its rows cannot tell its rate, and tell the bus's.
Where nothing overlaps a time is a constant and the bytes over the rate, so that the
squared relative errors have one minimum in 1 / rate, which Gauss-Newton steps reach at once, or
after a few where another link takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gcsim.analysis.validation.suites.ddl_benchmarks.prediction import (
    INSIDE,
    LINKS,
    Factors,
    key,
    seconds,
)
from gcsim.analysis.validation.suites.ddl_benchmarks.rows import Network, Row
from gcsim.errors import InternalError
from gcsim.scenarios import catalog

STEPS = 20
_CLOSE = 1e-4
_NUDGE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The factors, and the names of the rows that each was fitted on."""

    factors: Factors
    rows: dict[str, tuple[str, ...]]
    """By name of the factor: "bus", "rate 10GbE", ..."""

    @property
    def names(self) -> frozenset[str]:
        """Of all rows that served."""
        return frozenset(name for rows in self.rows.values() for name in rows)


def fitted(rows: Sequence[Row]) -> Fit:
    """On the stated rows among `rows`."""
    single = [row for row in rows if row.workers == 1]
    factors = Factors(alone={row.model: row.step for row in single})
    used: dict[str, tuple[str, ...]] = {f"alone {row.model}": (row.name,) for row in single}
    bert = [row for row in rows if row.model == "bert_large"]
    fused = [row for row in bert if row.scheduler == "BSP-A2A"]

    own = [row for row in fused if row.nodes == 1]
    used["bus"] = _names(own)
    rate = least_squares(own, float(catalog.link(INSIDE, "nccl").rate), partial(_with_bus, factors))
    factors = _with_bus(factors, rate)
    rate_alone = rate

    own = [row for row in rows if _overlapped(row)]
    used["beside"] = _names(own)
    rate = least_squares(own, rate, partial(_with_beside, factors))
    factors = _with_beside(factors, rate)

    own = [row for row in fused if _ends(row, "100Gb IB")]
    used["between"] = _names(own)
    rate = least_squares(own, rate_alone, partial(_with_between, factors))
    factors = _with_between(factors, rate)
    networks: tuple[Network, ...] = ("10GbE", "100GbE")
    for network in networks:
        own = [row for row in fused if _ends(row, network)]
        used[f"rate {network}"] = _names(own)
        rate = least_squares(own, _start(network), partial(_with_rate, factors, network))
        factors = _with_rate(factors, network, rate)

    own = [row for row in bert if row.scheduler == "BSP-PS" and _ends(row, "10GbE")]
    used["served 10GbE"] = _names(own)
    rate = least_squares(own, _start("10GbE"), partial(_with_served, factors, "10GbE"))
    return Fit(factors=_with_served(factors, "10GbE", rate), rows=used)


def least_squares(rows: Sequence[Row], start: float, put: Callable[[float], Factors]) -> float:
    """The rate, bytes a second, at which squared relative errors of the iterations are least.

    `put` gives the factors with a rate. Raises `InternalError` where no row depends on the rate.
    """
    slowness = 1 / start
    alike = {key(row): row for row in rows}
    for _ in range(STEPS):
        here, nudged = (
            {one: seconds(row, put(1 / at)) for one, row in alike.items()}
            for at in (slowness, slowness * (1 + _NUDGE))
        )
        errors = [here[key(row)] / row.step - 1 for row in rows]
        slopes = [
            (nudged[key(row)] - here[key(row)]) / row.step / (_NUDGE * slowness) for row in rows
        ]
        steepness = sum(slope * slope for slope in slopes)
        if not steepness:
            raise InternalError("the rows that a rate is fitted on do not depend on it")
        step = sum(a * b for a, b in zip(errors, slopes, strict=True)) / steepness
        slowness = max(slowness - step, slowness / 10)
        if abs(step) < _CLOSE * slowness:
            break
    return 1 / slowness


def _with_bus(factors: Factors, rate: float) -> Factors:
    return replace(factors, bus=rate)


def _with_between(factors: Factors, rate: float) -> Factors:
    return replace(factors, between=rate)


def _with_beside(factors: Factors, rate: float) -> Factors:
    return replace(factors, beside=rate)


def _with_rate(factors: Factors, network: Network, rate: float) -> Factors:
    return replace(factors, rate={**factors.rate, network: rate})


def _with_served(factors: Factors, network: Network, rate: float) -> Factors:
    return replace(factors, served={**factors.served, network: rate})


def _names(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(row.name for row in rows)


def _overlapped(row: Row) -> bool:
    """Language models on one node whose tensors are exchanged beside the backward pass."""
    return row.model != "resnet50" and row.scheduler == "WFBP-A2A" and row.nodes == 1


def _ends(row: Row, network: Network) -> bool:
    """The smallest and the largest size between nodes."""
    return row.network == network and row.workers in {8, 32}


def _start(network: Network) -> float:
    return float(catalog.link(LINKS[network], "nccl").rate)
