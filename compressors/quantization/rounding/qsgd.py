"""QSGD: every element is rounded at random, without bias, to one of a few levels.

Each tensor is cut into buckets; a bucket sends its norm (float32) and for each element a randomly
rounded level q = -s … s, which stands for norm * q / s. Workers all-gather and average the decoded
values. No state. Unbiased, and for a bucket of d elements E|Q(g) - g|^2 <= min(d / s^2, sqrt(d) /
s) |g|^2 with the Euclidean norm, E|Q(g) - g|^2 <= d max|g|^2 / (4 s^2) with the maximum.

| coding       | bits of the levels                                                           |
|--------------|------------------------------------------------------------------------------|
| fixed        | ceil(log2(2s + 1)) an element                                                |
| digits       | digits of base 2s + 1 in groups: 1.6 (s = 1), 2.333 (2), 3.2 (4), else fixed |
| elias_sparse | omega(gap), sign, omega(|q|) of the elements with q != 0; gap: the distance  |
|              | to the one before in the tensor, from 1                                      |

omega(x) is the Elias code of x >= 1. Its messages vary in length, and lengths are exchanged first;
with the Euclidean norm nearly all levels are 0, so they are short.

The default is a fixed width: four bits are as short as the Elias code on Gaussian gradients, and
accelerators can pack them. The default norm is the maximum: with buckets of 512 and s = 7 the error
is 40 times smaller than with the Euclidean norm. s counts steps from 0 to the norm, as in the
paper. Other papers count differently: ORQ's QSGD-3, -5 and -9 have that many levels in total, so s
= 1, 2 and 4 (with the maximum norm); for variance-based compression b bits without the sign are s =
2^b - 1.

Source: D. Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NIPS 2017, arXiv:1610.02132 (buckets, the maximum norm and Elias' code of sparse levels
too; its code of all levels, zeros too, is longer for s = 1 to 23).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, packed, read, taken
from gcsim.compressors.coding.integers.digits import Form, digits, fixed
from gcsim.compressors.coding.rounding.level_words import coded_levels, decoded_levels
from gcsim.compressors.coding.rounding.levels import (
    MAX_STEPS,
    add_encoded,
    add_rounded,
    encoded,
    even,
    round_levels,
)
from gcsim.compressors.coding.rounding.norms import Norm, cell_norms
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import AllGather, Exchange, gather_variable
from gcsim.compressors.segments import Segments, keys_of, starts
from gcsim.errors import InputError

Coding = Literal["fixed", "digits", "elias_sparse"]
CODECS: dict[Coding, Codec] = {
    "fixed": Codec.QSGD,
    "digits": Codec.QSGD_DIGITS,
    "elias_sparse": Codec.QSGD_ELIAS_SPARSE,
}
CODINGS = {int(codec): coding for coding, codec in CODECS.items()}
MAX_BUCKET = 65535
"""A frame's `params` is the bucket's length; 0 for one bucket a tensor."""


class QsgdParameters(CompressorParameters):
    instead: ClassVar[dict[str, str]] = {
        "bits": "write steps: 7 for 4 bits, 127 for 8, or kind: QSGD 4 bit"
    }
    steps: int = Field(
        7,
        ge=1,
        le=MAX_STEPS,
        description="levels above zero (s): 2s + 1 levels in ceil(log2(2s + 1)) bits (7: 4 bits)",
    )
    bucket: int | None = Field(
        512,
        ge=1,
        le=MAX_BUCKET,
        description="elements that share a norm (32 bits per bucket); null: one norm per tensor",
    )
    norm: Norm = Field("max", description="norm of a bucket: largest magnitude or l2 (the paper's)")
    coding: Coding = Field(
        "fixed",
        description="coding of levels: fixed width, digits of base 2s + 1, or Elias codes of those "
        "that are not zero",
    )


def forms(steps: int) -> dict[Coding, Form]:
    """Return the forms of codes of 2s + 1 values, by coding; other codings use words."""
    return {"fixed": fixed((2 * steps).bit_length()), "digits": digits(2 * steps + 1)}


class Qsgd(Compressor[QsgdParameters]):
    about = About(
        title="QSGD",
        family="quantization",
        collective="all-gather (Elias coding: of variable length)",
        bits="ceil(log2(2 steps + 1)) + 32 / bucket",
        unbiased=True,
        paper="Alistarh et al., NIPS 2017, arXiv:1610.02132",
    )

    @classmethod
    def properties(cls, parameters: QsgdParameters) -> Properties:
        """Return the properties; the error has the paper's bound per bucket, or Bernoulli's 1/4."""
        chosen = parameters

        def bound(values: Tensor) -> float:
            return error_bound(values, chosen.steps, chosen.bucket, chosen.norm)

        return Properties(unbiased=True, error_bound=bound)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        message = self.encode(bucket, step)
        if self.parameters.coding in forms(self.parameters.steps):
            payloads = yield AllGather(payload=message)
        else:
            payloads = yield from gather_variable(message)
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """Encode a bucket's gradient: uint8, one frame per tensor."""
        me, layout, chosen, gradient = self.worker, bucket.layout, self.parameters, bucket.gradient
        keys = keys_of(layout, me.seed, step, "qsgd rounding", me.rank)
        segments, steps, form = Segments.of(layout), chosen.steps, forms(chosen.steps)
        cells, coding = segments.cells(chosen.bucket), chosen.coding
        norms = cell_norms(gradient, cells, chosen.norm)  # [cells]
        levels = even(cells, norms, steps)
        row: dict[str, Any] = {"flags": steps, "params": chosen.bucket or 0}
        if coding in form:
            return encoded(gradient, levels, keys, CODECS[coding], form[coding], fixed=True, **row)
        codes = gradient.new_empty(int(segments.length.sum()), dtype=torch.uint8)
        round_levels(gradient, levels, keys, codes, starts(segments.length), fixed(8))
        coded, tail, sent = coded_levels(codes, segments, steps)
        parts = (norms, 4 * cells.count), (coded, tail)
        return packed(gradient, CODECS[coding], segments, *parts, nonzero=sent, **row)


def error_bound(values: Tensor, steps: int, size: int | None, norm: Norm) -> float:
    """Return the bound on E|Q(v) - v|^2 of float32 `[n]`, summed over buckets (see above)."""
    cells = Segments.alone(values.numel()).cells(size)
    length = torch.from_numpy(cells.length).double()
    factor = torch.minimum(length / steps**2, length.sqrt() / steps)
    if norm == "max":
        factor = length / (4 * steps**2)
    return float((factor * cell_norms(values, cells, norm).double().square()).sum())


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """Add weight * level * norm to `out` in place; `InputError` if damaged or foreign."""
    segments, found = Segments.of(layout), read(message, layout, CODINGS)
    steps, coding = found.alike("flags"), CODINGS[found.alike("codec")]
    if not 1 <= steps <= MAX_STEPS:
        raise InputError(f"damaged payload: {steps} steps")
    cells, form = segments.cells(found.alike("params") or None), forms(steps)
    levels = even(cells, message, steps, found.at)
    if coding in form:
        add_encoded(out, levels, found, form[coding], weight)
        return
    head = 4 * cells.count
    tail = np.maximum(0, found.size - head)
    found.demand_sizes(head + tail)
    body = taken(message, found.at + head, tail, torch.uint8)
    codes = decoded_levels(body, tail, segments, found.nonzero, steps)
    add_rounded(out, levels, codes, starts(segments.length), fixed(8), weight)
