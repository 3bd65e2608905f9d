"""Sampling scales on a GPU: the kernels of `coding/selecting/scales.py`. Moments are summed by
block, then by tensor, where the next scale is computed without waiting."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.selecting import scales as loops
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_in_blocks
from gcsim.compressors.gpu.scans import SQUARES, joined
from gcsim.compressors.gpu.words import BLOCK, blocks, float64, float64_bits, launch, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Segments


@kernel_of(loops.saturation)
def saturation(
    values: Tensor, sums: Tensor, segments: Segments, scales: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the moments; the host waits for them."""
    parts = _parts(values, segments)
    state = there(np.stack((scales, np.zeros(len(scales)))), values.device)
    found = values.new_empty((3, parts.firsts[-1]), dtype=torch.float64)
    launch_parts(
        _saturate, parts, values, state, found, parts.firsts[-1], state, state, 0, LAST=False,
        BLOCK=BLOCK,
    )  # fmt: skip
    cuts = there(parts.firsts, values.device)
    return np.array(torch.stack([joined(each, cuts, SQUARES) for each in found]).tolist())


@kernel_of(loops.scales_for_count)
def scales_for_count(
    values: Tensor, sums: Tensor, segments: Segments, k: NDArray[np.float64], rounds: int
) -> tuple[Tensor, Tensor]:
    """Find the scales; the first round, with a scale of 0, only sums."""
    parts = _parts(values, segments)
    state = values.new_zeros((6, parts.count), dtype=torch.float64)
    found = values.new_empty((2, parts.firsts[-1]), dtype=torch.float64)
    ended, wanted = state[5].view(torch.int64), there(k, values.device)
    for _ in range(rounds + 1):
        launch_parts(
            _saturate, parts, values, state, found, parts.firsts[-1], ended, wanted,
            float64_bits(loops.LARGEST_SCALE), LAST=True, BLOCK=BLOCK,
        )  # fmt: skip
    return state[0], state[4]


@kernel_of(loops.exact_scales)
def exact_scales(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Round the scales in one launch."""
    exact, inverses = torch.empty_like(scales), torch.empty_like(scales, dtype=torch.float32)
    n = len(scales)
    launch(
        _exact, blocks(n), scales, exact, inverses, float64_bits(loops.LARGEST_INVERSE), n,
        BLOCK=BLOCK,
    )  # fmt: skip
    return exact, inverses


def _parts(values: Tensor, segments: Segments) -> Parts:
    numbers = np.arange(len(segments.table))
    return parts_in_blocks(values, segments.length, segments.begin, numbers)


@triton.jit(do_not_specialize=["most"])
def _saturate(
    values, state, found, programs, ended, wanted, most: tl.uint64, table, parts,
    LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count a block's elements with scale |v| >= 1, sum the others and the squares of the former.
    `state`: scales, and whether a tensor is settled. With `LAST` squares are left out, and a
    tensor's last program computes the next scale; `ended` is left at zeros."""
    program = tl.program_id(0)
    column, number, n = own_part(table, parts)
    tensor = tl.load(column + 3 * parts)
    own = state + tensor
    if tl.load(own + parts) == 0.0:
        at = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        source = values + tl.load(column + 2 * parts) + at
        size = tl.abs(tl.load(source, mask=at < n, other=0.0).to(tl.float64))
        certain = size * tl.load(own) >= 1.0
        tl.store(found + program, tl.sum(certain.to(tl.float64), axis=0))
        tl.store(found + programs + program, tl.sum(tl.where(certain, 0.0, size), axis=0))
        if LAST:
            many = (n + BLOCK - 1) // BLOCK
            # all threads have stored before the count rises, so the last program sees all sums
            tl.debug_barrier()
            if tl.atomic_add(ended + tensor, 1, sem="acq_rel") == many - 1:
                tl.store(ended + tensor, 0)
                _make_next(
                    found + program - number, programs, many, own, parts,
                    tl.load(wanted + tensor), float64(most), BLOCK // 4,
                )  # fmt: skip
        else:
            squares = tl.sum(tl.where(certain, size * size, 0.0), axis=0)
            tl.store(found + 2 * programs + program, squares)


@triton.jit
def _make_next(found, programs, many, own, tensors, k, most, BLOCK: tl.constexpr):
    """Compute a tensor's next scale from its programs' moments. `own`: scale, whether settled,
    number saturated before, turns so far (the first only sums), rounds."""
    counts = tl.zeros([BLOCK], dtype=tl.float64)
    others = tl.zeros([BLOCK], dtype=tl.float64)
    for start in range(0, many, BLOCK):
        at = start + tl.arange(0, BLOCK)
        counts += tl.load(found + at, mask=at < many, other=0.0)
        others += tl.load(found + programs + at, mask=at < many, other=0.0)
    count = tl.sum(counts, axis=0)
    rest = tl.sum(others, axis=0)
    turns = tl.load(own + 3 * tensors)
    settled = (turns > 0.0) & ((count == tl.load(own + 2 * tensors)) | (count >= k))
    # without other weights all are certain; in the first turn, all weights are 0
    alone = tl.where(turns > 0.0, most, 0.0)
    scale = tl.where(rest > 0.0, tl.minimum((k - count) / rest, most), alone)
    tl.store(own, tl.where(settled, tl.load(own), scale))
    tl.store(own + tensors, (settled | ((rest > 0.0) == 0)).to(tl.float64))
    tl.store(own + 2 * tensors, count)
    tl.store(own + 3 * tensors, turns + 1.0)
    tl.store(own + 4 * tensors, turns)


@triton.jit(do_not_specialize=["most"])
def _exact(scales, exact, inverses, most: tl.uint64, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scale = tl.load(scales + at, mask=at < n, other=0.0)
    inverse = tl.minimum(1.0 / tl.where(scale > 0.0, scale, 1.0), float64(most))
    inverse = tl.minimum(inverse.to(tl.float32).to(tl.float64), float64(most))
    inverse = tl.where(scale > 0.0, inverse, 0.0)
    tl.store(inverses + at, inverse.to(tl.float32), mask=at < n)
    own = tl.where(inverse > 0.0, 1.0 / tl.where(inverse > 0.0, inverse, 1.0), scale)
    tl.store(exact + at, own, mask=at < n)
