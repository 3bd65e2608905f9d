"""What do a compressor's encoding and decoding cost here, in copies of the tensor?

    python tests/benchmarks/timing.py topk '{"ratio": 0.01}' 10000000 2

One worker exchanges one matrix with itself (N(0, 1) exp(.8 N(0, 1)) 1e-3, seed 0). Encode is all
that it computes before its last collective, decode what comes after (one payload). The yardstick
is `copy_` of the tensor into a warm buffer, in the same run; freed memory is kept, because page
faults would hide everything. The lowest of some rounds counts: others share the machine.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.lockstep import CollectiveRecord, Observer, lockstep
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.traces.timing.allocator import keep_freed_memory
from gcsim.traces.timing.kernels import gradient, matrix_bucket

ROUNDS, SEED = 5, 0
SMALL = 1 << 18
"""Elements that are enough for every loop to run on several threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Of one phase of a method, in copies."""

    phase: str
    encode: float
    decode: float
    bits: float
    """Bits an element that the worker sent, headers included."""
    copy_s: float
    """One copy, seconds."""


class Stopwatch(Observer):
    """An observer that times what lies between collectives."""

    def __init__(self) -> None:
        self.stretches: list[float] = []
        self.sent = 0
        self.served = 0.0

    @contextmanager
    def compute(self, rank: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.stretches.append(time.perf_counter() - start)

    @contextmanager
    def serve(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.served += time.perf_counter() - start

    def collective(self, record: CollectiveRecord) -> None:
        self.sent += record.sent[0]


def copy_seconds(source: torch.Tensor, rounds: int = 10) -> float:
    """The yardstick."""
    target = torch.zeros_like(source)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return best


def timings(name: str, given: dict[str, Any], source: torch.Tensor) -> list[Timing]:
    """One row for each phase of the method, on `source` (float32 `[n]`)."""
    cls, parameters = compressor_class(name), check_parameters(name, given)
    if source.numel() > SMALL:
        timings(name, given, source[:SMALL])  # compiles the loops
    member = cls(Worker(rank=0, count=1, seed=0), parameters)
    n = source.numel()
    bucket = matrix_bucket(source, second_moments=bool(cls.requires))
    best: dict[str, list[float]] = {}
    first = cls.warmup_steps(parameters)
    with torch.no_grad():
        for step in range(first, first + max(ROUNDS, cls.period(parameters) + 1)):
            phase = cls.phase(parameters, step)
            watch = Stopwatch()
            lockstep([member.exchange(bucket, step)], watch)
            *before, after = watch.stretches
            now = [sum(before), after, 8 * watch.sent / n]
            known = best.setdefault(phase, now)
            best[phase] = [min(known[0], now[0]), min(known[1], now[1]), now[2]]
            if step - first > 4 * ROUNDS:
                break
    copy = copy_seconds(source)
    return [
        Timing(phase=phase, encode=encode / copy, decode=decode / copy, bits=bits, copy_s=copy)
        for phase, (encode, decode, bits) in best.items()
    ]


if __name__ == "__main__":
    keep_freed_memory()
    defaults = ["topk", "{}", "10000000", "2"]
    name, given, n, threads = sys.argv[1:] + defaults[len(sys.argv) - 1 :]
    torch.set_num_threads(int(threads))
    for row in timings(name, json.loads(given), gradient(int(n), SEED)):
        print(
            f"{name} {row.phase}: encode {row.encode:.2f}, decode {row.decode:.2f} copies, "
            f"{row.bits:.4f} bits/element"
        )
