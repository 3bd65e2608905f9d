"""What does each scheduler of ddl-benchmarks exchange, and when? Groups of tensors as plain data.

| scheduler | a group | a message |
|---|---|---|
| BSP-A2A, BSP-PS | all tensors (threshold 512 Mi elements) | all-reduce; parts of 4,096,000 bytes |
| WFBP-A2A | one tensor (Horovod without fusion) | an all-reduce each |
| MG-WFBP | what its rule merges (below) | an all-reduce each |
| ByteScheduler-A2A | one tensor | all-reduces of 4,000,000 elements at most |
| WFBP-PS, ByteScheduler-PS | one tensor | parts of 4,096,000 bytes at most |

MG-WFBP postpones a message until the next tensor is there when the exchange before it still runs
then, or when waiting costs less than a message's start-up, and whenever it has fewer than 8192
elements (Shi et al., "MG-WFBP", INFOCOM 2019, algorithm 1, as mgwfbp/hv_distributed_optimizer.py
does it). It expects a + b n seconds of n bytes, by the constants of that file, which are not of the
cluster that was measured.

Source of thresholds and partitions: benchmarks.py, byteps/launch.sh, bytescheduler/
horovod_mpi_cj.sh of the repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gcsim.analysis.validation.suites.ddl_benchmarks.rows import SERVED, Network, Scheduler
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds

PARTITION = 4_096_000
"""Bytes: BYTEPS_PARTITION_BYTES."""
SCHEDULED = 4_000_000
"""Elements: BYTESCHEDULER_PARTITION."""
SMALL = 8192
"""Elements that MG-WFBP never sends alone."""
EXPECTED: dict[bool, dict[int, tuple[float, float]]] = {
    False: {
        4: (4.204298980348825e-05, 2.0589360830118177e-10),
        8: (0.0005230272768511732, 8.570746975492128e-10),
        16: (0.0009080981007148093, 7.395651186836712e-10),
        32: (0.0013476410788581382 * 3, 8.643300782166769e-10),
    },
    True: {
        4: (4.204298980348825e-05, 2.0589360830118177e-10),
        8: (9.75367204301171e-05, 3.0568230536676206e-10),
        16: (0.00023583677659915685 * 3, 4.0594787739537565e-10),
        32: (0.00040632079996292579, 1.5 * 3.2713239529771973e-10),
    },
}
"""By whether the flag for fast networks is set (it is for both of 100 Gbit/s), and by workers:
seconds, and seconds a byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tensors that are exchanged together."""

    tensors: int
    elements: int
    ready: Picoseconds
    """From the start of the backward pass: when its last tensor is there."""
    messages: tuple[int, ...]
    """Bytes."""
    merged: bool
    """Tensors are copied into a buffer."""


def groups(
    scheduler: Scheduler,
    network: Network,
    workers: int,
    elements: Sequence[int],
    ready: Sequence[Picoseconds],
) -> list[Group]:
    """In the order of the backward pass; `elements` and `ready` by tensor, in that order."""
    if scheduler in {"BSP-A2A", "BSP-PS"}:
        ends = [len(elements)]
    elif scheduler == "MG-WFBP":
        expected = EXPECTED[network != "10GbE"][workers]
        ends = merged_ends(elements, ready, *expected)
    else:
        ends = list(range(1, len(elements) + 1))
    most = None
    if scheduler in SERVED:
        most = PARTITION
    elif scheduler == "ByteScheduler-A2A":
        most = 4 * SCHEDULED
    found = []
    for start, end in zip([0, *ends], ends, strict=False):
        nbytes = 4 * sum(elements[start:end])
        found.append(
            Group(
                tensors=end - start,
                elements=nbytes // 4,
                ready=ready[end - 1],
                messages=_cut(nbytes, most),
                merged=scheduler in {"BSP-A2A", "BSP-PS", "MG-WFBP"},
            )
        )
    return found


def merged_ends(
    elements: Sequence[int], ready: Sequence[Picoseconds], start_up: float, per_byte: float
) -> list[int]:
    """Behind which tensors MG-WFBP sends; the last one is always among them."""
    ends, free, size = [], 0.0, 0
    last = len(elements) - 1
    for place in range(last):
        size += elements[place]
        start = max(free, ready[place] / PS_PER_SECOND)
        end = start + start_up + 4 * per_byte * size
        following = ready[place + 1] / PS_PER_SECOND
        waits = following < end and following - start < start_up
        if not waits and size >= SMALL:
            ends.append(place + 1)
            free, size = end, 0
    return [*ends, last + 1]


def _cut(nbytes: int, most: int | None) -> tuple[int, ...]:
    """A message, in parts of `most` bytes at most."""
    if most is None:
        return (nbytes,)
    whole, rest = divmod(nbytes, most)
    return (most,) * whole + ((rest,) if rest else ())
