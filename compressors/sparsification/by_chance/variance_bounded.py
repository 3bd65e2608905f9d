"""Wangni et al.'s sparsification: the sparsest unbiased message of a given variance.

Element i is sent with probability p_i = min(1, lambda |g_i|), independently on each worker, as
g_i / p_i. Elements with p = 1 (A) send their value; all others that are sent (B) have the same
magnitude 1/lambda, so that a sign is enough. Unbiased; E|Q(g) - g|^2 = sum_B g_i^2 (1/p_i - 1).

lambda is found for one of
- a density: sum(p) = ratio * n, by at most `rounds` rounds (greedy; two are nearly always enough);
- a bound eps: E|Q(g)|^2 = (1 + eps) |g|^2 exactly, with the smallest A of the closed form
  |g_(k+1)| sum_{j>k} |g_(j)| <= eps |g|^2 + sum_{j>k} g_(j)^2 (magnitudes in falling order),
  lambda = sum_{j>k} |g_(j)| / (eps |g|^2 + sum_{j>k} g_(j)^2); found without sorting.

Bits of a tensor: |A| (32 + index) + |B| (1 + index) + 96: 1/lambda, |A|, and the length of A's
index code. 1/lambda is rounded to float32 before the probabilities are formed, so that it is
exact on arrival.

Assumes that a bound is meant for each tensor. Nothing is kept between steps.

Source: J. Wangni, J. Wang, J. Liu, T. Zhang, "Gradient Sparsification for Communication-Efficient
Distributed Optimization", NeurIPS 2018, arXiv:1710.09854: the greedy algorithm and the closed form.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken_all
from gcsim.compressors.coding.indices.coded import chosen_coders, coded_positions
from gcsim.compressors.coding.indices.index_coding import IndexCoding
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.coding.one_bit.signs import add_scaled_signs, put_sign_bits
from gcsim.compressors.coding.selecting.sampling import Weights, draw_apart
from gcsim.compressors.coding.selecting.scales import (
    exact_scales,
    scales_for_count,
    scales_for_variance,
)
from gcsim.compressors.coding.sparse import scatter_add
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments, keys_of

_HEAD_BYTES = 12
"""1/lambda as float32, |A| and bytes of A's index code as 32 bits each."""


class VarianceBoundedParameters(CompressorParameters):
    ratio: Ratio = Field(0.02, description="expected fraction sent of each tensor")
    bound: float | None = Field(
        None, gt=0.0, description="eps: E|Q|^2 = (1 + eps)|g|^2; when given, ratio is not used"
    )
    rounds: int = Field(2, ge=1, description="at most so many rounds to reach the ratio")
    indices: IndexCoding = Field("packed", description="how indices travel: ceil(log2 n) bits")


class VarianceBounded(Compressor[VarianceBoundedParameters]):
    """Unbiased sampling in proportion to the magnitude, independently on each worker."""

    about = About(
        title="Variance-bounded sparsification",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="certain * (32 + bits per index) + others * (1 + bits per index) + 96 / n",
        unbiased=True,
        paper="Wangni et al., Gradient Sparsification, NeurIPS 2018, arXiv:1710.09854",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield from gather_variable(self.encode(bucket, step))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """The message of a bucket's gradient: uint8, one frame a tensor."""
        me, chosen, layout = self.worker, self.parameters, bucket.layout
        segments = Segments.of(layout)
        keys = keys_of(layout, me.seed, step, "variance-bounded", me.rank)
        weights = Weights.of(bucket.gradient, segments)
        scales, magnitudes = multipliers(weights, chosen)  # [tensors]
        places, values, k = draw_apart(
            weights.values, weights.sums, segments, scales, keys,
            expected=np.rint(chosen.ratio * segments.length).astype(np.int64),
        )  # fmt: skip
        a, b = k
        certain, others = values[: int(a.sum())], values[int(a.sum()) :]
        both = _twice(segments)
        coders = chosen_coders(chosen.indices, both, k.ravel())
        code, sizes_of_code = coded_positions(places, both, k.ravel(), coders)
        size_a, size_b = sizes_of_code.reshape(2, -1)
        flags_a, flags_b = coders.reshape(2, -1)
        signs = packed_bytes(b, 1)
        sizes = _HEAD_BYTES + 4 * a + signs + size_a + size_b
        counts = torch.from_numpy(np.stack((a, size_a), axis=1).astype(np.int32).ravel())
        message, at = frames(
            bucket.gradient, Codec.VARIANCE_BOUNDED, segments, sizes, nonzero=a + b,
            flags=flags_a | flags_b << 4,
            parts=[
                (magnitudes, segments.column(4)), (counts, segments.column(8)), (certain, 4 * a)
            ],
        )  # fmt: skip
        behind = at + _HEAD_BYTES + 4 * a
        put_sign_bits(others, Segments.behind(b), message, behind)
        ends = behind + signs
        put(message, np.concatenate((ends, ends + size_a)), code, sizes_of_code)
        return seal(message, at, sizes)

    @classmethod
    def properties(cls, parameters: VarianceBoundedParameters) -> Properties:
        def bound(vector: Tensor) -> float:
            found = multipliers(Weights.of(vector, Segments.alone(vector.numel())), parameters)
            scale, magnitude = (float(each) for each in found)
            sizes = vector.double().abs()
            uncertain = sizes[sizes * scale < 1.0]
            return float((uncertain * magnitude - uncertain.square()).sum())

        return Properties(unbiased=True, error_bound=bound, error_is_exact=True)


def multipliers(weights: Weights, parameters: VarianceBoundedParameters) -> tuple[Tensor, Tensor]:
    """(lambda, float64; 1/lambda, float32; both `[tensors]`); 0 when all elements are zero."""
    if parameters.bound is not None:
        found = scales_for_variance(weights, parameters.bound)
        return exact_scales(torch.from_numpy(found).to(weights.values.device))
    k = np.maximum(1.0, parameters.ratio * weights.segments.length)
    given = weights.values, weights.sums, weights.segments
    return exact_scales(scales_for_count(*given, k, parameters.rounds)[0])


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * the elements of A and of B, in place.

    Raises `InputError` for a damaged message, or one of another layout.
    """
    segments, found = Segments.of(layout), read(message, layout, Codec.VARIANCE_BOUNDED)
    if (found.size < _HEAD_BYTES).any():
        raise damaged(f"bodies of {found.size.tolist()} bytes")
    magnitudes, counts = found.parts(
        message, (segments.column(4), torch.float32), (segments.column(8), torch.int32)
    )
    a, size_a = np.array(counts.tolist(), dtype=np.int64).reshape(-1, 2).T
    b = found.nonzero - a
    at = found.at + _HEAD_BYTES
    signs = packed_bytes(b, 1)
    size_b = found.size - (_HEAD_BYTES + 4 * a + signs + size_a)
    if (np.stack((a, b, size_a, size_b)) < 0).any():
        raise damaged(f"{a.tolist()} certain elements of {found.nonzero.tolist()}")
    codes = at + 4 * a + signs
    places, sizes = np.concatenate((codes, codes + size_a)), np.concatenate((size_a, size_b))
    certain, code = taken_all(
        message, [(at, 4 * a, torch.float32), (places, sizes, torch.uint8)]
    )  # fmt: skip
    others, own = out.new_empty(int(b.sum())), Segments.behind(b)
    add_scaled_signs(others, own.whole, message, at + 4 * a, magnitudes, 1.0, overwrite=True)
    coders = np.concatenate((found.flags & 0xF, found.flags >> 4))
    given = torch.cat((certain, others)), np.concatenate((a, b))
    scatter_add(out, _twice(segments), code, sizes, coders, *given, weight)


def _twice(segments: Segments) -> Segments:
    """The table with the rows of all tensors' certain elements, then those of the others."""
    return Segments(np.concatenate((segments.table, segments.table)))
