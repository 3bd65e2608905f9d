"""The largest share of each sign: the kernels of `coding/selecting/each_sign.py`."""

from __future__ import annotations

import numpy as np

from gcsim.compressors.coding.selecting import each_sign as loops
from gcsim.compressors.coding.selecting.marks import Marks, demand_numbers
from gcsim.compressors.gpu.selecting.marks import fill_marks
from gcsim.compressors.gpu.selecting.selection import select
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments


@kernel_of(loops.largest_of_each_sign)
def largest_of_each_sign(
    values: Tensor, segments: Segments, proportion: float, *, memory: Tensor
) -> tuple[Tensor, Tensor, Column, Tensor]:
    """The host waits for the elements of each sign."""
    marks = Marks.room(memory, segments, np.inf)
    # infinite limits: the pass adds up, counts the signs and finds NaN; its marks are not used
    fill_marks(memory, segments, marks, values, sides=True)
    demand_numbers(marks.host[1].any())
    k = loops.kept(marks.host[2:4], proportion)
    indices, taken, sizes, _ = select(memory, segments, k.reshape(-1), sides=2)
    return indices, taken, k, sizes
