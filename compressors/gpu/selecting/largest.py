"""The k largest magnitudes per tensor, on a GPU: the kernels of `coding/selecting/largest.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.selecting import largest as loops
from gcsim.compressors.coding.selecting.marks import Marks, demand_numbers
from gcsim.compressors.coding.selecting.selection import check_k
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.selecting.selection import RANKED, select
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments


@kernel_of(loops.largest)
def largest(
    values: Tensor, segments: Segments, k: Column, *, memory: Tensor | None = None,
    marks: Marks | None = None, ranked: NDArray[np.bool_] | None = None,
    cleared: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Select the elements: the first pass adds, the last one clears; NaN is refused `when_known`.
    Marks are not used if all tensors are ranked."""
    check_k(segments.length, k)
    source, added = (values.contiguous(), None) if memory is None else (memory, values.contiguous())
    if memory is not None:
        cleared = memory, *cleared
    limits = None
    if ranked is not None and marks is not None:
        up = marks.up if isinstance(marks.up, np.ndarray) else array(marks.up)
        # add 1 to the bits, so that a limit of 0 differs from RANKED
        limits = np.where(ranked, RANKED, up.view(np.int32).astype(np.int64) + 1)
    found, taken, _, strange = select(
        source, segments, k, added=added, limits=limits, cleared=cleared
    )
    when_known(strange, demand_numbers)
    return found, taken
