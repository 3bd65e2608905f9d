"""Round trips measured by ping.

    PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.
    64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.145 ms
    --- 10.0.0.2 ping statistics ---
    5 packets transmitted, 5 received, 0% packet loss, time 4098ms
    rtt min/avg/max/mdev = 0.037/0.059/0.145/0.042 ms

The latency is half of the median round trip (a few packets wait for a busy host and move the mean
of ten by a factor), its range half of the minimum to half of the 90th percentile. A run's first
reply, which often waits for ARP, is left out if others follow. With `-q`: half of the average, and
of avg + mdev.

Source: iputils, ping/ping_common.c (`gather_statistics`, `finish`), 2012 to 2025. BusyBox and macOS
print the same lines with `seq=` and `round-trip`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from gcsim.analysis.calibration.measurements import collectives
from gcsim.analysis.report.numbers import plural
from gcsim.errors import InputError

_BEGIN = re.compile(r"PING (\S+)")
_REPLY = re.compile(r"bytes from .*?\b(?:icmp_)?seq=\d+ .*?time[=<](\S+) ?ms(.*)")
_SUMMARY = re.compile(r"(?:rtt|round-trip) min/avg/max(?:/(?:m|std)dev)? = ([\d./]+) ms")
_COUNTS = re.compile(r"(\d+) packets transmitted, (\d+) (?:packets )?received")
_DAMAGED = re.compile(r"wrong data byte #\d+|\(BAD CHECKSUM\)")
_LIKE_PING = re.compile(r"\b(?:icmp_)?seq=\d+ ttl=\d+ |\bPING \S+ \(", re.ASCII)
_LEAST = 3  # round trips of a run from which the first is left out
_LONGEST = 3600e3  # milliseconds: an hour is no round trip


def recognised(text: str) -> bool:
    """Whether ping printed it, in any language."""
    return any(_LIKE_PING.search(line) or _SUMMARY.search(line) for line in text.splitlines())


def parse(name: str, text: str, stated: collectives.Stated) -> collectives.Reading:
    """Read one or several runs; `InputError` without any reply."""
    del stated  # two hosts, no collective
    mistakes = collectives.Mistakes(name)
    runs: list[list[float]] = [[]]
    shorts: list[tuple[float, ...]] = []
    sent = received = 0
    hosts: list[str] = []
    for count, line in enumerate(text.splitlines(), 1):
        if damaged := _DAMAGED.search(line):
            mistakes.add(
                count, f"{collectives.FAILED}: {damaged[0]}", "packets arrive damaged: fix the link"
            )
        if begin := _BEGIN.search(line):
            hosts.append(begin[1])
            runs.append([])
        if reply := _REPLY.search(line):
            if "DUP!" in reply[2]:
                continue
            runs[-1].extend(_milliseconds([reply[1]], count, mistakes))
        elif summary := _SUMMARY.search(line):
            shorts.append(tuple(_milliseconds(summary[1].split("/"), count, mistakes)))
        elif counts := _COUNTS.search(line):
            sent, received = sent + int(counts[1][:12]), received + int(counts[2][:12])
    mistakes.raise_any()
    notes = tuple(_notes(name, hosts, sent, received))
    trips = sorted(trip for run in runs for trip in run[len(run) >= _LEAST :])
    if trips:
        tenths = statistics.quantiles(trips, n=10, method="inclusive") if len(trips) > 1 else trips
        value = statistics.median(trips)
        how = f"half of the median of {plural(len(trips), 'round trip')}"
        spread = _half(value, trips[0], max(value, tenths[-1]), how)
    elif shorts:
        low = min(short[0] for short in shorts)
        value = statistics.median(short[1] for short in shorts)
        high = max(min(short[2], short[1] + (short[3:] or (short[2],))[0]) for short in shorts)
        how = "half of the average round trip (with -q there are no single ones)"
        spread = _half(value, low, max(value, high), how)
    else:
        raise InputError(
            "has no round trip: no line with icmp_seq=, time= and ms",
            place=name,
            hint="nothing answered, or ping's output is not in English: LC_ALL=C ping -c 100 HOST",
        )
    return collectives.Reading(file=name, tool="ping", latency=spread, notes=notes)


def _half(value: float, low: float, high: float, how: str) -> collectives.Spread:
    one_way = [each / 2e3 for each in (value, low, high)]
    return collectives.Spread(value=one_way[0], low=one_way[1], high=one_way[2], how=how)


def _milliseconds(words: list[str], line: int, mistakes: collectives.Mistakes) -> list[float]:
    """Numbers of a line; others are mistakes."""
    values = [collectives.number(word) for word in words]
    good = [value for value in values if value is not None and 0 < value <= _LONGEST]
    least = 3 if len(words) > 1 else 1
    if len(good) == len(words) - words[3:].count("0.000") and len(good) >= least:
        return good
    mistakes.add(line, f"{'/'.join(words)!r:.60} is not a round trip in milliseconds")
    return []


def _notes(name: str, hosts: list[str], sent: int, received: int) -> Iterator[str]:
    for host in dict.fromkeys(hosts):
        if host.startswith(collectives.THIS_MACHINE):
            yield f"{name}: {host} is this machine: no network was measured"
    if received < sent:
        lost = sent - received
        yield f"{name}: {lost} of {sent} packets were lost (in a scenario: `loss` of the link)"
