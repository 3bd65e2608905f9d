"""Is each layer of the kind that its arithmetic is, and are its outputs counted?"""

import math
from collections import Counter

import pytest
from torch import nn

from gcsim.traces.models.building import build_model
from gcsim.traces.models.facts import kind_of, kind_of_shape, model_facts, outputs_of_shape
from gcsim.traces.models.registry import MODELS

LAYERS = {
    nn.Conv2d(8, 8, 3): "conv3x3",
    nn.Conv2d(8, 8, 3, stride=2): "conv",
    nn.Conv2d(8, 8, 1): "conv1x1",
    nn.Conv2d(8, 8, 1, stride=2): "conv1x1",
    nn.Conv2d(8, 8, 7): "conv",
    nn.Conv2d(8, 8, (1, 7)): "conv",
    nn.Conv2d(8, 8, 3, groups=8): "grouped",
    nn.Conv2d(8, 8, 3, groups=2): "grouped",
    nn.Conv1d(8, 8, 3): "conv",
    nn.Conv3d(8, 8, 3): "conv",
    nn.Linear(8, 8): "linear",
    nn.MultiheadAttention(8, 2): "linear",
    nn.LSTM(8, 8): "recurrent",
    nn.GRUCell(8, 8): "recurrent",
    nn.Embedding(8, 8): "embedding",
    nn.BatchNorm2d(8): "normalization",
    nn.LayerNorm(8): "normalization",
    nn.GroupNorm(2, 8): "normalization",
}


@pytest.mark.parametrize(("layer", "kind"), LAYERS.items(), ids=repr)
def test_a_modules_kind(layer: nn.Module, kind: str) -> None:
    assert kind_of(layer) == kind


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((64, 64, 3, 3), "conv3x3"),
        ((64, 64, 1, 1), "conv1x1"),
        ((64, 3, 7, 7), "conv"),
        ((64, 1, 3, 3), "grouped"),
        ((1, 1, 3, 3), "conv3x3"),
        ((64, 64, 3), "conv"),
        ((64, 32), "linear"),
        ((64,), "normalization"),
    ],
)
def test_the_kind_that_a_weights_shape_suggests(shape: tuple[int, ...], kind: str) -> None:
    assert kind_of_shape(shape) == kind


@pytest.mark.parametrize("name", ["alexnet", "resnet50", "mobilenet_v2", "bert_base", "vgg11"])
def test_a_shape_and_its_flops_give_the_outputs_that_the_model_has(name: str) -> None:
    # A product writes FLOPs / (2 * inputs of an output) elements.
    entry = MODELS[name]
    module = build_model(entry, seed=0, device="meta")
    facts = model_facts(entry, module, 1)
    weights = {
        prefix: tuple(child.weight.shape)
        for prefix, child in module.named_modules()
        if isinstance(child, nn.Conv2d | nn.Linear)
    }
    checked = 0
    for layer in facts.layers:
        shape = weights.get(layer.name)
        products = 0 if shape is None else 2 * layer.outputs * math.prod(shape[1:])
        if shape is not None and products == layer.forward_flops:  # not attention's on top
            assert outputs_of_shape(shape, layer.forward_flops) == layer.outputs
            checked += 1
    assert checked >= 8


def test_outputs_are_those_of_one_sample() -> None:
    facts = model_facts(
        MODELS["alexnet"], build_model(MODELS["alexnet"], seed=0, device="meta"), 32
    )
    # 64 x 55 x 55, 192 x 27 x 27, 384 x 13 x 13, 256 x 13 x 13 twice, 4096 twice, 1000
    assert [layer.outputs for layer in facts.layers] == [
        193_600, 139_968, 64_896, 43_264, 43_264, 4096, 4096, 1000
    ]  # fmt: skip
    assert Counter(layer.kind for layer in facts.layers) == {"conv": 2, "conv3x3": 3, "linear": 3}
    assert facts.tokens == 0


def test_a_sequences_length_is_noted() -> None:
    entry = MODELS["lstm_ptb_650"]
    facts = model_facts(entry, build_model(entry, seed=0, device="meta"), 1)
    assert facts.tokens == 35
    assert {layer.kind for layer in facts.layers} == {"embedding", "recurrent", "linear"}
    recurrent = next(layer for layer in facts.layers if layer.kind == "recurrent")
    assert recurrent.outputs == 35 * 650
