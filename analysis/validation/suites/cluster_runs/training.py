"""Training steps of raysgd, bagua and global-qsgd: buckets, records, steps.

Gradients are exchanged in buckets of PyTorch's DDP, in the order in which they become ready, behind
the backward pass. What a method sends of n elements is a list of collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from gcsim.analysis.validation.suite import bare_exchange, one_step
from gcsim.analysis.validation.suites.ddl_benchmarks import models
from gcsim.analysis.validation.suites.other_clusters import runs
from gcsim.analysis.validation.suites.other_clusters.prediction import KNOWN, Job, known_step
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.training import Training
from gcsim.traces.buckets import CAP_BYTES, FIRST_BYTES, bucket_layouts
from gcsim.traces.profile import Exchange, ModelFacts

Records = Callable[[int], tuple[CollectiveRecord, ...]]
"""What is exchanged of a bucket of so many elements."""
Exchanges = Callable[[int], Exchange]
"""The same, with what is computed around it."""


def reduced(width: int = 4) -> Records:
    """An all-reduce of elements of `width` bytes."""
    return lambda elements: (
        CollectiveRecord(kind="all_reduce", sent=(width * elements,), element=width),
    )


def scattered(bits: int, nodes: int) -> Records:
    """Compressed to so many bits an element: stripes all to all, then their sums gathered."""

    def records(elements: int) -> tuple[CollectiveRecord, ...]:
        nbytes = math.ceil(elements * bits / 8)
        return (
            CollectiveRecord(kind="all_to_all", sent=(nbytes,)),
            CollectiveRecord(kind="all_gather", sent=(-(-nbytes // nodes),)),
        )

    return records


@cache
def model(name: str, batch: int) -> tuple[ModelFacts, tuple[int, ...]]:
    """Facts, and elements of the parameter tensors in forward order."""
    if name == "bert_large":
        found = models.model(name, batch)
        return found.facts, tuple(size for _, size in reversed(found.tensors))
    return runs.facts(name, batch), tuple(runs.tensor_sizes(name))


def bare(records: Records) -> Exchanges:
    """What a worker computes around them is not counted."""
    return lambda elements: bare_exchange(*records(elements))


def job(
    name: str,
    batch: int,
    exchanges: Exchanges,
    cluster: Cluster,
    step: float,
    *,
    first: int = FIRST_BYTES,
    cap: int = CAP_BYTES,
    training: Training = KNOWN,
) -> Job:
    """An iteration on the cluster, where a device alone takes `step` seconds; buckets of `first`
    and then `cap` bytes."""
    facts, sizes = model(name, batch)
    parameters = [(str(n), (size,)) for n, size in enumerate(sizes)]
    buckets = bucket_layouts(parameters, first=first, cap=cap)
    of_buckets = [exchanges(bucket.numel) for bucket in buckets]
    profile = one_step("none", facts, buckets, of_buckets)
    return Job(profile=profile, cluster=cluster, step=step, training=training)


@cache
def catalogue_step(name: str, batch: int, device: str, tokens: int | None = None) -> float | None:
    """An iteration of one device by the catalogue, on sequences of so many tokens; None where it
    knows nothing of the model."""
    facts = model(name, batch)[0]
    return known_step(facts if tokens is None else replace(facts, tokens=tokens), device)
