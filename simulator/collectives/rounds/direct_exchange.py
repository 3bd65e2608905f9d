"""Exchange of every rank with every other, one partner at a time.

In step s of p - 1, rank r sends to rank r + s and receives from rank r - s (mod p). A step starts
when the messages of the previous one have been sent and received (and reduced).

    ready' = max(ready + serialisation, arrival from rank r - s) + reduction

Messages from a node's devices to other nodes share its NIC in each step. A compiled loop runs all
steps

- with equal nodes and no racks: a message's path then depends only on its step and its sender's
  place in the node, and is the same in all steps in which every message leaves its node;
- with one device per node and no racks, shared medium or protocol's cost: the slower of a message's
  NICs counts, and half of each latency;
- with random delays only if all messages have the same link, and never if links change over time.

Assumptions: those of `fabric/rounds.py`. Step s is a rank's message s - 1, counted from `first`.

Source: pairwise exchange, Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl.
19), sec. 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.simulator.clock import NO_COST, Picoseconds, Times, check_range
from gcsim.simulator.collectives.rings.messages import DRAWN_AT_A_TIME
from gcsim.simulator.collectives.rounds.rounds import Rounds
from gcsim.simulator.fabric.link_table import Bytes, Ranks
from gcsim.simulator.fabric.round_paths import Hops
from gcsim.simulator.fabric.rounds import Fabric, reduction
from gcsim.simulator.host import Devices, Traffic

_WORTH_ITS_MEMORY = 1 << 18  # most messages of a collective that stay prepared


class DirectExchange:
    """Exchange on a fabric, for any entry times."""

    def __init__(
        self, fabric: Fabric, parts: Parts, *, gamma: Fraction = NO_COST, first: int = 0
    ) -> None:
        """Prepare; `gamma`: seconds per received byte to add; `first`: a rank's first message."""
        self._fabric, self._parts, self._gamma, self._first = fabric, parts, gamma, first
        self._loop = CompiledExchange.of(fabric, parts, gamma, first)
        self._rounds: Rounds | None = None
        ranks = fabric.ranks
        few = ranks * (ranks - 1) <= _WORTH_ITS_MEMORY
        if few and (self._loop is None or self._loop.random is not None):
            self._loop = None
            self._rounds = Rounds(fabric, first=first)
            for step in range(1, ranks):
                to = _partner(fabric, step)
                self._rounds.exchange(fabric.everyone, to, self._parts.to(to), gamma)

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        if self._loop is not None:
            return self._loop.execute(starts, key)
        if self._rounds is not None:
            return self._rounds(starts, key)
        ready = starts
        for step in range(1, len(starts)):
            partner = _partner(self._fabric, step)
            ready = self._fabric.exchange(
                ready,
                self._fabric.everyone,
                partner,
                self._parts.to(partner),
                self._gamma,
                key=key,
                message=self._first + step - 1,
            )
            check_range(ready, 0)
        return ready

    def traffic(self, devices: Devices) -> Traffic:
        """Traffic of the ranks, `devices` per node; O(p^2)."""
        everyone, ranks = self._fabric.everyone, self._fabric.ranks
        nbytes = np.zeros(ranks, dtype=np.int64)
        for step in range(1, ranks):
            given = self._parts.to((everyone + step) % ranks)
            nbytes += given + np.roll(given, step)
        ends = np.full(ranks, 2 * (ranks - 1), dtype=np.int64)
        return Traffic.of_ranks(ends, nbytes, devices)

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        more = [each.nbytes for each in (self._loop, self._rounds) if each is not None]
        return 64 * self._fabric.ranks + sum(more)


class TwoExchanges:
    """Two exchanges in sequence."""

    def __init__(self, first: DirectExchange, then: DirectExchange) -> None:
        self._first, self._then = first, then

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        return self._then(self._first(starts, key), key)

    def traffic(self, devices: Devices) -> Traffic:
        """Traffic of the ranks, `devices` per node."""
        return self._first.traffic(devices) + self._then.traffic(devices)

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        return self._first.nbytes + self._then.nbytes


def _partner(fabric: Fabric, step: int) -> Ranks:
    return (fabric.everyone + step) % fabric.ranks


def _kinds_of_steps(ranks: int, devices: int) -> tuple[list[int], NDArray[np.int64]]:
    """Return the steps with different paths, and for each step `[p]` the index of an equal one:
    in steps `devices` to `ranks - devices` every message leaves its node."""
    like = np.arange(ranks, dtype=np.int64)
    like[devices : ranks - devices + 1] = devices
    steps, number = np.unique(like[1:], return_inverse=True)
    return steps.tolist(), np.concatenate((np.zeros(1, dtype=np.int64), number.reshape(-1)))


_LARGEST_TABLE = 1 << 20  # most times by size and NIC


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """Bytes from each rank r to each rank q."""

    longer: Ranks  # [p]: ranks q below `longer[r]` get `long[r]`
    long: Bytes
    short: Bytes
    last: Bytes  # bytes for rank q = p - 1

    def to(self, partner: Ranks) -> Bytes:
        """Return the bytes that each rank sends to its partner."""
        usual = np.where(partner < self.longer, self.long, self.short)
        return np.where(partner == len(partner) - 1, self.last, usual)


@dataclass(frozen=True, kw_only=True, eq=False)
class CompiledExchange:
    """Exchange whose messages have few different paths, or depend only on the ends' NICs."""

    parts: Parts
    classes: NDArray[np.int64]  # [4, p]: `longer`, and size classes of `long`, `short` and `last`
    paths: NDArray[np.int64]  # [d, devices]: by step and sender's place in its node; empty: NICs
    by_step: NDArray[np.int64]  # [p]: the row of each step
    serialization: Times  # [k, paths], or [k, p] by NIC, the slower of which counts
    latency: Times  # [k, paths]
    ends: Times  # [p]: each NIC's latency, half of which counts
    adding: Times  # [k]
    random: Hops | None  # messages of one step, if randomly delayed
    first: int

    @staticmethod
    def of(fabric: Fabric, parts: Parts, gamma: Fraction, first: int) -> CompiledExchange | None:
        """Compile an exchange; None if its paths are of no such kind, or too many."""
        ranks = fabric.ranks
        given = np.stack([parts.long, parts.short, parts.last])
        sizes, places = np.unique(given, return_inverse=True)
        if len(sizes) * ranks > _LARGEST_TABLE:
            return None
        random, by_step = None, np.zeros(ranks, dtype=np.int64)
        paths, ends = np.zeros((0, 1), dtype=np.int64), np.zeros(ranks, dtype=np.int64)
        if fabric.alike:
            devices = ranks // fabric.nodes
            steps, by_step = _kinds_of_steps(ranks, devices)
            hops = [fabric.hops(fabric.everyone, _partner(fabric, step)) for step in steps]
            if any(one.timed or len(one.kinds) > 1 for one in hops):
                return None
            if any(one.random for one in hops):
                if not fabric.flat:
                    return None
                random = hops[0]
            table = hops[0].table
            kinds, numbers = np.unique(
                [one.kinds[0][:devices] for one in hops], return_inverse=True
            )
            paths = numbers.reshape(len(hops), devices)
            latency = np.stack([table.latency(kinds, size) for size in sizes.tolist()])
        else:
            nics = fabric.ends()
            if nics is None:
                return None
            table, kinds, ends = nics
            latency = np.zeros((len(sizes), 1), dtype=np.int64)
        return CompiledExchange(
            parts=parts,
            classes=np.vstack((parts.longer, places.reshape(given.shape))),
            paths=paths,
            by_step=by_step,
            serialization=np.stack([table.serialization(kinds, size) for size in sizes.tolist()]),
            latency=latency,
            ends=ends,
            adding=np.zeros(len(sizes), dtype=np.int64) + reduction(sizes, gamma),
            random=random,
            first=first,
        )

    @cached_property
    def _slowest(self) -> Picoseconds:
        parts = self.serialization, self.latency, self.ends, self.adding
        return sum(int(each.max()) for each in parts)

    @cached_property
    def equal(self) -> bool:
        """Whether a message's size depends on the receiver alone."""
        return bool((self.classes == self.classes[:, :1]).all())

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        return int(self.serialization.nbytes + self.classes.nbytes)

    def execute(self, starts: Times, key: int) -> Times:
        """Exit times `[p]` for entry times `[p]`."""
        ready, ranks = starts.copy(), len(starts)
        together = ranks if self.random is None else max(1, DRAWN_AT_A_TIME // ranks)
        jitter = np.zeros((0, ranks), dtype=np.int64)
        for begin in range(1, ranks, together):
            end = min(begin + together, ranks)
            longest = (end - begin) * self._slowest
            if self.random is not None:
                jitter = self._late(self.random, begin, end, key)
                longest += sum(jitter.max(axis=1).tolist())
            check_range(ready, longest)
            _exchange(
                ready,
                self.classes,
                self.paths,
                self.by_step,
                self.serialization,
                self.latency,
                self.ends,
                self.adding,
                jitter,
                begin,
                end,
            )
        return ready

    def _late(self, hops: Hops, begin: int, end: int, key: int) -> Times:
        """Random delays by step and sender."""
        rank = np.arange(len(hops.senders), dtype=np.int64)
        step = np.arange(begin, end, dtype=np.int64)[:, None]
        if self.equal:
            by_receiver = self.parts.to(rank)
            twice = np.concatenate((by_receiver, by_receiver))
            nbytes = np.lib.stride_tricks.sliding_window_view(twice, len(rank))[begin:end]
        else:
            nbytes = np.stack([self.parts.to((rank + number) % len(rank)) for number in step[:, 0]])
        return hops.draw_jitter(nbytes, key=key, message=self.first + step - 1)


@loop
def _exchange(  # noqa: PLR0917 - compiled: arrays by position
    ready: Times,
    classes: NDArray[np.int64],
    paths: NDArray[np.int64],
    by_step: NDArray[np.int64],
    serialization: NDArray[np.int64],
    latency: NDArray[np.int64],
    ends: Times,
    adding: Times,
    jitter: Times,
    begin: int,
    end: int,
) -> None:
    """Advance `ready` through steps `begin` to `end` - 1."""
    ranks = ready.size
    longer, long, short, last = classes[0], classes[1], classes[2], classes[3]
    left, arrives, added = np.empty((3, ranks), dtype=np.int64)
    devices, alike = paths.shape[1], len(paths) > 0
    for step in range(begin, end):
        row = by_step[step]
        for r in range(ranks):
            to = r + step if r + step < ranks else r + step - ranks
            k = long[r] if to < longer[r] else short[r]  # the size class of its message
            if to == ranks - 1:
                k = last[r]
            if alike:
                path = paths[row, r % devices]
                left[r] = ready[r] + serialization[k, path]
                arrives[to] = left[r] + latency[k, path]
            else:
                left[r] = ready[r] + max(serialization[k, r], serialization[k, to])
                # half of both ends' latencies, rounded half to even
                twice = ends[r] + ends[to]
                arrives[to] = left[r] + (twice >> 1) + (twice & (twice >> 1) & 1)
            if jitter.shape[0] > 0:
                arrives[to] += jitter[step - begin, r]
            added[to] = adding[k]
        for r in range(ranks):
            ready[r] = max(left[r], arrives[r]) + added[r]
