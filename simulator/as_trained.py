"""Profiles as a training changes them: gradients in 16 bits, compression between nodes or racks
alone, a sharded optimizer.

Where gradients are stored in 16 bits (`training.gradients`), dense training all-reduces 2 bytes per
element and casts nothing: one pass divides the bucket by the number of workers (2 bytes read, 2
written). A cast to that very type is dense training. Other methods are as measured on float32:
kernels, payload and error of code that widens it on reading.

Where a method compresses between nodes alone (`training.between: nodes`), each node's ranks first
all-reduce their gradients uncompressed, as one worker of the method: all of them hold the same sum,
encode it to the same payload and decode the same answers, so that one rank of each node exchanges
for all and hands them what it received (`CollectiveRecord.scope`). Racks, or sites, take the place
of nodes with `racks`. Dense training is left to its collective, which knows nodes itself.

Where each of p workers keeps 1 / p of the optimizer's state (`training.strategy: zero1`), gradients
are exchanged as ever and each worker updates its part of the weights. Each step that exchanges then
ends with an all-gather of the weights, as they are stored, by the transport's own algorithm. It
begins when all buckets are decoded and the backward pass is done, and ends before
`training.optimizer`: the update precedes it on a cluster, and the sum is the same. Where they shard
gradients and weights, too (`zero2`, `zero3`), `as_sharded.py` has the rules.

Assumes that payloads and errors are those measured with a single device's gradients, that a node
or rack that is early waits for the others before it encodes, and that the optimizer's parts are
equal.

Source: Rajbhandari et al. 2020 (SC, arXiv:1910.02054), sec. 5.1; by sec. 7.1 gradients could be
scattered, and all would send as much as without ZeRO. Beside DDP, and any method, they are not:
PyTorch, torch.distributed.optim.ZeroRedundancyOptimizer, where each rank broadcasts its part, which
goes to every other rank once, as in an all-gather.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.as_sharded import as_sharded, handed_over
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.clocks import with_exchanges
from gcsim.simulator.steps.step_plan import WeightGather
from gcsim.simulator.training import DENSE, Training
from gcsim.traces.profile import Compute, Exchange, Phase, Quality, Step, TrafficProfile

_TYPES = {"fp16": "float16", "bf16": "bfloat16"}


def as_stored(profile: TrafficProfile, training: Training) -> TrafficProfile:
    """The profile with gradients of the training's type; the same object for float32 and for
    methods that are neither dense nor a cast to it."""
    named = training.gradients
    if named == "fp32" or profile.compressor not in {DENSE, named, f"torch_{named}"}:
        return profile
    exchanges = tuple(
        _summed(layout.numel, _TYPES[named], training.gradient_bytes, profile.workers)
        for layout in profile.buckets
    )
    step = Step(number=0, exchanges=exchanges)
    return replace(
        profile,
        compressor=DENSE,
        parameters={},
        period=1,
        phases=(Phase(name="every step", count=1, steps=(step,)),),
        order=(),
        quality=Quality(nmse=0.0, cosine_similarity=1.0),
    )


@lru_cache(maxsize=1 << 12)
def _summed(elements: int, dtype: str, width: int, workers: int) -> Exchange:
    """One object for buckets of a length, of which a `PriceList` knows the price."""
    nbytes = width * elements
    divide = KernelCost(kind="streaming", launches=1, elements=elements, nbytes=2 * nbytes)
    summed = CollectiveRecord(
        kind="all_reduce", sent=(nbytes,) * workers, element=width, dtype=dtype
    )
    return Exchange(
        computes=(Compute(stage="encode", fixed=(divide,)), Compute(stage="decode", fixed=())),
        collectives=(summed,),
    )


def as_trained(profile: TrafficProfile, training: Training, cluster: Cluster) -> TrafficProfile:
    """The profile with gradients as the training stores them, exchanges between the ends that it
    names, and the gather of weights behind a sharded optimizer; the same object where nothing
    changes."""
    profile = as_stored(profile, training)
    sizes = [training.gradient_bytes * layout.numel for layout in profile.buckets]
    ends, dense = training.between, profile.compressor == DENSE
    if not dense and ends != "workers" and cluster.ranks_in(ends) < cluster.workers:

        def summed(step: Step) -> Step:
            pairs = zip(sizes, step.exchanges, strict=True)
            exchanges = [_exchange(each, nbytes, profile.workers, ends) for nbytes, each in pairs]
            return replace(step, exchanges=tuple(exchanges))

        profile = _with_steps(profile, summed)
    if training.strategy == "zero1" and cluster.workers > 1:
        part = -(-sum(sizes) // profile.workers)
        record = WeightGather(kind="all_gather", sent=(part,) * profile.workers, part=True)
        behind = lru_cache(maxsize=None)(_gathered)  # equal exchanges stay one object

        def gathered(step: Step) -> Step:
            *others, last = step.exchanges
            if not any(one.collectives for one in step.exchanges):
                return step
            return replace(step, exchanges=(*others, behind(last, record)))

        profile = _with_steps(profile, gathered)
    if training.sharded and cluster.workers > 1:
        profile = as_sharded(profile, training, cluster)
    return profile


def gradient_bytes_sent(profile: TrafficProfile, workers: int) -> float:
    """`TrafficProfile.wire_bytes` of gradients alone, without weights that are gathered."""

    def of_gradients(exchange: Exchange, _: Phase) -> Exchange:
        kept = [one for one in exchange.collectives if not isinstance(one, WeightGather)]
        return replace(exchange, collectives=tuple(map(handed_over, kept)))

    return with_exchanges(profile, of_gradients).wire_bytes(workers)


def _with_steps(profile: TrafficProfile, changed: Callable[[Step], Step]) -> TrafficProfile:
    phases: list[Phase] = [
        replace(phase, steps=tuple(map(changed, phase.steps))) for phase in profile.phases
    ]
    return replace(profile, phases=tuple(phases))


def _gathered(exchange: Exchange, record: CollectiveRecord) -> Exchange:
    return replace(
        exchange,
        computes=(*exchange.computes, Compute(stage="decode", fixed=())),
        collectives=(*exchange.collectives, record),
        servers=(*exchange.servers, None) if exchange.servers else (),
    )


def _exchange(
    exchange: Exchange, nbytes: int, workers: int, ends: Literal["nodes", "racks"]
) -> Exchange:
    if not exchange.collectives:
        return exchange
    moments = 1 if exchange.moments is None else 2  # second moments are summed, too
    inside: Literal["node", "rack"] = "node" if ends == "nodes" else "rack"
    summed = CollectiveRecord(
        kind="all_reduce", sent=(moments * nbytes,) * workers, element=4, scope=inside
    )
    others = (replace(record, scope=ends) for record in exchange.collectives)
    return replace(
        exchange,
        computes=(Compute(stage="encode", fixed=()), *exchange.computes),
        collectives=(summed, *others),
        servers=(None, *exchange.servers) if exchange.servers else (),
    )
