"""Changes of a traffic profile by training settings: gradients in 16 bits, compression only between
nodes or racks, a sharded optimizer.

Where gradients are stored in 16 bits (`training.gradients`), dense training all-reduces 2 bytes per
element without a cast: one pass divides the bucket by the number of workers (2 bytes read, 2
written). A method that only casts to that type is the same as dense training. All other methods
keep the kernels, payloads and errors measured on float32: their code widens the gradients it reads.

If a method compresses only between nodes (`training.between: nodes`), each node's ranks first
all-reduce their gradients uncompressed and then act as one worker of the method. All of them have
the same sum, encode the same payload and decode the same answers, so one rank per node takes part
in the exchange and passes on what it received (`CollectiveRecord.scope`). `racks` does the same
for racks or sites. Dense training keeps its all-reduce, whose algorithm knows the nodes.

If each of p workers keeps 1 / p of the optimizer's state (`training.strategy: zero1`), gradients
are exchanged as usual and each worker updates its part of the weights. Each step with an exchange
then ends with an all-gather of the stored weights by the transport's own algorithm. It begins when
all buckets are decoded and the backward pass is done, and `training.optimizer` follows it; on a
cluster the update comes first, but the sum is the same. `as_sharded.py` has the rules for sharded
gradients and weights (`zero2`, `zero3`).

Assumes that payloads and errors are those measured on a single device's gradients, that an early
node or rack waits for the others before it encodes, and that the optimizer's parts are equal.

Source: Rajbhandari et al. 2020 (SC, arXiv:1910.02054), sec. 5.1; by sec. 7.1 gradients could be
scattered, with the same total bytes as without ZeRO. In DDP, and so with any method, they are not:
PyTorch, torch.distributed.optim.ZeroRedundancyOptimizer, where each rank broadcasts its part, which
reaches every other rank once, as in an all-gather.
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
    """Return the profile with gradients of the training's type; unchanged for float32, and for
    methods that are neither dense nor a cast to that type."""
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
    """Return the exchange of a bucket length, cached because `PriceList` caches by identity."""
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
    """Apply the training's gradient type, the participants of exchanges (`between`) and the gather
    of weights after a sharded optimizer to a profile; return the same object if nothing changes."""
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
        behind = lru_cache(maxsize=None)(_gathered)  # equal exchanges share an object

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
    """Return `TrafficProfile.wire_bytes` without the weights that are gathered."""

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
