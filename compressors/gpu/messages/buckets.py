"""How does a bucket become a message on a GPU in launches whose number does not grow with tensors?

Twins of what a method does with all tensors of a bucket. Each kernel treats them together, and
writes bodies where the message has them. What a twin does not treat, or finds damaged, it leaves to
the loop over tensors, whose kernels are launched for each: that says what is wrong with which.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frame import Codec
from gcsim.compressors.coding.sparse import sparse_message
from gcsim.compressors.gpu.floats.narrow import add_powers_of, power_bytes, powers_of
from gcsim.compressors.gpu.frames import begun, seal
from gcsim.compressors.gpu.layouts import (
    alike,
    as_long,
    places_in,
    tensors_of,
)
from gcsim.compressors.gpu.selecting.selection import (
    select,
)
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.segments import Segments
from gcsim.compressors.sparsification.by_threshold.threshold import just_above

_NOT_HERE: Any = NotImplemented
"""What a twin returns that leaves the call to the loop."""


# --- powers of two ----------------------------------------------------------------------------


def natural(gradient: Tensor, layout: BucketLayout, keys: list[np.uint64], bits: int) -> Tensor:
    """See `natural.encoded`."""
    elements, begins = tensors_of(layout)
    lengths = [power_bytes(n, bits) for n in elements]
    message, bodies = begun(gradient, Codec.NATURAL, elements, lengths, flags=bits)
    powers_of(gradient, message, elements, begins, bodies, keys, bits)
    seal(message, lengths)
    return message


def add_natural(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> Any:
    """See `natural.add_decoded`."""
    frames = alike(message, layout, Codec.NATURAL)
    bits = frames[0].flags if frames else 0
    elements, begins = tensors_of(layout)
    if bits not in (8, 9) or not as_long(frames, [power_bytes(n, bits) for n in elements]):
        return _NOT_HERE
    places = places_in(message, frames)
    right = add_powers_of(out, message, elements, begins, places, bits=bits, weight=weight)
    return None if right else _NOT_HERE


# --- values and indices -----------------------------------------------------------------------


def above(gradient: Tensor, residual: Tensor | None, layout: BucketLayout, chosen: Any) -> Tensor:
    """See `threshold.encoded`. The host waits for how many pass of each tensor."""
    source, added = (gradient.contiguous(), None) if residual is None else (residual, gradient)
    elements, begins = tensors_of(layout)
    limits = [just_above(chosen.threshold)] * len(elements)
    clear = residual is not None
    indices, values, sent = select(source, added, elements, begins, limits, clear=clear)
    return sparse_message(
        Segments.of(layout), np.array(sent), indices, values, values_as=chosen.values,
        coding=chosen.indices, memory=residual,
    )[0]  # fmt: skip
