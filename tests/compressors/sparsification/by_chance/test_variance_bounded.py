"""Variance-bounded sparsification: unbiased, of exactly the density or second moment asked for."""

import struct
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors import check
from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.apart import add_apart
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame
from gcsim.compressors.coding.indices.index_coding import Coder
from gcsim.compressors.coding.selecting.sampling import Weights
from gcsim.compressors.segments import Segments
from gcsim.compressors.sparsification.by_chance.variance_bounded import (
    VarianceBounded,
    VarianceBoundedParameters,
    multipliers,
)
from gcsim.errors import InputError
from tests.compressors.shared import Team, bucket_of, encode_indices, normal


def one(**parameters: Any) -> VarianceBounded:
    return VarianceBounded(Worker(rank=0, count=1, seed=5), VarianceBoundedParameters(**parameters))


def decoded(message: Tensor, bucket: Bucket) -> Tensor:
    out = torch.zeros_like(bucket.gradient)
    add_apart(message, bucket.layout, out, 1.0)
    return out


def chances(gradient: Tensor, **parameters: Any) -> Tensor:
    weights = Weights.of(gradient, Segments.alone(gradient.numel()))
    scale, _ = multipliers(weights, VarianceBoundedParameters(**parameters))
    return (gradient.double().abs() * scale).clamp(max=1.0)


def greedy(gradient: Tensor, density: float, rounds: int) -> Tensor:
    """Algorithm 3 as written: p = min(c p, 1) for c = (density n - n + |I|) / sum over I of p."""
    g = gradient.double().abs()
    n = g.numel()
    p = (density * n * g / g.sum()).clamp(max=1.0)
    for _ in range(rounds):
        inside = p < 1
        c = (density * n - n + int(inside.sum())) / float(p[inside].sum())
        if c <= 1:
            break
        p = (c * p).clamp(max=1.0)
    return p


def closed_form(gradient: Tensor, eps: float) -> Tensor:
    """Algorithm 2: the smallest k that fulfils the condition, on sorted magnitudes."""
    g = gradient.double().abs().sort(descending=True).values
    energy = float(g.square().sum())
    for k in range(g.numel()):
        rest = g[k:]
        bound = eps * energy + float(rest.square().sum())
        if float(g[k] * rest.sum()) <= bound:
            return (gradient.double().abs() * float(rest.sum()) / bound).clamp(max=1.0)
    raise AssertionError


@pytest.mark.parametrize("density", [0.01, 0.02, 0.3])
def test_the_greedy_is_the_published_one(density: float) -> None:
    gradient = normal(10_000, 1) * normal(10_000, 2).exp()
    for rounds in (1, 2, 10):
        expected = greedy(gradient, density, rounds)
        found = chances(gradient, ratio=density, rounds=rounds)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


def test_two_rounds_reach_the_density() -> None:
    # sum p = 100.0 for 1 % of 10^4 elements
    assert float(chances(normal(10_000, 1), ratio=0.01).sum()) == pytest.approx(100.0, abs=0.05)


@pytest.mark.parametrize("eps", [0.05, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("spread", [0.0, 1.5])
def test_the_bound_gives_the_closed_form_and_exactly_that_second_moment(
    eps: float, spread: float
) -> None:
    gradient = normal(3000, 1) * (spread * normal(3000, 2)).exp()
    p = chances(gradient, bound=eps)
    torch.testing.assert_close(p, closed_form(gradient, eps), rtol=1e-6, atol=1e-12)
    square = gradient.double().square()
    assert float((square / p).sum() / square.sum()) == pytest.approx(1 + eps, rel=1e-6)


@pytest.mark.parametrize("parameters", [{"ratio": 0.1}, {"bound": 1.0}])
def test_what_is_sent_is_the_value_or_one_magnitude_with_sign(parameters: dict[str, Any]) -> None:
    gradient = normal(4000, 3) * normal(4000, 4).exp()
    bucket = bucket_of(gradient)
    p, worker = chances(gradient, **parameters), one(**parameters)
    certain = p == 1.0
    assert 0 < int(certain.sum()) < 4000
    for step in range(3):
        found = decoded(worker.encode(bucket, step), bucket)
        assert torch.equal(found[certain], gradient[certain])
        sent = (found != 0) & ~certain
        expected = gradient.double()[sent] / p[sent]
        torch.testing.assert_close(found[sent].double(), expected, rtol=1e-6, atol=0)
        number = float(sent.sum())
        rest = p[~certain]
        sd = float((rest * (1 - rest)).sum()) ** 0.5
        assert number == pytest.approx(float(rest.sum()), abs=5 * sd)


@pytest.mark.parametrize("coder", [Coder.RAW, Coder.PACKED, Coder.RICE, Coder.BITMAP])
def test_the_message_has_the_length_of_the_formula(coder: Coder) -> None:
    gradient = normal(4000, 3) * normal(4000, 4).exp()
    bucket, worker = bucket_of(gradient), one(ratio=0.1, indices=coder.name.lower())
    message = worker.encode(bucket, 0)
    found = decoded(message, bucket)
    certain = chances(gradient, ratio=0.1) == 1.0
    a, b = (found != 0) & certain, (found != 0) & ~certain
    codes = [encode_indices(part.nonzero().view(-1), 4000, coder).numel() for part in (a, b)]
    # |A| (32 + index) + |B| (1 + index) + 96 bits, each part in whole bytes
    length = 12 + 4 * int(a.sum()) + -(-int(b.sum()) // 8) + sum(codes)
    assert message.numel() == HEADER_BYTES + length
    if coder is Coder.PACKED:
        assert codes == [-(-int(part.sum()) * 12 // 8) for part in (a, b)]


def test_workers_draw_independently_and_average() -> None:
    crew = Team("variance_bounded", [(20, 20), (7,)], workers=3, ratio=0.2)
    gradients = [normal(407, rank) for rank in range(3)]
    updates = crew.step(gradients, 4)
    assert all(torch.equal(update, updates[0]) for update in updates)
    messages = crew.listener.received[-1]
    parts = [
        decoded(message, Bucket(layout=crew.layout, gradient=gradients[0])) for message in messages
    ]
    torch.testing.assert_close(updates[0], torch.stack(parts).mean(0))
    assert not torch.equal(parts[0] != 0, parts[1] != 0)


@pytest.mark.parametrize("bound", [None, 1.0])
def test_zeros_send_nothing(bound: float | None) -> None:
    bucket = bucket_of(torch.zeros(50), torch.zeros(0))
    message = one(bound=bound).encode(bucket, 0)
    assert message.numel() == 2 * (HEADER_BYTES + 12)
    assert not decoded(message, bucket).any()


@pytest.mark.parametrize(
    "head",
    [
        (1.0, 3, 1),  # more certain elements than elements
        (float("nan"), 0, 1),
        (-1.0, 0, 1),
        (1.0, 1, 200),  # an index code beyond the end
        (1.0, 0, 1),  # lengths that do not fit
    ],
)
def test_a_message_that_contradicts_itself_is_refused(head: tuple[float, int, int]) -> None:
    bucket = bucket_of(torch.ones(10))
    body = torch.frombuffer(bytearray(struct.pack("<fII", *head) + bytes(7)), dtype=torch.uint8)
    for cut in (body, body[:5]):
        message = pack_frame(Codec.VARIANCE_BOUNDED, cut, numel=10, nonzero=2, flags=0x11)
        with pytest.raises(InputError):
            decoded(message, bucket)


def test_laws_hold() -> None:
    check("variance_bounded", {"bound": 0.2, "indices": "rice"})
