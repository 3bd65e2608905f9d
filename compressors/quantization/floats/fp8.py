"""FP8: gradients travel as 8-bit floating-point numbers.

Each tensor is multiplied by a power of two, 2^floor(log2(F / max|g|)) with F the format's largest
number, which brings its largest element just inside the format's range and costs no rounding,
and is then rounded to E4M3 (4 bits of exponent, 3 of mantissa, F = 448: relative error below
2^-4) or E5M2 (F = 57344: below 2^-3, but 2^14 times further down). Elements below the format's
smallest normal number have an absolute error instead: 2^-10 (E4M3) or 2^-17 (E5M2) over the scale.

How the mean is formed is a choice, because no collective library adds 8-bit floats in float32
as it goes:

    all_gather   everyone decodes everyone's message and adds up in float32: one rounding for
                 each worker and its own scale, but N messages to each. 8 n + 32 bits
    all_to_all   worker j receives everyone's j-th part, averages in float32 and encodes once more
                 for an all-gather: two roundings, the bytes of an all-reduce for any N
    tree         sums are rounded to 8 bits at each merge, as FP8-LM's all-reduce does: log2 N
                 roundings of partial sums; every worker divides by N before it rounds

The first is the default: the others need a scale that all workers share, the least of theirs,
which an all-reduce of each tensor's largest magnitude tells (32 bits a tensor).

Assumes that casts saturate. Scales are limited to 2^126: a tensor whose largest element is below
2^-117 is not stretched over the whole range.

Source: P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022, arXiv:2209.05433; H. Peng
et al., "FP8-LM: Training FP8 Large Language Models", 2023, arXiv:2310.18313 (shared
scale; its factor mu against overflow of the sum is not needed where averages are rounded).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.floats.narrow_floats import (
    E4M3,
    E5M2,
    Narrow,
    cast,
    decoding_table,
    largest_magnitude,
    largest_magnitudes,
    narrow,
    tables_of,
)
from gcsim.compressors.coding.frames import (
    HEADER_BYTES,
    Codec,
    frames,
    only_frame,
    pack_frame,
    put,
    read,
    seal,
    taken,
)
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.rounding.levels import add_rounded
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchange,
    TreeMerge,
    gather_variable,
)
from gcsim.compressors.segments import ZERO, Segments, starts
from gcsim.errors import InputError

Numbers = NDArray[np.float64]
FORMATS = {"e4m3": E4M3, "e5m2": E5M2}
_ORDER = list(FORMATS)
_MOST_DOUBLINGS = 126


class Fp8Parameters(CompressorParameters):
    format: Literal["e4m3", "e5m2"] = Field(
        "e4m3", description="e4m3: more precise; e5m2: more range"
    )
    aggregation: Literal["all_gather", "all_to_all", "tree"] = Field(
        "all_gather",
        description="all_gather: decode all messages, sum in float32; all_to_all: average each "
        "worker's share, encode again; tree: sums rounded to 8 bits at each merge",
    )


class Fp8(Compressor[Fp8Parameters]):
    """8-bit floating-point numbers with a power-of-two scale for each tensor."""

    about = About(
        title="FP8 (E4M3 or E5M2)",
        family="quantization",
        collective="all-gather (options: all-to-all and all-gather; tree)",
        bits="8 + 32 / n",
        paper="Peng et al., FP8-LM, 2023, arXiv:2310.18313",
    )

    def __init__(self, worker: Worker, parameters: Fp8Parameters) -> None:
        super().__init__(worker, parameters)
        self.form = FORMATS[parameters.format]

    @classmethod
    def properties(cls, parameters: Fp8Parameters) -> Properties:
        """Properties for the checker: half a unit in the last place of each element."""
        form = FORMATS[parameters.format]

        def bound(values: Tensor) -> float:
            return form.error_bound(values, power_of_two_scale(largest_magnitude(values), form))

        return Properties(error_bound=bound)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        if self.parameters.aggregation != "all_gather":
            update: Tensor = yield from self._with_shared_scale(bucket)
            return update
        payloads = yield AllGather(payload=self.encode(bucket.gradient, bucket.layout))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, vector: Tensor, layout: BucketLayout) -> Tensor:
        """Scale and codes of each tensor of a float32 `[layout.numel]`: uint8, framed."""
        segments, flags = Segments.of(layout), _ORDER.index(self.parameters.format)
        head, scales = segments.column(4), self._scales(largest_magnitudes(vector, segments))
        sizes = head + segments.length
        message, at = frames(vector, Codec.CAST, segments, sizes, flags=flags, fixed=True)
        put(message, at, torch.from_numpy(scales.astype(np.float32)), head)
        cast(vector, segments, self.form, scales, message, at + head)
        return seal(message, at, sizes)

    def _scales(self, largest: Tensor) -> Numbers:
        """`power_of_two_scale` of each tensor's largest magnitude: float64 `[tensors]`."""
        return np.array([power_of_two_scale(amax, self.form) for amax in largest.tolist()])

    def _with_shared_scale(self, bucket: Bucket) -> Exchange:
        """The update by way of codes that all workers scale alike."""
        segments, form = Segments.of(bucket.layout), self.form
        largest = largest_magnitudes(bucket.gradient, segments)
        largest = yield AllReduce(tensor=largest, op="max")
        scales, begins = self._scales(largest), starts(segments.length)
        in_tree = self.parameters.aggregation == "tree"
        share = self.worker.count if in_tree else 1
        codes = torch.empty_like(bucket.gradient, dtype=torch.uint8)
        cast(bucket.gradient, segments, form, scales / share, codes, begins)
        if in_tree:
            merged = yield TreeMerge(payload=self._framed(codes), merge=self._merge)
            codes = self._codes(merged, codes.numel())
        else:
            codes = yield from self._by_parts(codes)
        update = torch.zeros_like(bucket.gradient)
        tables = tables_of(segments, decoding_table(form, 1.0 / scales))
        add_rounded(update, tables, codes, begins, fixed(8), 1.0)
        return update

    def _by_parts(self, codes: Tensor) -> Exchange:
        """Codes of the mean, each part of which one worker forms."""
        count, rank = self.worker.count, self.worker.rank
        length = -(-codes.numel() // count)
        parts = [codes[j * length : (j + 1) * length] for j in range(count)]
        received = yield AllToAll(payloads=[self._framed(part) for part in parts], variable=True)
        mean = torch.zeros(parts[rank].numel(), device=codes.device)
        for message in received:
            self._add(mean, self._codes(message, mean.numel()), 1.0 / count)
        own = self._framed(narrow(mean, self.form, 1.0))
        messages = yield from gather_variable(own, part=True)
        return torch.cat([
            self._codes(message, part.numel())
            for message, part in zip(messages, parts, strict=True)
        ])  # fmt: skip

    def _merge(self, own: Tensor, received: Tensor) -> Tensor:
        """The sum of two messages, rounded to the format."""
        first, second = self._codes(own), self._codes(received)
        total = torch.zeros(first.numel(), device=own.device)
        self._add(total, first, 1.0)
        self._add(total, second, 1.0)
        return self._framed(narrow(total, self.form, 1.0))

    def _add(self, out: Tensor, codes: Tensor, weight: float) -> None:
        tables = decoding_table(self.form, np.array([weight]))
        add_rounded(out, tables_of(Segments.alone(out.numel()), tables), codes, ZERO, fixed(8), 1.0)

    def _framed(self, codes: Tensor) -> Tensor:
        """One frame of codes."""
        flags = _ORDER.index(self.parameters.format)
        return pack_frame(Codec.CAST, codes, numel=codes.numel(), flags=flags)

    def _codes(self, message: Tensor, count: int | None = None) -> Tensor:
        """The codes of a message without a scale; `InputError` when it is not that long."""
        elements = message.numel() - HEADER_BYTES if count is None else count
        frame = only_frame(message, Codec.CAST, elements)
        if frame.body.numel() != frame.numel:
            raise InputError("damaged payload: not one frame of one byte an element")
        return frame.body


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * value, in place; `InputError` for a damaged or another message."""
    segments, found = Segments.of(layout), read(message, layout, Codec.CAST)
    head, flags = segments.column(4), found.alike("flags")
    found.demand_sizes(head + segments.length)
    scales = array(taken(message, found.at, head, torch.float32)).astype(np.float64)
    if flags >= len(_ORDER) or (np.frexp(scales)[0] != 0.5).any():
        raise InputError(f"damaged payload: format {flags}, scales {scales}")
    tables = tables_of(segments, decoding_table(FORMATS[_ORDER[flags]], weight / scales))
    add_rounded(out, tables, message, found.at + head, fixed(8), 1.0)


def power_of_two_scale(largest: float, form: Narrow) -> float:
    """The largest power of two (up to 2^126) with `largest * scale <= form.largest`.

    1 for zero; infinity and NaN count as the largest float32.
    """
    if largest == 0:
        return 1.0
    if not math.isfinite(largest):
        largest = 255.0 * 2.0**120
    fraction, exponent = math.frexp(largest)
    top_fraction, top_exponent = math.frexp(form.largest)
    doublings = top_exponent - exponent - (fraction > top_fraction)
    return math.ldexp(1.0, min(doublings, _MOST_DOUBLINGS))
