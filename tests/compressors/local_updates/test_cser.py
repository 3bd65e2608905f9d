"""CSER: x - e is common to all workers, the mean of x is SGD's, and slices are all that travels."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors import check
from gcsim.compressors.registry import check_parameters, compressor_class
from tests.compressors.shared import Team, normal

SHAPES = [(30, 10), (7,), ()]
N = 308
CASES = [
    ("cser", {"gradient_blocks": 6, "error_blocks": 4, "interval": 3}),
    ("cser", {"gradient_blocks": 1000, "error_blocks": 1, "interval": 2, "momentum": 0.0}),
    ("csea", {"error_blocks": 5}),
    ("cser_pl", {"error_blocks": 3, "interval": 4}),
]


class Naive:
    """The algorithm in model space, float64, given which elements each compressor keeps."""

    def __init__(self, workers: int, m: float, lr: float) -> None:
        self.x = torch.zeros(workers, N).double()
        self.e, self.u = self.x.clone(), self.x.clone()
        self.m, self.lr = m, lr

    @staticmethod
    def psync(v: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        c = torch.where(kept, v, 0.0)
        return c.mean(0) + (v - c), v - c

    def step(self, gradients: Tensor, kept2: Tensor, kept1: Tensor | None) -> None:
        self.u = self.m * self.u + gradients
        p, r = self.psync(self.lr * (gradients + self.m * self.u), kept2)
        self.x -= p
        self.e -= r
        if kept1 is not None:
            before = self.e
            p, self.e = self.psync(self.e, kept1)
            self.x += p - before


def kept_by(slices: list[slice]) -> Tensor:
    kept = torch.zeros(N, dtype=torch.bool)
    for part in slices:
        kept[part] = True
    return kept


@pytest.mark.parametrize(("name", "parameters"), CASES)
@pytest.mark.parametrize("workers", [1, 3])
def test_models_and_errors_are_those_of_the_algorithm(
    name: str, parameters: dict[str, Any], workers: int
) -> None:
    lr, m = 0.05, parameters.get("momentum", 0.9)
    crew = Team(name, SHAPES, workers=workers, **parameters)
    one = crew.workers[0]
    naive = Naive(workers, m, lr)
    models = torch.zeros(workers, N).double()
    buffer, sgd = torch.zeros(N).double(), torch.zeros(N).double()
    for t in range(13):
        gradients = [normal(N, 10 * t + rank) for rank in range(workers)]
        resets = (t + 1) % parameters.get("interval", 1) == 0
        kept2 = kept_by(one._chosen(crew.layout, t, one.gradient_blocks, "cser gradients"))
        kept1 = kept_by(one._chosen(crew.layout, t, one.parameters.error_blocks, "cser errors"))
        naive.step(torch.stack(gradients).double(), kept2, kept1 if resets else None)
        for rank, update in enumerate(crew.step(gradients, t)):
            models[rank] -= lr * update.double()
        torch.testing.assert_close(models, naive.x, rtol=0, atol=2e-6)
        errors = -lr * torch.stack([w.state["error"][0] for w in crew.workers]).double()
        torch.testing.assert_close(errors, naive.e, rtol=0, atol=2e-6)
        # x_i - e_i is the same everywhere; the mean of x_i follows SGD on the mean gradient
        common = models - errors
        torch.testing.assert_close(common, common[:1].expand(workers, N), rtol=0, atol=2e-6)
        mean = torch.stack(gradients).double().mean(0)
        buffer = m * buffer + mean
        sgd -= lr * (mean + m * buffer)
        torch.testing.assert_close(models.mean(0), sgd, rtol=0, atol=2e-6)


def test_with_one_block_of_errors_replicas_meet() -> None:
    crew = Team("cser", SHAPES, workers=3, error_blocks=1, interval=4)
    models = torch.zeros(3, N)
    for t in range(8):
        models += torch.stack(crew.step([normal(N, 10 * t + r) for r in range(3)], t))
        apart = float((models - models[0]).abs().max())
        assert apart < 1e-5 if t % 4 == 3 else apart > 0.1


@pytest.mark.parametrize(
    ("gradient_blocks", "error_blocks", "interval", "overall"),
    [(8, 4, 2, 4), (64, 4, 16, 32), (512, 16, 32, 256), (2048, 8, 256, 1024)],
)
def test_the_published_settings_have_the_rates_of_the_formula(
    gradient_blocks: int, error_blocks: int, interval: int, overall: int
) -> None:
    # R = 1 / (1/R2 + 1/(H R1)) of the public README's example and of its ImageNet scripts
    n = 2048
    crew = Team(
        "cser", [(n,)], workers=1,
        gradient_blocks=gradient_blocks, error_blocks=error_blocks, interval=interval,
    )  # fmt: skip
    sent = 0
    for t in range(interval):
        crew.step([torch.ones(n)], t)
        sent += crew.sent[0][0]
    assert 4 * n * interval / sent == overall


def test_bytes_are_those_of_the_slices() -> None:
    # 32 n / R2 bits a step, 32 n / R1 more at a reset; n is a multiple of both
    n = 9600
    crew = Team("cser", [(n,)])
    sent = 0
    for t in range(24):
        crew.step([torch.ones(n)] * 2, t)
        expected = 4 * n // 192 + (4 * n // 8 if t == 23 else 0)
        assert crew.sent == [(expected, expected)]
        sent += expected
    assert 4 * n * 24 / sent == 96.0  # 1 / (1/192 + 1/(24 * 8))


@pytest.mark.parametrize(("name", "period"), [("csea", 1), ("cser_pl", 12)])
def test_the_other_presets_send_a_96th_as_well(name: str, period: int) -> None:
    n, sent = 9600, 0
    crew = Team(name, [(n,)])
    for t in range(period):
        crew.step([torch.ones(n)] * 2, t)
        sent += sum(pair[0] for pair in crew.sent)
        assert len(crew.sent) == (1 if t == period - 1 else 0)
    assert 4 * n * period / sent == 96.0


@pytest.mark.parametrize(("n", "blocks"), [(100, 7), (3, 8), (1, 1), (5, 5)])
def test_blocks_are_chosen_equally_often_and_partition_the_tensor(n: int, blocks: int) -> None:
    # E|C(v) - v|^2 = (1 - 1/R) |v|^2: each element is kept with probability 1/R.
    draws = 3000
    crew = Team("csea", [(n,)], workers=1, error_blocks=blocks)
    kept = torch.zeros(n)
    seen = set()
    for t in range(draws):
        (part,) = crew.workers[0]._chosen(crew.layout, t, blocks, "cser errors")
        kept[part] += 1
        seen.add((part.start, part.stop))
    sd = (draws * (1 / blocks) * (1 - 1 / blocks)) ** 0.5
    assert float((kept - draws / blocks).abs().max()) <= 5 * sd
    cover = sorted(seen)
    assert cover[0][0] == 0
    assert cover[-1][1] == n
    assert all(a[1] == b[0] for a, b in itertools.pairwise(cover))
    assert max(b - a for a, b in seen) <= -(-n // blocks)


def test_schedules() -> None:
    for name, phases in (
        ("cser", ["partial", "partial", "reset"]),
        ("cser_pl", ["local", "local", "reset"]),
    ):
        cls, parameters = compressor_class(name), check_parameters(name, {"interval": 3})
        assert [cls.phase(parameters, step) for step in range(3)] == phases
        assert cls.period(parameters) == cls.window(parameters) == 3
        assert cls.momentum(parameters) == (0.9, True)


@pytest.mark.parametrize(("name", "parameters"), CASES[1:3])
def test_laws_hold(name: str, parameters: dict[str, Any]) -> None:
    check(name, parameters)
