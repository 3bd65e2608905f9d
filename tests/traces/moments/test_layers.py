"""Second moments over sequences equal a plain loop over the samples."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from gcsim.traces.models.building import trainable
from gcsim.traces.models.losses import sample_losses
from gcsim.traces.models.registry import MODELS
from gcsim.traces.models.torch_generator import keyed_generator
from gcsim.traces.networks.bert import Bert
from gcsim.traces.networks.gpt2 import Gpt2, transformer_small
from gcsim.traces.networks.lstm import LstmLanguageModel
from tests.traces.moments.by_sample import loop_over_samples, watched_moments

BATCH, LENGTH, CLASSES = 5, 7, 11
ENTRY = replace(MODELS["transformer_small"], input_shape=(LENGTH,), classes=CLASSES)
losses = partial(sample_losses, ENTRY)


class Norms(nn.Module):
    """Normalisations over one and two axes, without shift, and one whose samples meet."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 6, padding_idx=3)
        self.both = nn.LayerNorm((LENGTH, 6))
        self.last = nn.LayerNorm(6, bias=False)
        self.root = nn.RMSNorm(6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.last(torch.tanh(self.both(self.embed(tokens))))
        logits: Tensor = self.head(self.root(states + 0.3))
        return logits


class Positions(nn.Module):
    """An embedding that all samples share, one called twice, one with a token a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(CLASSES, 6)
        self.place = nn.Embedding(LENGTH, 6)
        self.twice = nn.Embedding(CLASSES, 6)
        self.first = nn.Embedding(CLASSES, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.word(tokens) + self.place(torch.arange(LENGTH))
        states = states + self.twice(tokens) * self.twice(tokens.flip(1))
        states = states + self.first(tokens[:, 0])[:, None]
        logits: Tensor = self.head(torch.tanh(states))
        return logits


def tiny_gpt2(tied: bool) -> nn.Module:
    return Gpt2(vocabulary=CLASSES, positions=LENGTH, width=8, blocks=2, heads=2, tied=tied)


MODELS_BY_KIND: dict[str, Callable[[], nn.Module]] = {
    "norms": Norms,
    "positions": Positions,
    "gpt2": lambda: tiny_gpt2(tied=False),
    "gpt2 tied": lambda: tiny_gpt2(tied=True),
    "bert": lambda: Bert(width=8, blocks=2, heads=2, vocabulary=CLASSES, positions=9),
    "lstm": lambda: LstmLanguageModel(vocabulary=CLASSES, width=6, layers=2, dropout=0.0),
    "lstm tied": lambda: LstmLanguageModel(
        vocabulary=CLASSES, width=6, layers=3, dropout=0.0, tied=True
    ),
}


def made(build: Callable[[], nn.Module]) -> nn.Module:
    """With weights large enough that float32 tells samples apart; dropout off, for the loop."""
    with keyed_generator(0, "test model"):
        model = build()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.5)
    return model.eval()


def batch() -> tuple[Tensor, Tensor]:
    with keyed_generator(0, "test tokens"):
        return torch.randint(CLASSES, (2, BATCH, LENGTH)).unbind(0)  # type: ignore[return-value]


@pytest.mark.parametrize("kind", MODELS_BY_KIND)
def test_second_moments_are_those_of_a_loop_over_samples(kind: str) -> None:
    model = made(MODELS_BY_KIND[kind])
    expected = loop_over_samples(model, *batch(), losses)
    found = watched_moments(model, *batch(), losses)
    for (name, _), one, other in zip(trainable(model), found.values, expected, strict=True):
        scale = float(other.max())
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-6 * scale + 1e-12), name


@pytest.mark.parametrize(
    ("kind", "slow"),
    [
        ("norms", set()),
        ("positions", {"place.weight", "twice.weight", "first.weight"}),
        ("gpt2", set()),
        ("gpt2 tied", {"wte.weight"}),
        ("bert", {"embeddings.word_embeddings.weight"}),
        (
            "lstm",
            {f"rnn.{w}_{g}_l{n}" for w in ("weight", "bias") for g in ("ih", "hh") for n in "01"},
        ),
    ],
)
def test_only_shared_and_recurrent_weights_take_a_backward_pass_a_sample(
    kind: str, slow: set[str]
) -> None:
    model = made(MODELS_BY_KIND[kind])
    numbers: list[int] = []
    watched_moments(model, *batch(), losses, slow=numbers)
    assert {trainable(model)[number][0] for number in numbers} == slow


def test_a_normalisation_in_which_samples_meet_is_not_taken_apart() -> None:
    class Meeting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(CLASSES, 3)
            self.norm = nn.LayerNorm((BATCH, LENGTH, 3))  # over the batch
            self.head = nn.Linear(3, CLASSES)

        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.head(self.norm(self.embed(tokens)))
            return logits

    model = made(Meeting)
    numbers: list[int] = []
    watched_moments(model, *batch(), losses, slow=numbers)
    assert {trainable(model)[n][0] for n in numbers} == {"norm.weight", "norm.bias"}


def test_every_parameter_of_the_small_transformer_is_metered_by_itself() -> None:
    with keyed_generator(0, "test tokens"):
        tokens = torch.randint(97, (3, 64))
    model = transformer_small()
    slow: list[int] = []
    entry = partial(sample_losses, MODELS["transformer_small"])
    moments = watched_moments(model, tokens, tokens, entry, metered=True, slow=slow)
    assert slow == []
    assert sorted(moments.costs) == list(range(29))
