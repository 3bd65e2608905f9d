"""Kernels with prices, and collectives, of one method in a mean iteration.

Kernels are priced one by one, as in a run (`simulator/devices/pricing.py`). With the framework's
code and without servers' computation the prices add up to the run's encoding and decoding (of which
a run counts only the part of a side stream that is not hidden). `fused_s` replaces the element-wise
kernels of each computation by one pass over the bucket with one launch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.errors import InputError, did_you_mean
from gcsim.scenarios.progress import Progress
from gcsim.scenarios.run import traffic_profiles
from gcsim.scenarios.running.installed import as_installed
from gcsim.scenarios.running.keys import profile_key
from gcsim.scenarios.running.simulate import as_carried
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.uncertainty.kernel_use import costs
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import algorithm_of, participants, sizes_sent
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.plans import Planner, kinds_of
from gcsim.simulator.training import Training
from gcsim.traces.profile import Compute, Costs, Exchange, TrafficProfile, weighted

FUSED: KernelClass = "streaming"  # class of kernels that a compiler fuses


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """All launches of a kernel in a stage of a mean iteration, on one worker."""

    stage: str  # moments, encode, server or decode
    name: str  # torch's kernel ("aten.topk"), or the method's own ("signs.sign_bits")
    kind: KernelClass
    launches: float
    nbytes: float  # read and written
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCollective:
    """Collective of a bucket's exchange."""

    bucket: int
    elements: int
    kind: str
    algorithm: str
    sent: float  # bytes from a worker, mean over iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One method at the scenario's largest size; a mean iteration over a whole period."""

    scenario: str
    label: str
    device: str
    estimated: tuple[str, ...]  # kernel classes with prices not measured on the device
    nodes: int
    workers: int
    kernels: tuple[Kernel, ...]  # kernels by stage, the dearest first
    collectives: tuple[BucketCollective, ...]  # by bucket, in order
    seconds: float  # time of all kernels
    framework_s: float  # framework's code around the exchanges, half before and half after
    encode_s: float  # kernels before a bucket's last collective, and the code before
    decode_s: float  # kernels after it, and the code after
    fused_s: float  # `seconds` with each stretch's element-wise kernels fused

    def document(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def explain(scenario: Scenario, choice: CompressorChoice, progress: Progress) -> Explanation:
    """Price a method at the largest size; run it if its profile is not cached. Raises `InputError`
    for unusable gradients, or a kernel without a price."""
    alone = replace(scenario, compressors=(choice,))
    keys = [profile_key(alone, choice)]
    profiles = traffic_profiles(alone, keys, use_cache=True, progress=progress)
    alone, profiles = as_installed(alone, profiles)
    _, _, (profile, *_) = as_carried(alone, keys, profiles)
    nodes = scenario.node_counts[-1]
    cluster = scenario.cluster_at(nodes)
    prices = PriceList(cluster.device)
    kernels = _kernels(profile, cluster, prices)
    framework, encode, decode = _coding(profile, cluster, alone.training, prices)
    classes = {kernel.kind for kernel in kernels}
    return Explanation(
        scenario=scenario.name,
        label=choice.label,
        device=cluster.device.title,
        estimated=tuple(
            kind for kind, rate in cluster.device.kernels.items()
            if kind in classes and rate.estimate
        ),
        nodes=nodes,
        workers=cluster.workers,
        kernels=kernels,
        collectives=_collectives(profile, cluster),
        seconds=_priced(profile, cluster, prices),
        framework_s=framework,
        encode_s=encode,
        decode_s=decode,
        fused_s=_priced(profile, cluster, prices, fused=True),
    )  # fmt: skip


def chosen(scenario: Scenario, method: str) -> CompressorChoice:
    """Return the method with this label, or the only one of this kind; else `InputError`."""
    labelled = [one for one in scenario.compressors if one.label == method]
    found = labelled or [one for one in scenario.compressors if one.kind == method]
    if not found:
        known = [one.label for one in scenario.compressors]
        message = f"{scenario.name} has no method {method!r}"
        raise InputError(message, hint=did_you_mean(method, known))
    return found[0]


def _stretches(
    profile: TrafficProfile, cluster: Cluster
) -> Iterator[tuple[Fraction, int, Compute, int]]:
    """Yield the computations of an iteration: how often, bucket, computation, number of servers."""
    for weight, bucket, exchange in weighted(profile):
        for compute, servers in _computes(exchange, cluster):
            yield weight, bucket, compute, servers


def _computes(exchange: Exchange, cluster: Cluster) -> Iterator[tuple[Compute, int]]:
    if exchange.moments is not None:
        yield exchange.moments, 1
    yield from ((compute, 1) for compute in exchange.computes)
    for server, record in zip(exchange.servers, exchange.collectives, strict=False):
        if server is not None:
            yield server, cluster.servers if record.kind == "push_pull" else 1


def _coding(
    profile: TrafficProfile, cluster: Cluster, training: Training, prices: PriceList
) -> tuple[float, float, float]:
    """Return the seconds of framework's code, encoding and decoding in a mean iteration."""
    passes = ComputeTimes(forward=0, backward=0, parts=(), provenance="")
    around = Planner(cluster, passes, training, prices).exchange_code_times(profile)
    framework, spent = Fraction(0), {"encode": Fraction(0), "decode": Fraction(0)}
    for weight, bucket, exchange in weighted(profile):
        for kind, compute in zip(kinds_of(exchange), exchange.computes, strict=True):
            spent[kind] += weight * prices.compute_time(compute, cluster.workers)
        if exchange.moments is not None:
            spent["encode"] += weight * prices.compute_time(exchange.moments, cluster.workers)
        if around and exchange.collectives:
            framework += weight * around[bucket]
            spent["encode"] += weight * (around[bucket] // 2)
            spent["decode"] += weight * (around[bucket] - around[bucket] // 2)
    first, *both = (float(time / PS_PER_SECOND) for time in (framework, *spent.values()))
    return first, both[0], both[1]


def _priced(
    profile: TrafficProfile, cluster: Cluster, prices: PriceList, *, fused: bool = False
) -> float:
    total = Fraction(0)
    for weight, bucket, compute, servers in _stretches(profile, cluster):
        done = _fused(compute, profile.buckets[bucket].numel) if fused else compute
        total += weight * prices.priced_by(done, cluster.workers, servers).total
    return float(total / PS_PER_SECOND)


def _fused(compute: Compute, elements: int) -> Compute:
    return replace(
        compute,
        fixed=_one_pass(compute.fixed, elements),
        per_payload=_one_pass(compute.per_payload, elements),
        per_part=_one_pass(compute.per_part, elements),
    )


def _one_pass(costs: Costs, elements: int) -> Costs:
    """Fuse the element-wise kernels over a bucket of `elements` to one operator of torch."""
    merged = [cost for cost in costs if cost.kind == FUSED and not cost.part]
    launches = sum(cost.launches for cost in merged)
    if launches <= 1:
        return costs
    touched = sum(cost.elements for cost in merged)
    nbytes = sum(cost.nbytes for cost in merged)
    one = KernelCost(
        kind=FUSED,
        name="aten.fused" if any(cost.name for cost in merged) else "",
        launches=1,
        elements=min(touched, elements),
        nbytes=nbytes * elements // touched if touched > elements else nbytes,
    )
    return (one, *(cost for cost in costs if cost not in merged))


def _kernels(profile: TrafficProfile, cluster: Cluster, prices: PriceList) -> tuple[Kernel, ...]:
    sums: dict[tuple[str, str, KernelClass], list[Fraction]] = defaultdict(
        lambda: [Fraction(0)] * 3
    )
    for weight, _, compute, servers in _stretches(profile, cluster):
        payloads = cluster.workers
        parts = payloads if compute.striped else servers
        stretch = prices.priced_by(compute, payloads, servers)
        bare = replace(compute, fixed=(), per_payload=(), per_part=())
        for field, cost, launched, moved in costs(compute, payloads):
            found = sums[compute.stage, cost.name.partition(":")[0] or cost.kind, cost.kind]
            alone = replace(bare, **{field: (cost,)})  # type: ignore[arg-type]
            priced = prices.priced_by(alone, payloads, servers)
            for place, number in enumerate(
                (
                    Fraction(launched * cost.launches),
                    Fraction(moved * cost.nbytes, parts),
                    priced.in_stretch(queueing=stretch.queueing) / PS_PER_SECOND,
                )
            ):
                found[place] += weight * number
    kernels = [
        Kernel(
            stage=stage, name=name, kind=kind, launches=float(launches), nbytes=float(nbytes),
            seconds=float(seconds),
        )
        for (stage, name, kind), (launches, nbytes, seconds) in sums.items()
    ]  # fmt: skip
    stages = ("moments", "encode", "server", "decode")
    return tuple(sorted(kernels, key=lambda one: (stages.index(one.stage), -one.seconds, one.name)))


def _collectives(profile: TrafficProfile, cluster: Cluster) -> tuple[BucketCollective, ...]:
    sums: dict[tuple[int, int, str, str], float] = defaultdict(float)
    for weight, bucket, exchange in weighted(profile):
        for place, record in enumerate(exchange.collectives):
            title = algorithm_of(record, cluster).title if cluster.workers > 1 else ""
            part = participants(record, cluster)
            sent = sum(sizes_sent(record, part.workers)) / part.workers
            sums[bucket, place, record.kind, title] += float(weight) * sent
    return tuple(
        BucketCollective(
            bucket=bucket, elements=profile.buckets[bucket].numel, kind=kind.replace("_", "-"),
            algorithm=title, sent=sent,
        )
        for (bucket, _, kind, title), sent in sorted(sums.items())
    )  # fmt: skip
