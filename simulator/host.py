"""Processor costs of collectives: handling messages, and adding what they carry.

Sockets cost processor time (system calls, copies, checksums, interrupts, wake-ups) at both ends of
a message. A process (a rank or a parameter server) works in a collective, over its message ends
(sent or received) and their bytes,

    w = per_call + ends x per_message / 2 + bytes x per_byte / 2

on one core at a time. The processes of a machine share its cores, so a collective needs at least

    W = max(w of the busiest process, sum of w / cores of the busiest machine)

Network and processors are two stations, and each message in flight is at one of them. With N the
time of the network alone, k messages in flight and exponential service times, the closed queueing
network (Gordon and Newell 1967; Buzen 1973) takes

    T(N, W) = (N^k + N^(k-1) W + ... + W^k) / (N^(k-1) + N^(k-2) W + ... + W^(k-1))

This is N + W for k = 1 (no overlap) and max(N, W) for infinite k; Gloo's rings have k = 2. C is the
time to copy results out of the library's own buffer (of the busiest process or machine) plus
`dispatch` (queueing, waking a thread, waiting for a device), so

    exit[r] = e + T(exit[r] without host - e, W) + C      e: when the last rank enters

T grows with N and W, but by no more than they do, so later entries never give earlier exits.

Assumptions: a machine's other work (passes, compressors) does not slow messages; collectives run
one at a time; a dedicated parameter server's machine equals a node; work done before the last entry
counts as after it; messages inside a node cost as much as others. Rounded once, to picoseconds.

Source: W. Gordon and G. Newell 1967 (Operations Research 15, 254-265), "Closed queuing systems with
exponential servers"; J. Buzen 1973 (Communications of the ACM 16, 527-531), "Computational
algorithms for closed queueing networks with exponential servers".

Sums are the gamma of the alpha-beta-gamma model: the rank or parameter server that reduces adds n
bytes in n / rate. The rate depends on the library and its generation, the element type and whether
host or GPU adds, not on the size; no core is shared. Gloo adds on the host, one thread per
collective: float32 with vector instructions, half precision, in builds without better code, at a
hundredth of that rate. NCCL adds on the GPU, which its tuner's bandwidths include.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.fields import BytesPerSecond, Limits, RangeOf, Seconds, Setting
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, Times

Count = NDArray[np.int64]
MANY = 4096  # more cores than the processes of any machine can use
Devices = int | tuple[int, ...]
"""Number of devices of every node, or of each one. Ranks are numbered node by node."""


def number_of_ranks(nodes: int, devices: Devices) -> int:
    """Return the number of devices of all nodes."""
    return nodes * devices if isinstance(devices, int) else sum(devices)


def node_of_ranks(ranks: int, devices: Devices) -> Count:
    """Return the node of each rank, `[p]`."""
    if isinstance(devices, int):
        return np.arange(ranks, dtype=np.int64) // devices
    return np.repeat(np.arange(len(devices), dtype=np.int64), devices)


def first_ranks(nodes: int, devices: Devices) -> Count:
    """Return the first rank of each node, `[nodes]`."""
    if isinstance(devices, int):
        return np.arange(nodes, dtype=np.int64) * devices
    return np.cumsum((0, *devices[:-1]), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Messages and bytes of each process in one collective: ranks first, then parameter servers."""

    ends: Count  # `[n]`: messages sent plus received
    nbytes: Count  # `[n]`: bytes sent plus received
    machines: Count  # `[n]`: machine of each process
    copied: int = 0  # bytes that each rank copies out of the library's own buffer

    @staticmethod
    def none(ranks: int, devices: Devices) -> Traffic:
        """Return traffic without messages."""
        return Traffic.of_ranks([0] * ranks, [0] * ranks, devices)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            ends=self.ends + other.ends,
            nbytes=self.nbytes + other.nbytes,
            machines=self.machines,
            copied=self.copied + other.copied,
        )

    @staticmethod
    def of_ranks(
        ends: Count | Sequence[int],
        nbytes: Count | Sequence[int],
        devices: Devices,
        *,
        copied: int = 0,
    ) -> Traffic:
        """Return the traffic of ranks `[p]`, numbered node by node."""
        number = node_of_ranks(len(ends), devices)
        ends, nbytes = (np.asarray(each, dtype=np.int64) for each in (ends, nbytes))
        return Traffic(ends=ends, nbytes=nbytes, machines=number, copied=copied)

    @property
    def messages(self) -> int:
        """Number of messages of all processes."""
        return int(self.ends.sum()) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Processor time of a host for one collective, picoseconds."""

    concurrent: Picoseconds = 0  # W: during the network's transfers
    after: Picoseconds = 0  # C: after the transfers, `dispatch` included


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Setting):
    """Processor costs of messages."""

    cores: Annotated[int, Limits(least=1, most=MANY)] = MANY
    """Cores of one machine; `MANY`: one per process."""
    per_message: Seconds = Fraction(0)  # seconds per message, both ends together
    per_message_range: RangeOf[Seconds] = None
    per_byte: Seconds = Fraction(0)  # seconds per byte of a message, both ends together
    per_byte_range: RangeOf[Seconds] = None
    per_call: Seconds = Fraction(0)  # seconds per process and collective
    per_call_range: RangeOf[Seconds] = None
    per_copied_byte: Seconds = Fraction(0)
    """Seconds per byte copied out of the library's own buffer."""
    per_copied_byte_range: RangeOf[Seconds] = None
    per_received_byte: Seconds = Fraction(0)
    """Seconds per byte from the arrival of a segment of Gloo's ring all-reduce until its receiver
    can announce the next one: copies out of the socket, and two threads that wake each other."""
    per_received_byte_range: RangeOf[Seconds] = None
    dispatch: Seconds = Fraction(0)
    """Seconds before a collective's first message plus those after its last."""
    dispatch_range: RangeOf[Seconds] = None
    in_flight: Annotated[int, Limits(least=1, most=64)] = 2
    """Number of a rank's messages in flight, in its processors or in the network."""
    ranks: Literal["node", "all"] = "node"
    """node: each node is a machine; all: one machine carries all ranks (containers)."""

    def work(self, traffic: Traffic) -> Work:
        """Return the host's work in a collective."""
        on = traffic.machines if self.ranks == "node" else np.zeros_like(traffic.machines)
        copies = self.copying(traffic.copied, int(np.bincount(on).max()))
        concurrent = self._concurrent(traffic, on) if self.interleaved else 0
        return Work(concurrent=concurrent, after=copies + round(self.dispatch * PS_PER_SECOND))

    @property
    def interleaved(self) -> bool:
        """Whether messages cost processor time while others are in flight."""
        return any((self.per_message, self.per_byte, self.per_call))

    def _concurrent(self, traffic: Traffic, on: Count) -> Picoseconds:
        alike = Counter(
            zip(on.tolist(), traffic.ends.tolist(), traffic.nbytes.tolist(), strict=True)
        )
        most, by_machine = Fraction(0), dict.fromkeys(set(on.tolist()), Fraction(0))
        for (machine, ends, nbytes), processes in alike.items():
            own = self.per_call + (ends * self.per_message + nbytes * self.per_byte) / 2
            most = max(most, own)
            by_machine[machine] += processes * own
        most = max(most, max(by_machine.values()) / self.cores)
        return round(most * PS_PER_SECOND)

    def copying(self, nbytes: int, processes: int) -> Picoseconds:
        """Return C for `processes` of one machine that copy `nbytes` bytes each."""
        turns = max(Fraction(1), Fraction(processes, self.cores))
        return round(nbytes * self.per_copied_byte * turns * PS_PER_SECOND)

    def combined_time(self, network: Picoseconds, work: Picoseconds) -> Picoseconds:
        """Return T for N = `network` and W = `work`, to the nearest picosecond, half up."""
        if network <= 0 or work <= 0:
            return max(network, 0) + work
        under, over, power = 0, 1, 1
        for _ in range(self.in_flight):
            power *= work
            under, over = over, network * over + power
        return (2 * over + under) // (2 * under)

    def exit_times(self, starts: Times, finishes: Times, work: Work) -> Times:
        """Return exit times `[p]` with the host's work, from those of the network alone."""
        if not work.concurrent:
            return finishes + work.after if work.after else finishes
        last = int(starts.max())
        known = {
            exit_: last + self.combined_time(exit_ - last, work.concurrent) + work.after
            for exit_ in set(finishes.tolist())
        }
        return np.array([known[exit_] for exit_ in finishes.tolist()], dtype=np.int64)


PRICES = tuple(
    each.name.removesuffix("_range") for each in fields(Host) if each.name.endswith("_range")
)
"""Fields of `Host` in seconds."""


_Rate = BytesPerSecond | None  # rate of additions; None: they take no time


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums(Setting):
    """Bytes per second that are added, by element type, named as in torch."""

    float64: _Rate = None
    float64_range: RangeOf[BytesPerSecond] = None
    float32: _Rate = None
    float32_range: RangeOf[BytesPerSecond] = None
    float16: _Rate = None
    float16_range: RangeOf[BytesPerSecond] = None
    bfloat16: _Rate = None
    bfloat16_range: RangeOf[BytesPerSecond] = None
    int64: _Rate = None
    int64_range: RangeOf[BytesPerSecond] = None
    int32: _Rate = None
    int32_range: RangeOf[BytesPerSecond] = None
    int8: _Rate = None
    int8_range: RangeOf[BytesPerSecond] = None
    uint8: _Rate = None
    uint8_range: RangeOf[BytesPerSecond] = None

    def gamma(self, dtype: str) -> Fraction:
        """Return the seconds to add a byte; an unlisted type counts as float32."""
        rate: _Rate = getattr(self, dtype if dtype in DTYPES else "float32")
        return Fraction(0) if rate is None else 1 / rate


DTYPES = tuple(each.name for each in fields(Sums) if not each.name.endswith("_range"))
"""Types that Gloo reduces."""
