"""What did each rank do in a sample iteration? From the simulator's spans to plain values.

What ranks have in common in a collective (which algorithm carried it out, who handed over and got
how many bytes, who entered last) is told once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios.result import Collective, Span, Timeline
from gcsim.scenarios.running.simulate import Simulated
from gcsim.scenarios.scenario import Scenario
from gcsim.simulator.clock import seconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import (
    algorithm_of,
    sizes_received,
    sizes_sent,
    traffic_of,
)
from gcsim.simulator.predict import Prediction
from gcsim.simulator.steps import step_plan


def make_timelines(
    scenario: Scenario, simulated: Sequence[Sequence[Simulated]]
) -> tuple[Timeline, ...]:
    """A sample iteration of each compressor at the largest size; `simulated` is by compressor,
    then by size."""
    nodes = scenario.node_counts[-1]
    told = _Told(scenario.cluster_at(nodes))
    return tuple(
        _timeline(choice.kind, choice.label, nodes, of_sizes[-1].prediction, told)
        for choice, of_sizes in zip(scenario.compressors, simulated, strict=True)
    )


def _timeline(kind: str, label: str, nodes: int, prediction: Prediction, told: _Told) -> Timeline:
    records: dict[tuple[int, int], CollectiveRecord] = {}
    last: dict[tuple[int, int], list[int]] = {}
    for span in prediction.spans:
        if span.carried is not None and span.bucket is not None:
            name = (span.bucket, span.carried.place)
            records[name] = span.carried.record
            if not span.carried.waited:
                last.setdefault(name, []).append(span.rank)
    number = {name: place for place, name in enumerate(sorted(records))}
    return Timeline(
        compressor=kind,
        label=label,
        nodes=nodes,
        phase=prediction.sample_phase,
        spans=tuple(_span(span, number) for span in prediction.spans),
        collectives=tuple(
            told.collective(records[name], tuple(last.get(name, ()))) for name in number
        ),
    )


def _span(span: step_plan.Span, number: dict[tuple[int, int], int]) -> Span:
    carried, bucket = span.carried, span.bucket
    return Span(
        rank=span.rank,
        resource=span.resource,
        kind=span.kind,
        name=span.name,
        start_s=seconds(span.start),
        end_s=seconds(span.end),
        slot=span.slot,
        bucket=bucket,
        collective=None if carried is None or bucket is None else number[bucket, carried.place],
        waited_s=0.0 if carried is None else seconds(carried.waited),
    )


class _Told:
    """What is told of collectives on a cluster, of equal requests once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[CollectiveRecord, Collective] = {}

    def collective(self, record: CollectiveRecord, last: tuple[int, ...]) -> Collective:
        """A request that these ranks entered last."""
        found = self._known.get(record)
        if found is None:
            found = self._known[record] = self._described(record)
        return replace(found, last=last)

    def _described(self, record: CollectiveRecord) -> Collective:
        workers = self._cluster.workers
        sent = sizes_sent(record, workers)
        received = tuple(sizes_received(record, sent))
        if record.kind == "all_gather":  # its own part it has already
            received = tuple(size - own for size, own in zip(received, sent, strict=True))
        handled = traffic_of(record, self._cluster).nbytes
        return Collective(
            algorithm=algorithm_of(record, self._cluster).title,
            sent=sent,
            received=received,
            moved=tuple(handled[:workers].tolist()),
            messages=int(handled.sum()) // 2,
        )
