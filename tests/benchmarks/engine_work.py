"""The work that `engine_speed.py` times: sweeps, iterations of many workers, and what they need.

The sweep is sixteen compressors on 1, 2, 4, ..., 64 workers with eleven buckets and a hundred
iterations each; where something is random, all of them are simulated.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import CollectiveMemo
from gcsim.simulator.plans import Planner
from gcsim.simulator.predict import predict
from gcsim.simulator.steps.noise import slowdowns
from gcsim.simulator.steps.vectors import simulate
from gcsim.simulator.training import Noise, Training
from tests.benchmarks.kernel_curve import KERNELS, curve
from tests.benchmarks.synthetic_traffic import (
    ELEVEN,
    cluster,
    compute,
    late,
    messages,
    profile,
    profiles,
    unlike,
)

SIXTEEN = {
    "dense": 4,
    "gather": 4,
    "lengths and gather": 3,
    "push-pull": 1,
    "two reductions": 2,
    "maximum and gather": 1,
    "local": 1,
}
WORKERS = (1, 2, 4, 8, 16, 32, 64)
ITERATIONS = 100
NOISE = Noise(variation=Fraction(1, 10))


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def yardstick() -> float:
    """CPU seconds of a fixed amount of numpy's work; the lowest of three."""

    def rows() -> None:
        state, more = np.zeros(64, dtype=np.int64), np.arange(64, dtype=np.int64)
        for _ in range(66_667):
            state = np.maximum(np.roll(state, 1) if state[0] < 0 else state + more, state) - 1

    return min(cpu(rows) for _ in range(3))


def own_links(nodes: int) -> Cluster:
    return unlike(cluster(nodes))


def jittery(nodes: int) -> Cluster:
    return late(cluster(nodes))


def sweep(make: Callable[[int], Cluster], training: Training) -> float:
    """The time of the sweep; what is compiled or imported at first is not counted."""
    for way in SIXTEEN:
        few = replace(training, iterations=2)
        predict(profile(way, ELEVEN, 1), make(32), compute(ELEVEN), training=few, spans=False)
    traffic = profiles(SIXTEEN, ELEVEN, 1)
    return cpu(
        lambda: [
            predict(one, make(p), compute(ELEVEN), training=training, spans=False)
            for one in traffic
            for p in WORKERS
        ]
    )


def sweep_messages() -> int:
    """Of the collectives of the whole sweep."""
    records = [
        record
        for one in profiles(SIXTEEN, ELEVEN, 1)
        for exchange in one.phases[0].steps[0].exchanges
        for record in exchange.collectives
    ]
    return ITERATIONS * sum(messages(records, p) for p in WORKERS)


def iterations(make: Callable[[int], Cluster], ranks: int, count: int, *, noise: bool) -> float:
    """Seconds an iteration with eleven all-reduces, by the vector engine; the lowest of three."""
    where = make(ranks)
    step = profile("dense", ELEVEN, 1).phases[0].steps[0]
    plan = Planner(where, compute(ELEVEN), Training()).plan(step)
    execute = CollectiveMemo(where)

    def simulated(number: int) -> None:
        simulate(
            plan,
            ranks=ranks,
            execute=execute,
            iterations=number,
            slowdown=lambda i: slowdowns(NOISE, 0, i, ranks) if noise else None,
        )

    simulated(1)
    return min(cpu(lambda: simulated(count)) for _ in range(3)) / count


def ring_messages(ranks: int) -> int:
    """Of one iteration."""
    return len(ELEVEN) * 2 * ranks * (ranks - 1)


def own_links_by_halves(nodes: int) -> Cluster:
    return unlike(cluster(nodes, 1, Collectives(all_reduce="halving_doubling")))


def one_collective(nodes: int, devices: int, algorithm: Any) -> float:
    """Seconds of an all-reduce of 25 MiB that all enter at different times."""
    where = unlike(cluster(nodes, devices, Collectives(all_reduce=algorithm)))
    return curve(KERNELS["ring all-reduce"].record, where)


def repeated(ranks: int) -> float:
    """Seconds an iteration when those that repeat themselves are not simulated again."""
    traffic = profile("dense", ELEVEN, 1)
    work = partial(predict, traffic, cluster(ranks), compute(ELEVEN), spans=False)
    work()
    return cpu(work) / ITERATIONS


def high_water() -> int:
    """Bytes: the largest resident set of this process. (`ru_maxrss` begins with the parent's.)"""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def peak(what: str) -> float:
    """MB beyond the import's, of a fresh process that simulates ten iterations of 10,000."""
    command = [sys.executable, str(Path(__file__).with_name("engine_speed.py")), "--memory", what]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


PEAKS: dict[str, Callable[[], float]] = {
    "equal links": partial(iterations, cluster, 10_000, 10, noise=False),
    "equal links, compute noise": partial(iterations, cluster, 10_000, 10, noise=True),
    "a link each, halving-doubling": partial(
        iterations, own_links_by_halves, 10_000, 10, noise=True
    ),
}
