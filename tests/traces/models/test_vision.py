"""Image models: published sizes, torchvision's order, the papers' layers, and they do train.

Where the numbers come from: "torchvision" is version 0.28.0. Sizes and multiply-adds are those of
its documentation (`Weights.meta`, `num_params` and `_ops`); `LISTS` are SHA-256 sums of its models'
`named_parameters()`, one line "name [shape]" each.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gcsim.traces.live import LiveTrainer
from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.facts import model_facts
from gcsim.traces.models.losses import heads, sample_losses
from gcsim.traces.models.registry import MODELS
from gcsim.traces.profile import ModelFacts
from gcsim.traces.tasks.registry import make_task

SIZES = {  # parameters, tensors, multiply-adds of a forward pass in 10^9
    "alexnet": (61_100_840, 16, 0.714),
    "resnet18": (11_689_512, 62, 1.814),
    "resnet50": (25_557_032, 161, 4.089),
    "resnet152": (60_192_808, 467, 11.514),
    "resnet20_cifar10": (269_722, 59, 0.041),  # arXiv:1512.03385, table 6: 0.27 M and 1.7 M
    "resnet110_cifar10": (1_727_962, 329, 0.253),
    "vgg11": (132_863_336, 22, 7.609),
    "vgg16": (138_357_544, 32, 15.47),
    "vgg19": (143_667_240, 38, 19.632),
    "googlenet": (6_624_904, 173, 1.498),
    "inception_v3_aux": (27_161_264, 292, 5.719),  # 5.713 as documented: evaluation, without aux
    "densenet121": (7_978_856, 364, 2.834),
    "densenet161": (28_681_000, 484, 7.728),
    "mobilenet_v2": (3_504_872, 158, 0.301),
    # torchvision.models.googlenet(aux_logits=True), inception_v3(aux_logits=False): not documented
    "googlenet_aux": (13_004_888, 187, 1.507),
    "inception_v3": (23_834_568, 284, 5.713),
    # "36.5M": arXiv:1605.07146, table 4; the exact figure and 5.25 G: osmr/imgclsmob
    "wrn28_10_cifar10": (36_479_194, 80, 5.243),
    # kuangliu/pytorch-cifar's VGG16: by hand in `test_the_vggs_for_cifar_by_hand`
    "vgg16_bn_cifar10": (14_728_266, 54, 0.313),
    "vgg_like_cifar10": (14_987_200, 43, 0.313),
}
LISTS = {
    "alexnet": "8119ea5294a9c8c7",
    "vgg11": "1373d2f6ee3af54d",
    "vgg16": "e0f24b3678fcfb4f",
    "vgg19": "ba440b05e9aebbcc",
    "googlenet": "6fbce93b4cb551d8",
    "googlenet_aux": "9743403138e1bcfb",
    "inception_v3": "04f4d98c03babd9b",
    "inception_v3_aux": "e676f9d0138d8ede",
    "densenet121": "21acd7911351681c",
    "densenet161": "95442ec433cba3b7",
    "mobilenet_v2": "646a51a00fa44584",
}
HEADS = {"googlenet_aux": 3, "inception_v3_aux": 2}


@cache
def bare(name: str) -> nn.Module:
    return build_model(MODELS[name], seed=0, device="meta")


@cache
def facts(name: str) -> ModelFacts:
    return model_facts(MODELS[name], bare(name), 1)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_the_published_ones(name: str) -> None:
    parameters, tensors, multiply_adds = SIZES[name]
    found = [p.numel() for _, p in trainable(bare(name))]
    assert (sum(found), len(found)) == (parameters, tensors)
    assert round(facts(name).forward_flops / 2e9, 3) == multiply_adds
    assert sorted(i for layer in facts(name).layers for i in layer.parameters) == list(
        range(tensors)
    )


@pytest.mark.parametrize("name", LISTS)
def test_parameters_stand_in_torchvisions_order_under_its_names(name: str) -> None:
    lines = "".join(f"{n} {list(p.shape)}\n" for n, p in bare(name).named_parameters())
    assert hashlib.sha256(lines.encode()).hexdigest().startswith(LISTS[name])


def by_hand(module: nn.Module, shape: tuple[int, ...]) -> list[tuple[str, int]]:
    """2 x outputs x fan-in a sample, layer by layer in the order of calls: without any counter."""
    found: list[tuple[str, int]] = []

    def hook(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, _given: object, output: Tensor) -> None:
            weight = layer.weight
            assert isinstance(weight, Tensor)
            fan_in = 0 if weight.dim() == 1 else weight[0].numel()  # batch norm counts nothing
            found.append((name, 2 * output[0].numel() * fan_in))

        return note

    handles = [
        layer.register_forward_hook(hook(name))
        for name, layer in module.named_modules()
        if hasattr(layer, "weight")
    ]
    with torch.no_grad():
        module(torch.zeros(2, *shape, device="meta"))
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("name", SIZES)
def test_flops_are_twice_outputs_times_fan_in_layer_by_layer(name: str) -> None:
    found = [(layer.name, layer.forward_flops) for layer in facts(name).layers]
    assert found == by_hand(bare(name), MODELS[name].input_shape)


@pytest.mark.parametrize(
    ("name", "block", "inner"),
    [  # arXiv:1409.4842, figure 3; arXiv:1512.00567, figure 8
        ("googlenet_aux", "inception4a", "aux1"),
        ("googlenet_aux", "inception4d", "aux2"),
        ("inception_v3_aux", "Mixed_6e", "AuxLogits"),
    ],
)
def test_inner_classifiers_stand_behind_their_block(name: str, block: str, inner: str) -> None:
    called = [layer.name.split(".")[0] for layer in facts(name).layers]
    assert called[called.index(inner) - 1] == block
    assert called[called.index(inner) - 2] == block


def test_the_vggs_for_cifar_by_hand() -> None:
    widths = [3, 64, 64, 128, 128, *[256] * 3, *[512] * 6]
    weights = sum(9 * a * b for a, b in pairwise(widths))
    channels = sum(widths[1:])
    # biases, scale and shift; one output layer
    assert facts("vgg16_bn_cifar10").parameters == weights + 3 * channels + 512 * 10 + 10
    # scale and shift; 512 x 512 with its own; no bias anywhere
    assert (
        facts("vgg_like_cifar10").parameters
        == weights + 2 * channels + 512 * 512 + 2 * 512 + 512 * 10
    )
    more = facts("vgg_like_cifar10").forward_flops - facts("vgg16_bn_cifar10").forward_flops
    assert more == 2 * 512 * 512


TABLE_3 = """
conv3-64 dropout(0.3) conv3-64
maxpool
conv3-128 dropout(0.4) conv3-128
maxpool
conv3-256 dropout(0.4) conv3-256 dropout(0.4) conv3-256
maxpool
conv3-512 dropout(0.4) conv3-512 dropout(0.4) conv3-512
maxpool
conv3-512 dropout(0.4) conv3-512 dropout(0.4) conv3-512
maxpool
dropout(0.5) fully connected 512 bn relu
dropout(0.5) fully connected 10
"""  # arXiv:1802.06058, appendix D; batch norm and ReLU follow each convolution


def test_the_vgg_like_network_is_that_of_the_papers_table_3() -> None:
    words: list[str] = []
    for layer in bare("vgg_like_cifar10").modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.kernel_size == (3, 3)
            words.append(f"conv3-{layer.out_channels}")
        elif isinstance(layer, nn.Linear):
            words += ["fully", "connected", str(layer.out_features)]
        elif isinstance(layer, nn.Dropout):
            words.append(f"dropout({round(layer.p, 6):g})")
        elif isinstance(layer, nn.MaxPool2d):
            words.append("maxpool")
        elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            words.append("bn")
        elif isinstance(layer, nn.ReLU):
            words.append("relu")
    expected: list[str] = []
    for word in TABLE_3.split():
        expected += [word, "bn", "relu"] if word.startswith("conv3") else [word]
    assert words == expected


CHEAP = ("vgg_like_cifar10", "vgg16_bn_cifar10", "mobilenet_v2", "googlenet_aux", "densenet121")


@pytest.mark.parametrize("name", [*CHEAP, pytest.param("inception_v3_aux", marks=pytest.mark.long)])
def test_two_samples_give_every_parameter_a_gradient(name: str) -> None:
    entry = MODELS[name]
    model = build_model(entry, seed=0)
    images, labels = make_task(entry, 0).batch(2, worker=0, step=0)
    output = model(images)
    assert len(heads(output)) == HEADS.get(name, 1)
    loss = sample_losses(entry, output, labels).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    for parameter, value in trainable(model):
        assert value.grad is not None, parameter
        assert bool(value.grad.isfinite().all()), parameter
        assert float(value.grad.abs().max()) > 0, parameter
    for logits in heads(output):
        assert surprise(logits) < 1.05 * math.log(entry.classes)


def surprise(logits: Tensor) -> float:
    """The loss for labels drawn at random: ln(classes) for who knows nothing, else more."""
    uniform = torch.full_like(logits, 1 / logits.shape[1])
    return float(cross_entropy(logits.detach(), uniform))


@pytest.mark.long
@pytest.mark.parametrize("name", ["vgg19", "wrn28_10_cifar10", "densenet161"])
def test_large_networks_start_as_if_they_knew_nothing(name: str) -> None:
    entry = MODELS[name]
    images, _ = make_task(entry, 0).batch(4, worker=0, step=0)
    with torch.no_grad():
        assert surprise(build_model(entry, seed=0)(images)) < 1.05 * math.log(entry.classes)


@pytest.mark.long
@pytest.mark.parametrize("name", ["vgg_like_cifar10", "mobilenet_v2", "googlenet_aux"])
def test_the_network_learns_with_the_usual_learning_rate(name: str) -> None:
    # with dropout behind every layer a network learns more slowly
    # a warm-up step takes a quarter of the batch
    batch, steps = (64 if "cifar" in name else 8), (16 if name == "vgg_like_cifar10" else 10)
    entry = MODELS[name]
    trainer = LiveTrainer(
        entry, build_model(entry, seed=0), make_task(entry, 0),
        batch_size=batch, learning_rate=0.01, momentum=0.9, seed=0,
    )  # fmt: skip
    losses = list(trainer.warm_up(steps))
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


def test_inner_classifiers_count_by_their_weight_and_only_in_training() -> None:
    entry = MODELS["googlenet_aux"]
    assert entry.auxiliary_weight == 0.3  # arXiv:1409.4842, section 5
    assert MODELS["inception_v3_aux"].auxiliary_weight == 0.4  # the authors' code
    model = build_model(entry, seed=0)
    images, labels = make_task(entry, 0).batch(2, worker=0, step=0)
    output = model(images)
    main, second, first = heads(output)  # torchvision's order
    inner = dict(model.named_parameters())["aux1.fc2.weight"]
    (alone,) = torch.autograd.grad(cross_entropy(first, labels), inner, retain_graph=True)
    for weight in (0.3, 0.6):
        losses = sample_losses(replace(entry, auxiliary_weight=weight), output, labels)
        (found,) = torch.autograd.grad(losses.mean(), inner, retain_graph=True)
        torch.testing.assert_close(found, weight * alone)
    assert not torch.equal(main, second)
    model.eval()
    with torch.no_grad():
        assert len(heads(model(images))) == 1
