"""Conversion of a meter's records to an exchange of the traffic profile, a mean over workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from gcsim.compressors.kernels import KernelCost, joined, total
from gcsim.compressors.meter import Meter, Recorder
from gcsim.traces.profile import Compute, Costs, Exchange

_WORK = "elements", "nbytes", "flops", "work"
"""Fields of a `KernelCost` that are averaged, besides launches."""


def metered_exchange(meter: Meter, moments: Compute | None) -> Exchange:
    """Return the mean over workers of what the meter recorded."""
    positions = list(zip(*meter.segments, strict=True))
    last = len(positions) - 1
    return Exchange(
        computes=tuple(
            _compute(recorders, "decode" if position == last and last > 0 else "encode")
            for position, recorders in enumerate(positions)
        ),
        collectives=tuple(meter.collectives),
        moments=moments,
        servers=tuple(
            _compute(recorders, "server") if recorders else None for recorders in meter.servers
        ),
    )


def _compute(recorders: Sequence[Recorder], stage: str) -> Compute:
    fixed = [cost for recorder in recorders for cost in recorder.fixed]
    per_payload = [cost for recorder in recorders for cost in recorder.per_payload]
    payloads = sum(recorder.payloads for recorder in recorders)
    per_part = [cost for recorder in recorders for cost in recorder.per_part]
    parts = sum(recorder.parts for recorder in recorders)
    workers = len(recorders)
    return Compute(
        stage=stage,  # type: ignore[arg-type]  # one of the literals above
        fixed=_divided(fixed, workers),
        per_payload=_divided(per_payload, payloads),
        per_part=_divided(
            per_part, workers, lambda launches: round(round(launches / workers) * workers / parts)
        ),
    )


def _divided(
    costs: Iterable[KernelCost], count: int, launches: Callable[[int], int] | None = None
) -> Costs:
    """Return the mean of `count` recorders, as integers that add up to the rounded mean of each
    class. `launches` maps a sum of launches if it is not the mean. Groups are joined that differ
    only because workers' launches are on both sides of a power of two."""
    of_launches = launches or (lambda number: round(number / count))

    def mean(sums: KernelCost) -> KernelCost:
        counts: dict[str, Any] = {name: round(getattr(sums, name) / count) for name in _WORK}
        return replace(sums, launches=of_launches(sums.launches), **counts)

    found: list[KernelCost] = []
    for _, same_class in groupby(total(costs), key=lambda cost: cost.kind):
        so_far: KernelCost | None = None
        for cost in _joined(same_class, count):
            sums = cost if so_far is None else joined(so_far, cost)
            after, before = mean(sums), None if so_far is None else mean(so_far)
            share = after if before is None else _without(after, before)
            found.append(replace(share, name=cost.name, part=cost.part))
            so_far = sums
    return tuple(found)


def _without(sums: KernelCost, other: KernelCost) -> KernelCost:
    counts: dict[str, Any] = {
        name: getattr(sums, name) - getattr(other, name) for name in (*_WORK, "launches")
    }
    return replace(sums, **counts)


def _joined(costs: Iterable[KernelCost], count: int) -> Iterator[KernelCost]:
    """Join adjacent costs of one kernel until launches are equal on each of `count` workers."""
    for _, sizes in groupby(costs, key=lambda cost: (cost.name, cost.part)):
        held: KernelCost | None = None
        for cost in sizes:
            held = cost if held is None else joined(held, cost)
            if held.launches % count == 0:
                yield held
                held = None
        if held is not None:
            yield held
