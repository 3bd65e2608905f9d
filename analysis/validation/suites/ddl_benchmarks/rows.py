"""Which throughputs were measured in ddl-benchmarks, and which of its rows are not what they say?

A row is a cell of the published table (`data/ddl_benchmarks.csv` says which). One kind of row is
left out, by a rule that looks at measurements alone: parameter-server rows of the 100GbE column
that are the 10GbE column's. Where the same run takes at least `SLOWER` times as long on 10GbE as on
100 Gb InfiniBand, so that the network decides, a network with ten times the rate cannot give the
same throughput; a series (model, scheduler) of which every such size agrees within `SAME` was not
measured on 100GbE. (The benchmark's launch script states the interface on the command line of the
workers and of the servers, and the scheduler's address apart from both.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from gcsim.analysis.validation.data_files import data_values

Scheduler = Literal[
    "",
    "BSP-A2A",
    "WFBP-A2A",
    "MG-WFBP",
    "ByteScheduler-A2A",
    "BSP-PS",
    "WFBP-PS",
    "ByteScheduler-PS",
]
Network = Literal["", "10GbE", "100GbE", "100Gb IB"]
SERVED: frozenset[Scheduler] = frozenset({"BSP-PS", "WFBP-PS", "ByteScheduler-PS"})
"""By BytePS's servers."""
SOURCE = (
    "Shi et al., arXiv 2005.13247, HKBU-HPML/ddl-benchmarks@30de09bc, "
    "results/2020-05-29/README.md, {model}, {place}"
)
MODELS = {"resnet50": "ResNet-50", "bert_large": "BERT-Large", "bert_base": "BERT-Base"}
"""By name in gcsim: the table's."""
SLOWER = 1.1
SAME = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement."""

    name: str
    model: str
    """As gcsim calls it."""
    batch: int
    """Samples a device."""
    scheduler: Scheduler
    """"": one device."""
    network: Network
    """Idle where all devices are in one node; "": one device."""
    workers: int
    nodes: int
    rate: float
    """Samples a second, all devices together."""
    deviation: float | None
    """Standard deviation of five runs."""

    @property
    def step(self) -> float:
        """Seconds of an iteration."""
        return self.batch * self.workers / self.rate

    @property
    def source(self) -> str:
        """Citation."""
        place = "1 GPU"
        if self.scheduler:
            place = f"{self.network}, {self.scheduler}, {self.workers} GPUs"
        return SOURCE.format(model=MODELS[self.model], place=place)


@cache
def all_rows() -> tuple[Row, ...]:
    """The data file, by model and network."""
    models, networks = list(MODELS), list(get_args(Network))
    rows = data_values("ddl_benchmarks", Row, name="id")
    return tuple(
        sorted(rows, key=lambda row: (models.index(row.model), networks.index(row.network)))
    )


def mislabelled(rows: Sequence[Row]) -> frozenset[str]:
    """Names of the rows of the 100GbE column that were not measured on it."""
    rates = {(row.model, row.scheduler, row.network, row.workers): row.rate for row in rows}
    found: set[str] = set()
    for model in dict.fromkeys(row.model for row in rows):
        for scheduler in sorted(SERVED):
            own = [
                row
                for row in rows
                if (row.model, row.scheduler, row.network) == (model, scheduler, "100GbE")
                and row.nodes > 1
            ]
            deciding = [
                row
                for row in own
                if rates[model, scheduler, "100Gb IB", row.workers]
                >= SLOWER * rates[model, scheduler, "10GbE", row.workers]
            ]
            same = [
                abs(row.rate / rates[model, scheduler, "10GbE", row.workers] - 1) <= SAME
                for row in deciding
            ]
            if same and all(same):
                found |= {row.name for row in own}
    return frozenset(found)


def compared(rows: Sequence[Row]) -> list[Row]:
    """All but those that are not what they say."""
    out = mislabelled(rows)
    return [row for row in rows if row.name not in out]
