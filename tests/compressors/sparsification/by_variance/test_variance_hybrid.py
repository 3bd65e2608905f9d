"""The hybrid sends unambiguous signs, keeps what they leave, and corrects the variance for them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, read_frames
from gcsim.compressors.coding.indices.words import add_signed
from gcsim.compressors.registry import check_parameters
from gcsim.compressors.sparsification.by_variance.variance_hybrid import (
    VarianceHybrid,
    VarianceHybridParameters,
)
from tests.compressors.shared import Team, batch, layout_of


def member(**parameters: Any) -> VarianceHybrid:
    return VarianceHybrid(Worker(rank=0, count=1, seed=7), VarianceHybridParameters(**parameters))


def decode(message: Tensor, layout: BucketLayout, worth: float) -> Tensor:
    out = torch.zeros(layout.numel)
    add_signed(message, layout, out, 1.0, levels=(worth, -worth))
    return out


def test_the_correction_uses_the_residual_before_tau_is_taken_off() -> None:
    # r = .25, v = .06, tau = .1, by hand: .06 - 2 * .25 * .1 + .01 = .02, and r = .15.
    for sign in (1.0, -1.0):
        worker = member(tau=0.1, alpha=1.0, zeta=1.0)
        bucket = Bucket(
            layout=layout_of(1),
            gradient=torch.tensor([0.25 * sign]),
            second_moment=torch.tensor([0.06]),
        )
        message = worker.encode(bucket)
        assert float(decode(message, bucket.layout, 0.1)) == pytest.approx(0.1 * sign)
        assert float(worker.residual[0]) == pytest.approx(0.15 * sign)
        assert float(worker.state["moment"][0]) == pytest.approx(0.02, rel=1e-5)


def oracle(
    r: np.ndarray[Any, Any],
    v: np.ndarray[Any, Any],
    gradient: np.ndarray[Any, Any],
    second: np.ndarray[Any, Any],
    parameters: VarianceHybridParameters,
) -> np.ndarray[Any, Any]:
    """Algorithm 2, one element at a time in float64; changes r and v, returns what is sent."""
    sent = np.zeros_like(r)
    tau = parameters.tau
    for i in range(len(r)):
        r[i] += gradient[i]
        v[i] += second[i]
        if abs(r[i]) > tau and r[i] ** 2 > parameters.alpha * v[i]:
            sent[i] = np.copysign(tau, r[i])
            before = abs(r[i])
            r[i] -= sent[i]
            v[i] = max(v[i] - 2 * before * tau + tau**2, 0.0)
        v[i] *= parameters.zeta
    return sent


@pytest.mark.parametrize("workers", [1, 3])
def test_updates_follow_the_published_algorithm_step_by_step(workers: int) -> None:
    given: dict[str, Any] = {"tau": 0.3, "alpha": 1.5, "zeta": 0.9}
    parameters = check_parameters("variance_hybrid", given)
    assert isinstance(parameters, VarianceHybridParameters)
    crew = Team("variance_hybrid", [(300,), (40,)], workers=workers, **given)
    r, v = np.zeros((workers, 340)), np.zeros((workers, 340))
    total_sent: int | np.integer[Any] = 0
    for step in range(8):
        buckets = [batch(crew.layout, 10 * step + rank) for rank in range(workers)]
        expected = np.zeros(340)
        lengths = []
        for rank, bucket in enumerate(buckets):
            assert bucket.second_moment is not None
            gradient, second = bucket.gradient.numpy(), bucket.second_moment.numpy()
            sent = oracle(r[rank], v[rank], gradient, second, parameters)
            expected += sent / workers
            lengths.append(2 * HEADER_BYTES + 4 * np.count_nonzero(sent))
            total_sent += np.count_nonzero(sent)
        updates = run(crew, buckets, step)
        for update in updates:
            np.testing.assert_allclose(update.numpy(), expected, rtol=1e-5, atol=1e-7)
        assert crew.sent == [(8,) * workers, tuple(lengths)]  # lengths, then 32 bits a sign
        for rank, worker in enumerate(crew.workers):
            np.testing.assert_allclose(worker.residual[0].numpy(), r[rank], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(
                worker.state["moment"][0].numpy(), v[rank], rtol=1e-3, atol=1e-5
            )
    assert 100 < total_sent < 8 * 340 * workers - 100


def run(crew: Any, buckets: list[Bucket], step: int) -> list[Tensor]:
    """Run `crew.step` with second moments of one's own."""
    from gcsim.compressors.lockstep import lockstep

    crew.listener = type(crew.listener)()
    pairs = zip(crew.workers, buckets, strict=True)
    return lockstep([w.exchange(bucket, step) for w, bucket in pairs], crew.listener)


def test_tau_itself_and_what_is_ambiguous_wait() -> None:
    # |r| > tau is strict (.5 waits); 1 is above tau, but 1 < alpha v = 2.
    bucket = Bucket(
        layout=layout_of(4),
        gradient=torch.tensor([0.5, 0.75, 1.0, -0.75]),
        second_moment=torch.tensor([0.0, 0.0, 1.0, 0.0]),
    )
    message = member(tau=0.5).encode(bucket)
    assert decode(message, bucket.layout, 0.5).tolist() == [0.0, 0.5, 0.0, -0.5]
    (frame,) = read_frames(message, expected=Codec.SIGNED_INDEX)
    assert frame.body.view(torch.int32).tolist() == [1, 3 - (1 << 31)]  # 31 bits and a sign


def test_a_variance_never_becomes_negative() -> None:
    # v = 0 and 2 |r| tau > tau^2: the correction alone would give -.15.
    worker = member(tau=0.1)
    gradient = torch.tensor([0.8])
    worker.encode(Bucket(layout=layout_of(1), gradient=gradient, second_moment=torch.zeros(1)))
    assert float(worker.state["moment"][0]) == 0.0


def test_an_empty_tensor_is_an_empty_frame() -> None:
    layout = layout_of(0, 2)
    bucket = Bucket(layout=layout, gradient=torch.ones(2), second_moment=torch.zeros(2))
    message = member().encode(bucket)
    assert message.numel() == 2 * HEADER_BYTES + 8
    assert decode(message, layout, 1.0).tolist() == [1.0, 1.0]
