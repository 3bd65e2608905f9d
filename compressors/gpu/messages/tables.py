"""How do levels that buckets carry become a message on a GPU, all tensors' at once? ORQ and Linear.

As in `messages.py`, what is damaged is left to the loop over tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frame import Codec
from gcsim.compressors.coding.integers.digits import digit_bytes
from gcsim.compressors.coding.rounding.bucket_levels import LEVEL_COUNTS
from gcsim.compressors.gpu.frames import begun, seal
from gcsim.compressors.gpu.layouts import alike, as_long, floats_in, sums, tensors_of
from gcsim.compressors.gpu.parts import put
from gcsim.compressors.gpu.rounding.level_codes import coded_digits, digits_in
from gcsim.compressors.gpu.rounding.tables import (
    add_parts_from_tables,
    optimal_levels_of,
    quantiles_of,
    round_parts,
    sorted_buckets,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.quantization.rounding.linear import LinearParameters
from gcsim.compressors.quantization.rounding.orq import MAX_SWEEPS, OrqParameters

_NOT_HERE: Any = NotImplemented


def encoded(
    gradient: Tensor, layout: BucketLayout, keys: list[np.uint64], tables: Any, chosen: Any
) -> Any:
    """See `bucket_tables.encoded`."""
    if type(chosen) not in (OrqParameters, LinearParameters):
        return _NOT_HERE
    elements, begins = tensors_of(layout)
    size, count = chosen.bucket, chosen.levels
    rows, many = sorted_buckets(gradient, elements, begins, size, chosen.clip)
    found = rows.new_empty((len(rows), count))
    if isinstance(chosen, OrqParameters):
        optimal_levels_of(rows, many, found, MAX_SWEEPS if chosen.refine else 0)
    else:
        quantiles_of(rows, many, found)
    codes = round_parts(gradient, found, elements, begins, size=size, keys=keys)
    body, tails = coded_digits(codes, elements, count)
    heads = [4 * count * -(-n // size) for n in elements]
    lengths = sums(heads, tails)
    message, bodies = begun(gradient, Codec.LEVELS, elements, lengths, flags=count, params=size)
    put(message, found.view(-1).view(torch.uint8), heads, bodies)
    put(message, body, tails, sums(bodies, heads))
    seal(message, lengths)
    return message


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> Any:
    """See `bucket_levels.add_decoded`."""
    frames = alike(message, layout, Codec.LEVELS)
    count, size = (frames[0].flags, frames[0].params) if frames else (0, 0)
    if count not in LEVEL_COUNTS or size < 1 or any(frame.params != size for frame in frames):
        return _NOT_HERE
    elements, begins = tensors_of(layout)
    heads = [4 * count * -(-n // size) for n in elements]
    tails = [digit_bytes(n, count) for n in elements]
    if not as_long(frames, sums(heads, tails)):
        return _NOT_HERE
    body = torch.cat([frame.body[head:] for frame, head in zip(frames, heads, strict=True)])
    codes = digits_in(body, tails, elements, count)
    if codes is None:
        return _NOT_HERE
    tables = floats_in(frames, heads).view(-1, count)
    add_parts_from_tables(out, codes, tables, elements, begins, size=size, weight=weight)
    return None
