"""How is a vector rotated and rounded on a GPU, and how are its integers added up? THC.

Twins of `coding/rounding/rotated.py` and of what `thc.py` adds, by torch's operators: a stage of
butterflies is one addition and one subtraction of halves, the same ones as in the loops.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.rounding.rotated import (
    LANES,
    lanes_of,
    lines_of,
    pieces,
)
from gcsim.compressors.gpu.reductions import squared_length
from gcsim.compressors.gpu.words import bits64_of, looked_up
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import FLOAT32_MAX
from gcsim.compressors.meter import count_random


def add_and_measure(held: Tensor, gradient: Tensor) -> float:
    """See `thc.add_and_measure`."""
    return min(math.sqrt(squared_length(held.add_(gradient))), FLOAT32_MAX)


def add_integers(total: Tensor, codes: Tensor, table: NDArray[np.uint8]) -> None:
    """See `thc.add_integers`."""
    total.add_(looked_up(table, codes))


def round_rotated(
    held: Tensor, *, most: float, table: NDArray[np.uint8], grid: int, stages: int,
    signs: np.uint64, rounding: np.uint64,
) -> Tensor:  # fmt: skip
    """See `rotated.round_rotated`."""
    n = held.numel()
    count_random(n, 16)
    count_random(n, 1)
    scale = np.float32(min(grid / (2 * most), FLOAT32_MAX) if most > 0 else 0.0)
    roots = _roots(held, stages)
    x = _turned(_flipped(held, signs), stages)
    place = x * (roots * float(scale)) + float(np.float32(grid / 2))
    t = torch.where(place > 0, place, 0.0).clamp_(max=float(grid))  # NaN becomes 0
    slopes, offsets = (looked_up(line, t) for line in lines_of(table.tobytes(), grid))
    at = torch.arange(-(-n // 4), device=held.device)
    fields = bits64_of(rounding, at)[:, None] >> torch.arange(0, 64, 16, device=held.device)
    fraction = ((fields & 0xFFFF).view(-1)[:n].float() + 0.5) * 2.0**-16
    codes = (t * slopes + offsets + fraction).clamp_(max=len(table) - 1).to(torch.uint8)
    values = ((2 * most / grid) * table - most).astype(np.float32)
    lost = (x * roots - looked_up(values, codes)) * roots
    held.copy_(_flipped(_turned(lost, stages), signs))
    return codes


def rotate_back(
    out: Tensor, sums: Tensor, *, step: float, most: float, stages: int, signs: np.uint64
) -> None:
    """See `rotated.rotate_back`."""
    count_random(out.numel(), 1)
    x = sums.float() * float(np.float32(step)) - float(np.float32(most))
    out.copy_(_flipped(_turned(x * _roots(out, stages), stages), signs))


def _roots(like: Tensor, stages: int) -> Tensor:
    """What normalises a transform, of each element: float32 `[n]`."""
    parts = [
        like.new_full((stop - first,), 1 / math.sqrt(size / lanes_of(size, stages)))
        for first, stop, size in pieces(like.numel(), stages)
    ]
    return torch.cat(parts) if parts else torch.empty_like(like)


def _flipped(x: Tensor, key: np.uint64) -> Tensor:
    """With the signs changed that a random bit says."""
    place = torch.arange(-(-x.numel() // 64), device=x.device)
    lanes = torch.arange(64, device=x.device)
    bits = (bits64_of(key, place)[:, None] >> lanes) & 1
    return torch.where(bits.view(-1)[: x.numel()] != 0, -x, x)


def _turned(x: Tensor, stages: int) -> Tensor:
    """The transform: of whole parts, and of the last elements' parts of powers of two."""
    size = LANES << stages
    whole = x.numel() // size * size
    head, tail = x[:whole], x[whole:]
    for stage in range(stages):
        one, other = head.view(-1, 2, LANES << stage).unbind(1)
        head = torch.stack((one + other, one - other), 1).view(-1)
    return torch.cat((head, _turned_rest(tail, stages))) if tail.numel() else head


def _turned_rest(x: Tensor, stages: int) -> Tensor:
    """Parts lie at multiples of their size: the other element of a butterfly is one bit away."""
    at = torch.arange(x.numel(), device=x.device)
    nearest, size = torch.ones_like(at), torch.ones_like(at)
    for first, stop, length in pieces(x.numel(), stages):
        nearest[first:stop], size[first:stop] = lanes_of(length, stages), length
    distance = 1
    while 2 * distance <= x.numel():
        other = x[(at ^ distance).clamp(max=x.numel() - 1)]
        found = torch.where(at & distance != 0, other - x, x + other)
        x = torch.where((nearest <= distance) & (2 * distance <= size), found, x)
        distance *= 2
    return x
