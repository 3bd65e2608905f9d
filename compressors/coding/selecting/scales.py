"""Scales that turn weights into sampling probabilities p_i = min(1, scale * |w_i|).

Elements that would exceed 1 are saturated: they are certain, and the rest of the budget is spread
over the others in proportion to their weights. That may lift others above 1, so the saturated set F
grows over a few rounds until it stays the same (or `rounds` are used up).

- For an expected number of k (`scales_for_count`): scale = (k - |F|) / sum_{not F} |w|, so that
  sum(p) = k; a little less when the rounds were used up. With fewer than k nonzero weights, all of
  them are saturated.
- For a second moment of (1 + eps) |w|^2 after division by p (`scales_for_variance`): scale =
  sum_{not F} |w| / (eps |w|^2 + sum_{not F} w^2). The scale grows as long as an element exceeds 1,
  so the rounds end at the smallest F, that of the closed form for sorted weights.

Sums are float64 over blocks of 16 elements; a round reads these n/16 sums and the elements of the
few blocks that may contain a saturated one.

Source: J. Wangni, J. Wang, J. Liu, T. Zhang, "Gradient Sparsification for Communication-Efficient
Distributed Optimization", NeurIPS 2018, arXiv:1710.09854 (greedy, and closed form); the count is
also that of L. Song et al., "Communication Efficient SGD via Gradient Sampling with Bayes Prior",
CVPR 2021, Alg. 1, with the saturated set read cumulatively.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.selecting.sampling import BLOCK, Weights
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, loop, summing_loop, tensor
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import TILE, Segments

LARGEST_SCALE = 1e300
"""A scale that saturates every nonzero weight, however small."""
LARGEST_INVERSE = 3e38
"""Largest inverse of a scale; it is sent as a magnitude."""


def _pass(blocks: Any) -> KernelCost:
    return launch("reduction", "sampling._saturation", blocks, 8 * blocks)


@counted_as(lambda _, values, sums, *__: [_pass(sums.numel())])
@primitive
def saturation(
    values: Tensor, sums: Tensor, segments: Segments, scales: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return moments of `Weights` under each tensor's scale, float64 `[3, tensors]`: number of
    elements with scale |w| >= 1, sum of |w| of all others, sum of w^2 of the former."""
    going, moments = np.ones(len(scales), dtype=np.bool_), np.empty((3, len(scales)))
    _add_moments(array(values), array(sums), segments, scales, going, moments)
    return moments


def _add_moments(
    values: NDArray[np.float32], sums: NDArray[np.float64], segments: Segments,
    scales: NDArray[np.float64], going: NDArray[np.bool_], moments: NDArray[np.float64],
) -> None:  # fmt: skip
    """Compute `saturation` of the tensors that are `going`, into `moments`."""
    partial = np.zeros((len(segments.tiles), 3), dtype=np.float64)
    in_tiles(
        _saturate_tiles, segments.tiles, segments.table, segments.cells(BLOCK).first, values, sums,
        scales, going, partial,
    )  # fmt: skip
    _by_tensor(segments.tiles, partial, moments)


def _rounds(
    found: tuple[Tensor, Tensor], values: object, sums: Tensor, segments: Segments, *_: object
) -> Iterator[KernelCost]:
    passes, blocks = found[1].numpy(force=True), segments.cells(BLOCK).count
    yield launch("reduction", "aten.sum", sums.numel(), sums.nbytes, 8 * len(blocks))
    for number in range(int(passes.max())):
        yield _pass(blocks[passes > number])


@counted_as(_rounds)
@primitive
def scales_for_count(
    values: Tensor, sums: Tensor, segments: Segments, k: NDArray[np.float64], rounds: int
) -> tuple[Tensor, Tensor]:
    """Return (scales with sum(p) = k of each tensor after at most `rounds` rounds; rounds of each).
    Both are float64 `[tensors]`; the scale is 0 if all weights of the tensor are zero."""
    before, passes, scales = (np.zeros(len(k)) for _ in range(3))
    own, blocks, moments = array(values), array(sums), np.empty((3, len(k)))
    count, rest, _ = moments
    _add_moments(own, blocks, segments, scales, np.ones(len(k), dtype=np.bool_), moments)
    going = rest > 0.0
    with np.errstate(all="ignore"):
        scales = np.where(going, np.minimum(k / rest, LARGEST_SCALE), scales)
        for _ in range(rounds):
            if not np.count_nonzero(going):
                break
            _add_moments(own, blocks, segments, scales, going, moments)
            passes += going
            # in exact arithmetic count < k unless no other weight is left
            going &= (count != before) & (count < k)
            before = count.copy()
            more = np.minimum((k - count) / rest, LARGEST_SCALE)
            # if all other weights are 0, all nonzero ones are certain
            scales = np.where(going, np.where(rest <= 0.0, LARGEST_SCALE, more), scales)
            going &= rest > 0.0
    return tensor(scales, values), tensor(passes, values)


def scales_for_variance(weights: Weights, eps: float) -> NDArray[np.float64]:
    """Return the scales with sum(w^2 / p) = (1 + eps) |w|^2, eps > 0: `[tensors]`; or 0."""
    given = weights.values, weights.sums, weights.segments
    # this scale saturates every nonzero weight: gives the sum of all squares
    energy = saturation(*given, np.full(len(weights.segments.table), LARGEST_SCALE))[2]
    going, saturated = energy > 0.0, np.zeros(len(energy))
    with np.errstate(all="ignore"):
        # the formula for an empty F, with the sum over all
        scales = np.where(going, saturation(*given, saturated)[1] / ((1.0 + eps) * energy), 0.0)
        while going.any():
            count, rest, squares = saturation(*given, scales)
            going &= count != saturated
            saturated = count
            # do not let rounding lower a scale: the set would stop growing
            more = rest / (eps * energy + np.maximum(0.0, energy - squares))
            scales = np.where(going, np.maximum(scales, more), scales)
    return scales


@counted_as(lambda *_: ())
@primitive
def exact_scales(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return scales whose inverse is a float32 of at most 3e38, float64, and that inverse:
    `[tensors]`; the inverse is 0 for a scale of 0, or if float32 cannot hold it."""
    given = array(scales)
    with np.errstate(divide="ignore"):
        single = np.minimum(1.0 / given, LARGEST_INVERSE).astype(np.float32)
        inverses = np.where(given > 0.0, np.minimum(single.astype(float), LARGEST_INVERSE), 0.0)
        exact = np.where(inverses > 0.0, 1.0 / inverses, given)
    return tensor(exact, scales), tensor(inverses.astype(np.float32), scales)


@loop
def _saturate_tiles(start, stop, tiles, table, blocks, values, sums, scales, going, partial):
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        if going[t]:
            own = values[table[t, 0] : table[t, 0] + table[t, 1]]
            found = _add_unsaturated(first, last, own, sums[blocks[t] :], scales[t])
            partial[tile, 0], partial[tile, 1], partial[tile, 2] = found


@loop
def _by_tensor(tiles, partial, moments):
    moments[:] = 0.0
    # in the order of the tiles, so sums do not depend on threads
    for tile in range(tiles.shape[0]):
        for i in range(3):
            moments[i, tiles[tile, 0]] += partial[tile, i]


@summing_loop
def _add_unsaturated(first, last, values, sums, scale):
    """Count elements with scale |v| >= 1, sum the others, and the squares of the former."""
    heavy = np.empty(TILE // BLOCK, dtype=np.int64)
    part = sums[first // BLOCK : -(-last // BLOCK)]
    number = 0
    for b in range(part.size):
        heavy[number] = b
        # an element is at most its block's sum, so a light block has no saturated element
        number += int(part[b] * scale >= 1.0)
    count, rest, squares = 0.0, 0.0, 0.0
    # many heavy blocks: one vectorised pass over the tile instead of jumps
    if 8 * number > part.size:
        elements = values[first:last]
        for i in range(elements.size):
            value = abs(np.float64(elements[i]))
            over = 1.0 if value * scale >= 1.0 else 0.0  # factors instead of conditions vectorise
            under = 1.0 if value * scale < 1.0 else 0.0
            count += over
            squares += over * value * value
            rest += under * value  # not value - over * value: such a sum may be reordered,
            # and what is light be lost beside what is heavy
    else:
        for b in range(part.size):
            rest += part[b] if part[b] * scale < 1.0 else 0.0
        for h in range(number):
            begin = first + heavy[h] * BLOCK
            for i in range(begin, min(begin + BLOCK, last)):
                value = abs(np.float64(values[i]))
                over = 1.0 if value * scale >= 1.0 else 0.0
                under = 1.0 if value * scale < 1.0 else 0.0
                count += over
                squares += over * value * value
                rest += under * value
    return count, rest, squares
