"""Costs of a machine's processors: messages of collectives, and sums of what was received.

Sockets cost processor time: system calls, copies, checksums, interrupts and wake-ups, at both ends
of a message. The work of a process (a rank, or a parameter server) in a collective is

    w = per_call + ends x per_message / 2 + bytes x per_byte / 2

over the ends of messages that it has (sent or received; a message has two) and their bytes. It
keeps one core busy at a time, and the processes of a machine share its cores, so that a collective
is not done before

    W = the larger one of: w of the busiest process; sum of w / cores, of the busiest machine

Network and processors are two stations, and a message in flight is at one of them: with k messages
in flight in the place of one that leaves another enters, and if service times vary as the
exponential distribution says, the closed network of queues (Gordon and Newell 1967; Buzen 1973)
takes for all messages together

    T(N, W) = (N^k + N^(k-1) W + ... + W^k) / (N^(k-1) + N^(k-2) W + ... + W^(k-1))

where N is what the network alone takes: N + W with one in flight (nothing overlaps), max(N, W) with
infinitely many. k = 2 is what Gloo's rings have in flight.

Then what a library gathers in a buffer of its own is copied to where it is wanted; C is the time of
that, of the busiest process or machine as above, and of `dispatch`: between the call and the first
message, and between the last message and the return, a call waits in a queue, a thread is woken, a
device is waited for. Nothing of that collective goes on meanwhile.

    exit[r] = e + T(exit[r] without host - e, W) + C      e: when the last rank enters

T grows with N and W, never by more than they do: later entries never give earlier exits.

Assumptions: what a machine's processors do elsewhere (passes, compressors) does not slow the
messages; collectives run one at a time; the machine of a dedicated parameter server is like the
nodes; what is done before the last rank enters counts as if it were done after; messages inside a
node cost as much as others. Integer picoseconds, rounded once.

Source: W. Gordon and G. Newell 1967 (Operations Research 15, 254-265), "Closed queuing systems with
exponential servers"; J. Buzen 1973 (Communications of the ACM 16, 527-531), "Computational
algorithms for closed queueing networks with exponential servers".

Sums. The gamma of the alpha-beta-gamma model: n bytes of elements of a type take n / rate, by
whoever reduces: a rank, or the server of an all-reduce through servers. The rate belongs to the
library, its generation, the type, and where it runs. Gloo adds on the host, one thread a
collective: float32 in vector instructions, half precision element by element in software where its
build has nothing better, at a hundredth of the rate. NCCL adds on the GPU; the bandwidths of its
tuner include it.

Assumptions: no core is shared with anything, and the rate does not depend on the size.
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
MANY = 4096
"""Cores that no machine's processes need."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Traffic that the processes of a cluster handle in one collective: ranks, then parameter
    servers."""

    ends: Count
    """`[n]`: messages sent and messages received, added up."""
    nbytes: Count
    """`[n]`: bytes sent and bytes received, added up."""
    machines: Count
    """`[n]`: number of the machine that each process is on."""
    copied: int = 0
    """Bytes that each rank copies out of a buffer of the library's own."""

    @staticmethod
    def none(ranks: int, devices: int) -> Traffic:
        """Traffic without messages."""
        return Traffic.of_ranks([0] * ranks, [0] * ranks, devices)

    def __add__(self, other: Traffic) -> Traffic:
        """Sum of two parts of one collective, of the same processes."""
        return Traffic(
            ends=self.ends + other.ends,
            nbytes=self.nbytes + other.nbytes,
            machines=self.machines,
            copied=self.copied + other.copied,
        )

    @staticmethod
    def of_ranks(
        ends: Count | Sequence[int], nbytes: Count | Sequence[int], devices: int, *, copied: int = 0
    ) -> Traffic:
        """Traffic of ranks `[p]`, counted node by node, `devices` per node."""
        number = np.arange(len(ends), dtype=np.int64) // devices
        ends, nbytes = (np.asarray(each, dtype=np.int64) for each in (ends, nbytes))
        return Traffic(ends=ends, nbytes=nbytes, machines=number, copied=copied)

    @property
    def messages(self) -> int:
        """Messages of all processes."""
        return int(self.ends.sum()) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of a host for one collective, picoseconds."""

    beside: Picoseconds = 0
    """W: beside the network's transfers."""
    after: Picoseconds = 0
    """C: when they are done, and before they begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Setting):
    """Processors that carry messages."""

    cores: Annotated[int, Limits(least=1, most=MANY)] = MANY
    """Cores of one machine, which its ranks share; `MANY`: one for each process."""
    per_message: Seconds = Fraction(0)
    """Seconds of processor time a message, at both ends together, whatever its size."""
    per_message_range: RangeOf[Seconds] = None
    per_byte: Seconds = Fraction(0)
    """Seconds of processor time a byte of a message, at both ends together."""
    per_byte_range: RangeOf[Seconds] = None
    per_call: Seconds = Fraction(0)
    """Seconds of processor time a process and collective, whatever it sends."""
    per_call_range: RangeOf[Seconds] = None
    per_copied_byte: Seconds = Fraction(0)
    """Seconds of processor time a byte that is copied out of a buffer of the library's own."""
    per_copied_byte_range: RangeOf[Seconds] = None
    per_received_byte: Seconds = Fraction(0)
    """Seconds a byte from the arrival of a segment of Gloo's ring all-reduce until its receiver can
    announce the next: the last copies out of the socket, two threads that wake each other."""
    per_received_byte_range: RangeOf[Seconds] = None
    dispatch: Seconds = Fraction(0)
    """Seconds of a collective before its first message and after its last, together."""
    dispatch_range: RangeOf[Seconds] = None
    in_flight: Annotated[int, Limits(least=1, most=64)] = 2
    """Messages of a rank that are under way at a time, in its processors or in the network."""
    ranks: Literal["node", "all"] = "node"
    """node: each node is a machine with cores of its own; all: one machine carries all ranks, in
    containers or network name spaces."""

    def work(self, traffic: Traffic) -> Work:
        """Work of the host in a collective."""
        on = traffic.machines if self.ranks == "node" else np.zeros_like(traffic.machines)
        copies = self.copying(traffic.copied, int(np.bincount(on).max()))
        beside = self._beside(traffic, on) if self.interleaved else 0
        return Work(beside=beside, after=copies + round(self.dispatch * PS_PER_SECOND))

    @property
    def interleaved(self) -> bool:
        """Whether anything costs a processor time while messages are on their way."""
        return any((self.per_message, self.per_byte, self.per_call))

    def _beside(self, traffic: Traffic, on: Count) -> Picoseconds:
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
        """C: so many processes of a machine copy so many bytes each."""
        turns = max(Fraction(1), Fraction(processes, self.cores))
        return round(nbytes * self.per_copied_byte * turns * PS_PER_SECOND)

    def together(self, network: Picoseconds, work: Picoseconds) -> Picoseconds:
        """T of N = `network` and W = `work`, nearest picosecond, halves upwards."""
        if network <= 0 or work <= 0:
            return max(network, 0) + work
        under, over, power = 0, 1, 1
        for _ in range(self.in_flight):
            power *= work
            under, over = over, network * over + power
        return (2 * over + under) // (2 * under)

    def finishes(self, starts: Times, finishes: Times, work: Work) -> Times:
        """Exit times `[p]` with the host, from those that the network alone would give."""
        if not work.beside:
            return finishes + work.after if work.after else finishes
        last = int(starts.max())
        known = {
            exit_: last + self.together(exit_ - last, work.beside) + work.after
            for exit_ in set(finishes.tolist())
        }
        return np.array([known[exit_] for exit_ in finishes.tolist()], dtype=np.int64)


PRICES = tuple(
    each.name.removesuffix("_range") for each in fields(Host) if each.name.endswith("_range")
)
"""Fields of `Host` in seconds."""


_Rate = BytesPerSecond | None
"""Rate of additions; None: they take no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums(Setting):
    """The rates by type of the elements, named as torch names them."""

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
        """Seconds that the addition of a byte takes; a type that is not listed is as float32."""
        rate: _Rate = getattr(self, dtype if dtype in DTYPES else "float32")
        return Fraction(0) if rate is None else 1 / rate


DTYPES = tuple(each.name for each in fields(Sums) if not each.name.endswith("_range"))
"""The types that Gloo reduces."""
