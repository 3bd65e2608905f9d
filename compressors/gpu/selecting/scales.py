"""Sampling scales on a GPU: the kernels of `coding/selecting/scales.py`.

A round adds up moments by blocks, and of these by tensor, where the next scale is made: the host
waits for nothing. Sums may differ as `reductions.py` says.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.selecting import scales as loops
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_of
from gcsim.compressors.gpu.scans import SQUARES, joined
from gcsim.compressors.gpu.words import BLOCK, blocks, float64, float64_bits, launch, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Segments


@kernel_of(loops.saturation)
def saturation(
    values: Tensor, sums: Tensor, segments: Segments, scales: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The host waits for them."""
    parts = _parts(values, segments)
    state = torch.stack((there(scales, values.device), values.new_ones(len(scales)).double()))
    found = values.new_empty((3, parts.firsts[-1]), dtype=torch.float64)
    launch_parts(_saturate, parts, values, state, found, parts.firsts[-1], BLOCK=BLOCK)
    cuts = there(parts.firsts, values.device)
    return np.array(torch.stack([joined(each, cuts, SQUARES) for each in found]).tolist())


@kernel_of(loops.scales_for_count)
def scales_for_count(
    values: Tensor, sums: Tensor, segments: Segments, k: NDArray[np.float64], rounds: int
) -> tuple[Tensor, Tensor]:
    """The first round, with a scale of 0, adds up all."""
    parts = _parts(values, segments)
    state = values.new_zeros((4, parts.count), dtype=torch.float64)
    state[1], state[3] = 1.0, -1.0
    found = values.new_empty((3, parts.firsts[-1]), dtype=torch.float64)
    cuts, wanted = there(parts.firsts, values.device), there(k, values.device)
    for _ in range(rounds + 1):
        launch_parts(_saturate, parts, values, state, found, parts.firsts[-1], BLOCK=BLOCK)
        launch(
            _next_scale, parts.count, found, parts.firsts[-1], cuts, wanted, state,
            float64_bits(loops.LARGEST_SCALE), BLOCK=BLOCK // 4,
        )  # fmt: skip
    return state[0], state[3]


def _parts(values: Tensor, segments: Segments) -> Parts:
    """Parts in blocks, with begins and numbers."""
    elements = segments.length.tolist()
    programs = [blocks(n) for n in elements]
    return parts_of(values, elements, programs, segments.begin.tolist(), range(len(elements)))


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _saturate(
    values, state, found, programs, table, parts, BLOCK: tl.constexpr
):  # fmt: skip
    """Elements of a block with scale |v| >= 1, sum of the others, sum of squares of the former.

    `state`: the scales, and whether a tensor is going.
    """
    program = tl.program_id(0)
    column, number, n = own_part(table, parts)
    own = state + tl.load(column + 3 * parts)
    if tl.load(own + parts) > 0.0:
        at = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        source = values + tl.load(column + 2 * parts) + at
        size = tl.abs(tl.load(source, mask=at < n, other=0.0).to(tl.float64))
        certain = size * tl.load(own) >= 1.0
        tl.store(found + program, tl.sum(certain.to(tl.float64), axis=0))
        tl.store(found + programs + program, tl.sum(tl.where(certain, 0.0, size), axis=0))
        squares = tl.sum(tl.where(certain, size * size, 0.0), axis=0)
        tl.store(found + 2 * programs + program, squares)


@triton.jit(do_not_specialize=["most"])
def _next_scale(
    found, programs, cuts, wanted, state, most: tl.uint64, BLOCK: tl.constexpr
):  # fmt: skip
    """A tensor's next scale, by the moments that its programs found.

    `state`: scale, whether it is going, saturated elements before, rounds before: at first
    -1, which only adds up.
    """
    tensor = tl.program_id(0)
    tensors = tl.num_programs(0)
    own = state + tensor
    if tl.load(own + tensors) > 0.0:
        first = tl.load(cuts + tensor)
        last = tl.load(cuts + tensor + 1)
        counts = tl.zeros([BLOCK], dtype=tl.float64)
        others = tl.zeros([BLOCK], dtype=tl.float64)
        for start in range(first, last, BLOCK):
            at = start + tl.arange(0, BLOCK)
            counts += tl.load(found + at, mask=at < last, other=0.0)
            others += tl.load(found + programs + at, mask=at < last, other=0.0)
        count = tl.sum(counts, axis=0)
        rest = tl.sum(others, axis=0)
        k = tl.load(wanted + tensor)
        rounds = tl.load(own + 3 * tensors)
        settled = (rounds >= 0.0) & ((count == tl.load(own + 2 * tensors)) | (count >= k))
        alone = tl.where(rounds >= 0.0, float64(most), 0.0)
        scale = tl.where(rest > 0.0, tl.minimum((k - count) / rest, float64(most)), alone)
        tl.store(own, tl.where(settled, tl.load(own), scale))
        tl.store(own + tensors, ((settled == 0) & (rest > 0.0)).to(tl.float64))
        tl.store(own + 2 * tensors, count)
        tl.store(own + 3 * tensors, rounds + 1.0)
