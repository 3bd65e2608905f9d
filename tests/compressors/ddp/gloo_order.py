"""Gloo's all-reduce adds up in this order: an oracle, bit for bit; rounding depends on it.

The vector is cut as in `gloo_ring_allreduce` of the simulator, and chunk c sets out at rank c - 1
and travels downwards, each rank adding what it receives to its own, until rank c holds the sum.
Sums of integers, maxima and sums of two workers are those in the order of ranks.

Source: pytorch/gloo, gloo/allreduce.cc (`ring`), gloo/allreduce.h (`kMaxSegmentSize`).
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gcsim.compressors.requests import Operation

LARGEST_SEGMENT = 1 << 20
"""Bytes that Gloo sends at a time, at most."""


def in_gloo_ring_order(tensors: Sequence[Tensor], op: Operation) -> Tensor:
    """What Gloo's ring gives: chunk c is t(c-1) + t(c-2) + … + t(c), ranks modulo their number."""
    first, count = tensors[0], len(tensors)
    flat = [tensor.reshape(-1) for tensor in tensors]
    reduced = torch.empty_like(flat[0])
    for number, chunk in enumerate(gloo_ring_chunks(first.numel(), first.element_size(), count)):
        part = flat[number - 1][chunk].clone()
        for distance in range(2, count + 1):
            other = flat[(number - distance) % count][chunk]
            part = part + other if op == "sum" else torch.maximum(part, other)
        reduced[chunk] = part
    return reduced.view(first.shape)


def gloo_ring_chunks(numel: int, element: int, count: int) -> Iterator[slice]:
    """The elements of each of `count` chunks; the last ones may be short or empty.

    A chunk is a whole number of equal segments, at least two, of at most `LARGEST_SEGMENT` bytes;
    `element` is bytes an element.
    """
    nbytes = numel * element
    most = element * max(1, LARGEST_SEGMENT // element)
    segments = _round_up(max(-(-nbytes // most), 2 * count), count)
    segment = _round_up(-(-nbytes // segments), element)
    length = segments // count * segment // element
    for number in range(count):
        yield slice(min(numel, number * length), min(numel, (number + 1) * length))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
