"""Gradient dropping: a sampled quantile decides, the rest is remembered."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import HEADER_BYTES, read_frames
from gcsim.compressors.registry import check_parameters, compressor_class
from tests.compressors.shared import Team, normal


def naive_step(
    r: Tensor, u: Tensor, gradient: Tensor, parts: list[slice], given: dict[str, Any]
) -> Tensor:
    """One worker's step after the published code; r and u are changed; what is sent."""
    added = gradient
    if given["momentum"]:
        u.add_(gradient).mul_(given["momentum"])
        added = gradient + u
    r.add_(added)
    sent = torch.zeros_like(r)
    for part in parts:
        a = r[part].clone()
        s = min(a.numel(), given["samples"] or a.numel())
        sample = sorted(a[:: a.numel() // s][:s].abs().tolist())
        cut = int(s * given["drop_rate"]) - 1  # the code takes max(0, cut) here
        threshold = sample[cut] if cut >= 0 else 0.0
        chosen = torch.tensor([abs(x) > threshold for x in a.tolist()])
        sent[part] = torch.where(chosen, a, 0.0)
        r[part] = torch.where(chosen, 0.0, a)
        if given["factor_masking"]:
            u[part] = torch.where(chosen, 0.0, u[part])
    return sent


@pytest.mark.parametrize("momentum", [(0.0, True), (0.6, True), (0.6, False)])
@pytest.mark.parametrize("scope", ["bucket", "tensor"])
@pytest.mark.parametrize("samples", [50, None])
def test_several_steps_are_those_of_the_published_code(
    momentum: tuple[float, bool], scope: str, samples: int | None
) -> None:
    given: dict[str, Any] = {
        "drop_rate": 0.9, "samples": samples, "scope": scope,
        "momentum": momentum[0], "factor_masking": momentum[1],
    }  # fmt: skip
    crew, n = 2, 621
    workers = Team("gradient_dropping", [(20, 30), (20,), ()], workers=crew, **given)
    cuts = [slice(0, n)]
    if scope == "tensor":
        cuts = [slice(0, 600), slice(600, 620), slice(620, 621)]
    r = [torch.zeros(n) for _ in range(crew)]
    u = [torch.zeros(n) for _ in range(crew)]
    for t in range(5):
        gradients = [normal(n, 9 * t + rank) ** 3 for rank in range(crew)]
        expected = torch.zeros(n)
        for rank in range(crew):
            expected += naive_step(r[rank], u[rank], gradients[rank], cuts, given) / crew
        for update in workers.step(gradients, t):
            torch.testing.assert_close(update, expected, rtol=1e-6, atol=1e-7)
        for rank, worker in enumerate(workers.workers):
            residual_of = worker.residual_of(
                Bucket(layout=workers.layout, gradient=gradients[rank])
            )
            assert torch.equal(residual_of, r[rank])


def test_what_a_sampled_quantile_sends() -> None:
    # The 990th of 1000 ordered samples: the share above it has the Beta(11, 990) distribution,
    # mean .011, standard deviation .0033
    crew = Team("gradient_dropping", [(100_000,)], workers=1, samples=1000)
    crew.step([normal(100_000)])
    (frame,) = read_frames(crew.listener.received[-1][0])
    assert frame.nonzero / 1e5 == pytest.approx(0.011, abs=4 * 0.0033)
    assert crew.sent == [(8,), (HEADER_BYTES + 8 * frame.nonzero,)]  # a length; 64 bits each


def test_mostly_zeros_send_everything_else() -> None:
    gradient = torch.zeros(1000)
    gradient[[3, 500, 999]] = torch.tensor([1.0, -2.0, 1e-30])
    crew = Team("gradient_dropping", [(1000,)], workers=1)
    assert torch.equal(crew.step([gradient])[0], gradient)


def test_momentum_is_declared_in_nesterovs_form() -> None:
    cls = compressor_class("gradient_dropping")
    assert cls.momentum(check_parameters("gradient_dropping", {})) == (0.0, False)
    given = check_parameters("gradient_dropping", {"momentum": 0.9})
    assert cls.momentum(given) == (0.9, True)
    assert not cls.properties(given).conserves
    given = check_parameters("gradient_dropping", {"momentum": 0.9, "factor_masking": False})
    assert cls.properties(given).conserves
