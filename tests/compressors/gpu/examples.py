"""Which vectors are kernels tried with? Those that a loop and a kernel may treat differently.

Lengths lie around groups of eight and the ends of a program's tile (2048) and block (4096).
"""

from typing import Any

import numpy as np
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.segments import Segments

LENGTHS = (0, 1, 7, 8, 9, 63, 2047, 2049, 4097)
few = settings(
    max_examples=settings().max_examples // 5,
    phases=(Phase.explicit, Phase.generate),  # an interpreter is too slow to look for the least
)
SEEDS = st.integers(0, 2**32 - 1)
KEYS = st.integers(0, 2**64 - 1).map(np.uint64)


def vector(n: int, kind: str, seed: int) -> Tensor:
    """Finite float32 `[n]` of a kind."""
    rng = np.random.default_rng(seed)
    values: Any
    if kind == "normal":
        values = rng.standard_normal(n)
    elif kind == "ties":  # few magnitudes, zeros of both signs among them
        values = rng.integers(-3, 4, n) * rng.choice([-1.0, 1.0], n)
    elif kind == "subnormal":
        values = rng.integers(-(1 << 23), 1 << 23, n) * 2.0**-149
    else:  # any exponent
        bits = rng.integers(0, 1 << 32, n, dtype=np.uint32)
        finite = (bits & 0x7F800000) != 0x7F800000
        return torch.from_numpy(np.where(finite, bits, 0).astype(np.uint32).view(np.float32))
    return torch.from_numpy(values.astype(np.float32))


VECTORS = st.builds(
    vector, st.sampled_from(LENGTHS), st.sampled_from(("normal", "ties", "subnormal", "any")), SEEDS
)
EXACT = st.builds(vector, st.sampled_from(LENGTHS), st.just("ties"), SEEDS)
"""Sums of these are exact in float64, whatever the order."""


def spoilt(values: Tensor, *, by: float) -> Tensor:
    """With one element that is infinite or not a number."""
    return torch.where(torch.arange(values.numel()) == values.numel() // 2, by, values)


def parts_of(n: int) -> Segments:
    """A table of three tensors, the second without elements."""
    return Segments.behind([n // 3, 0, n - n // 3])
