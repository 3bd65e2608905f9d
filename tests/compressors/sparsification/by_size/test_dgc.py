"""DGC: momentum correction, a sampled threshold, at most k sent, and nothing lost."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES, read_frames
from gcsim.compressors.random import stream
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.compressors.sparsification.by_size.dgc import sample_stride
from tests.compressors.shared import Team, normal


def sgd_buffer(gradients: list[Tensor], momentum: float, nesterov: bool) -> list[Tensor]:
    """The vector that torch.optim.SGD subtracts (divided by the learning rate) in each step."""
    parameter = torch.zeros_like(gradients[0], requires_grad=True)
    optimiser = torch.optim.SGD([parameter], lr=1.0, momentum=momentum, nesterov=nesterov)
    steps = []
    for gradient in gradients:
        before = parameter.detach().clone()
        parameter.grad = gradient.clone()
        optimiser.step()
        steps.append(before - parameter.detach())
    return steps


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("shape", [(60,), (12, 5)], ids=["dense", "sparse"])
def test_sending_everything_is_momentum_sgd(shape: tuple[int, ...], nesterov: bool) -> None:
    # ratio 1 without masking: v is emptied each step, so the update is the momentum term itself.
    workers = Team("dgc", [shape], ratio=1.0, nesterov=nesterov, factor_masking=False)
    gradients = [[normal(60, 2 * t + rank) for rank in range(2)] for t in range(5)]
    expected = sgd_buffer([(a + b) / 2 for a, b in gradients], 0.9, nesterov)
    for t, (pair, step) in enumerate(zip(gradients, expected, strict=True)):
        torch.testing.assert_close(workers.step(pair, t)[0], step, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "expected"),
    [  # ratio^((i+1)/(E+1)); the paper's section 3.3: "25, 6.25, 1.5625, 0.4, 0.1 %"
        ({"warmup_epochs": 5}, [0.316, 0.1, 0.0316, 0.01, 0.00316, 0.001, 0.001]),
        ({"warmup_epochs": 4, "warmup": "paper"}, [0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001]),
        ({"warmup_epochs": 6, "warmup": "paper", "ratio": 0.05}, [0.25, 0.0625, *[0.05] * 5]),
    ],
)
def test_warm_up_ratios_are_those_of_the_schedule(
    given: dict[str, Any], expected: list[float]
) -> None:
    (worker,) = Team("dgc", [(2, 2)], workers=1, steps_per_epoch=10, **given).workers
    ratios = [worker.ratio(10 * epoch) for epoch in range(len(expected))]
    assert ratios == pytest.approx(expected, rel=2e-3)
    assert worker.ratio(9) == worker.ratio(0)


@pytest.mark.parametrize("tail", ["normal", "heavy", "few", "constant"])
def test_never_more_than_k_and_rarely_much_less(tail: str) -> None:
    n, ratio = 200_000, 0.01
    workers = Team("dgc", [(400, 500)], workers=1, ratio=ratio)
    for t in range(4):
        z = normal(n, t)
        gradient = {
            "normal": z,
            "heavy": z.exp() ** 2,
            "few": torch.where(z > 3.5, 1.0, 0.0),  # about 46 of them: fewer than k
            "constant": torch.ones(n),
        }[tail]
        workers.step([gradient], t)
        (frame,) = read_frames(workers.listener.received[-1][0])
        assert frame.nonzero <= 2000
        assert frame.nonzero >= 0.8 * 2000
        assert workers.sent[-1] == (HEADER_BYTES + 8 * frame.nonzero,)  # 64 bits each


def test_one_dimensional_tensors_go_through_a_dense_all_reduce() -> None:
    workers = Team("dgc", [(20, 10), (10,), (), (30, 4)], ratio=0.1)
    gradients = [normal(331, seed) for seed in range(2)]
    update = workers.step(gradients)[0]
    kinds = [record.kind for record in workers.listener.collectives]
    assert kinds == ["all_reduce", "all_gather", "all_gather"]
    counts = [
        sum(frame.nonzero for frame in read_frames(payload))
        for payload in workers.listener.received[-1]
    ]
    assert workers.sent[:2] == [(44, 44), (8, 8)]  # 11 float32; a length
    assert workers.sent[2] == tuple(2 * HEADER_BYTES + 8 * count for count in counts)
    assert all(26 <= count <= 32 for count in counts)  # k = 20 + 12, at least 0.8 of each
    mean = (gradients[0] + gradients[1]) / 2
    torch.testing.assert_close(update[200:211], mean[200:211])


def test_a_bucket_of_one_kind_uses_one_collective() -> None:
    dense, sparse = Team("dgc", [(10,)]), Team("dgc", [(5, 2)])
    for workers in (dense, sparse):
        workers.step([normal(10, seed) for seed in range(2)])
    assert [r.kind for r in dense.listener.collectives] == ["all_reduce"]
    assert [r.kind for r in sparse.listener.collectives] == ["all_gather", "all_gather"]


def test_local_clipping_limits_the_norm_to_the_root_of_n_share() -> None:
    # norm 5 is cut to 1 / sqrt(4) = 0.5; norm 0.3 stays
    workers = Team("dgc", [(1, 2)], workers=4, ratio=1.0, clip_norm=1.0)
    update = workers.step([torch.tensor([3.0, 4.0])] * 4)[0]
    torch.testing.assert_close(update, torch.tensor([0.3, 0.4]))
    workers = Team("dgc", [(2,)], workers=4, clip_norm=1.0)
    update = workers.step([torch.tensor([0.0, 0.3])] * 4)[0]
    torch.testing.assert_close(update, torch.tensor([0.0, 0.3]))


def test_sample_is_one_percent_but_enough_for_the_ratio() -> None:
    for n, ratio in ((1_000_000, 0.01), (100_000, 0.001), (37_748_736, 0.001), (100, 0.01)):
        stride = sample_stride(n, ratio, 0.01)
        assert stride % 2 == 1
        assert n // stride >= min(n, max(0.01 * n, 2 / ratio))
    assert sample_stride(1_000_000, 0.01, 0.01) == 99
    assert sample_stride(100, 0.01, 0.01) == 1


def test_momentum_is_declared_so_that_updates_are_compared_with_sgd_momentum() -> None:
    cls = compressor_class("dgc")
    given = check_parameters("dgc", {"momentum": 0.8, "nesterov": True})
    assert cls.momentum(given) == (0.8, True)
    assert cls.period(given) == cls.window(given) == 1


# --- the whole algorithm, in plain Python -------------------------------------------------------


def naive_step(
    u: list[float], v: list[float], gradient: Tensor, start: int, p: dict[str, Any]
) -> tuple[list[int], list[float]]:
    """One worker's step as the authors' code has it; u and v are changed."""

    def single(x: float) -> float:
        return float(np.float32(x))

    m, n = single(p["momentum"]), len(u)
    for i in range(n):
        g = float(gradient[i])
        if p["nesterov"]:
            u[i] = single(single(u[i] + g) * m)
            v[i] = single(v[i] + single(u[i] + g))
        else:
            u[i] = single(single(u[i] * m) + g)
            v[i] = single(v[i] + u[i])
    k = max(1, round(n * p["ratio"]))
    stride = sample_stride(n, p["ratio"], p["sample_ratio"])
    sample = sorted((abs(x) for x in v[start::stride]), reverse=True)
    threshold = sample[math.ceil(len(sample) * p["ratio"]) - 1]
    for attempt in range(11):
        chosen = [i for i in range(n) if abs(v[i]) >= single(threshold)]
        if attempt == 10:
            break
        if len(chosen) > 1.3 * k:
            if p["too_many"] == "resample":
                chosen = sorted(sorted(chosen, key=lambda i: (-abs(v[i]), i))[:k])
                break
            threshold *= 1.3
        elif len(chosen) < 0.8 * k:
            threshold *= 0.8
        else:
            break
    chosen = chosen[:k]
    values = [v[i] for i in chosen]
    for i in chosen:
        v[i] = 0.0
        if p["factor_masking"]:
            u[i] = 0.0
    return chosen, values


@pytest.mark.parametrize("too_many", ["resample", "rescale"])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("factor_masking", [False, True])
def test_several_steps_are_those_of_the_authors_code(
    too_many: str, nesterov: bool, factor_masking: bool
) -> None:
    given = {
        "ratio": 0.1, "momentum": 0.7, "nesterov": nesterov, "factor_masking": factor_masking,
        "sample_ratio": 0.02, "too_many": too_many,
    }  # fmt: skip
    n, crew = 700, 2
    stride = sample_stride(n, 0.1, 0.02)
    assert stride > 1
    workers = Team("dgc", [(n // 10, 10)], workers=crew, seed=5, **given)
    u = [[0.0] * n for _ in range(crew)]
    v = [[0.0] * n for _ in range(crew)]
    for t in range(6):
        gradients = [normal(n, 10 * t + rank) ** 3 for rank in range(crew)]
        expected = torch.zeros(n)
        for rank in range(crew):
            start = int(stream(5, t, 0, "dgc", rank).integers(stride))
            chosen, values = naive_step(u[rank], v[rank], gradients[rank], start, given)
            expected[chosen] += torch.tensor(values) / crew
        for update in workers.step(gradients, t):
            torch.testing.assert_close(update, expected, rtol=1e-6, atol=1e-7)
        for rank, worker in enumerate(workers.workers):
            assert worker.state["velocity"][0].tolist() == v[rank]
            assert worker.state["momentum"][0].tolist() == u[rank]


def test_a_message_of_half_precision_values_takes_48_bits_an_element() -> None:
    workers = Team("dgc", [(40, 50)], workers=1, ratio=0.01, values="fp16")
    workers.step([normal(2000)])
    assert workers.sent[-1] == (HEADER_BYTES + 20 * 6,)


def test_masked_momentum_is_not_promised_to_be_conserved() -> None:
    cls = compressor_class("dgc")

    def conserves(**given: Any) -> bool:
        return cls.properties(check_parameters("dgc", given)).conserves

    assert not conserves()
    assert conserves(factor_masking=False)
    assert conserves(momentum=0.0)
    assert not conserves(momentum=0.0, clip_norm=1.0)
