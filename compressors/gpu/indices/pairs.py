"""The sum of sparse vectors on a GPU: `coding/indices/pairs.py`, by torch's operators."""

from __future__ import annotations

from gcsim.compressors.coding.indices import pairs as loops
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of


@kernel_of(loops.merged_pairs)
def merged_pairs(
    indices: Tensor, values: Tensor, other_indices: Tensor, other_values: Tensor
) -> tuple[Tensor, Tensor]:
    """A stable sort puts equal indices side by side."""
    places, order = torch.cat((indices, other_indices)).sort(stable=True)
    sums = torch.cat((values, other_values))[order]
    again = torch.zeros_like(places, dtype=torch.bool)
    again[1:] = places[1:] == places[:-1]
    later = again.nonzero().view(-1)
    sums[later - 1] += sums[later]
    return places[~again], sums[~again]
