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

NETWORKS: tuple[Network, ...] = ("10GbE", "100GbE")
"""Whose rate under NCCL is fitted."""
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

    def settle(
        name: str, own: list[Row], start: float, put: Callable[[Factors, float], Factors]
    ) -> float:
        """Fit one factor, beside those that are settled."""
        nonlocal factors
        used[name] = tuple(row.name for row in own)
        rate = least_squares(own, start, partial(put, factors))
        factors = put(factors, rate)
        return rate

    bus = settle(
        "bus",
        [row for row in fused if row.nodes == 1],
        float(catalog.link(INSIDE, "nccl").rate),
        lambda known, rate: replace(known, bus=rate),
    )
    settle(
        "beside",
        [row for row in rows if _overlapped(row)],
        bus,
        lambda known, rate: replace(known, beside=rate),
    )
    settle(
        "between",
        [row for row in fused if _ends(row, "100Gb IB")],
        bus,
        lambda known, rate: replace(known, between=rate),
    )
    for network in NETWORKS:
        settle(
            f"rate {network}",
            [row for row in fused if _ends(row, network)],
            _start(network),
            partial(_with_rate, network),
        )
    settle(
        "served 10GbE",
        [row for row in bert if row.scheduler == "BSP-PS" and _ends(row, "10GbE")],
        _start("10GbE"),
        lambda known, rate: replace(known, served={"10GbE": rate}),
    )
    return Fit(factors=factors, rows=used)


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


def _with_rate(network: Network, known: Factors, rate: float) -> Factors:
    return replace(known, rate={**known.rate, network: rate})


def _overlapped(row: Row) -> bool:
    """Language models on one node whose tensors are exchanged beside the backward pass."""
    return row.model != "resnet50" and row.scheduler == "WFBP-A2A" and row.nodes == 1


def _ends(row: Row, network: Network) -> bool:
    """The smallest and the largest size between nodes."""
    return row.network == network and row.workers in {8, 32}


def _start(network: Network) -> float:
    return float(catalog.link(LINKS[network], "nccl").rate)
