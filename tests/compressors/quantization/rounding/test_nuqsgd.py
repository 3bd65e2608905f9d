"""NUQSGD rounds to powers of one half of a bucket's norm, unbiased, in its bits."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.quantization.rounding.nuqsgd import Nuqsgd, NuqsgdParameters
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import AllGather
from tests.compressors.shared import (
    bucket_of,
    buckets_of_three,
    exchange,
    members,
    naive_mean,
    normal,
    uniform,
)


def parameters_of(**given: Any) -> NuqsgdParameters:
    return NuqsgdParameters(**given)


workers = partial(members, Nuqsgd)


def naive_nuqsgd(
    values: torch.Tensor, *, step: int, tensor: int, rank: int, chosen: NuqsgdParameters
) -> np.ndarray[Any, Any]:
    """Q(v), element by element: lo + (hi - lo) [lo + u (hi - lo) < r], u of 16 random bits."""
    key = int(random_key(7, step, tensor, "nuqsgd rounding", rank))
    powers = [chosen.multiplier**j for j in range(2 ** (chosen.bits - 1) - chosen.zero)]
    levels = sorted([*powers, *(-power for power in powers)] + [0.0] * chosen.zero)
    size = chosen.bucket or values.numel()
    out = np.zeros(values.numel())
    for i, v in enumerate(values.tolist()):
        part = values[i // size * size : (i // size + 1) * size].double()
        norm = float(part.abs().max() if chosen.norm == "max" else part.norm())
        if norm == 0:
            continue
        u = uniform(key, i)
        r = min(max(v / norm, -1.0), 1.0)
        low = max(level for level in levels[:-1] if level <= r)
        high = min(level for level in levels if level > low)
        out[i] = norm * (high if low + u * (high - low) < r else low)
    return out


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize(
    ("bits", "bucket", "norm"), [(4, 100, "l2"), (2, 7, "l2"), (6, None, "max")]
)
def test_updates_are_those_of_the_published_algorithm(
    zero: bool, bits: int, bucket: int | None, norm: str
) -> None:
    group = workers(3, bits=bits, bucket=bucket, norm=norm, zero=zero)
    for step in range(2):
        given = buckets_of_three(step)
        expected = naive_mean(given, naive_nuqsgd, step=step, chosen=group[0].parameters)
        for update in exchange(group, given, step):
            np.testing.assert_allclose(update.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize(("n", "bucket"), [(1, 1024), (1024, 1024), (1025, 1024), (999, None)])
def test_the_message_has_the_length_of_the_formula(bits: int, n: int, bucket: int | None) -> None:
    (worker,) = workers(1, bits=bits, bucket=bucket)
    request = next(worker.exchange(bucket_of(normal(n)), 0))
    assert isinstance(request, AllGather)
    norms = math.ceil(n / bucket) if bucket else 1
    assert request.payload.numel() == HEADER_BYTES + 4 * norms + math.ceil(n * bits / 8)


def test_long_buckets_are_rounded_better_than_by_even_levels() -> None:
    # Psi by hand: r = v / norm is nearly N(0, 1 / 1024). Even levels, 4 bits, s = 7: nearly all
    # |r| are below 1/7, so E|Q - v|^2 / |v|^2 = sqrt(1024) / 7 sqrt(2 / pi) - 1 = 2.65. With
    # powers of 1/2 the relative variance of an element between two powers is at most 1/8.
    values = normal(1024 * 200, seed=6)
    energy = float(values.double().square().sum())
    properties = Nuqsgd.properties(parameters_of())
    assert properties.error_bound is not None
    relative = properties.error_bound(values) / energy
    smallest = 2.0**-6  # of 15 levels; below it r is 0 or 2^-6
    # sum over |r| < 2^-6 of |r| (2^-6 - |r|), numerically, plus at most 1/8 of the rest
    r = np.abs(values.double().numpy()) / 32
    below = float((r * (smallest - r))[r < smallest].sum()) / float((r**2).sum())
    assert below < relative < below + 0.125
    assert relative < 0.11 < 2.65 / 20
