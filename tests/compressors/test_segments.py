"""A primitive gives a bucket what it gives its tensors alone."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.base import Compressor, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.meter import segment
from gcsim.compressors.registry import create
from gcsim.compressors.requests import AllReduce, PushPull
from gcsim.compressors.segments import Segments
from tests.compressors.shared import layout_of

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("topk", {"ratio": 0.05}), ("topk", {"ratio": 0.2, "values": "fp16", "indices": "auto"}),
    ("topk", {"ratio": 0.01, "indices": "rice", "error_feedback": False}), ("qsgd", {}),
    ("qsgd", {"bucket": None, "norm": "l2"}),
    ("qsgd", {"bucket": 1000, "coding": "digits", "steps": 2}),
    ("qsgd", {"coding": "elias_sparse", "norm": "l2"}), ("terngrad", {}),
    ("terngrad", {"packing": "two_bit", "scalar": "clip"}), ("orq", {"bucket": 50, "clip": 2.0}),
    ("orq", {"levels": 9, "refine": True}), ("linear", {}), ("nuqsgd", {}),
    ("nuqsgd", {"bits": 8, "bucket": None, "multiplier": 0.9}), ("fp8", {}), ("dynamic_8bit", {}),
    ("natural", {}), ("natural", {"bits": 8}), ("scaled_sign", {}), ("ef_signsgd", {}),
    ("ef_block_sgdm", {"block_elements": 5000}), ("signsgd", {}), ("signum", {}),
    ("bingrad_b", {"clip": 2.0, "bucket": 100}), ("bingrad_pb", {}),
]  # fmt: skip
LENGTHS = st.lists(st.sampled_from((0, 1, 7, 4097, 65536, 65537)), min_size=1, max_size=4)


def drawn(n: int, seed: int, *, ties: bool) -> Tensor:
    values = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    return values.mul(4).round().div(4) if ties else values


def steps_of(method: Compressor[Any], buckets: list[Bucket]) -> list[list[Tensor]]:
    """Each step of a single worker: its payload, the update, what is held back."""
    found = []
    for step, bucket in enumerate(buckets):
        exchange, payload = method.exchange(bucket, step), bucket.gradient
        request = next(exchange)
        try:
            while True:
                if isinstance(request, AllReduce):
                    reply: Any = request.tensor
                else:
                    payload = request.payload  # type: ignore[union-attr]  # all others have one
                    reply = [payload]
                    if isinstance(request, PushPull):
                        reply = request.server(reply)
                    elif payload.dtype != torch.uint8:  # the lengths of messages
                        payload = bucket.gradient
                request = exchange.send(reply)
        except StopIteration as stop:
            held = method.residual_of(bucket)
            found.append([payload, stop.value, bucket.gradient[:0] if held is None else held])
    return found


def buckets_of(layout: BucketLayout, gradients: list[Tensor]) -> list[Bucket]:
    return [Bucket(layout=layout, gradient=gradient) for gradient in gradients]


def of_one_worker(name: str, parameters: dict[str, Any]) -> Compressor[Any]:
    return create(name, Worker(rank=0, count=1, seed=7), parameters)


@pytest.mark.parametrize(("name", "parameters"), METHODS)
@settings(max_examples=3)
@given(lengths=LENGTHS, seed=st.integers(0, 99), ties=st.booleans())
def test_a_bucket_is_its_tensors_one_behind_the_other(
    name: str, parameters: dict[str, Any], lengths: list[int], seed: int, *, ties: bool
) -> None:
    """Message, update and memory to the bit; bytes of kernels as counted, but for copies."""
    layout = layout_of(*lengths)
    gradients = [drawn(layout.numel, seed + step, ties=ties) for step in range(2)]
    with segment() as whole:
        together = steps_of(of_one_worker(name, parameters), buckets_of(layout, gradients))
    each = []
    with segment() as apart:
        for piece in layout.slices:
            some = buckets_of(layout.alone[piece.index], [piece.of(g) for g in gradients])
            each.append(steps_of(of_one_worker(name, parameters), some))
    for step, found in enumerate(together):
        for part, value in enumerate(found):
            assert torch.equal(value, torch.cat([alone[step][part] for alone in each])), part

    def counts(recorder: Any) -> Counter[str]:
        own = [cost for cost in recorder.fixed if not cost.name.startswith("aten.")]
        reached = [(cost.name.partition(":2^")[0], cost.nbytes) for cost in own]
        return sum((Counter({name: nbytes}) for name, nbytes in reached), Counter())

    assert counts(whole) == counts(apart)


@given(
    lengths=LENGTHS, shares=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    seed=st.integers(0, 99), ties=st.booleans(), remembered=st.booleans(),
)  # fmt: skip
@settings(max_examples=25)
def test_the_largest_are_those_of_a_stable_sort(
    lengths: list[int], shares: list[float], seed: int, *, ties: bool, remembered: bool
) -> None:
    segments, n = Segments.behind(lengths), sum(lengths)
    k = segments.column([int(m * share) for m, share in zip(lengths, shares, strict=False)])
    values = drawn(n, seed, ties=ties)
    memory = drawn(n, seed + 1, ties=ties) if remembered else None
    source = values if memory is None else memory + values
    left, places, taken = source.clone(), [], []
    for begin, length, many in zip(segments.begin, segments.length, k, strict=True):
        own = source[begin : begin + length].numpy()
        place = np.sort(np.argsort(-np.abs(own), kind="stable")[:many])
        places.append(place)
        taken.append(own[place])
        left[begin + place] = 0.0
    found = largest(values, segments, k, memory=memory)
    assert found[0].tolist() == np.concatenate(places).tolist()
    assert found[1].tolist() == np.concatenate(taken).tolist()
    assert memory is None or torch.equal(memory, left)
