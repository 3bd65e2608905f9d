"""At what rate does one thread add what it has received? For docs/model/collectives.md.

python tests/benchmarks/addition_rate.py

Bytes are those of what is added (`cluster.sums`); three times as many pass the memory. Processor
time, the lowest of several: torch's own addition of float32, and Gloo's by type.
"""

import time

import torch

from gcsim.scenarios.calibration.device import time_sums

REPETITIONS = 9
AT_LEAST = 1 << 27
"""Bytes a repetition."""


def torchs(nbytes: int) -> float:
    """Bytes of float32 that torch adds a second."""
    own, received = torch.rand(2, nbytes // 4)
    calls, best = max(3, AT_LEAST // nbytes), float("inf")
    for _ in range(REPETITIONS):
        begin = time.process_time()
        for _ in range(calls):
            own.add_(received)
        best = min(best, (time.process_time() - begin) / calls)
    return nbytes / best


def main() -> None:
    """Print a line for each size."""
    torch.set_num_threads(1)
    for power in (19, 20, 23, 25):
        nbytes = 1 << power
        gloo = (f"{dtype} {rate / 1e9:5.2f}" for dtype, rate in time_sums(nbytes=nbytes).items())
        print(f"{nbytes >> 10:6} KiB, GB/s: torch {torchs(nbytes) / 1e9:5.2f}; Gloo", *gloo)


if __name__ == "__main__":
    main()
