"""Models: what is shipped has the published sizes; a user's own is tried before it is trusted."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from gcsim.errors import InputError
from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.facts import model_facts
from gcsim.traces.models.registry import MODELS, ModelEntry, own_model, shipped_model
from gcsim.traces.networks.resnet import ZeroPadded

LENET = shipped_model("lenet")
OWN_MODELS = """
import torch
from torch import nn

def good():
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 5))

def no_module():
    return "a string"

def frozen():
    return nn.Linear(12, 5).requires_grad_(False)

def half():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).half()

def wrong_shape():
    return nn.Linear(99, 5)

def wrong_output():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6))

def fails():
    raise RuntimeError("weights not found")

number = 7
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_own_models.py").write_text(OWN_MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_own_models", raising=False)
    return "my_own_models"


@pytest.mark.parametrize("name", sorted(name for name in MODELS if MODELS[name].build))
def test_the_table_tells_each_models_true_size(name: str) -> None:
    model = build_model(shipped_model(name), seed=0, device="meta")
    assert sum(p.numel() for p in model.parameters()) == MODELS[name].parameters


def test_resnet50_has_torchvisions_names() -> None:
    model = build_model(shipped_model("resnet50"), seed=0, device="meta")
    names = [name for name, _ in trainable(model)]
    assert names[:4] == ["conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight"]
    assert "layer1.0.downsample.1.bias" in names
    assert names[-2:] == ["fc.weight", "fc.bias"]
    assert len(names) == 161


def test_the_shortcut_without_parameters_keeps_every_second_pixel() -> None:
    maps = torch.arange(2 * 4 * 4 * 4, dtype=torch.float32).reshape(2, 4, 4, 4)
    padded = ZeroPadded(4, 8, 2)(maps)
    assert torch.equal(padded[:, 2:6], maps[:, :, ::2, ::2])
    assert padded.shape == (2, 8, 2, 2)
    assert padded[:, :2].abs().sum() + padded[:, 6:].abs().sum() == 0


def test_lenet_is_the_variant_of_61706_parameters() -> None:
    # (25 + 1) 6 + (25 * 6 + 1) 16 + (400 + 1) 120 + (120 + 1) 84 + (84 + 1) 10
    assert MODELS["lenet"].parameters == 156 + 2416 + 48_120 + 10_164 + 850 == 61_706


def test_equal_seeds_give_equal_weights_and_others_do_not() -> None:
    one, same, other = (build_model(LENET, seed=seed) for seed in (1, 1, 2))
    for (_, a), (_, b), (_, c) in zip(*map(trainable, (one, same, other)), strict=True):
        assert torch.equal(a, b)
        assert a.dim() == 1 or not torch.equal(a, c)  # biases start at zero


def own(module: str, build: str) -> ModelEntry:
    return own_model(f"{module}:{build}", (3, 2, 2), 5)


def test_building_leaves_torchs_generator_alone(own_models: str) -> None:
    before = torch.get_rng_state()
    build_model(LENET, seed=3)
    build_model(own(own_models, "good"), seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_own_model_is_built_from_the_current_folder(own_models: str) -> None:
    path = list(sys.path)
    model = build_model(own(own_models, "good"), seed=0)
    assert model.training
    assert sys.path == path
    batch_norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm1d))
    assert batch_norm.num_batches_tracked == 0  # the trial pass leaves no trace


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ("no_module", "returned str"),
        ("frozen", "no parameter requires a gradient"),
        ("half", "float16"),
        ("wrong_shape", "forward failed on float32"),
        ("wrong_output", "is [2, 6], not [2, 5]"),
        ("fails", "RuntimeError: weights not found"),
        ("missing", "cannot import it: AttributeError"),
        ("number", "is not callable"),
    ],
)
def test_an_own_model_that_cannot_be_trained_is_refused(
    own_models: str, build: str, said: str
) -> None:
    with pytest.raises(InputError) as refusal:
        build_model(own(own_models, build), seed=0)
    assert said in str(refusal.value)
    assert refusal.value.problems[0].hint


def test_a_module_that_does_not_import_is_refused() -> None:
    with pytest.raises(InputError, match="ModuleNotFoundError"):
        build_model(own_model("no_such_package.models:build", (4,), 2), seed=0)


def test_a_mistyped_model_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'alexnet'"):
        shipped_model("alxnet")


def test_an_own_model_needs_its_input_and_classes() -> None:
    with pytest.raises(InputError) as refusal:
        own_model("mine:build", (), 1)
    assert [problem.place for problem in refusal.value.problems] == ["input_shape", "classes"]


def test_tokens_come_in_sequences() -> None:
    with pytest.raises(InputError, match="of one sequence"):
        own_model("mine:build", (8, 8), 5, input_kind="tokens")


class Attention(nn.Module):
    """Products without a layer of their own, and a layer whose parameters the parent uses."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8, bias=False)
        self.unused_call = nn.Linear(8, 4, bias=False)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        projected = self.query(tokens)  # a sample [5, 8]: 2 * 5 * 8 * 8 = 640
        mixed = projected @ projected.transpose(1, 2) @ projected  # 2 * (2 * 5 * 5 * 8) = 800
        short = torch.nn.functional.linear(mixed, self.unused_call.weight)  # 2 * 5 * 8 * 4 = 320
        logits: torch.Tensor = self.head(short.mean(1))  # 2 * 4 * 3 = 24
        return logits


def test_arithmetic_between_layers_is_counted_once() -> None:
    facts = model_facts(own_model("my:attention", (5, 8), 3), Attention(), 4)
    assert [(layer.name, layer.forward_flops) for layer in facts.layers] == [
        ("unused_call", 0),  # stands where its parent was called
        ("query", 640 + 800 + 320),
        ("head", 24),
    ]
