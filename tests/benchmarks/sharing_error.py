"""How far is counting messages from a fluid, and what does each cost? docs/model/sharing.md.

    python tests/benchmarks/sharing_error.py       # Markdown; a minute

Error: counted over fluid, less 1, of the time from the last rank's entry to the last rank's exit.
Entries are equal, or drawn evenly from 0 to a multiple of a round's time: what the collective takes
with equal entries and counted shares, over its number of rounds. CPU time: `time.process_time`, the
lowest of several, prepared before.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from gcsim.scenarios import catalog
from gcsim.simulator.clock import Times
from gcsim.simulator.cluster import Racks, Sharing
from gcsim.simulator.collectives.rounds.alltoall_allgather_allreduce import (
    alltoall_allgather_allreduce,
)
from gcsim.simulator.collectives.rounds.binomial_tree_allreduce import binomial_tree_allreduce
from gcsim.simulator.collectives.rounds.bruck_allgather import bruck_allgather
from gcsim.simulator.collectives.rounds.gather_broadcast_allgather import gather_broadcast_allgather
from gcsim.simulator.collectives.rounds.halving_doubling_allreduce import halving_doubling_allreduce
from gcsim.simulator.collectives.rounds.pairwise_alltoall import pairwise_alltoall
from gcsim.simulator.collectives.rounds.recursive_doubling_allgather import (
    recursive_doubling_allgather,
)
from gcsim.simulator.collectives.rounds.recursive_doubling_allreduce import (
    recursive_doubling_allreduce,
)
from gcsim.simulator.collectives.rounds.tree_merge import tree_merge
from gcsim.simulator.fabric.rounds import Fabric

RANKS, NBYTES = 16, 8_000_000
DRAWS = 9
SKEWS = (0.0, 0.1, 1.0, 10.0)
"""Rounds."""
CARD, BUS, AIR = (catalog.link(name) for name in ("10gbe", "pcie3_x16", "wifi_802.11ac"))

Kernel = Callable[[Times, int, Fabric], Times]


def blocks(fabric: Fabric) -> list[int]:
    """Of an all-gather: between 80 and 120 % of the mean."""
    mean = NBYTES / fabric.ranks
    return [int(mean * (0.8 + 0.4 * (7919 * rank % 11) / 10)) for rank in range(fabric.ranks)]


def logarithm(ranks: int) -> int:
    """Rounds of most."""
    return (ranks - 1).bit_length()


ALGORITHMS: dict[str, tuple[Kernel, Callable[[int], int]]] = {
    "halving-doubling": (
        lambda entry, n, on: halving_doubling_allreduce(entry, n, on, element=4),
        lambda p: 2 * logarithm(p),
    ),
    "recursive doubling": (recursive_doubling_allreduce, logarithm),
    "binomial tree": (binomial_tree_allreduce, lambda p: 2 * logarithm(p)),
    "all-to-all, all-gather": (
        lambda entry, n, on: alltoall_allgather_allreduce(entry, n, on, element=4),
        lambda p: 2 * (p - 1),
    ),
    "doubling all-gather": (
        lambda entry, _, on: recursive_doubling_allgather(entry, blocks(on), on),
        logarithm,
    ),
    "Bruck": (lambda entry, _, on: bruck_allgather(entry, blocks(on), on), logarithm),
    "gather and broadcast": (
        lambda entry, _, on: gather_broadcast_allgather(entry, blocks(on), on),
        lambda p: 2 * logarithm(p),
    ),
    "all-to-all": (
        lambda entry, n, on: pairwise_alltoall(entry, [n] * on.ranks, on),
        lambda p: p - 1,
    ),
    "tree merge": (
        lambda entry, n, on: tree_merge(entry, [n] * on.ranks, n, on),
        lambda p: 2 * logarithm(p),
    ),
}


def fabric(name: str, ranks: int, sharing: Sharing) -> Fabric:
    """A network by its name in the table."""
    devices, card, racks = 1, CARD, None
    if name.endswith("a node"):
        devices = int(name.split(maxsplit=1)[0])
    elif name == "racks, 2:1":
        rate = 2 * CARD.bandwidth
        racks = Racks(nodes=4, uplink=replace(CARD, bandwidth=rate, latency=Fraction(5, 10**6)))
    elif name == "Wi-Fi":
        card = AIR
    return Fabric(
        nodes=ranks // devices,
        devices=devices,
        cards=[card],
        buses=[BUS],
        racks=racks,
        sharing=sharing,
    )


NETWORKS = ("1 device a node", "2 devices a node", "4 devices a node", "8 devices a node",
            "racks, 2:1", "Wi-Fi")  # fmt: skip


def errors(network: str, algorithm: str, skew: float) -> list[float]:
    """Of all draws."""
    kernel, rounds = ALGORITHMS[algorithm]
    counted, fluid = (fabric(network, RANKS, how) for how in ("counted", "fluid"))
    together = np.zeros(RANKS, dtype=np.int64)
    most = int(kernel(together, NBYTES, counted).max()) / rounds(RANKS) * skew
    random, found = np.random.default_rng(1), []
    for _ in range(DRAWS if skew else 1):
        entry = (random.random(RANKS) * most).astype(np.int64)
        one, other = (int(kernel(entry, NBYTES, on).max() - entry.max()) for on in (counted, fluid))
        found.append(one / other - 1)
    return found


def cell(found: Sequence[float]) -> str:
    """Median and extremes."""
    median = statistics.median(map(abs, found))
    return f"{100 * median:.1f} ({100 * min(found):+.0f} ... {100 * max(found):+.0f})"


def table(names: Sequence[str], of: Callable[[str, float], list[float]]) -> None:
    """One line a name, one column a skew."""
    print("| | equal entries | skew 0.1 rounds | 1 round | 10 rounds |")
    print("|---|---:|---:|---:|---:|")
    for name in names:
        print(f"| {name} | " + " | ".join(cell(of(name, skew)) for skew in SKEWS) + " |")
    print()


def cost_ms(network: str, algorithm: str, ranks: int, sharing: Sharing) -> float:
    """CPU time of a call with entries a round's time apart."""
    kernel, rounds = ALGORITHMS[algorithm]
    together = np.zeros(ranks, dtype=np.int64)
    most = int(kernel(together, NBYTES, fabric(network, ranks, "counted")).max()) / rounds(ranks)
    entry = (np.random.default_rng(1).random(ranks) * most).astype(np.int64)
    on, lowest, began = fabric(network, ranks, sharing), float("inf"), time.process_time()
    kernel(entry, NBYTES, on)
    while time.process_time() - began < 1 or lowest == float("inf"):
        start = time.process_time()
        for _ in range(20 if sharing == "counted" else 1):
            kernel(entry, NBYTES, on)
        spent = time.process_time() - start
        lowest = min(lowest, spent / (20 if sharing == "counted" else 1))
    return lowest * 1e3


def main() -> None:
    known = {
        (network, algorithm, skew): errors(network, algorithm, skew)
        for network in NETWORKS
        for algorithm in ALGORITHMS
        for skew in SKEWS
    }

    def pooled(network: str | None, algorithm: str | None, skew: float) -> list[float]:
        return [
            error
            for (where, what, how), found in known.items()
            if where == (network or where) and what == (algorithm or what) and how == skew
            for error in found
        ]

    print(f"{RANKS} ranks, {NBYTES / 1e6:g} MB; % off: median of absolute values (extremes)\n")
    table(NETWORKS, lambda name, skew: pooled(name, None, skew))
    table(list(ALGORITHMS), lambda name, skew: pooled(None, name, skew))
    print("| CPU ms a call: counted, fluid | p = 8 | 64 | 256 |")
    print("|---|---:|---:|---:|")
    for network, algorithm in (
        ("1 device a node", "halving-doubling"),
        ("8 devices a node", "halving-doubling"),
        ("Wi-Fi", "halving-doubling"),
        ("1 device a node", "all-to-all"),
        ("8 devices a node", "all-to-all"),
    ):
        costs = [
            ", ".join(f"{cost_ms(network, algorithm, p, how):.3g}" for how in ("counted", "fluid"))
            for p in (8, 64, 256)
        ]
        print(f"| {algorithm}, {network} | " + " | ".join(costs) + " |", flush=True)


if __name__ == "__main__":
    main()
