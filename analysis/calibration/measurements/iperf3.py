"""Reader of throughput measured by iperf3, from its text or JSON (`-J`).

    Connecting to host 10.0.0.2, port 5201
    [ ID] Interval           Transfer     Bitrate         Retr  Cwnd
    [  5]   0.00-1.00   sec  1.10 GBytes  9.42 Gbits/sec   12   1.61 MBytes
    - - - - - - - - - - - - - - - - - - - - - - - - -
    [ ID] Interval           Transfer     Bitrate         Retr
    [  5]   0.00-10.00  sec  10.9 GBytes  9.38 Gbits/sec   61             sender
    [  5]   0.00-10.04  sec  10.9 GBytes  9.36 Gbits/sec                  receiver

The goodput is the rate that the receiver reports for the whole test, summed over streams, or else
the sender's; its range is the 10th to 90th percentile over the intervals. With both directions
(--bidir) or several tests the median counts. Bits use prefixes of 1000, bytes of 1024. The latency
is unknown: round trips in the JSON are those of a connection that fills its own queue.

Source: esnet/iperf, src/iperf_locale.c (formats), src/units.c (units), src/iperf_api.c (JSON), 3.1
to 3.18. Before 3.2 the heading was Bandwidth.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gcsim.analysis.calibration.measurements import collectives
from gcsim.analysis.calibration.measurements.json_text import at, entries
from gcsim.analysis.report.numbers import plural
from gcsim.errors import InputError
from gcsim.json_file import finite

_WANTED = ("[ ID]", "Interval", "Transfer", "Bitrate")
_HEADING = re.compile(r"\[ ID\](?:\[Role\])?\s+Interval\s+Transfer\s+(?:Bitrate|Bandwidth)\b(.*)")
_TABLE = re.compile(r"\[ ID\](?:\[Role\])?\s+Interval")
_ROW = re.compile(
    r"\[\s*(\d+|SUM)\](?:\[(TX|RX)-[CS]\])?\s+(\d+\.\d+)-\s*(\d+\.\d+)\s+sec\s+"
    r"\S+\s+[KMGT]?Bytes\s+(\S+)\s+([KMGT]?)(bits|Bytes)/sec(.*)"
)
_BEGIN = re.compile(r"Connecting to host (\S+), port|Accepted connection from (\S+), port")
_FAILED = re.compile(r"\biperf3: error - (.*)")
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_LEAST_INTERVALS = 3


@dataclass(slots=True)
class _Test:
    """A run of iperf3, with rates in bytes per second."""

    line: int = 1
    host: str = ""
    udp: bool = False
    streams: set[str] = field(default_factory=set)
    seconds: float = 0.0
    retransmits: int | None = None
    round_trip: float | None = None  # in seconds, of a connection under load
    finals: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Rates of all streams, by direction and by the host that reports them."""
    intervals: dict[str, list[float]] = field(default_factory=dict)  # rates by direction


def recognised(content: Any) -> bool:
    """Whether it is a table or the JSON of iperf3."""
    if isinstance(content, str):
        return any(_TABLE.search(line) for line in content.splitlines())
    return isinstance(at(content, "intervals"), list) and at(content, "start") is not None


def parse(name: str, content: Any, stated: collectives.Stated) -> collectives.Reading:
    """Read one or several tests; raises `InputError` for UDP, or without a result."""
    del stated  # two hosts, no collective
    text = isinstance(content, str)
    tests = list(_from_text(name, content)) if text else [_from_json(name, content)]
    for test in tests:
        if test.udp:
            raise InputError(
                "was measured over UDP, which sends at the rate of -b at any goodput",
                place=f"{name}:{test.line}",
                hint="measure over TCP, without -u",
            )
    spreads = [spread for test in tests for spread in _spreads(name, test)]
    value = statistics.median(spread.value for spread in spreads)
    streams = sorted({len(test.streams) for test in tests})
    count = plural(len(spreads), "result") if len(spreads) > 1 else f"{tests[0].seconds:.3g} s"
    return collectives.Reading(
        file=name,
        tool="iperf3",
        goodput=collectives.Spread(
            value=value,
            low=min(spread.low for spread in spreads),
            high=max(spread.high for spread in spreads),
            how=f"TCP, {' and '.join(map(str, streams))} stream{'s' * (streams != [1])}, {count}",
        ),
        notes=tuple(dict.fromkeys(note for test in tests for note in _notes(name, test))),
    )


def _spreads(name: str, test: _Test) -> Iterator[collectives.Spread]:
    for direction, by in test.finals.items():
        rate = sum(by.get("receiver") or by["sender"])
        if rate <= 0:
            raise InputError("nothing was received", place=f"{name}:{test.line}")
        during = test.intervals.get(direction, [])
        low = high = rate
        if len(during) >= _LEAST_INTERVALS:
            tenths = statistics.quantiles(during, n=10, method="inclusive")
            low, high = min(rate, tenths[0]), max(rate, tenths[-1])
        yield collectives.Spread(value=rate, low=low, high=high, how="")


def _notes(name: str, test: _Test) -> Iterator[str]:
    if test.host.startswith(collectives.THIS_MACHINE):
        yield f"{name}: measured to {test.host}, which is this machine: no network was measured"
    if len(test.streams) > 1:
        yield (
            f"{name}: {len(test.streams)} streams together; Gloo and MPI use one connection "
            "between two ranks: for them, measure with -P 1"
        )
    else:
        yield f"{name}: one stream, as Gloo and MPI use; for NCCL, which opens several: -P 4"
    if not all("receiver" in by for by in test.finals.values()):
        yield f"{name}: the sender's rate, because the receiver's result is missing"
    if test.retransmits:
        yield f"{name}: {plural(test.retransmits, 'segment')} retransmitted in {test.seconds:.3g} s"
    if test.round_trip is not None:
        yield (
            f"{name}: round trips of {test.round_trip * 1e6:.4g} us under this load include the "
            "wait in the test's own queue, so they are not the latency"
        )


# --- text ----------------------------------------------------------------------------------------


def _from_text(name: str, text: str) -> Iterator[_Test]:
    tests: list[_Test] = []
    rows: list[list[tuple[int, re.Match[str]]]] = []
    for count, line in enumerate(text.splitlines(), 1):
        if failed := _FAILED.search(line):
            raise _failed(failed[1], f"{name}:{count}")
        begin = _BEGIN.search(line)
        if begin:
            tests.append(_Test(line=count, host=begin[1] or begin[2]))
            rows.append([])
        elif _TABLE.search(line) and not tests:
            tests.append(_Test(line=count))
            rows.append([])
        if heading := _HEADING.search(line):
            tests[-1].udp |= "Datagrams" in heading[1]
        elif _TABLE.search(line):
            found = re.findall(r"\[ ID\]|[^\s\[\]]+", line)
            raise collectives.refused_table(f"{name}:{count}", _WANTED, found)
        if tests and (row := _ROW.search(line)):
            rows[-1].append((count, row))
    results = False
    for test, of_test in zip(tests, rows, strict=True):
        _fill(name, test, of_test)
        results |= bool(test.finals)
        if test.finals or test.udp:
            yield test
    if not results and not any(test.udp for test in tests):
        raise InputError(
            "has no result: no line ends with 'sender' or 'receiver'",
            place=f"{name}:{tests[0].line if tests else 1}",
            hint="was the test cut off? Output of iperf 2 is not read: use iperf3",
        )


def _fill(name: str, test: _Test, rows: Sequence[tuple[int, re.Match[str]]]) -> None:
    sums = any(row[1] == "SUM" for _, row in rows)
    spans: dict[str, list[tuple[float, float]]] = {}
    for line, row in rows:
        stream, direction, rest = row[1], row[2] or "", row[8].strip()
        if stream != "SUM" and direction in {"", "TX"}:
            test.streams.add(stream)
        if (stream == "SUM") != sums or "(omitted)" in rest:
            continue
        value = collectives.number(row[5])
        if value is None or value < 0:
            message = f"{row[5]!r:.30} is not a rate"
            raise InputError(
                message, place=f"{name}:{line}", hint="the line is cut off, or changed"
            )
        base = 1000 if row[7] == "bits" else 1024
        rate = value * base ** _UNITS[row[6]] / (8 if row[7] == "bits" else 1)
        seconds = float(row[4]) - float(row[3])
        who = rest.rpartition(" ")[2]
        if who in {"sender", "receiver"}:
            test.finals.setdefault(direction, {}).setdefault(who, []).append(rate)
            test.seconds = max(test.seconds, seconds)
            retransmits = rest.split()[0]
            if who == "sender" and retransmits.isdigit():
                test.retransmits = (test.retransmits or 0) + int(retransmits)
        else:
            spans.setdefault(direction, []).append((seconds, rate))
    for direction, during in spans.items():
        usual = statistics.median(seconds for seconds, _ in during)
        test.intervals[direction] = [rate for seconds, rate in during if seconds >= usual / 2]


# --- JSON ----------------------------------------------------------------------------------------


def _from_json(name: str, body: Any) -> _Test:
    wrong = at(body, "error")
    if isinstance(wrong, str):
        raise _failed(wrong, name)
    test = _Test(
        host=str(at(body, "start", "connecting_to", "host") or ""),
        udp=str(at(body, "start", "test_start", "protocol")).upper() == "UDP",
        streams=set(map(str, range(len(entries(body, "start", "connected")) or 1))),
        seconds=finite(at(body, "end", "sum_sent", "seconds")) or 0.0,
    )
    for direction, ending in (("", ""), ("RX", "_bidir_reverse")):
        for who, key in (("receiver", "sum_received"), ("sender", "sum_sent")):
            rate = finite(at(body, "end", key + ending, "bits_per_second"))
            if rate is not None:
                test.finals.setdefault(direction, {})[who] = [rate / 8]
        during = [
            (finite(at(one, "sum" + ending, "seconds")), rate / 8)
            for one in entries(body, "intervals")
            if (rate := finite(at(one, "sum" + ending, "bits_per_second"))) is not None
            and at(one, "sum" + ending, "omitted") is not True
        ]
        usual = statistics.median([seconds or 0.0 for seconds, _ in during] or [0.0])
        test.intervals[direction] = [r for seconds, r in during if (seconds or 0.0) >= usual / 2]
    if "RX" in test.finals:
        test.streams = set(map(str, range(max(1, len(test.streams) // 2))))
    test.retransmits = _count(at(body, "end", "sum_sent", "retransmits"))
    trips = [
        trip
        for one in entries(body, "end", "streams")
        if (trip := finite(at(one, "sender", "mean_rtt"))) is not None and trip > 0
    ]
    test.round_trip = statistics.median(trips) / 1e6 if trips else None
    if not test.finals and not test.udp:
        wanted = "end.sum_received.bits_per_second"
        raise InputError(
            f"has no {wanted}; found: {_keys(at(body, 'end') or body)}",
            place=name,
            hint="name the output of iperf3 -J after the test ends (--json-stream is not read)",
        )
    return test


def _failed(wrong: str, place: str) -> InputError:
    return InputError(f"the test failed: {wrong!r:.200}", place=place, hint="run it again")


def _count(value: Any) -> int | None:
    found = finite(value)
    return None if found is None or found < 0 else int(found)


def _keys(value: Any) -> str:
    return ", ".join(map(str, value))[:200] if isinstance(value, dict) else "no object"
