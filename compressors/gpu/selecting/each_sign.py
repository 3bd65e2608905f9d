"""The largest share of each sign, on a GPU: the kernels of `coding/selecting/each_sign.py`."""

from __future__ import annotations

import numpy as np

from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit.signs import fold_signs
from gcsim.compressors.coding.selecting import each_sign as loops
from gcsim.compressors.coding.selecting.marks import Marks, demand_numbers
from gcsim.compressors.coding.selecting.selection import counts_kept
from gcsim.compressors.gpu.selecting.marks import fill_marks
from gcsim.compressors.gpu.selecting.selection import select
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments, starts


@kernel_of(loops.largest_of_each_sign)
def largest_of_each_sign(
    values: Tensor, segments: Segments, proportion: float, *, memory: Tensor
) -> tuple[Tensor, Tensor, Column, Tensor]:
    """Select the elements; the host waits for the number of each sign."""
    marks = Marks.room(memory, segments, np.inf)
    # with infinite limits the pass adds, counts the signs and finds NaN; its marks are not used
    fill_marks(memory, segments, marks, values, sides=True)
    demand_numbers(marks.host[1].any())
    k = counts_kept(marks.host[2:4], proportion)
    indices, taken, sizes, _ = select(memory, segments, k.reshape(-1), sides=2)
    return indices, taken, k, sizes


@kernel_of(loops.means_of_signs)
def means_of_signs(sizes: Tensor, k: Column) -> Tensor:
    """Compute the means as scales of the magnitudes' signs; these are not read."""
    counts = k.reshape(-1)
    scratch = packed_bytes(counts, 1)
    bits = sizes.new_empty(int(scratch.sum()), dtype=torch.uint8)
    positive, negative = fold_signs(
        sizes, Segments.behind(counts).whole, bits, starts(scratch)
    ).view(2, -1)
    return torch.stack((positive, 0.0 - negative), dim=1)
