"""Traffic profiles with sharded gradients, or gradients and weights: ZeRO's stages 2 and 3, FSDP.

Consecutive buckets are merged to units: one per block of the network, which the first number in a
tensor's name identifies (`model.layers.7.`), and one for the tensors between blocks. A unit's
exchange merges those of its buckets; equal kernels are launched once for the whole unit:

- An all-reduce becomes a reduce-scatter (Gloo, which has none, still all-reduces).
- An all-gather of payloads becomes an all-to-all, in which each rank receives and decodes its part
  of every payload. With equally many devices in each node this takes two hops, as in ZeRO++: one
  inside the nodes; then each rank encodes its part of the node's sum again and exchanges it between
  nodes.
- An all-to-all followed by an all-gather of the results keeps only the all-to-all.

With `hsdp` the devices of a node gather weights and reduce-scatter uncompressed gradients among
themselves. Then each rank exchanges its part of the node's sum with the other nodes by the method:
together a node's ranks send the bytes of one worker and run their kernels on their parts.

A unit's weights are gathered before its forward pass, and in stage 3 again before its backward
pass, except for the last unit; this second gather stays inside the node if the node has a copy
(`Training.secondary`). Weights travel in the type that the passes read (2 bytes per element in 16
bits), or between nodes in one byte (`Training.gathered`). A kernel unpacks them after each gather.

Assumes that parts are equal to the byte, that payloads can be cut into parts, and that quantising
weights costs no time and their scales no bytes. Methods whose state cannot be sharded are refused
earlier (`scenarios/checks/conflicts.py`, `unshardable`).

Source: Rajbhandari et al. 2020 (SC, arXiv:1910.02054), sec. 5; Wang et al. 2023 (arXiv:2306.10209),
"ZeRO++", sec. 3.3; PyTorch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py
(`all_gather_copy_out`, `chunk_cat`), distributed_c10d for Gloo.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import groupby
from typing import Literal

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import ShardExchange
from gcsim.simulator.push_pull import as_collectives
from gcsim.simulator.steps.step_plan import GradientScatter, WeightGather
from gcsim.simulator.training import Training
from gcsim.traces.profile import Compute, Costs, Exchange, Step, TrafficProfile

_NUMBERED = re.compile(r"^.*?\.\d+(?=\.)")


def as_sharded(profile: TrafficProfile, training: Training, cluster: Cluster) -> TrafficProfile:
    """Return the profile with buckets merged to units, whose exchanges are sharded."""
    profile = as_collectives(profile, cluster)
    names = list(map(_unit_of, profile.buckets))
    units = [list(of) for _, of in groupby(range(len(names)), names.__getitem__)]
    gathers = 1 if training.strategy == "zero2" else 2
    devices = cluster.devices_per_node
    inside = devices if training.strategy == "hsdp" else 0
    byte = training.gathered != "stored" and not inside
    by_gloo = cluster.collectives.transport == "gloo"
    joined = lru_cache(maxsize=None)(_joined)  # equal units stay one object

    def of(step: Step) -> Step:
        exchanges = []
        for number, members in enumerate(units):
            size = sum(profile.buckets[n].numel for n in members)
            unit = _Unit(
                weights=training.weight_bytes * size, gradients=training.gradient_bytes * size,
                gathered=size * (1 if byte else training.weight_bytes),
                gathers=gathers if number else 1, secondary=training.secondary,
                workers=profile.workers, by_gloo=by_gloo, inside=inside,
                hop=devices if cluster.nodes > 1 and not (inside or cluster.sizes) else 1,
            )  # fmt: skip
            exchanges.append(joined(tuple(step.exchanges[n] for n in members), unit))
        return replace(step, exchanges=tuple(exchanges))

    phases = [
        replace(phase, steps=tuple(of(step) for step in phase.steps)) for phase in profile.phases
    ]
    return replace(
        profile,
        buckets=tuple(
            BucketLayout.behind(
                number,
                [(piece.name, piece.index, piece.shape)
                 for n in members for piece in profile.buckets[n].slices],
            )
            for number, members in enumerate(units)
        ),
        phases=tuple(phases),
    )  # fmt: skip


def _unit_of(layout: BucketLayout) -> str:
    """Return the unit of a bucket: the block of its first tensor, whose gradient is ready last."""
    first = min(layout.slices, key=lambda piece: piece.index)
    found = _NUMBERED.match(first.name)
    return found.group() if found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """Sizes of a unit, and how it is gathered and scattered."""

    weights: int  # bytes of its weights in the type that the passes read
    gathered: int  # bytes of its weights in the type that travels between nodes
    gradients: int  # bytes
    gathers: int
    secondary: bool
    workers: int  # recorded workers
    by_gloo: bool
    inside: int  # number of a node's devices over which it is sharded; 0: over all ranks
    hop: int  # number of a node's devices in the first of two hops; 1: a single hop

    def parts(self, nbytes: int) -> tuple[int, ...]:
        """Return the bytes of each rank's part."""
        return (-(-nbytes // self.workers),) * self.workers

    def gather(self, again: int) -> tuple[CollectiveRecord, Compute]:
        """Return the gather of its weights for forward or (`again`) backward, and the unpacking."""
        inside = self.inside or (again and self.secondary)
        nbytes = self.weights if inside else self.gathered
        record = WeightGather(
            kind="all_gather", sent=self.parts(nbytes), part=True, scope="node" if inside else "all"
        )
        return record, _copy(nbytes, "decode", self.weights)

    def scatter(self, record: CollectiveRecord) -> CollectiveRecord:
        """Return the reduce-scatter that replaces an all-reduce."""
        if self.by_gloo:
            return record
        return GradientScatter(
            kind="all_gather", sent=self.parts(record.sent[0]), part=True, dtype=record.dtype,
            scope=record.scope,
        )  # fmt: skip


def _joined(exchanges: tuple[Exchange, ...], unit: _Unit) -> Exchange:
    """Merge the exchanges of a unit's buckets and put the gathers of its weights before them."""
    cut = [exchange if unit.inside else _scattered(exchange, unit) for exchange in exchanges]
    gathers = [unit.gather(again) for again in range(unit.gathers)]
    computes = [
        replace(
            one,
            fixed=_together([exchange.computes[place].fixed for exchange in cut]),
            per_payload=_together([exchange.computes[place].per_payload for exchange in cut]),
            per_part=_together([exchange.computes[place].per_part for exchange in cut]),
        )
        for place, one in enumerate(cut[0].computes)
    ]
    records = []
    for place, one in enumerate(cut[0].collectives):
        sent = (exchange.collectives[place].sent for exchange in cut)
        pulled = sum(exchange.collectives[place].pulled for exchange in cut)
        records.append(replace(one, sent=tuple(map(sum, zip(*sent, strict=True))), pulled=pulled))
    if unit.inside:
        summed = CollectiveRecord(
            kind="all_reduce", sent=(unit.gradients,) * unit.workers, element=2, scope="node"
        )
        computes = [_copy(unit.gradients, "encode"), *(_part(one, unit.inside) for one in computes)]
        records = [unit.scatter(summed), *map(_between, records)]
    return Exchange(
        computes=(computes[0], *(unpack for _, unpack in gathers), *computes[1:]),
        collectives=(*(gather for gather, _ in gathers), *records),
    )


@lru_cache(maxsize=1 << 10)
def _copy(nbytes: int, stage: Literal["encode", "decode"], written: int = 0) -> Compute:
    """Return the copy of a unit to or from a collective's buffer; `written`: bytes, if others."""
    both = nbytes + (written or nbytes)
    cost = KernelCost(kind="streaming", launches=1, elements=nbytes // 4, nbytes=both)
    return Compute(stage=stage, fixed=(cost,))


def _part(compute: Compute, parts: int) -> Compute:
    """Return the computation on one of `parts` equal parts: all launches, a share of the bytes."""

    def of(costs: Costs) -> Costs:
        return tuple(
            replace(
                one, elements=-(-one.elements // parts), nbytes=-(-one.nbytes // parts),
                flops=-(-one.flops // parts), work=-(-one.work // parts),
            )
            for one in costs
        )  # fmt: skip

    return replace(
        compute, fixed=of(compute.fixed), per_payload=of(compute.per_payload),
        per_part=of(compute.per_part),
    )  # fmt: skip


def _between(record: CollectiveRecord) -> CollectiveRecord:
    """Return the collective in which each rank exchanges its part with the other nodes."""
    known = {field.name: getattr(record, field.name) for field in fields(record)}
    return ShardExchange(**{**known, "scope": "nodes"})


def _scattered(exchange: Exchange, unit: _Unit) -> Exchange:
    """Return the exchange up to the point where each rank has its part of the sum."""
    kinds = [record.kind for record in exchange.collectives]
    if "all_to_all" in kinds:
        cut = kinds.index("all_to_all") + 1
        return replace(
            exchange, computes=exchange.computes[: cut + 1],
            collectives=exchange.collectives[:cut], servers=(),
        )  # fmt: skip
    *records, last = exchange.collectives
    *computes, decode = exchange.computes
    if last.kind == "all_gather":
        last = replace(last, kind="all_to_all", part=False)
        decode = replace(decode, per_payload=(), per_part=decode.per_part + decode.per_payload)
        if unit.hop > 1:
            encode = _part(computes[-1], unit.hop)
            records.append(replace(last, scope="node"))
            computes.append(
                replace(
                    encode, fixed=decode.fixed + encode.fixed,
                    per_part=decode.per_part + encode.per_part,
                )
            )  # fmt: skip
            last, decode = _between(last), _part(decode, unit.hop)
    elif last.kind == "all_reduce":
        last = unit.scatter(last)
    return replace(exchange, computes=(*computes, decode), collectives=(*records, last), servers=())


def _together(costs: Sequence[Costs]) -> Costs:
    """Merge the kernels of several buckets: if all have the same kernels, these are launched once
    for all elements."""
    names = [[(one.kind, one.name, one.part) for one in of_bucket] for of_bucket in costs]
    if any(each != names[0] for each in names):
        return tuple(one for of_bucket in costs for one in of_bucket)
    return tuple(
        replace(
            alike[0],
            launches=max(one.launches for one in alike),
            elements=sum(one.elements for one in alike),
            nbytes=sum(one.nbytes for one in alike),
            flops=sum(one.flops for one in alike),
            work=sum(one.work for one in alike),
        )
        for alike in zip(*costs, strict=True)
    )


def handed_over(record: CollectiveRecord) -> CollectiveRecord:
    """Return the record with the gradient bytes that a rank contributes instead of its part's."""
    if not isinstance(record, GradientScatter) or record.scope == "node":
        return record
    count = len(record.sent)
    return CollectiveRecord(kind="all_reduce", sent=(sum(record.sent),) * count)
