"""How busy is the cluster? Counters over all ranks of a method, whichever are shown.

- computing ranks: their compute or side stream does something.
- exchanging ranks: they are in a collective; and of these the waiting ones: some rank is not yet in
  the collective.
- the rate at which all messages of the collectives under way carry bytes: those of a collective
  over the time from its first entry to its last exit, an average that no link need have at any
  instant. What is left of a collective in front when some ranks are in this one already counts as
  the one in front's alone. Messages between ranks of a node count too.

Where they change more than `MOST` times in an iteration the values are means over as many equal
parts of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from gcsim.analysis.timeline.tracks import Event, Method, last_entry, microseconds, nanoseconds
from gcsim.scenarios.result import Span

MOST = 400
"""Values of a counter."""

COMPUTE, EXCHANGE, WAIT = "computing", "exchanging", "waiting"
MESSAGES = "mean message rate"

Interval = tuple[int, int, float]
"""From when until when, nanoseconds, and how much."""


def counters(method: Method) -> Iterator[Event]:
    """Of all ranks of a method, by counter and time."""
    spans = method.timeline.spans
    end = max(map(_end, spans))
    exchanges = [span for span in spans if span.collective is not None]
    computes = [span for span in spans if span.resource in {"compute", "side"}]
    found: list[tuple[str, str, Iterable[Interval]]] = [
        (COMPUTE, "ranks", _once_a_rank(computes, _end)),
        (EXCHANGE, "ranks", _once_a_rank(exchanges, _end)),
        (WAIT, "ranks", _once_a_rank(exchanges, last_entry)),
        (MESSAGES, "Gbit/s", _rates(method, exchanges)),
    ]
    for name, unit, intervals in found:
        for time, value in _values([i for i in intervals if i[1] > i[0]], end):
            yield {
                "name": name,
                "ph": "C",
                "ts": microseconds(time),
                "pid": method.number,
                "tid": 0,
                "args": {unit: value},
            }


def _end(span: Span) -> int:
    return nanoseconds(span.end_s)


def _once_a_rank(spans: Iterable[Span], end_of: Callable[[Span], int]) -> Iterator[Interval]:
    """The time in which a rank does one of these things or several."""
    by_rank: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        by_rank[span.rank].append((nanoseconds(span.start_s), end_of(span)))
    for of_rank in by_rank.values():
        first, last = 0, -1
        for start, end in sorted(of_rank):
            if start > last >= 0:
                yield first, last, 1.0
            if start > last:
                first = start
            last = max(last, end)
        yield first, last, 1.0


def _rates(method: Method, exchanges: Iterable[Span]) -> Iterator[Interval]:
    """Of each collective, in Gbit/s."""
    of: dict[int, list[Span]] = defaultdict(list)
    for span in exchanges:
        if span.collective is not None:
            of[span.collective].append(span)
    finishes = np.unique([max(map(_end, spans)) for spans in of.values()])
    for number, spans in of.items():
        start = min(nanoseconds(span.start_s) for span in spans)
        in_front = finishes[finishes <= max(map(last_entry, spans))]
        start, end = max([start, *in_front[-1:].tolist()]), max(map(_end, spans))
        nbytes = method.timeline.collectives[number].messages
        yield start, end, 8 * nbytes / max(1, end - start)


def _values(intervals: list[Interval], end: int) -> list[tuple[int, float]]:
    """The sum of what is under way, from when on, until the end; nothing where there is nothing."""
    if not intervals:
        return []
    start = np.array([interval[0] for interval in intervals])
    until = np.array([interval[1] for interval in intervals])
    much = np.array([interval[2] for interval in intervals])
    times, place = np.unique(np.concatenate([[0, end], start, until]), return_inverse=True)
    change = np.bincount(place[2:], weights=np.concatenate([much, -much]), minlength=len(times))
    level = np.cumsum(change)[:-1]
    if len(times) > MOST + 1:
        total = np.concatenate([[0.0], np.cumsum(level * np.diff(times))])
        parts = np.linspace(0, end, MOST + 1).round().astype(np.int64)
        level = np.diff(np.interp(parts, times, total)) / np.maximum(np.diff(parts), 1)
        times = parts
    told: list[tuple[int, float]] = []
    for time, value in zip(times.tolist(), [*np.round(level, 3).tolist(), 0.0], strict=True):
        if not told or told[-1][1] != value:
            told.append((time, value + 0.0))  # no negative zero
    return told
