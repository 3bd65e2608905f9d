"""What do most tests of the simulator simulate? Two usual links, a device, a cluster of both."""

from collections.abc import Generator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import simpy

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import Times
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.devices.device import Device, KernelRate
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Sums
from gcsim.simulator.network.links import Link

Wait = Generator[simpy.Event, Any, None]
"""What a process of a simulation of messages is."""


def link(bandwidth: float | Fraction, latency: float | Fraction = 0, **more: Any) -> Link:
    """Bytes a second, and seconds."""
    return Link(name="test", bandwidth=Fraction(bandwidth), latency=Fraction(latency), **more)


PS = Fraction(1, 10**12)
"""A picosecond, in seconds."""
NETWORK = link(1_250_000_000, Fraction(50, 10**6))
"""10 Gbit/s: 800 ps a byte."""
BUS = link(10**10, Fraction(10, 10**6))
"""100 ps a byte."""
SLOW = link(Fraction(100_000_000, 3), Fraction(1, 1000))
"""30 ns a byte."""
TOY = Device(
    name="toy",
    title="Toy",
    kernels={"streaming": KernelRate(launch=1e-6, bandwidth=1e12, source="test")},
    effective_flop_rate=1e12,
    source="test",
)
"""A byte of a streaming kernel takes 1 ps, a launch 1 us."""


def cluster(nodes: int, devices: int = 1, **more: Any) -> Cluster:
    """Of `NETWORK` and `BUS`; fields of `Collectives` may be given beside those of `Cluster`."""
    chosen = {name: more.pop(name) for name in list(more) if name in Collectives.__slots__}
    usual: dict[str, Any] = {
        "device": TOY,
        "network": NETWORK,
        "intra_node": BUS,
        "collectives": Collectives(),
    }
    given = {**usual, **more}
    given["collectives"] = replace(given["collectives"], **chosen)
    return Cluster(nodes=nodes, devices_per_node=devices, **given)


def called(
    sent: int | Sequence[int], fabric: Fabric, gamma: Fraction = PS * 0, **more: Any
) -> Call:
    """A collective on a fabric; reducing costs `gamma` seconds a byte."""
    of = cluster(fabric.ranks, sums=Sums(float32=1 / gamma if gamma else None))
    each = (sent,) * fabric.ranks if isinstance(sent, int) else tuple(sent)
    return Call(sent=each, cluster=of, known_fabric=fabric, **more)


def times(values: Sequence[int]) -> Times:
    """Picoseconds, by rank."""
    return np.array(values, dtype=np.int64)


def zeros(ranks: int) -> Times:
    """All enter at once."""
    return times([0] * ranks)


def skews(p: int) -> dict[str, list[int]]:
    """When p ranks enter."""
    return {
        "none": [0] * p,
        "one late": [5_000_000_000 * (r == p // 2) for r in range(p)],
        "ascending": [r * 37_000_003 for r in range(p)],
        "descending": [(p - r) * 7_000_001 for r in range(p)],
        "ties": [(r % 2) * 200_000_000 for r in range(p)],
    }


def reduce(nbytes: int, element: int = 4) -> CollectiveRecord:
    """The all-reduce of a vector."""
    return CollectiveRecord(kind="all_reduce", sent=(nbytes,), element=element)


def gather(*sent: int) -> CollectiveRecord:
    """The all-gather of blocks, cycled."""
    return CollectiveRecord(kind="all_gather", sent=sent)
