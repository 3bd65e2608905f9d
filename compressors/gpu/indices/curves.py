"""How are curves fitted to sorted values, and evaluated, on a GPU? DeepReduce's polynomials.

Twins of `coding/indices/curve.py`, by torch's operators. Sums of normal equations are of float64 in
another order, so the last digits of coefficients are others; the few equations of each piece are
solved on the host, which is told how many values are positive.
"""

from __future__ import annotations

import numpy as np

from gcsim.compressors.coding.frame import as_bytes, from_bytes
from gcsim.compressors.coding.indices.curve import piece_lengths
from gcsim.compressors.coding.indices.index_coding import index_width
from gcsim.compressors.coding.integers.packing import check_packed, damaged, packed_bytes
from gcsim.compressors.gpu.integers.packing import packed_codes, unpacked
from gcsim.compressors.gpu.words import there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import FLOAT32_MAX


def fit_curve(values: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """See `curve.fit_curve`."""
    count = values.numel()
    order = (0.0 - values).argsort(stable=True)  # -0 becomes 0: a sort may tell them apart
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(count, device=order.device)
    descending = values[order].double()
    positive = int((values > 0).sum())
    lengths = piece_lengths(count, positive)
    sides = []
    for length, part in zip(lengths, descending.split(lengths), strict=True):
        basis = _basis(part, min(degree + 1, length))
        sides.append(torch.cat((basis @ basis.T, (basis @ part)[:, None]), 1))
    found = [np.zeros(0)]
    if sides:
        equations = torch.cat([side.view(-1) for side in sides]).cpu().numpy()
        for side in sides:
            own, equations = np.split(equations, [side.numel()])
            gram, moments = np.split(own.reshape(side.shape), [-1], axis=1)
            found.append(np.linalg.solve(gram, moments)[:, 0])
    coefficients = there(np.concatenate(found), values.device)
    packed, _ = packed_codes(ranks, index_width(count))
    head = there(np.array([positive], dtype="<u4").view(np.uint8), values.device)
    decoded = _curve(coefficients, count, positive, degree)[ranks]
    return torch.cat((head, as_bytes(coefficients), packed)), decoded


def read_curve(body: Tensor, count: int, degree: int) -> tuple[Tensor, int]:
    """See `curve.read_curve`."""
    size = body.numel()
    if size < 4:
        raise damaged(f"{size} bytes where a number of positive values must be")
    positive = int.from_bytes(bytes(body[:4].tolist()), "little")
    if positive > count:
        raise damaged(f"{positive} of {count} values are said to be positive")
    terms = sum(min(degree + 1, length) for length in piece_lengths(count, positive))
    cut = 4 + 8 * terms
    used = cut + packed_bytes(count, index_width(count))
    if size < used:
        raise damaged(f"{size} bytes where {count} fitted values take {used}")
    coefficients = from_bytes(body[4:cut], torch.float64, terms)
    if not bool(coefficients.isfinite().all()):
        raise damaged("a coefficient is not finite")
    check_packed(body[cut:used], count, index_width(count))
    ranks = unpacked(body[cut:used], count, index_width(count), torch.int64)
    seen = torch.zeros(1 << index_width(count), dtype=torch.bool, device=body.device)
    seen[ranks] = True
    if not bool(seen[:count].all()):
        raise damaged("ranks are not a permutation")
    return _curve(coefficients, count, positive, degree)[ranks], used


def _basis(like: Tensor, terms: int) -> Tensor:
    """See `curve._legendre`: float64 `[terms, n]`, at points that are as many as `like` has."""
    n = like.numel()
    x = (2.0 * torch.arange(n, dtype=torch.float64, device=like.device) + 1.0) / n - 1.0
    rows = [torch.ones_like(x)]
    before = torch.zeros_like(x)
    for j in range(1, terms):
        rows.append(((2 * j - 1) * x * rows[-1] - (j - 1) * before) / j)
        before = rows[-2]
    return torch.stack(rows)


def _curve(coefficients: Tensor, count: int, positive: int, degree: int) -> Tensor:
    """See `curve._curve`; coefficients and their products are added up in the loop's order."""
    out = coefficients.new_zeros(count)
    start = used = 0
    for length in piece_lengths(count, positive):
        terms = min(degree + 1, length)
        total = out[start : start + length]
        own = coefficients[used : used + terms, None] * _basis(total, terms)
        for term in own:
            total += term
        start, used = start + length, used + terms
    return out.clamp_(-FLOAT32_MAX, FLOAT32_MAX).float()
