"""At what rate does one thread add received float32 to its own? The figures of docs/model.md.

python tests/benchmarks/addition_rate.py

Bytes are those of what is added (`cluster.reduction`); three times as many pass the memory. CPU
time, the lowest of several; a repetition handles 128 MiB at least.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

REPETITIONS = 9
AT_LEAST = 1 << 27
"""Bytes."""


def seconds(add: Callable[..., object], *arrays: object, nbytes: int) -> float:
    """Of one call."""
    calls, best = max(3, AT_LEAST // nbytes), float("inf")
    for _ in range(REPETITIONS):
        begin = time.process_time()
        for _ in range(calls):
            add(*arrays)
        best = min(best, (time.process_time() - begin) / calls)
    return best


def main() -> None:
    """Print a line for each size."""
    torch.set_num_threads(1)
    for power in range(16, 27, 2):
        nbytes = 1 << power
        own, received = np.random.default_rng(0).random((2, nbytes // 4), dtype=np.float32)
        tensors = torch.from_numpy(own), torch.from_numpy(received)
        found = {
            "numpy": seconds(np.add, own, received, own, nbytes=nbytes) / nbytes,
            "torch": seconds(torch.Tensor.add_, *tensors, nbytes=nbytes) / nbytes,
        }
        told = (
            f"{name} {1e12 * each:5.1f} ps/B {1e-9 / each:5.1f} GB/s"
            for name, each in found.items()
        )
        print(f"{nbytes // 1024:6} KiB", *told, sep="   ")


if __name__ == "__main__":
    main()
