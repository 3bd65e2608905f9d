"""Naive fluid simulations: every single flow, all rates raised together until links are full.

Exact rationals; a flow ends at the first whole picosecond at which its bytes are through. No
classes of flows, no virtual time, no levels; links are told apart one by one. In a SimPy
environment (`Medium`) flows may also end at the nearest whole picosecond, as durations of the
engine are rounded; all rates are found again whenever anything happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import simpy
from simpy.events import EventPriority

from gcsim.simulator.cluster import Cluster
from gcsim.simulator.network.jitter import draw_jitter
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.paths import across_uplink, inward, outward, path
from gcsim.simulator.network.rate_trace import RateTrace

Rate = Fraction | RateTrace


@dataclass(eq=False)
class Flow:
    start: int
    left: Fraction
    crosses: list[Any]
    """A link that is crossed twice is there twice."""
    done: Callable[[int], list[Flow]]
    """Told of the end; the flows that start now or later because of it."""


def rate_at(rate: Rate, now: int) -> tuple[Fraction, int | None]:
    """Bytes per picosecond, and until when."""
    if isinstance(rate, Fraction):
        return rate / 10**12, None
    turn = round((rate.duration - rate.back_to) * 10**12)
    end = round(rate.duration * 10**12)
    skipped = 0
    while rate.after == "repeat" and now - skipped >= end:
        skipped += max(1, (now - skipped - end) // turn) * turn
    times = [round(time * 10**12) + skipped for time in rate.times]
    place = max(place for place, time in enumerate(times) if time <= now)
    if rate.after == "repeat":
        times.append(end + skipped)
    return rate.rates[place] / 10**12, times[place + 1] if place + 1 < len(times) else None


def rates_of(flows: list[Flow], capacity: dict[Any, Fraction]) -> dict[Flow, Fraction]:
    rates = dict.fromkeys(flows, Fraction(0))
    rising = set(flows)
    on: dict[Any, list[Flow]] = {name: [] for flow in flows for name in flow.crosses}
    for flow in flows:
        for name in flow.crosses:
            on[name].append(flow)
    while rising:
        room = {}
        for name, crossing in on.items():
            if movers := sum(flow in rising for flow in crossing):
                used = sum((rates[flow] for flow in crossing), Fraction(0))
                room[name] = (capacity[name] - used) / movers
        step = min(room.values())
        for flow in rising:
            rates[flow] += step
        full = {name for name, left in room.items() if left == step}
        rising = {f for f in rising if not full.intersection(f.crosses)}
    return rates


def simulate(flows: list[Flow], capacity: dict[Any, Rate]) -> None:
    waiting, running = list(flows), list[Flow]()
    now = min((flow.start for flow in flows), default=0)
    while waiting or running:
        assert all(flow.start >= now for flow in waiting)
        running += [flow for flow in waiting if flow.start == now]
        waiting = [flow for flow in waiting if flow.start > now]
        through_now = [flow for flow in running if flow.left <= 0]
        running = [flow for flow in running if flow.left > 0]
        if through_now:
            for flow in through_now:
                waiting += flow.done(now)
            continue
        present = {name: rate_at(rate, now) for name, rate in capacity.items()}
        rates = rates_of(running, {name: rate for name, (rate, _) in present.items()})
        events = [flow.start for flow in waiting]
        if running:
            events += [until for _, until in present.values() if until is not None]
        events += [now + math.ceil(f.left / rates[f]) for f in running if rates[f]]
        after = min(events)
        for flow in running:
            flow.left -= rates[flow] * (after - now)
        now = after


class Medium:
    """Links that processes of a SimPy environment put flows on.

    At an instant, flows end that were to end then, and others start; when everybody has done what
    it does at that instant, all rates are found, and what has nothing left to send then ends.
    """

    def __init__(self, env: simpy.Environment, capacity: dict[Any, Rate]) -> None:
        self.env, self.capacity = env, capacity
        self.running: list[Passing] = []
        self.since, self.asked, self.turn = 0, False, 0
        self.most: dict[Any, int] = {}
        """The most flows that crossed a link at a time."""

    def carry(self, nbytes: Fraction, crosses: list[Any], before: Fraction | None) -> simpy.Event:
        """Happens at the end of a flow that starts now, after `before` picoseconds of its sender's
        time; None: at the first whole picosecond at which all is through."""
        done = simpy.Event(self.env)
        flow = Flow(int(self.env.now), nbytes, crosses, lambda _: [])
        self.running.append(Passing(flow, before, done))
        self.ask()
        return done

    def ask(self) -> None:
        """Find rates at the end of this instant."""
        if not self.asked:
            self.asked = True
            self.later(0, self.share, last=True)

    def later(self, delay: int, call: Callable[[], None], *, last: bool = False) -> None:
        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        event.callbacks.append(lambda _: call())
        self.env.schedule(event, EventPriority(9 if last else 1), delay)

    def share(self) -> None:
        now, self.asked = int(self.env.now), False
        for one in self.running:
            one.flow.left -= one.rate * (now - max(one.flow.start, self.since))
        self.since = now
        flows = [one.flow for one in self.running]
        for name in {name for flow in flows for name in flow.crosses}:
            on = sum(name in flow.crosses for flow in flows)
            self.most[name] = max(self.most.get(name, 0), on)
        present = {name: rate_at(rate, now) for name, rate in self.capacity.items()}
        rates = rates_of(flows, {name: rate for name, (rate, _) in present.items()})
        events = [until for _, until in present.values() if until is not None]
        for one in self.running:
            one.rate = rates[one.flow]
            one.end = one.ends_from(now) if one.rate else None
            if one.flow.left <= 0 and not one.rate:
                one.end = now
            if one.end is not None:
                events.append(one.end)
        self.turn += 1
        if self.running:
            turn = self.turn
            self.later(min(events) - now, lambda: self.end(turn))

    def end(self, turn: int) -> None:
        if turn == self.turn:
            over = [one for one in self.running if one.end == self.env.now]
            self.running = [one for one in self.running if one.end != self.env.now]
            for one in over:
                one.done.succeed()
            self.ask()


@dataclass(eq=False)
class Passing:
    """A flow on a medium."""

    flow: Flow
    before: Fraction | None
    done: simpy.Event
    rate: Fraction = Fraction(0)
    end: int | None = None

    def ends_from(self, now: int) -> int:
        if self.before is None:
            return now + max(0, math.ceil(self.flow.left / self.rate))
        passed = self.before + now - self.flow.start + self.flow.left / self.rate
        return max(now, self.flow.start - round(self.before) + round(passed))


def begins(link: Link, time: int) -> int:
    """At a multiple of the grant's period, then after the overhead."""
    if link.grant:
        turn = math.ceil(Fraction(time, 10**12) / link.grant)
        time = math.ceil(turn * link.grant * 10**12)
    return time + round(link.overhead * 10**12)


def connection(link: Link, nbytes: int) -> Rate:
    """What one connection with a message of so many bytes reaches at most."""
    factor = [Fraction(1), *(f.bandwidth for f in link.factors if f.from_bytes <= nbytes)][-1]
    goodput = link.goodput
    return goodput.times_factor(factor) if isinstance(goodput, RateTrace) else goodput * factor


def exchange(
    cluster: Cluster,
    starts: Sequence[int],
    pushed: Sequence[int],
    pulled: int,
    server_time: int = 0,
    key: int = 0,
) -> list[int]:
    """Exits of all ranks from push, aggregation and pull."""
    p, count, devices = cluster.workers, cluster.servers, cluster.devices_per_node
    dedicated = cluster.collectives.server_hosts == "dedicated"
    workers = list(range(p))
    capacity: dict[Any, Rate] = {}
    cell = cluster.network.shared or cluster.network.up is not None
    own = cluster.collectives.server_network
    if own is None and not cell:
        own = cluster.network

    def machine(rank: int | None, server: int) -> Any:
        """Where a rank, or a server, is."""
        if rank is not None:
            return "node", rank // devices
        return ("server", server) if dedicated else ("node", server % cluster.nodes)

    def nic(at: Any) -> Link | None:
        return own if at[0] == "server" else cluster.nic(at[1])

    switches: list[tuple[int, Link, int]] = []  # nodes below, one uplink, uplinks
    racks = cluster.racks
    if racks is not None:
        switches.append((racks.nodes, racks.uplink, racks.uplinks))
        if racks.pod is not None and racks.pod_uplink is not None:
            switches.append((racks.nodes * racks.pod, racks.pod_uplink, racks.pod_uplinks))

    def below(at: Any, nodes: int) -> int | None:
        return None if at[0] == "server" else int(at[1] // nodes)

    def journey(sender: Any, receiver: Any, rank: int, up: bool) -> tuple[list[Any], Link]:
        if sender == receiver:
            bus = ("bus", up, sender if cluster.shared_bus else rank)
            capacity[bus] = cluster.intra_node.line_goodput
            return [bus], cluster.intra_node
        crosses: list[Any] = []
        for at, way, leg in ((sender, "out", outward), (receiver, "in", inward)):
            end = nic(at)
            if end is not None and end.shared:
                crosses.append(("air", end))
                capacity["air", end] = end.line_goodput
            elif end is not None:
                crosses.append((way, at))
                capacity[way, at] = leg(end).line_goodput
        first, last = nic(sender), nic(receiver)
        if first is None or last is None:
            link = outward(first) if first is not None else inward(last)
        else:
            link = path(first, last)
        for level, (nodes, uplink, count) in enumerate(switches):
            if below(sender, nodes) == below(receiver, nodes):
                continue
            for way, at in (("up", sender), ("down", receiver)):
                if below(at, nodes) is not None:
                    crosses.append((way, level, below(at, nodes)))
                    rate = uplink.line_goodput
                    capacity[crosses[-1]] = rate if isinstance(rate, RateTrace) else rate * count
            link = across_uplink(link, uplink, 1)  # a flow of its own crosses one of them
        return crosses, link

    finishes = list(starts)
    arrived: dict[int, list[int]] = {server: [] for server in range(count)}

    def flow(rank: int, server: int, push: bool, ready: int) -> Flow:
        ends = machine(rank, 0), machine(None, server)
        sender, receiver = ends if push else ends[::-1]
        crosses, link = journey(sender, receiver, rank, push)
        nbytes = Fraction(pushed[rank] if push else pulled, count)
        size = math.ceil(nbytes)
        limit = ("limit", rank, server, push)
        capacity[limit] = connection(link, size)
        number, sending = (server, rank) if push else (rank, p + server)
        late = int(
            draw_jitter(
                [link],
                np.zeros(1, dtype=np.int64),
                np.array([size]),
                key=key,
                message=number,
                rank=np.array([sending]),
            )[0]
        )

        def done(now: int) -> list[Flow]:
            capacity.pop(limit)
            arrival = now + link.latency_for(size) + late
            if not push:
                finishes[rank] = max(finishes[rank], arrival)
                return []
            arrived[server].append(arrival)
            if len(arrived[server]) < len(workers):
                return []
            ready = max(arrived[server]) + server_time
            return [flow(to, server, False, ready) for to in workers]

        return Flow(begins(link, ready), nbytes, [*crosses, limit], done)

    simulate([flow(r, s, True, starts[r]) for r in workers for s in range(count)], capacity)
    return finishes
