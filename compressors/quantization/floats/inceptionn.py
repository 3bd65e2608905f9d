"""INCEPTIONN: every value takes 0, 8, 16 or 32 bits, depending on its size and an error bound.

With the bound 2^-b, a tag of 2 bits gives the form of a value v:

    0   |v| < 2^-b             nothing: decodes to zero
    1   |v| < 2^-floor(b/2)    8 bits: sign and 7 bits of |v| behind the point from 2^-floor(b/2) on
    2   |v| < 1                16 bits: sign and 15 bits of |v| behind the point
    3   |v| >= 1               the float32 as it is

Values are truncated (biased towards zero), so that a network interface needs no adder. Errors: less
than 2^-b, 2^-(7 + floor(b/2)) in form 1, 2^-15 in form 2. Tags come first, then each form's values.

Form 1 is scaled to the end of its range, not to 1 as in public code, whose error reaches 2^-7.
Workers all-gather; in the paper each hop of a ring compresses. Runs on the host.

Source: Y. Li et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed
Training of Deep Neural Networks", MICRO 2018, doi 10.1109/MICRO.2018.00023.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, packed, read
from gcsim.compressors.coding.integers.packing import damaged, demand_no_stray, packed_bytes
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, loop, tensor, written_back
from gcsim.compressors.meter import kernel
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Column, Segments

MAX_BOUND = 14  # ceil(b / 2) must not exceed the 7 bits of form 1
_KINDS = "u1", "<u2", "<f4"
_FORMS = (np.arange(256)[:, None, None] >> [[0], [2], [4], [6]] & 3 == [1, 2, 3]).sum(axis=1)
"""Number of values with 1, 2 and 4 bytes for each possible byte of tags: `[256, 3]`."""


class InceptionnParameters(CompressorParameters):
    bound: int = Field(10, ge=1, le=MAX_BOUND, description="b: every value's error is below 2^-b")


class Inceptionn(Compressor[InceptionnParameters]):
    """Truncates values to 0, 8, 16 or 32 bits under an error bound."""

    about = About(
        title="INCEPTIONN",
        family="quantization",
        collective="all-gatherv",
        bits="2 + 8, 16 or 32 for each value, by its size",
        paper="Li et al., MICRO 2018, doi 10.1109/MICRO.2018.00023",
    )

    @classmethod
    def properties(cls, parameters: InceptionnParameters) -> Properties:
        def bound(values: Tensor) -> float:
            b, size = parameters.bound, values.double().abs()
            errors = torch.where(size < 0.5**b, size, 0.5 ** (7 + b // 2))
            errors[size >= 0.5 ** (b // 2)] = 0.5**15
            return float(errors[size < 1].square().sum())

        return Properties(error_bound=bound)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        segments, b = Segments.of(bucket.layout), self.parameters.bound
        bodies, sizes, sent = cut(bucket.gradient, segments, b)
        message = packed(bodies, Codec.INCEPTIONN, segments, (bodies, sizes), nonzero=sent, flags=b)
        payloads = yield from gather_variable(message)
        return self.mean_of(payloads, bucket, add_cut)


@kernel("gather_scatter", name="truncated.cut")
def cut(values: Tensor, segments: Segments, bound: int) -> tuple[Tensor, Column, Column]:
    """Return (bodies of flat float32, uint8; bytes of each body; number of values sent in each)."""
    given, bodies, sent = array(values), [], []
    limits = np.array((0.5**bound, 0.5 ** (bound // 2), 2.0 ** (7 + bound // 2)), dtype=np.float32)
    for begin, n in segments.table.tolist():
        tags, counts = np.zeros(packed_bytes(n, 2), dtype=np.uint8), np.zeros(4, dtype=np.int64)
        short, middle, whole = forms = [np.empty(n, dtype=kind) for kind in _KINDS]
        _cut(given[begin : begin + n], limits, tags, short, middle, whole, counts)
        parts = [form[:count].view("u1") for form, count in zip(forms, counts[1:], strict=True)]
        bodies.append(np.concatenate((tags, *parts)))
        sent.append(counts[1:].sum())
    return tensor(np.concatenate(bodies), values), np.array([*map(len, bodies)]), np.array(sent)


@kernel("gather_scatter", updates=("out",), name="truncated.add_cut")
def add_cut(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """Add weight * a message's values to `out` (float32 `[numel]`); `InputError` if damaged."""
    found, data = read(message, layout, Codec.INCEPTIONN), array(message)
    bound, (begins, length) = found.alike("flags"), layout.table.T
    tags = packed_bytes(length, 2)
    if found.params.any() or not 1 <= bound <= MAX_BOUND or (found.size < tags).any():
        raise damaged(f"bound 2^-{bound}, parameters {found.params}, bodies of {found.size} bytes")
    demand_no_stray(data, found.at, length, 2)
    scales = (np.array([0.5 ** (7 + bound // 2), 0.5**15, 1]) * weight).astype(np.float32)
    rows = zip(begins, length, tags, found.at, found.size, found.nonzero, strict=True)
    with written_back(out) as target:
        for begin, n, head, at, size, sent in rows:
            own, rest = data[at : at + head], data[at + head : at + size]
            counts = np.bincount(own, minlength=256) @ _FORMS
            ends = np.cumsum(counts * (1, 2, 4))
            if ends[2] != rest.size or counts.sum() != sent:
                raise damaged(f"{size} bytes of {sent} values, the tags ask for {counts.tolist()}")
            # aligned copies with four more bytes, which are read but not used
            parts = (part.tobytes() + bytes(4) for part in np.split(rest, ends[:2]))
            short, middle, whole = map(np.frombuffer, parts, _KINDS)
            _add(own, short, middle, whole, scales, target[begin : begin + n])


@loop
def _cut(
    values: Any, limits: Any, tags: Any, form8: Any, form16: Any, form32: Any, counts: Any
) -> None:
    low, high, scale8 = limits
    for i in range(values.size):
        size, sign, tag = abs(values[i]), np.uint32(values[i] < 0), 0
        if not size < np.float32(1):  # also true for NaN
            tag = 3
            form32[counts[3]] = values[i]
        elif size >= high:
            tag = 2
            form16[counts[2]] = np.uint32(size * np.float32(32768)) | sign << np.uint32(15)
        elif size >= low:
            tag = 1
            form8[counts[1]] = np.uint32(size * scale8) | sign << np.uint32(7)
        counts[tag] += 1
        tags[i // 4] |= np.uint8(tag << 2 * (i % 4))


@loop
def _add(tags: Any, form8: Any, form16: Any, form32: Any, scales: Any, out: Any) -> None:
    one = two = three = 0
    for i in range(out.size):  # without branches, which would be unpredictable
        tag = (tags[i // 4] >> np.uint8(2 * (i % 4))) & 3
        # load the next value of each form, even past the last: buffers have four extra bytes
        low, high, value = form8[one], form16[two], form32[three] * scales[2]
        short = np.float32(np.int32(low) & np.int32(127)) * scales[0]
        short = -short if low > 127 else short
        middle = np.float32(np.int32(high) & np.int32(32767)) * scales[1]
        middle = -middle if high > 32767 else middle
        small = short if tag == 1 else np.float32(0)
        out[i] += value if tag == 3 else (middle if tag == 2 else small)
        one, two, three = one + (tag == 1), two + (tag == 2), three + (tag == 3)
