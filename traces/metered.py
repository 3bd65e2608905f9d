"""From what a meter saw to plain data: one exchange of the traffic profile, a mean over workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gcsim.compressors.kernels import KernelCost, total
from gcsim.compressors.meter import Meter, Recorder
from gcsim.traces.profile import Compute, Costs, Exchange


def metered_exchange(meter: Meter, moments: Compute | None) -> Exchange:
    """Mean over workers of what the meter saw."""
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
    return Compute(
        stage=stage,  # type: ignore[arg-type]  # one of the literals above
        fixed=_divided(fixed, len(recorders)),
        per_payload=_divided(per_payload, payloads),
        per_part=tuple(
            replace(cost, launches=round(cost.launches * len(recorders) / parts))
            for cost in _divided(per_part, len(recorders))
        ),
    )


def _divided(costs: Iterable[KernelCost], count: int) -> Costs:
    return tuple(
        KernelCost(
            kind=cost.kind,
            launches=round(cost.launches / count),
            elements=round(cost.elements / count),
            nbytes=round(cost.nbytes / count),
            flops=round(cost.flops / count),
        )
        for cost in total(costs)
    )
