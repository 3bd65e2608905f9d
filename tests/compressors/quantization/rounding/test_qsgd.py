"""QSGD is unbiased, has the variance of its formula, and sends the bits of its formula."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame, read_frames
from gcsim.compressors.coding.rounding.norms import Norm
from gcsim.compressors.quantization.rounding.qsgd import (
    Coding,
    Qsgd,
    QsgdParameters,
    add_decoded,
    error_bound,
    forms,
)
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import AllGather
from gcsim.errors import InputError
from tests.compressors.shared import (
    bucket_of,
    buckets_of_three,
    exchange,
    members,
    naive_mean,
    normal,
    uniform,
)

CODINGS: list[Coding] = ["fixed", "digits", "elias_sparse"]


def parameters_of(**given: Any) -> QsgdParameters:
    return QsgdParameters(**given)


workers = partial(members, Qsgd)


def decode(message: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    out = torch.zeros_like(bucket.gradient)
    add_decoded(message, bucket.layout, out, 1.0)
    return out


def naive_qsgd(
    values: torch.Tensor, *, seed: int, step: int, tensor: int, rank: int, chosen: QsgdParameters
) -> np.ndarray[Any, Any]:
    """Q(v), element by element: floor(s v / norm + u), u = (16 random bits + 1/2) / 65536."""
    key = int(random_key(seed, step, tensor, "qsgd rounding", rank))
    out = np.zeros(values.numel())
    size = chosen.bucket or values.numel()
    for i, v in enumerate(values.tolist()):
        part = values[i // size * size : (i // size + 1) * size].double()
        norm = float(part.abs().max() if chosen.norm == "max" else part.norm())
        if norm == 0:
            continue
        u = uniform(key, i)
        out[i] = math.floor(chosen.steps * v / norm + u) * norm / chosen.steps
    return out


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize(
    ("steps", "bucket", "norm"), [(7, 100, "max"), (1, 33, "l2"), (2, None, "l2"), (127, 7, "max")]
)
def test_updates_are_those_of_the_published_algorithm(
    coding: Coding, steps: int, bucket: int | None, norm: str
) -> None:
    # Alistarh et al. 2017, section 3.1, in float64; three workers, three steps, three tensors.
    group = workers(3, steps=steps, bucket=bucket, norm=norm, coding=coding)
    for step in range(3):
        given = buckets_of_three(step)
        expected = naive_mean(given, naive_qsgd, seed=7, step=step, chosen=group[0].parameters)
        for update in exchange(group, given, step):
            np.testing.assert_allclose(update.numpy(), expected, rtol=1e-5, atol=1e-6)


def exact_variance(values: torch.Tensor, size: int, steps: int, norm: str) -> float:
    """sum (norm / s)^2 f (1 - f), f the fraction of s v / norm: of Bernoulli rounding."""
    total = 0.0
    for start in range(0, values.numel(), size):
        part = values[start : start + size].double()
        length = float(part.abs().max() if norm == "max" else part.norm())
        if length:
            fraction = (part.abs() * steps / length).remainder(1.0)
            total += float((fraction * (1 - fraction)).sum()) * (length / steps) ** 2
    return total


@pytest.mark.parametrize(("norm", "expected"), [("max", 0.036), ("l2", 1.55)])
def test_the_error_of_gaussian_gradients_is_known(norm: str, expected: float) -> None:
    # N(0, 1), s = 7, buckets of 500. Maximum norm: (max / s)^2 E f(1 - f) with E max^2 = 10.6 and
    # fractions nearly uniform, E f(1 - f) = 1/6: 10.6 / 49 / 6 = .036. Euclidean: nearly all
    # quotients are below 1, so E|v| sqrt(d) / s - E v^2 = sqrt(500) / 7 sqrt(2 / pi) - 1 = 1.55.
    values = normal(500_000, seed=5)
    bucket = bucket_of(values)
    (worker,) = workers(1, bucket=500, norm=norm)
    error = (
        decode(worker.encode(bucket, 0), bucket) - values
    ).square().sum() / values.square().sum()
    assert float(error) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 8, 15, 16, 127])
@pytest.mark.parametrize("n", [1, 2, 511, 512, 513, 1025])
def test_the_message_has_the_length_of_the_formula(steps: int, n: int) -> None:
    (worker,) = workers(1, steps=steps)
    width = math.ceil(math.log2(2 * steps + 1))
    assert forms(steps)["fixed"].bits == width
    header, norms, codes = HEADER_BYTES, 4 * math.ceil(n / 512), math.ceil(n * width / 8)
    assert worker.encode(bucket_of(normal(n)), 0).numel() == header + norms + codes


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("bucket", [100, None])
def test_the_bound_of_the_laws_is_the_formula_bucket_by_bucket(
    norm: Norm, bucket: int | None
) -> None:
    # Alistarh et al., Lemma 3.1, min(d / s^2, sqrt(d) / s) |g|^2; Bernoulli's variance is at most
    # 1/4 of a squared interval: d max^2 / (4 s^2).
    values = normal(250)
    expected = 0.0
    for part in torch.split(values.double(), bucket or 250):
        d = part.numel()
        if norm == "max":
            expected += d * float(part.abs().max()) ** 2 / (4 * 9)
        else:
            expected += min(d / 9, math.sqrt(d) / 3) * float(part.square().sum())
    assert error_bound(values, 3, bucket, norm) == pytest.approx(expected)
    properties = Qsgd.properties(parameters_of(steps=3, norm=norm, bucket=bucket))
    assert properties.unbiased
    assert properties.error_bound is not None
    assert properties.error_bound(values) == pytest.approx(expected)
    assert exact_variance(values, bucket or 250, 3, norm) <= expected


@pytest.mark.parametrize(
    ("steps", "sparse", "fixed"),
    # Bits an element of N(0, 1), Euclidean norm, buckets of 512, norms included: values that an
    # independent script measured. There a gap begins anew in each bucket, which shortens it.
    [(1, 0.451, 2.0625), (4, 1.097, 4.0625), (16, 2.381, 6.0625), (23, 2.841, 6.0625)],
)
def test_elias_codes_take_the_known_bits(steps: int, sparse: float, fixed: float) -> None:
    n = 512 * 2000
    bucket = bucket_of(normal(n, seed=1))

    def bits(coding: Coding) -> float:
        (worker,) = workers(1, steps=steps, norm="l2", coding=coding)
        return (worker.encode(bucket, 0).numel() - HEADER_BYTES) * 8 / n

    assert bits("elias_sparse") == pytest.approx(sparse, rel=0.02 if steps == 1 else 0.01)
    assert bits("fixed") == fixed


@pytest.mark.parametrize(
    ("steps", "bits"), [(1, 1.6), (2, 7 / 3), (4, 3.2), (3, 3.0), (7, 4.0), (127, 8.0)]
)
def test_digits_take_the_bits_of_their_groups(steps: int, bits: float) -> None:
    n = 15 * 512
    (worker,) = workers(1, steps=steps, coding="digits")
    message = worker.encode(bucket_of(normal(n)), 0)
    assert message.numel() == HEADER_BYTES + 4 * 15 + n * bits / 8


@pytest.mark.parametrize("coding", CODINGS)
def test_only_elias_messages_exchange_their_lengths(coding: Coding) -> None:
    (worker,) = workers(1, coding=coding)
    request = next(worker.exchange(bucket_of(normal(100)), 0))
    assert isinstance(request, AllGather)
    is_length = request.payload.numel() == 8
    assert is_length == coding.startswith("elias")


def reframed(message: torch.Tensor, **changes: Any) -> torch.Tensor:
    """The message with another header or body, and a checksum that fits."""
    (frame,) = read_frames(message)
    fields: dict[str, Any] = {
        "body": frame.body,
        "numel": frame.numel,
        "nonzero": frame.nonzero,
        "flags": frame.flags,
        "params": frame.params,
    }
    return pack_frame(Codec.QSGD, **{**fields, **changes})


@pytest.mark.parametrize("coding", CODINGS)
def test_what_cannot_have_been_sent_is_refused_even_with_a_checksum(coding: Coding) -> None:
    bucket = bucket_of(normal(300))
    (worker,) = workers(1, coding=coding, bucket=100)
    message = worker.encode(bucket, 0)
    (frame,) = read_frames(message)
    body = frame.body
    wrong: list[dict[str, Any]] = [
        {"flags": 0},
        {"flags": 200},
        {"body": body[:-1]},
        {"body": body[:8]},
        {"body": torch.cat((body, body[:1]))},
        {"body": torch.cat((body[:12], torch.full_like(body[12:], 255)))},
    ]
    if coding != "fixed":  # levels up to 7 do not fit
        wrong.append({"flags": 1})
    if coding == "elias_sparse":
        wrong += [{"nonzero": frame.nonzero - 1}, {"nonzero": frame.nonzero + 1}]
    for changes in wrong:
        with pytest.raises(InputError, match=r"damaged|bytes"):
            decode(reframed(message, **changes), bucket)
