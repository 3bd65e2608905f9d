"""How is a vector rounded at random to a few evenly spaced levels, so that it is right on average?

Buckets of `size` consecutive elements (the last one may be shorter) share a norm; an element v
becomes one of the 2s + 1 values norm * q / s, q = -s … s, rounded up or down at random such that
the mean is v (Alistarh et al. 2017, "QSGD", arXiv:1610.02132, section 3.1).

Rounding uses 16 random bits an element: q = floor(s v / norm + (r + 1/2) / 65536), r uniform on
0 … 65535. The probability of the upper neighbour is then the fraction rounded to a multiple of
2^-16, so E[q] is within 2^-17 of s v / norm (plus float32 rounding of the quotient, at most
s 2^-23); with the half, a whole number and zero stay what they are.

A zero norm decodes to zeros. Codes are q + s, as bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from gcsim.compressors.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor

Norm = Literal["max", "l2"]

MAX_STEPS = 127
"""Codes fit a byte, and quotient plus random fraction fit float32's 24 bits exactly."""


def bucket_count(n: int, size: int) -> int:
    """Buckets of `size` elements that `n` elements make, the last one possibly shorter."""
    return -(-n // size)


def bucket_parts(n: int, size: int) -> Iterator[tuple[slice, slice, int]]:
    """(elements, buckets, bucket length): the whole buckets, then the short one."""
    whole = n // size
    if whole:
        yield slice(0, whole * size), slice(0, whole), size
    if n % size:
        yield slice(whole * size, n), slice(whole, whole + 1), n % size


def bucket_norms(values: Tensor, size: int, norm: Norm) -> Tensor:
    """Maximum |v| or Euclidean norm of each bucket: float32 `[ceil(n / size)]`.

    The Euclidean norm is summed in float64: squares of float32 neither overflow nor vanish.
    """
    norms = values.new_empty(bucket_count(values.numel(), size))
    for elements, buckets, length in bucket_parts(values.numel(), size):
        rows = values[elements].view(-1, length)
        if norm == "max":
            torch.maximum(rows.amax(1), rows.amin(1).neg_(), out=norms[buckets])
        else:
            squares = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
            norms[buckets] = squares.clamp_(max=torch.finfo(torch.float32).max)
    return norms


def round_to_levels(
    values: Tensor, norms: Tensor, random16: Tensor, *, size: int, steps: int
) -> Tensor:
    """Codes q + s of randomly rounded elements.

    Parameters
    ----------
    values : float32 `[n]`
    norms : float32 `[ceil(n / size)]`; larger elements saturate at their bucket's norm
    random16 : int32 `[n]`, uniform on 0 … 65535
    size : bucket length
    steps : s, 1 to 127

    Returns
    -------
    uint8 `[n]`, each in [0, 2s]
    """
    quotients = torch.empty_like(values)
    divisors = norms.masked_fill(norms == 0, 1.0)
    for elements, buckets, length in bucket_parts(values.numel(), size):
        torch.div(
            values[elements].view(-1, length),
            divisors[buckets, None],
            out=quotients[elements].view(-1, length),
        )
    quotients.clamp_(-1.0, 1.0).mul_(steps)
    quotients.add_(random16, alpha=2.0**-16).add_(2.0**-17)
    return quotients.floor_().add_(steps).to(torch.uint8)


def add_levels(
    out: Tensor, codes: Tensor, norms: Tensor, *, size: int, steps: int, weight: float
) -> None:
    """out += weight * norm * q / s, with q + s = `codes` (uint8 `[n]`), in place."""
    levels = codes.to(torch.float32).sub_(steps)
    for elements, buckets, length in bucket_parts(out.numel(), size):
        out[elements].view(-1, length).addcmul_(
            levels[elements].view(-1, length), norms[buckets, None], value=weight / steps
        )
