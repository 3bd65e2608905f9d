"""Second moments equal a plain loop over the samples, for every kind of layer."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gcsim.errors import InputError
from gcsim.traces import moments as layer_moments
from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.registry import shipped_model
from gcsim.traces.models.torch_generator import keyed_generator
from gcsim.traces.networks.densenet import DenseLayer
from gcsim.traces.networks.mobilenet import InvertedResidual
from gcsim.traces.networks.resnet import resnet20_cifar10
from gcsim.traces.networks.wide_resnet import WideBlock
from gcsim.traces.tasks.images import Textures
from tests.traces.moments.by_sample import loop_over_samples, watched_moments

BATCH = 6


def made(build: Callable[[], nn.Module]) -> nn.Module:
    with keyed_generator(0, "test model"):
        return build()


class Residual(nn.Module):
    """A layer called twice, and a parameter that no layer owns."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(12, 8)
        self.shared = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.tensor([0.5]))
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.stem(images.flatten(1))
        hidden = hidden + self.scale * torch.tanh(self.shared(hidden))
        hidden = hidden + self.shared(hidden)
        logits: Tensor = self.head(hidden)
        return logits


class Sequence(nn.Module):
    """Linear layers on `[B, 4, 3]`, an embedding of position, a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(3, 8)
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 6, bias=False)
        self.head = nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.mix(torch.relu(self.norm(self.project(images.reshape(-1, 4, 3)))))
        logits: Tensor = self.head(tokens.mean(1))
        return logits


def classified(block: nn.Module) -> nn.Module:
    return nn.Sequential(block, nn.Flatten(), nn.LazyLinear(5))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),  # overwrites what the hook watches
            nn.Conv2d(4, 6, (3, 2), padding=(1, 0), dilation=(1, 2), bias=False),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.LazyLinear(5),
        ),
        (3, 9, 11),
    ),
    "grouped": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, groups=2), nn.Tanh(), nn.Conv2d(6, 6, 1, groups=6), nn.Flatten(),
            nn.LazyLinear(5),
        ),
        (4, 5, 5),
    ),
    "other layers": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding="same"),
            nn.GroupNorm(2, 4),
            nn.PReLU(4),
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
            nn.Flatten(),
            nn.LazyLinear(5),
        ),
        (3, 5, 5),
    ),
    "holes": (
        lambda: classified(
            nn.Conv2d(6, 12, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2), groups=6)
        ),
        (6, 8, 8),
    ),
    "inverted residual, halving": (lambda: classified(InvertedResidual(6, 8, 2, 6)), (6, 8, 8)),
    "inverted residual, added": (lambda: classified(InvertedResidual(6, 6, 1, 6)), (6, 8, 8)),
    "dense layer": (lambda: classified(DenseLayer(6, 4)), (6, 8, 8)),
    "wide block": (lambda: classified(WideBlock(6, 8, 2)), (6, 8, 8)),
    "shared and unowned": (Residual, (3, 2, 2)),
    "sequence": (Sequence, (3, 2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_second_moments_are_those_of_a_loop_over_samples(kind: str) -> None:
    build, shape = MODELS[kind]
    images, labels = Textures(shape, 5, seed=1).batch(BATCH, worker=0, step=0)
    model = made(build)
    model(images)  # lazy layers take their shape
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()  # statistics that stand still: samples do not meet
    expected = loop_over_samples(model, images, labels)
    found = watched_moments(model, images, labels)
    for (name, _), one, other in zip(trainable(model), found.values, expected, strict=True):
        assert torch.allclose(one, other, rtol=2e-4, atol=1e-10), name


@pytest.mark.parametrize("limit", [1, 64 * 1024 * 1024])
def test_lenets_second_moments_do_not_depend_on_the_portions(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_moments, "_LIMIT", limit)
    images, labels = Textures((1, 32, 32), 10, seed=1).batch(BATCH, worker=0, step=0)
    model = build_model(shipped_model("lenet"), seed=0)
    expected = loop_over_samples(model, images, labels)
    found = watched_moments(model, images, labels)
    for one, other in zip(found.values, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=1e-12)


def test_the_gradient_is_that_of_an_ordinary_backward_pass() -> None:
    images, labels = Textures((1, 32, 32), 10, seed=1).batch(BATCH, worker=0, step=0)
    model, plain = (
        build_model(shipped_model("lenet"), seed=0),
        build_model(shipped_model("lenet"), seed=0),
    )
    watched_moments(model, images, labels)
    cross_entropy(plain(images), labels).backward()  # type: ignore[no-untyped-call]
    for (_, one), (_, other) in zip(trainable(model), trainable(plain), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad)


def test_second_moments_bound_the_squared_gradient() -> None:
    # Cauchy-Schwarz: (sum_z g_z / B)^2 <= B sum_z (g_z / B)^2, with the same dropout masks
    images, labels = Textures((12,), 5, seed=1).batch(BATCH, worker=0, step=0)
    model = made(lambda: nn.Sequential(nn.Linear(12, 9), nn.Dropout(0.5), nn.Linear(9, 5)))
    with keyed_generator(0, "dropout"):
        found = watched_moments(model, images, labels)
    for value, (_, parameter) in zip(found.values, trainable(model), strict=True):
        assert parameter.grad is not None
        assert bool((parameter.grad**2 <= BATCH * value * 1.0001 + 1e-12).all())


def test_every_parameters_extra_arithmetic_is_metered() -> None:
    images, labels = Textures((1, 32, 32), 10, seed=1).batch(BATCH, worker=0, step=0)
    model = build_model(shipped_model("lenet"), seed=0)
    costs = watched_moments(model, images, labels, metered=True).costs
    assert sorted(costs) == list(range(10))
    flops = {number: sum(cost.flops for cost in costs[number]) for number in costs}
    # Linear: 2 B in out; convolutions: 2 B out fan-in places
    assert flops[4] == 2 * BATCH * 400 * 120
    assert flops[0] == 2 * BATCH * 6 * 25 * 28 * 28
    assert flops[1] == 0
    assert watched_moments(model, images, labels).costs == {}


def test_the_slow_way_is_metered_at_its_first_parameter() -> None:
    images, labels = Textures((3, 2, 2), 5, seed=1).batch(BATCH, worker=0, step=0)
    model = made(Residual)
    names = [name for name, _ in trainable(model)]
    costs = watched_moments(model, images, labels, metered=True).costs
    slow = {names.index(name) for name in ("scale", "shared.weight", "shared.bias")}
    assert set(costs) == set(range(len(names))) - slow | {min(slow)}
    assert sum(cost.launches for cost in costs[min(slow)]) > BATCH


def test_a_frozen_layer_is_left_out() -> None:
    images, labels = Textures((1, 32, 32), 10, seed=1).batch(BATCH, worker=0, step=0)
    model = build_model(shipped_model("lenet"), seed=0)
    model.get_submodule("features").requires_grad_(False)
    assert len(watched_moments(model, images, labels).values) == 6


def terms_of_samples(model: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """sum_z t_z^2 with t_z the part of a layer's gradient that comes by way of sample z's output.

    By autograd: each layer's output gradient with all other samples set to zero.
    """
    outputs: dict[int, Tensor] = {}
    layers = [m for m in model.modules() if list(m.parameters(recurse=False))]
    handles = [
        layer.register_forward_hook(lambda m, _, out: outputs.__setitem__(id(m), out))
        for layer in layers
    ]
    loss = cross_entropy(model(images), labels)
    for handle in handles:
        handle.remove()
    found: dict[int, Tensor] = {}
    for layer in layers:
        output = outputs[id(layer)]
        (delta,) = torch.autograd.grad(loss, output, retain_graph=True)
        for parameter in layer.parameters(recurse=False):
            total = torch.zeros_like(parameter)
            for sample in range(len(images)):
                alone = torch.zeros_like(delta)
                alone[sample] = delta[sample]
                (term,) = torch.autograd.grad(output, parameter, alone, retain_graph=True)
                total += term**2
            found[id(parameter)] = total
    return [found[id(parameter)] for _, parameter in trainable(model)]


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (
            lambda: nn.Sequential(
                nn.Conv2d(3, 4, 3, bias=False),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(4 * 36, 7),
                nn.BatchNorm1d(7),
                nn.Linear(7, 5),
            ),
            (3, 8, 8),
        ),
        (resnet20_cifar10, (3, 32, 32)),
    ],
    ids=["small", "resnet20"],
)
def test_samples_that_meet_in_batch_normalisation_have_their_terms_of_the_sum(
    build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    images, labels = Textures(shape, 5, seed=1).batch(BATCH, worker=0, step=0)
    model = made(build)
    found = watched_moments(model, images, labels)
    for value, expected in zip(found.values, terms_of_samples(model, images, labels), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-10)


def test_batch_normalisation_beside_a_parameter_of_no_layer_is_refused() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, images: Tensor) -> Tensor:
            scaled: Tensor = self.scale * self.norm(images)
            return scaled

    images, labels = Textures((4,), 4, seed=1).batch(BATCH, worker=0, step=0)
    with pytest.raises(
        InputError, match=r"samples mix in norm, .* parameter scale belongs to no layer"
    ):
        watched_moments(Scaled(), images, labels)


class Tied(nn.Module):
    """A weight that is also used outside its own layer's call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.layer(images)) @ self.layer.weight.t()
        logits: Tensor = self.head(hidden)
        return logits


def test_a_weight_used_behind_its_layers_back_is_found_out() -> None:
    images, labels = Textures((12,), 5, seed=1).batch(BATCH, worker=0, step=0)
    with pytest.raises(InputError, match=r"layer\.weight.*do not add up"):
        watched_moments(made(Tied), images, labels)


def test_no_hook_stays_behind() -> None:
    images, labels = Textures((1, 32, 32), 10, seed=1).batch(BATCH, worker=0, step=0)
    model = build_model(shipped_model("lenet"), seed=0)
    watched_moments(model, images, labels)
    assert not any(module._forward_hooks for module in model.modules())
