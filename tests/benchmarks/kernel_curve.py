"""How does the cost of simulating a collective grow with the number of ranks?

CPU milliseconds of one call, all ranks entering at different times, the record and the cluster
being known from a call before. The exponent is the slope of a straight line through the last
points in logarithms: 1 where a call costs O(p), 2 where it costs O(p^2).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import CollectiveMemo
from tests.benchmarks.synthetic_traffic import cluster, late, unlike

RANKS = (8, 64, 512, 1000, 4096, 10_000)
PATIENCE = 10.0
"""Seconds that a call may take, by the line through the points before."""


def curve(record: CollectiveRecord, where: Cluster, *, calls: int = 3) -> float:
    """CPU seconds of a call; the lowest of some, each with other entry times."""
    execute = CollectiveMemo(where)
    random = np.random.default_rng(0)
    entries = [random.integers(0, 10**9, where.workers) for _ in range(calls + 1)]
    execute(record, entries[0], 0, 1)
    times = []
    for number, entry in enumerate(entries[1:]):
        begin = time.process_time()
        execute(record, entry, 0, number + 2)
        times.append(time.process_time() - begin)
    return min(times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A collective on some links."""

    record: CollectiveRecord
    cluster: Callable[[int], Cluster]

    def costs(self) -> dict[int, float]:
        """By ranks, CPU seconds; without those that would take too long."""
        found: dict[int, float] = {}
        for p in RANKS:
            if len(found) > 1:
                last, before = list(found)[-1], list(found)[-2]
                grows = np.log(found[last] / found[before]) / np.log(last / before)
                if found[last] * (p / last) ** np.clip(grows, 1, 2.2) > PATIENCE:
                    break
            found[p] = max(curve(self.record, self.cluster(p)), 1e-7)
        return found

    def line(self, name: str) -> str:
        """A row of the table."""
        found = self.costs()
        ranks, costs = np.log(np.array(list(found.items())[-3:])).T
        slope = np.polyfit(ranks, costs, 1)[0] if len(found) > 1 else np.nan
        cells = [f"{found[p] * 1e3:.3g}" if p in found else "-" for p in RANKS]
        return f"| {name} | " + " | ".join(cells) + f" | {slope:.2f} |"


def head() -> tuple[str, str]:
    """Of the table."""
    return (
        "| collective (ms per call) | " + " | ".join(f"p = {p:,}" for p in RANKS) + " | exponent |",
        "|---|" + "--:|" * (len(RANKS) + 1),
    )


def _changed(
    make: Callable[[int], Cluster], change: Callable[[Cluster], Cluster], ranks: int
) -> Cluster:
    return change(make(ranks))


def _reduce(nbytes: int = 25 * 2**20) -> CollectiveRecord:
    return CollectiveRecord(kind="all_reduce", sent=(nbytes,), element=4)


def _gather(*sent: int) -> CollectiveRecord:
    return CollectiveRecord(kind="all_gather", sent=sent)


def _on(devices: int = 1, **collectives: object) -> Callable[[int], Cluster]:
    return lambda p: cluster(p // devices, devices, replace(Collectives(), **collectives))  # type: ignore[arg-type]


UNEQUAL = (2500, 2600, 2700, 2801)
_REDUCTIONS = (
    *("halving_doubling", "recursive_doubling", "binomial_tree", "double_tree"),
    *("gloo_ring", "nccl_ring_simple", "nccl_tree_simple"),
)
_GATHERS = ("pipelined_ring", "recursive_doubling", "bruck", "gloo_ring")
_OTHERS = {
    "parameter server, one": (
        CollectiveRecord(kind="push_pull", sent=(820_000,), pulled=820_000),
        _on(servers=1),
    ),
    "parameter server, eight": (
        CollectiveRecord(kind="push_pull", sent=(820_000,), pulled=820_000),
        _on(servers=8),
    ),
    "pairwise all-to-all": (CollectiveRecord(kind="all_to_all", sent=(820_000,)), _on()),
    "tree merge": (CollectiveRecord(kind="tree_merge", sent=(820_000,), pulled=820_000), _on()),
}


def _kernels() -> dict[str, Kernel]:
    plain = {
        "ring all-reduce": (_reduce(), _on()),
        "ring all-gather, equal": (_gather(250_000), _on()),
        "ring all-gather, four sizes": (_gather(*UNEQUAL), _on()),
        "hierarchical all-reduce, 8 per node": (_reduce(), _on(8, all_reduce="hierarchical")),
        **{
            f"{name.replace('_', ' ')} all-reduce": (_reduce(), _on(all_reduce=name))
            for name in _REDUCTIONS
        },
        **{
            f"{name.replace('_', ' ')} all-gather": (_gather(*UNEQUAL), _on(all_gather=name))
            for name in _GATHERS
        },
        **_OTHERS,
    }
    found: dict[str, Kernel] = {}
    for name, (record, make) in plain.items():
        found[name] = Kernel(record=record, cluster=make)
        for suffix, change in {"a link each": unlike, "late messages": late}.items():
            changed = partial(_changed, make, change)
            found[f"{name}; {suffix}"] = Kernel(record=record, cluster=changed)
    return found


KERNELS = _kernels()
