"""The k largest magnitudes of each tensor: the kernels of `coding/selecting/largest.py`."""

from __future__ import annotations

from gcsim.compressors.coding.selecting import largest as loops
from gcsim.compressors.coding.selecting.marks import Marks
from gcsim.compressors.coding.selecting.selection import check_k
from gcsim.compressors.gpu.selecting.selection import take_largest_of
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments


@kernel_of(loops.largest)
def largest(
    values: Tensor, segments: Segments, k: Column, *, memory: Tensor | None = None,
    marks: Marks | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The first pass adds, the last one clears."""
    check_k(segments.length, k)
    source, added = (values, None) if memory is None else (memory, values.contiguous())
    rows = segments.length.tolist(), segments.begin.tolist(), k.tolist()
    return take_largest_of(source.contiguous(), *rows, clear=memory is not None, added=added)
