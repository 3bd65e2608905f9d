"""Predictions of seven ways to schedule dense exchanges, on four networks, and their fit.

Measured in 2020 on V100s: S. Shi et al., arXiv 2005.13247, data of HKBU-HPML/ddl-benchmarks.

The fit: rates that make the simulator agree with a few rows, by least squares, in turn.

| factor | rows | of them |
|---|---|---|
| an iteration without exchange, by model | one device | 1 each |
| rate between devices of a node | BERT-Large, BSP-A2A on one node | 3 |
| the same while the devices compute | BERT, WFBP-A2A on one node | 6 |
| the same in rings between nodes | BERT-Large, BSP-A2A on 8 and 32 devices, InfiniBand | 2 |
| rate of a NIC under NCCL, 10GbE and 100GbE | BERT-Large, BSP-A2A on 8 and 32 devices | 2 each |
| rate of a NIC under BytePS, 10GbE | BERT-Large, BSP-PS on 8 and 32 devices | 2 |

InfiniBand is faster than a node's bus, so that its rows cannot tell its rate, and tell the bus's.
Where nothing overlaps a time is a constant and the bytes over the rate, so that the
squared relative errors have one minimum in 1 / rate, which Gauss-Newton steps reach at once, or
after a few where another link takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import truediv

from gcsim.analysis.validation.interval import ends
from gcsim.analysis.validation.suite import (
    Bound,
    Excluded,
    Factor,
    Findings,
    Point,
    Suite,
    given_step,
)
from gcsim.analysis.validation.suites.ddl_benchmarks.models import model
from gcsim.analysis.validation.suites.ddl_benchmarks.prediction import (
    INSIDE,
    LINKS,
    Factors,
    Key,
    device,
    key,
    piece,
    seconds,
    unfitted_drawings,
)
from gcsim.analysis.validation.suites.ddl_benchmarks.rows import (
    MODELS,
    Network,
    Row,
    all_rows,
    compared,
    mislabelled,
)
from gcsim.errors import InternalError
from gcsim.scenarios import catalog
from gcsim.scenarios.catalog.loops import interference
from gcsim.simulator.devices.step_time import step_time


def find() -> Findings:
    """All rows but those that are not what they say."""
    everything = all_rows()
    rows = compared(everything)
    fit = fitted(rows)
    return Findings(
        points=tuple(points(rows, fit)),
        factors=tuple(_factors(rows, fit)),
        excluded=(
            Excluded(
                "parameter-server rows of the 100GbE column",
                len(mislabelled(everything)),
                "they are the 10GbE column's: within 3 % at every size at which 10GbE is at "
                "least 10 % slower than InfiniBand",
            ),
        ),
    )


def points(rows: Sequence[Row], fit: Fit) -> Iterator[Point]:
    """One of each row, in their order."""
    known: dict[tuple[bool, Key], float] = {}
    for row in rows:
        for bare in (False, True):
            if (bare, key(row)) not in known:
                known[bare, key(row)] = seconds(row, Factors() if bare else fit.factors)
    drawings = unfitted_drawings(rows, {name: time for (bare, name), time in known.items() if bare})
    for row in rows:
        samples, drawn = row.batch * row.workers, drawings.get(key(row))
        yield Point(
            name=_name(row),
            series=f"{MODELS[row.model]}, {row.network if row.nodes > 1 else 'one node'}",
            unit="samples/s",
            measured=row.rate,
            predicted=samples / known[False, key(row)],
            unfitted=samples / known[True, key(row)],
            fitted=row.name in fit.names,
            source=row.source,
            workers=row.workers,
            nbytes=piece(row) if row.scheduler else 0,
            panel=f"{MODELS[row.model]}, {row.network}" if row.scheduler else "",
            curve=row.scheduler,
            x=float(row.workers) if row.scheduler else None,
            **ends(drawn.interval(partial(truediv, samples)) if drawn else None),
        )


def _name(row: Row) -> str:
    if not row.scheduler:
        return f"{MODELS[row.model]}, 1 GPU"
    return f"{MODELS[row.model]}, {row.network}, {row.scheduler}, {row.workers} GPUs"


def _factors(rows: Sequence[Row], fit: Fit) -> Iterator[Factor]:
    factors = fit.factors
    batches = {row.model: row.batch for row in rows}
    for name, alone in factors.alone.items():
        known = step_time(model(name, batches[name]).facts, device())
        yield given_step(MODELS[name], "iteration of one device", alone, float(known.seconds))
    bus = float(catalog.link(INSIDE, "nccl").rate)
    beside = float(catalog.link(INSIDE).rate / (1 + interference("nccl").bus))
    between = "rate between two devices of a node"
    fitted_rates: list[tuple[str, str, str, float | None, float]] = [
        ("bus", "all", between, factors.bus, bus),
        ("between", "all", "the same in rings between nodes", factors.between, bus),
        ("beside", "all", f"{between} that compute", factors.beside, beside),
    ]
    for kind, under, rates in (
        ("rate", "NCCL", factors.rate),
        ("served", "BytePS, push after pull", factors.served),
    ):
        for network, found in rates.items():
            nic = float(catalog.link(LINKS[network], "nccl").rate)
            title = f"rate of a NIC under {under}"
            fitted_rates.append((f"{kind} {network}", network, title, found, nic))
    for served, series, name, rate, known_rate in fitted_rates:
        if rate is not None:
            count = len(fit.rows[served])
            yield Factor(series, name, rate, "bytes/s", count, catalogue=known_rate)


SUITE = Suite(
    name="ddl-benchmarks",
    title="Seven schedulers of dense exchanges on V100s: PCIe, 10GbE, 100GbE, InfiniBand",
    about=(
        "Throughput of ResNet-50 (batch 64), BERT-Large (8) and BERT-Base (64) on 1 to 32 Tesla "
        "V100-PCIE-32GB, 4 a node, with PyTorch 1.4, measured by S. Shi et al. (A quantitative "
        "survey of communication optimizations in distributed deep learning, arXiv 2005.13247, "
        "data of HKBU-HPML/ddl-benchmarks). Seven schedulers: everything fused after the backward "
        "pass (BSP), tensor by tensor during it (WFBP), merged (MG-WFBP) and cut (ByteScheduler), "
        "over NCCL with Horovod and over BytePS's servers. Rings, trees and protocols are those "
        "that gcsim's NCCL chooses; thresholds, partitions and the rule that merges are the "
        "benchmark's. The prediction without fit is not independent: the catalogue's times of one "
        "of these devices and its efficiencies of 100GbE and InfiniBand are from the same table. "
        "What nothing was fitted on: ResNet-50, but for one device's time, and BERT-Base between "
        "nodes."
    ),
    fitted_on=(
        "An iteration's computation: the rows of one device. A node's bus: BERT-Large, BSP-A2A, 4"
        " devices; beside computations: both BERT, WFBP-A2A, 4 devices. (The form was chosen by "
        "halves: the overlapping schedulers on 4 and 16 devices choose a bus that carries less, "
        "and so do those on 8 and 32, over collectives that slow computations and over neither.) "
        "The bus in rings that leave the node: BERT-Large, BSP-A2A on InfiniBand, 8 and 32 "
        "devices. Rates of 10GbE and 100GbE under NCCL: BERT-Large, BSP-A2A, 8 and 32 devices. "
        "Rate of 10GbE under BytePS: BERT-Large, BSP-PS, 8 and 32 devices. Least squares of "
        "relative errors."
    ),
    missing=(
        "Collectives beside computation: the bus carries less while devices compute; one rate is "
        "fitted, where BERT-Large alone would want a higher one and BERT-Base a lower. A form in "
        "which collectives slow computations instead misses ResNet-50, whose exchange beside the "
        "backward pass costs nothing on one node, and one that slows collectives on the network as "
        "well misses 10GbE by 12 to 19 %. ByteScheduler on "
        "Horovod: its host code takes about 100 ms and more of an iteration of ResNet-50 (five "
        "runs vary by 4 to 10 %), which is not modelled, nor is its overlap with the next forward "
        "pass. Many small tensors on 16 and 32 devices (WFBP, ResNet-50): Horovod's negotiation "
        "by MPI. BytePS on 100GbE gets faster with more servers: a connection has a limit of its "
        "own there. BytePS pushes while it pulls, which the model does one after the other: the "
        "fitted rate of 10GbE is therefore above the line rate. Why a ring of four devices gets "
        "much less than a PCIe link carries (shared root ports, copies through host memory) is "
        "fitted, not modelled, and why one that leaves the node gets 8 % more of it (three of its "
        "hops share the host, and the NIC); nor is it known why rates on TCP sink with the "
        "number of nodes."
    ),
    bounds=(Bound("all throughputs", limit=0.07),),
    find=find,
    figure_x="GPUs",
)


_NETWORKS: tuple[Network, ...] = ("10GbE", "100GbE")
"""Whose rate under NCCL is fitted."""
_STEPS = 20
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
    for network in _NETWORKS:
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
    for _ in range(_STEPS):
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
