"""Which elements are sent? The k largest, or those above a threshold, and how to move them.

The k largest are found without sorting: a threshold from a sample brings n down to a little more
than k candidates in one pass, and a selection among those finds the k-th largest exactly. When
the sample misled (fewer than k candidates) the selection runs on all n. Among equal magnitudes
the lowest index wins, so that every implementation and device selects the same set.

Assumes finite values. Indices are int64 and ascending everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.meter import kernel
from gcsim.errors import InputError, InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_CHUNK = 1 << 20
"""Elements treated at a time on a CPU: the intermediate values stay in the cache."""


def count_kept(numel: int, ratio: float) -> int:
    """k = max(1, round(n * ratio)); 0 for an empty tensor."""
    return min(numel, max(1, round(numel * ratio)))


@kernel("selection")
def largest(values: Tensor, k: int) -> Tensor:
    """Indices of the k largest |values|, int64 `[k]`, ascending; `values` is float32 `[n]`.

    Raises `InputError` when not-a-number is among the values.
    """
    n = values.numel()
    if not 0 <= k <= n:
        raise InternalError(f"cannot select {k} of {n} elements")
    if k == 0:
        return torch.zeros(0, dtype=torch.int64, device=values.device)
    if values.device.type != "cpu":
        return _largest_on_device(values, k)
    found = _largest(values.detach().numpy(), k)
    if found.size != k:
        raise InputError("cannot select the largest magnitudes: a value is not a number")
    return torch.from_numpy(found)


@kernel("gather_scatter")
def at_least(values: Tensor, threshold: float) -> Tensor:
    """Indices with |value| >= threshold, int64, ascending: one compare-and-compact pass."""
    if values.device.type != "cpu":
        return (values.abs() >= threshold).nonzero().view(-1)
    return torch.from_numpy(_at_least(values.detach().numpy(), np.float32(threshold)))


def scatter_add(update: Tensor, indices: Tensor, values: Tensor) -> None:
    """update[indices] += values, in place; the indices of one call are distinct."""
    update.index_add_(0, indices, values)


def _largest(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    candidates = _candidates(values, k)
    magnitudes = np.abs(values if candidates is None else values[candidates])
    kth = np.partition(magnitudes, magnitudes.size - k)[magnitudes.size - k]
    found = np.flatnonzero(magnitudes >= kth)
    if found.size > k:  # ties at the k-th magnitude: the lowest indices win
        ties = np.flatnonzero(magnitudes[found] == kth)
        found = np.delete(found, ties[ties.size - (found.size - k) :])
    return found if candidates is None else candidates[found]


def _candidates(values: NDArray[np.float32], k: int) -> NDArray[np.int64] | None:
    """A superset of the k largest, not much larger; None when it would not pay or went wrong."""
    n = values.size
    stride = 255  # odd: not in step with the rows of a weight matrix
    if n < _CHUNK or 8 * k > n or k < 16 * stride:
        return None
    sample = np.abs(values[::stride])
    expected = k / stride
    rank = int(expected + 6 * expected**0.5) + 1
    threshold = np.partition(sample, sample.size - rank)[sample.size - rank]
    found = _at_least(values, threshold)
    return found if k <= found.size <= 4 * k else None


def _at_least(values: NDArray[np.float32], threshold: np.float32) -> NDArray[np.int64]:
    found = []
    for start in range(0, values.size, _CHUNK):
        piece = values[start : start + _CHUNK]
        found.append(np.flatnonzero(np.abs(piece) >= threshold) + start)
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _largest_on_device(values: Tensor, k: int) -> Tensor:
    magnitudes = values.abs()
    kth = torch.topk(magnitudes, k, sorted=False).values.min()
    found = (magnitudes >= kth).nonzero().view(-1)
    surplus = found.numel() - k
    if surplus < 0:
        raise InputError("cannot select the largest magnitudes: a value is not a number")
    if surplus:
        ties = (magnitudes[found] == kth).nonzero().view(-1)
        kept = torch.ones_like(found, dtype=torch.bool)
        kept[ties[ties.numel() - surplus :]] = False
        found = found[kept]
    return found
