"""Variance-based compression sends what is beyond doubt, as the paper's words; the rest waits."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame, read_frames
from gcsim.compressors.coding.indices.words import add_powers
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.sparsification.by_variance.variance import VarianceBased, VarianceParameters
from gcsim.errors import InputError
from tests.compressors.shared import batch, layout_of


def certain(values: list[float] | torch.Tensor) -> Bucket:
    """A gradient without variance: everything that is not zero is sent."""
    gradient = torch.as_tensor(values, dtype=torch.float32)
    return Bucket(
        layout=layout_of(gradient.numel()),
        gradient=gradient,
        second_moment=torch.zeros_like(gradient),
    )


def workers(count: int = 1, **parameters: Any) -> list[VarianceBased]:
    chosen = VarianceParameters(**parameters)
    return [VarianceBased(Worker(rank=r, count=count, seed=7), chosen) for r in range(count)]


def decode(message: torch.Tensor, layout: BucketLayout) -> torch.Tensor:
    out = torch.zeros(layout.numel)
    add_powers(message, layout, out, 1.0)
    return out


def words_of(values: list[float]) -> tuple[list[int], int]:
    """The words that are sent of certain values, as unsigned numbers, and the exponent."""
    (frame,) = read_frames(workers()[0].encode(certain(values)))
    words = frame.body[1:].numpy().copy().view("<u4")
    return words.tolist(), int(frame.body[:1].view(torch.int8))


def test_the_words_of_appendix_b() -> None:
    # Tsuzuku et al., Appendix B, with the indices 1, 2, 3, 4 (it prints 1, 2, 2, 3): exponent 5,
    # d = (10), 7, 2, 1, 0; element 0 is too small; sign in bit 31, d in 30-28.
    words, exponent = words_of([0.04, 0.31, -6.25, 22.25, -35.75])
    assert exponent == 5
    assert words == [7 << 28 | 1, 1 << 31 | 2 << 28 | 2, 1 << 28 | 3, 0x80000004]


def test_a_whole_message_of_appendix_b() -> None:
    bucket = certain([0.04, 0.31, -6.25, 22.25, -35.75])
    (worker,) = workers()
    message = worker.encode(bucket)
    assert message.numel() == HEADER_BYTES + 1 + 4 * 4
    assert message[HEADER_BYTES] == 5
    assert message[-4:].tolist() == [0x04, 0, 0, 0x80]  # 0x80000004, little endian
    assert decode(message, bucket.layout).tolist() == [0.0, 0.25, -8.0, 16.0, -32.0]


def test_rounding_is_half_up_and_capped_at_the_largest_power() -> None:
    # Section 4.4 would make 64 of 50.0; section 4.2 truncates at 2^floor(log2 M) = 32. 24 is
    # halfway between 16 and 32 and goes up, 23.999 goes down.
    bucket = certain([50.0, 24.0, 23.999, -1.5, 1.4999])
    decoded = decode(workers()[0].encode(bucket), bucket.layout)
    assert decoded.tolist() == [32.0, 32.0, 16.0, -2.0, 1.0]


def reference_step(
    r: np.ndarray[Any, Any], v: np.ndarray[Any, Any], alpha: float, zeta: float
) -> dict[int, float]:
    """Algorithm 1 and section 4.2, one element at a time in float64; changes r and v."""
    clear = [i for i in range(len(r)) if r[i] ** 2 > alpha * v[i]]
    top = max((math.floor(math.log2(abs(r[i]))) for i in clear), default=0)
    sent = {}
    for i in clear:
        mantissa, exponent = math.frexp(abs(r[i]))  # |r| = mantissa 2^exponent, mantissa >= 1/2
        power = min(exponent if mantissa >= 0.75 else exponent - 1, top)
        if top - power <= 7:
            sent[i] = math.copysign(2.0**power, r[i])
        if i in sent:
            r[i] = v[i] = 0.0
    v *= zeta
    return sent


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_messages_follow_the_published_algorithm_step_by_step(alpha: float) -> None:
    layout = layout_of(300, 40)
    (worker,) = workers(alpha=alpha, zeta=0.99)
    r, v = np.zeros(340), np.zeros(340)
    delayed = 0
    for step in range(6):
        bucket = batch(layout, step)
        assert bucket.second_moment is not None
        r += bucket.gradient.double().numpy()
        v += bucket.second_moment.double().numpy()
        expected = np.zeros(340)
        for part in (slice(0, 300), slice(300, 340)):
            sent = reference_step(r[part], v[part], alpha, 0.99)
            for index, value in sent.items():
                expected[part.start + index] = value
        message = worker.encode(bucket)
        np.testing.assert_array_equal(decode(message, layout).numpy(), expected)
        assert message.numel() == 2 * (HEADER_BYTES + 1) + 4 * np.count_nonzero(expected)
        np.testing.assert_allclose(worker.state["delayed"][0].numpy(), r, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(worker.state["moment"][0].numpy(), v, rtol=1e-4, atol=1e-7)
        delayed += int(np.count_nonzero(expected == 0))
    assert 0 < delayed < 6 * 340


def test_the_rounding_error_is_at_most_a_quarter_of_the_energy_sent() -> None:
    values = torch.from_numpy(np.random.default_rng(4).uniform(-9, 9, 20_000).astype(np.float32))
    bucket = certain(values)
    (worker,) = workers()
    decoded = decode(worker.encode(bucket), bucket.layout)
    gone = decoded != 0
    error = (decoded - values)[gone].double().abs()
    size = values[gone].double().abs()
    assert bool((error < size / 2).all())
    rounded = size < 8  # floor(log2 9) = 3: only values above 8 are capped
    assert bool((error[rounded] <= size[rounded] / 3 * (1 + 1e-6)).all())
    assert float(error.square().sum()) <= 0.25 * float(size.square().sum())
    # What did not fit in three bits is still waiting, unchanged.
    assert torch.equal(worker.state["delayed"][0][~gone], values[~gone])
    assert bool((~gone).any())


def test_replicas_get_the_mean_over_workers_of_messages_of_unequal_length() -> None:
    layout = layout_of(500, 20)
    buckets = [batch(layout, seed, bias=0.4 * seed) for seed in range(3)]
    sent = [decode(w.encode(b), layout) for w, b in zip(workers(3), buckets, strict=True)]
    meter = Meter(3)
    updates = lockstep([w.exchange(b, 0) for w, b in zip(workers(3), buckets, strict=True)], meter)
    assert torch.equal(updates[0], updates[1])
    assert torch.equal(updates[0], updates[2])
    torch.testing.assert_close(updates[0], torch.stack(sent).mean(0), rtol=1e-6, atol=1e-9)
    lengths, payloads = meter.collectives
    assert lengths.sent == (8, 8, 8)
    words = [int((vector != 0).sum()) for vector in sent]
    assert payloads.sent == tuple(2 * (HEADER_BYTES + 1) + 4 * count for count in words)
    assert len(set(words)) == 3


def test_gradients_without_second_moments_are_refused() -> None:
    assert VarianceBased.requires == {"second_moments"}
    bucket = Bucket(layout=layout_of(3), gradient=torch.ones(3))
    with pytest.raises(InputError, match="second moments"):
        workers()[0].encode(bucket)


def test_damage_is_refused() -> None:
    # Behind a checksum that is right: what a faulty sender could have made.
    bucket = certain([1.0, 2.0, 3.0])
    message = workers()[0].encode(bucket)
    (frame,) = read_frames(message)
    with pytest.raises(InputError):
        decode(message[:-1], bucket.layout)

    def refused(byte: int, value: int, match: str) -> None:
        body = frame.body.clone()
        body[byte] = value
        with pytest.raises(InputError, match=match):
            decode(pack_frame(Codec.VARIANCE, body, numel=3, nonzero=3), bucket.layout)

    refused(-4, 3, "ascend")  # the last index is 2
    refused(-4, 1, "ascend")
    refused(0, 0x80, "normal")  # exponent -128
    with pytest.raises(InputError, match="body"):
        decode(pack_frame(Codec.VARIANCE, frame.body, numel=3, nonzero=2), bucket.layout)


def test_the_criterion_sees_squares_that_float32_cannot_hold() -> None:
    # (1e-30)^2 is zero in float32 and (1e30)^2 infinite: 1e-30 would wait for ever. By hand:
    # floor(log2 1e-30) = -100, and log2 1e-30 = -99.66 is nearer to -99.66 + .34 but capped.
    for value in (1e-30, -1e30):
        (worker,) = workers()
        bucket = certain([value])
        decoded = float(decode(worker.encode(bucket), bucket.layout))
        assert decoded == math.copysign(2.0 ** math.floor(math.log2(abs(value))), value)


def test_below_the_normal_numbers_there_is_no_exponent_to_send() -> None:
    # 2^-126 is float32's smallest normal number: it is sent, its half waits, twice its half goes.
    (worker,) = workers()
    bucket = certain([2.0**-126, 2.0**-127, 0.0])
    assert decode(worker.encode(bucket), bucket.layout).tolist() == [2.0**-126, 0.0, 0.0]
    assert decode(worker.encode(bucket), bucket.layout).tolist() == [2.0**-126, 2.0**-126, 0.0]
