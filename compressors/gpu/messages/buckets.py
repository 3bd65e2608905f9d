"""How does a bucket become a message on a GPU in launches whose number does not grow with tensors?

Twins of what a method does with all tensors of a bucket. Each kernel treats them together, and
writes bodies where the message has them. What a twin does not treat, or finds damaged, it leaves to
the loop over tensors, whose kernels are launched for each: that says what is wrong with which.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.sparse import sparse_message
from gcsim.compressors.gpu.layouts import (
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
