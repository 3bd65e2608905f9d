"""What does one training step of a small network cost in exchanges, method by method?

    python tests/benchmarks/training_step.py [--workers 8,64] [--only NAME,NAME] [--profile]

All workers of a bucket of 38,522 elements in ten tensors (a convolutional network for the 8 x 8
digits) run one lockstep exchange a step, one thread, without forward and backward passes. CPU time
in milliseconds, of all workers together: the lowest of each kind of step, weighted by how often it
occurs in a period. Gradients are N(0, 1) exp(.8 N(0, 1)) 1e-3, seed 0. Beside it the yardstick of
the same run, a fixed piece of interpreted work: 2.3 ms on a machine that does nothing else.
`--profile` prints where the time of the named methods goes instead.
"""

import argparse
import cProfile
import pstats
import time
from collections import Counter, defaultdict

import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import REGISTRY, check_parameters, compressor_class
from gcsim.traces.timing.allocator import keep_freed_memory
from tests.compressors.shared import layout_of_shapes

SHAPES: tuple[tuple[int, ...], ...] = (
    (10,), (10, 176), (176,), (176, 128), (32,), (32, 32, 3, 3), (32,), (32, 16, 3, 3),
    (16,), (16, 1, 3, 3),
)  # fmt: skip
"""Linear and convolutional layers, weights and biases, in the order in which they get ready."""
STEPS = 12
"""At least so many are timed."""
MOST_STEPS = 102
"""Longer periods are not timed whole."""
SETS = 4
"""Different gradients of a worker."""


def yardstick() -> float:
    """CPU seconds of a fixed piece of interpreted work: how fast the machine is at the moment."""
    started = time.process_time()
    for _ in range(100):
        sum(i for i in range(1000))
    return time.process_time() - started


class Training:
    """Workers of one method with their gradients."""

    timed = True

    def __init__(self, name: str, workers: int) -> None:
        self.cls, self.parameters = compressor_class(name), check_parameters(name, {})
        self.workers = workers
        layout = layout_of_shapes(SHAPES)
        generator = torch.Generator().manual_seed(0)
        self.buckets = []
        for _ in range(SETS):
            row = []
            for _ in range(workers):
                spread = torch.randn(layout.numel, generator=generator).mul_(0.8).exp_()
                gradient = torch.randn(layout.numel, generator=generator).mul_(spread).mul_(1e-3)
                moment = gradient.square() * 2 if self.cls.requires else None
                row.append(Bucket(layout=layout, gradient=gradient, second_moment=moment))
            self.buckets.append(row)
        self.first = self.cls.warmup_steps(self.parameters)
        self.steps = max(STEPS, min(self.cls.period(self.parameters) + 2, MOST_STEPS))

    def run(self) -> dict[str, list[float]]:
        """CPU seconds of each step, by kind, from empty memories."""
        team = [
            self.cls(Worker(rank=rank, count=self.workers, seed=0), self.parameters)
            for rank in range(self.workers)
        ]
        found: dict[str, list[float]] = defaultdict(list)
        self.yardsticks = []
        for number in range(self.steps):
            step, row = self.first + number, self.buckets[number % SETS]
            started = time.process_time()
            with torch.no_grad():
                lockstep([participate(w, b, step) for w, b in zip(team, row, strict=True)])
            found[self.cls.phase(self.parameters, step)].append(time.process_time() - started)
            if self.timed:
                self.yardsticks.append(yardstick())
        return found

    def milliseconds(self) -> dict[str, float]:
        """Of a step, by kind, and of the mean step as "mean"."""
        found = {kind: 1e3 * min(times) for kind, times in self.run().items()}
        period = self.cls.period(self.parameters)
        steps = range(self.first, self.first + period)
        count = Counter(self.cls.phase(self.parameters, step) for step in steps)
        known = {kind: number for kind, number in count.items() if kind in found}
        mean = sum(found[kind] * number for kind, number in known.items()) / sum(known.values())
        return {**found, "mean": mean}


def main() -> None:
    """The table."""
    options = argparse.ArgumentParser()
    options.add_argument("--workers", default="8,64")
    options.add_argument("--only", default=",".join(REGISTRY))
    options.add_argument("--profile", action="store_true")
    options.add_argument("--sort", default="tottime")
    given = options.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    counts = [int(text) for text in given.workers.split(",")]
    for name in given.only.split(","):
        Training(name, 2).run()  # compiles the loops
        if given.profile:
            training = Training(name, counts[0])
            training.timed = False
            profile = cProfile.Profile()
            profile.runcall(training.run)
            pstats.Stats(profile).sort_stats(given.sort).print_stats(45)
            continue
        cells = []
        for count in counts:
            training = Training(name, count)
            found = training.milliseconds()
            rest = {kind: ms for kind, ms in found.items() if kind != "mean"}
            rare = "" if len(rest) < 2 else ", ".join(f"{k} {ms:.1f}" for k, ms in rest.items())
            now = 1e3 * min(training.yardsticks)
            cells.append(f"{found['mean']:.2f}{f' ({rare})' if rare else ''} | {now:.2f}")
        print(f"| `{name}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
