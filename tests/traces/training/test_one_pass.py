"""One pass of all workers' batches gives the gradients of a pass for each."""

from collections.abc import Callable
from statistics import fmean, stdev

import pytest
import torch
from torch import Tensor, nn

from gcsim.traces.networks.gpt2 import Gpt2
from gcsim.traces.networks.small import cnn_digits
from gcsim.traces.training.one_pass import OnePass, agrees, fits
from tests.traces.training.world import method, team

WORKERS, BATCH = 3, 4


class Padded(nn.Module):
    """An embedding with a row that is not learned, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6, padding_idx=0)
        self.twice = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.out = nn.Linear(6, 10, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.twice(torch.tanh(self.twice(self.table(tokens))))
        found: Tensor = self.out(self.frozen(self.norm(states)).mean(1))
        return found


def strided() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), nn.ReLU(),
        nn.Conv2d(8, 6, 2, dilation=2, bias=False), nn.Flatten(), nn.Linear(6 * 4, 10),
    )  # fmt: skip


class Outside(nn.Module):
    """A weight is also used outside of its layer's call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs) + self.layer.weight.sum(1)
        return found


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 20), nn.Dropout(0.5), nn.Linear(20, 10))


def tied() -> nn.Module:
    return Gpt2(vocabulary=10, positions=8, width=8, blocks=1, heads=2)


def both(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> tuple[list[Tensor], ...]:
    """Samples' losses, and gradients by parameter, `[workers, *shape]`: of one pass, and by
    autograd of one for each."""
    torch.manual_seed(1)
    model = build()
    tokens = isinstance(model, Gpt2 | Padded)
    size = (WORKERS * BATCH, *shape)
    inputs = torch.randint(0, 10, size) if tokens else torch.randn(size)
    labels = torch.randint(0, 10, size if isinstance(model, Gpt2) else size[:1])

    def losses(part: slice) -> Tensor:
        output = model(inputs[part]).movedim(-1, 1)
        each = nn.functional.cross_entropy(output, labels[part], reduction="none")
        return each.flatten(1).mean(1) if each.dim() > 1 else each

    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = [torch.zeros(WORKERS, *p.shape) for p in parameters]
    one = OnePass(model, rows)
    given = one.add(lambda: losses(slice(None)))
    assert [p for p in model.parameters() if p.requires_grad] == parameters
    alone = [losses(slice(BATCH * w, BATCH * (w + 1))) for w in range(WORKERS)]
    own = [torch.autograd.grad(found.sum(), parameters) for found in alone]
    expected = [torch.stack(found) for found in zip(*own, strict=True)]
    return [given, *rows], [torch.stack(alone).detach(), *expected]


@pytest.mark.parametrize(
    ("build", "shape"),
    [(cnn_digits, (1, 8, 8)), (strided, (4, 8, 8)), (tied, (8,)), (Padded, (5,))],
)
def test_gradients_are_those_of_a_pass_for_each_worker(
    build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    assert fits(build())
    found, expected = both(build, shape)
    for ours, other in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-6)
    assert agrees(found, expected)


@pytest.mark.parametrize("build", [Outside, dropping])
def test_a_comparison_finds_what_no_layer_tells(build: Callable[[], nn.Module]) -> None:
    assert fits(build())
    assert not agrees(*both(build, (5,)))


@pytest.mark.parametrize("model", ["small", "normalised", "mixing"])
def test_a_team_takes_one_pass_where_it_is_the_same(model: str) -> None:
    """No batch statistics, each sample alone; weights of all workers equal."""
    kinds = ("topk", "variance", "cser")
    takes = [team(method(kind), model=model)._one_pass is not None for kind in kinds]
    assert takes == [model == "small", model == "small", False]


def test_second_moments_are_those_of_a_pass_for_each_worker() -> None:
    found = []
    for at_once in (True, False):
        of = team(method("variance"), accumulation=2, at_once=at_once)
        assert (of._one_pass is not None) == at_once
        _, moments = of._passes(3)
        found.append(torch.stack([each for each in moments if each is not None]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["none", "topk", "qsgd"])
def test_trainings_end_alike_over_twelve_seeds(kind: str) -> None:
    """Rounding alone differs: held-out losses of 40 steps do not differ by more than three
    standard errors of their difference in mean."""
    ends: list[list[float]] = []
    for at_once in (True, False):
        ends.append([])
        for seed in range(12):
            of = team(method(kind), workers=4, seed=seed, at_once=at_once)
            for step in range(40):
                of.step(step, 0.05)
            ends[-1].append(of.evaluate()[0])
    differences = [ours - other for ours, other in zip(*ends, strict=True)]
    error = max(stdev(differences) / 12**0.5, 1e-6)
    assert abs(fmean(differences)) <= 3 * error, differences
    spread = stdev(ends[1])
    assert stdev(differences) < 2 * spread  # as two seeds at most
