"""What does a worker send and compute in an iteration of one of GRACE's runs? A traffic profile.

As plain data, with the payloads of `grace/payloads.py` and the kernels of `grace/arithmetic.py`:

- Dense training (Horovod's own path) exchanges during the backward pass: one all-reduce for the
  tensors whose gradients become ready within one cycle of Horovod's thread, 5 ms.
- GRACE's methods exchange after it. That is what the runs show: from 10 to 1 Gbit/s an iteration of
  ResNet-50 with random-k of 10 % grows by as much as the bytes take (141 ms), where the backward
  pass would hide all of them. Horovod packs up to 64 MiB into a collective.

Assumption: sizes of payloads that differ are not gathered (4 bytes each).

Source: Horovod, docs/tensor-fusion.rst (64 MB); its changelog, 0.21.0: "default cycle time from 5ms
to 1ms" (GRACE has 0.18.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import groupby, zip_longest

from gcsim.analysis.validation.step_profiles import bare_exchange, one_step
from gcsim.analysis.validation.suites.grace.arithmetic import work
from gcsim.analysis.validation.suites.grace.models import Network, Tensor
from gcsim.analysis.validation.suites.grace.payloads import Method, Sent, sent
from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.kernels import by_class
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import picoseconds
from gcsim.traces.profile import Compute, Exchange, ModelFacts, TrafficProfile

CYCLE = 0.005
"""Seconds between two rounds of Horovod's background thread."""
FUSION = 64 * 2**20
"""Bytes that Horovod packs into a collective at most."""


def grouped(
    network: Network, method: Method, backward: int
) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """When tensors are exchanged together, in picoseconds of the backward pass, and which."""
    order = tuple(reversed(network.tensors))
    if method.compressor != "none":
        filled = 0
        keys = []
        for tensor in order:
            keys.append(filled // FUSION)
            filled += sum(payload.nbytes for payload in sent(method, tensor))
        for _, own in groupby(zip(keys, order, strict=True), key=lambda pair: pair[0]):
            yield backward, tuple(tensor for _, tensor in own)
        return
    total = sum(tensor.forward_flops for tensor in order)
    spent = 0
    ready = []
    for tensor in order:
        spent += tensor.forward_flops
        ready.append((round(Fraction(backward * spent, total)), tensor))
    cycle = picoseconds(CYCLE)
    for _, own in groupby(ready, key=lambda pair: pair[0] // cycle):
        members = list(own)
        yield members[-1][0], tuple(tensor for _, tensor in members)


def traffic(facts: ModelFacts, method: Method, exchanges: Sequence[Exchange]) -> TrafficProfile:
    """The profile of one step, an exchange a bucket."""
    layouts = [BucketLayout(index=index, slices=()) for index in range(len(exchanges))]
    return one_step(method.compressor, facts, layouts, exchanges)


def exchange(method: Method, tensors: Sequence[Tensor]) -> Exchange:
    """First payloads of all tensors in one collective, then the second ones."""
    rounds = zip_longest(*([s for s in sent(method, t) if s.counted] for t in tensors))
    records = tuple(_record([one for one in each if one is not None]) for each in rounds)
    works = [work(method, tensor) for tensor in tensors]
    encode = by_class(cost for one in works for cost in one.encode)
    decode = Compute(
        stage="decode",
        fixed=by_class(cost for one in works for cost in one.decode),
        per_payload=by_class(cost for one in works for cost in one.per_payload),
    )
    between = (Compute(stage="encode", fixed=()),) * (len(records) - 1)
    first = Compute(stage="encode", fixed=encode)
    return Exchange(computes=(first, *between, decode), collectives=records)


def _record(payloads: Sequence[Sent]) -> CollectiveRecord:
    total = sum(payload.nbytes for payload in payloads)
    return CollectiveRecord(kind=payloads[0].kind, sent=(total,), element=4)


def sparse(nbytes: int) -> Exchange:
    """Rows of an embedding, as they are."""
    return bare_exchange(CollectiveRecord(kind="all_gather", sent=(nbytes,)))
