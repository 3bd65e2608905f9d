"""For what did a rank wait? Arrows from what the last rank was busy with to the others' transfers.

A collective that a rank waited for could begin when the last rank entered it. What that one did
until this very instant (a job of a stream, or a collective that it left) is what everybody waited
for: from that slice an arrow goes to the slice `transfer` of each rank that waited. Of several that
entered last at one instant it is the lowest; where all enter at once there is no arrow.

An arrow is a pair of flow events, with a number of its own. Perfetto draws it from the end of the
one slice to the start of the other when one of them is clicked on, chrome://tracing draws all.
"""

from __future__ import annotations

from gcsim.analysis.timeline.tracks import Event, Method, event, last_entry, nanoseconds
from gcsim.scenarios.result import Span

NAME = "waited for"

_ARROWS = 10**6
"""More than a method has. Perfetto takes whole numbers only."""


def arrows(method: Method) -> list[Event]:
    """Two events an arrow, between the ranks that are shown."""
    sources = _sources(method)
    found: list[Event] = []
    for span in method.spans:
        source = None if span.collective is None else sources.get(span.collective)
        last = last_entry(span)
        if source is None or last <= nanoseconds(span.start_s):
            continue
        same = {"id": _ARROWS * method.number + len(found) // 2}
        # within the slice, the last instant at which no other one has begun
        leaves = max(nanoseconds(source.start_s), nanoseconds(source.end_s) - 1)
        found.append({**_end(method, source, "s", leaves), **same})
        found.append({**_end(method, span, "f", last), **same, "bp": "e"})
    return found


def _end(method: Method, span: Span, phase: str, time: int) -> Event:
    return event(method, span, phase, time, name=NAME, category="arrow")


def _sources(method: Method) -> dict[int, Span]:
    """By collective: what the rank that entered it last did until then, where that is shown."""
    by_end: dict[tuple[int, int], Span] = {}
    entries: dict[tuple[int, int], Span] = {}
    for span in method.spans:
        if span.resource != "loader":
            end = (span.rank, nanoseconds(span.end_s))
            by_end[end] = max(by_end.get(end, span), span, key=lambda s: s.end_s - s.start_s)
        if span.collective is not None:
            entries[span.collective, span.rank] = span
    found = {}
    for number, collective in enumerate(method.timeline.collectives):
        entry = entries.get((number, collective.last[0])) if collective.last else None
        if entry is not None:
            source = by_end.get((entry.rank, nanoseconds(entry.start_s)))
            if source is not None:
                found[number] = source
    return found
