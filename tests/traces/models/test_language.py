"""Language models: published sizes and arithmetic, a gradient everywhere, and they learn."""

import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import nn

from gcsim.errors import InputError
from gcsim.traces.live import LiveTrainer
from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.facts import model_facts
from gcsim.traces.models.flops import FlopCounter
from gcsim.traces.models.losses import sample_losses
from gcsim.traces.models.registry import MODELS, ModelEntry
from gcsim.traces.models.torch_generator import keyed_generator
from gcsim.traces.networks.bert import Bert
from gcsim.traces.networks.gpt2 import Gpt2
from gcsim.traces.networks.lstm import LstmLanguageModel
from gcsim.traces.profile import ModelFacts
from gcsim.traces.tasks.registry import make_task

NAMES = [entry.name for entry in MODELS.values() if entry.build and entry.input == "tokens"]


def facts(name: str) -> ModelFacts:
    return model_facts(MODELS[name], build_model(MODELS[name], seed=0, device="meta"), 1)


@lru_cache(maxsize=1)
def built(name: str) -> nn.Module:
    """The weights that training starts from; kept, for drawing a hundred million takes seconds."""
    return build_model(MODELS[name], seed=0)


def sizes(name: str) -> list[int]:
    return [p.numel() for _, p in trainable(build_model(MODELS[name], seed=0, device="meta"))]


def names(name: str) -> list[str]:
    return [n for n, _ in trainable(build_model(MODELS[name], seed=0, device="meta"))]


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [  # BERT: J. Devlin et al. print 110 M and 340 M; GPT-2: 124 M (the released configuration)
        ("lstm_ptb_650", 19_780_400, 11),
        ("lstm_ptb_1500", 66_034_000, 11),
        ("lstm_wt2_650", 28_949_319, 14),
        ("bert_base", 109_482_240, 199),
        ("bert_large", 335_141_888, 391),
        ("gpt2", 124_439_808, 148),
        ("transformer_small", 116_608, 29),
        ("transformer_tiny", 20_000, 17),
    ],
)
def test_a_language_model_has_its_published_size(name: str, parameters: int, tensors: int) -> None:
    assert sum(sizes(name)) == MODELS[name].parameters == parameters
    assert len(sizes(name)) == tensors


@pytest.mark.parametrize(
    ("name", "vocabulary", "width", "layers"),
    [("lstm_ptb_650", 10_000, 650, 2), ("lstm_ptb_1500", 10_000, 1500, 2)],
)
def test_an_lstms_tensors_stand_in_pytorchs_order(
    name: str, vocabulary: int, width: int, layers: int
) -> None:
    gates = 4 * width
    layer = [gates * width, gates * width, gates, gates]  # input, state, and a bias for each
    assert sizes(name) == [vocabulary * width, *(layer * layers), vocabulary * width, vocabulary]


@pytest.mark.parametrize(
    ("name", "width", "blocks"), [("bert_base", 768, 12), ("bert_large", 1024, 24)]
)
def test_berts_tensors_stand_in_the_published_order(name: str, width: int, blocks: int) -> None:
    square, norm = [width**2, width], [width, width]
    wide = [4 * width**2, 4 * width, 4 * width**2, width]
    assert sizes(name) == [
        *(30_522 * width, 512 * width, 2 * width, *norm),
        *[*(square * 4), *norm, *wide, *norm] * blocks,
        *square,
    ]
    found = names(name)
    assert found[:5] == [
        "embeddings.word_embeddings.weight",
        "embeddings.position_embeddings.weight",
        "embeddings.token_type_embeddings.weight",
        "embeddings.LayerNorm.weight",
        "embeddings.LayerNorm.bias",
    ]
    assert [n for n in found if n.startswith("encoder.layer.0.") and n.endswith("weight")] == [
        f"encoder.layer.0.{layer}.weight"
        for layer in (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "attention.output.LayerNorm",
            "intermediate.dense",
            "output.dense",
            "output.LayerNorm",
        )
    ]
    assert found[-2:] == ["pooler.dense.weight", "pooler.dense.bias"]


def test_gpt2s_tensors_stand_in_the_published_order() -> None:
    width, block = 768, ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"]
    norm = [width, width]
    assert sizes("gpt2") == [
        *(50_257 * width, 1024 * width),
        *[
            *(*norm, 3 * width**2, 3 * width, width**2, width),
            *(*norm, 4 * width**2, 4 * width, 4 * width**2, width),
        ]
        * 12,
        *norm,
    ]
    expected = [f"h.{n}.{layer}.{role}" for n in range(12) for layer in block for role in
                ("weight", "bias")]  # fmt: skip
    assert names("gpt2") == ["wte.weight", "wpe.weight", *expected, "ln_f.weight", "ln_f.bias"]


def test_both_lengths_of_gpt2_are_one_network() -> None:
    assert sizes("gpt2_128") == sizes("gpt2")
    assert MODELS["gpt2"].input_shape == (1024,)


# --- arithmetic: 2 per multiply-add --------------------------------------------------------------


def transformer_flops(length: int, width: int, blocks: int) -> int:
    """12 width^2 weights a block at each place, and two products of [length, length] attention,
    which a causal mask does not halve."""
    return blocks * (2 * length * 12 * width**2 + 2 * 2 * length**2 * width)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lstm_ptb_650", 35 * 2 * (2 * 8 * 650**2 + 650 * 10_000)),
        ("lstm_ptb_1500", 35 * 2 * (2 * 8 * 1500**2 + 1500 * 10_000)),
        ("lstm_wt2_650", 30 * 2 * (3 * 8 * 650**2 + 650 * 28_869)),
        ("bert_base", transformer_flops(128, 768, 12) + 2 * 768**2 + 2 * 768 * 30_522),
        ("bert_large", transformer_flops(128, 1024, 24) + 2 * 1024**2 + 2 * 1024 * 30_522),
        ("gpt2", transformer_flops(1024, 768, 12) + 2 * 1024 * 768 * 50_257),
        ("gpt2_128", transformer_flops(128, 768, 12) + 2 * 128 * 768 * 50_257),
        ("transformer_small", transformer_flops(64, 64, 2) + 2 * 64 * 64 * 97),
        ("transformer_tiny", transformer_flops(32, 32, 1) + 2 * 32 * 32 * 97),
    ],
)
def test_a_language_model_costs_its_closed_form(name: str, expected: int) -> None:
    assert facts(name).forward_flops == expected


def test_an_output_tied_to_its_embedding_is_a_layer_without_parameters() -> None:
    head = facts("gpt2").layers[-1]
    assert (head.name, head.parameters) == ("lm_head", ())
    assert head.forward_flops == 2 * 1024 * 768 * 50_257
    owned = sorted(p for layer in facts("gpt2").layers for p in layer.parameters)
    assert owned == list(range(148))  # each once


@pytest.mark.parametrize("name", ["lstm_ptb_650", "transformer_small"])
def test_fused_kernels_of_a_cpu_count_what_the_meta_device_does(name: str) -> None:
    on_cpu = model_facts(MODELS[name], build_model(MODELS[name], seed=0), 1)
    assert on_cpu == facts(name)


@pytest.mark.parametrize("both_ways", [False, True])
def test_a_fused_lstm_counts_its_weights_once_a_step(both_ways: bool) -> None:
    network = torch.nn.LSTM(5, 7, 2, batch_first=True, bidirectional=both_ways)
    with torch.no_grad(), FlopCounter() as counter:
        network(torch.zeros(3, 11, 5))
    weights = sum(p.numel() for name, p in network.named_parameters() if "weight" in name)
    assert counter.flops == 2 * 3 * 11 * weights


def test_fused_attention_across_sequences_of_two_lengths() -> None:
    query, keys = torch.zeros(2, 3, 5, 8), torch.zeros(2, 3, 9, 8)
    with torch.no_grad(), FlopCounter() as counter:
        torch.nn.functional.scaled_dot_product_attention(query, keys, keys)
    assert counter.flops == 2 * (2 * 2 * 3 * 5 * 9 * 8)


# --- what they compute ---------------------------------------------------------------------------

TOKENS = torch.tensor([[1, 4, 2, 7, 0], [3, 3, 6, 5, 2]])


def changed(tokens: torch.Tensor, place: int) -> torch.Tensor:
    other = tokens.clone()
    other[:, place] = (other[:, place] + 1) % 8
    return other


@pytest.mark.parametrize(
    "model",
    [
        Gpt2(vocabulary=8, positions=6, width=8, blocks=2, heads=2),
        LstmLanguageModel(vocabulary=8, width=6, layers=2, dropout=0.0),
    ],
    ids=["gpt2", "lstm"],
)
def test_a_prediction_knows_nothing_of_what_follows(model: nn.Module) -> None:
    before, after = model(TOKENS), model(changed(TOKENS, 3))
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


def test_bert_looks_in_both_directions_and_tells_positions_apart() -> None:
    with keyed_generator(0, "test weights"):
        model = Bert(width=8, blocks=2, heads=2, vocabulary=8, positions=6).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    before = model(TOKENS)
    assert before.shape == (2, 8)
    for place in range(5):
        assert not torch.allclose(before, model(changed(TOKENS, place)), atol=1e-4)
    assert not torch.allclose(before, model(TOKENS[:, [0, 2, 1, 3, 4]]), atol=1e-4)


def test_one_block_of_gpt2_is_what_the_paper_writes() -> None:
    """Attention by the formula of A. Vaswani et al., arXiv:1706.03762, eq. 1, head by head."""
    with keyed_generator(0, "test weights"):
        model = Gpt2(vocabulary=8, positions=6, width=8, blocks=1, heads=2)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    block, norm = model.h[0], torch.nn.functional.layer_norm
    weights = dict(block.named_parameters())

    def layer(name: str, states: torch.Tensor) -> torch.Tensor:
        return states @ weights[f"{name}.weight"].t() + weights[f"{name}.bias"]

    def normalised(name: str, states: torch.Tensor) -> torch.Tensor:
        return norm(states, (8,)) * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    states = model.wte.weight[TOKENS] + model.wpe.weight[:5]
    query, key, value = layer("attn.c_attn", normalised("ln_1", states)).chunk(3, dim=2)
    mask = torch.full((5, 5), -math.inf).triu(1)
    heads = []
    for part in (slice(0, 4), slice(4, 8)):
        scores = query[..., part] @ key[..., part].transpose(1, 2) / math.sqrt(4) + mask
        heads.append(scores.softmax(-1) @ value[..., part])
    states = states + layer("attn.c_proj", torch.cat(heads, -1))
    inner = layer("mlp.c_fc", normalised("ln_2", states))
    bend = math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)
    states = states + layer("mlp.c_proj", 0.5 * inner * (1 + torch.tanh(bend)))
    final = norm(states, (8,)) * model.ln_f.weight + model.ln_f.bias
    torch.testing.assert_close(model(TOKENS), final @ model.wte.weight.t(), rtol=1e-4, atol=1e-5)


def test_one_block_of_bert_is_what_the_papers_write() -> None:
    """Attention as above; normalisation behind each sum; the first position pooled by tanh."""
    with keyed_generator(0, "test weights"):
        model = Bert(width=8, blocks=1, heads=2, vocabulary=8, positions=6).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    weights = {name.removeprefix("encoder.layer.0."): p for name, p in trainable(model)}

    def layer(name: str, states: torch.Tensor) -> torch.Tensor:
        return states @ weights[f"{name}.weight"].t() + weights[f"{name}.bias"]

    def normalised(name: str, states: torch.Tensor) -> torch.Tensor:
        shifted = states - states.mean(-1, keepdim=True)
        unit = shifted / shifted.square().mean(-1, keepdim=True).add(1e-12).sqrt()
        return unit * weights[f"{name}.LayerNorm.weight"] + weights[f"{name}.LayerNorm.bias"]

    words = weights["embeddings.word_embeddings.weight"]
    places = weights["embeddings.position_embeddings.weight"][:5]
    segment = weights["embeddings.token_type_embeddings.weight"][0]
    states = normalised("embeddings", words[TOKENS] + places + segment)
    query, key, value = (layer(f"attention.self.{n}", states) for n in ("query", "key", "value"))
    heads = []
    for part in (slice(0, 4), slice(4, 8)):
        scores = query[..., part] @ key[..., part].transpose(1, 2) / math.sqrt(4)
        heads.append(scores.softmax(-1) @ value[..., part])
    attended = layer("attention.output.dense", torch.cat(heads, -1))
    states = normalised("attention.output", states + attended)
    inner = layer("intermediate.dense", states)
    bent = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    states = normalised("output", states + layer("output.dense", bent))
    pooled = torch.tanh(layer("pooler.dense", states[:, 0]))
    torch.testing.assert_close(model(TOKENS), pooled @ words.t(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "bound"), [("lstm_ptb_650", 0.05), ("lstm_ptb_1500", 0.04)])
def test_zarembas_weights_start_uniform(name: str, bound: float) -> None:
    for tensor_name, parameter in trainable(built(name)):
        values = parameter.detach()
        assert float(values.abs().max()) <= bound * (1 + 1e-6), tensor_name  # of float32
        # of n uniform numbers the mean square is b^2 / 3 within b^2 sqrt(4 / 45 n), one sigma
        error = 5 * bound**2 * math.sqrt(4 / 45 / values.numel())
        assert float(values.square().mean()) == pytest.approx(bound**2 / 3, abs=error)


# --- training ------------------------------------------------------------------------------------


LONG = pytest.mark.long  # a hundred million parameters


@pytest.mark.parametrize(
    "name",
    [
        "lstm_ptb_650",
        "lstm_wt2_650",
        pytest.param("bert_base", marks=LONG),
        pytest.param("gpt2_128", marks=LONG),
    ],
)
def test_every_parameter_has_a_gradient_and_the_loss_starts_at_chance(name: str) -> None:
    entry, model = MODELS[name], built(name)
    tokens, labels = make_task(entry, 0).batch(4, worker=0, step=0)
    loss = sample_losses(entry, model(tokens[:, :16]), labels[:, :16]).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    for parameter_name, parameter in trainable(model):
        assert parameter.grad is not None, parameter_name
        assert float(parameter.grad.abs().max()) > 0, parameter_name
    # logits of standard deviation s add about s^2 / 2 to ln(classes); of 4 labels, s / 2 is noise
    assert loss.item() == pytest.approx(math.log(entry.classes), abs=0.4)


def test_gpt2s_residual_weights_start_smaller_by_the_root_of_their_number() -> None:
    parameters = dict(trainable(built("gpt2_128")))
    for layer in ("attn.c_proj", "mlp.c_proj"):
        found = float(parameters[f"h.5.{layer}.weight"].detach().std())
        assert found == pytest.approx(0.02 / math.sqrt(24), rel=0.02)
    assert float(parameters["h.5.mlp.c_fc.weight"].detach().std()) == pytest.approx(0.02, rel=0.02)


def trained(entry: ModelEntry, steps: int, learning_rate: float) -> list[float]:
    trainer = LiveTrainer(
        entry,
        build_model(entry, seed=0),
        make_task(entry, 0),
        batch_size=16,
        learning_rate=learning_rate,
        momentum=0.9,
        seed=0,
    )
    return list(trainer.warm_up(steps))


@pytest.mark.long
def test_the_small_transformer_learns_more_than_how_often_characters_occur() -> None:
    entry = MODELS["transformer_small"]
    losses = trained(entry, 200, 0.1)
    assert losses[0] == pytest.approx(math.log(97), abs=0.1)
    # a model that ignores its input cannot do better than the entropy of single characters
    tokens = make_task(entry, 0)._tokens  # type: ignore[attr-defined]
    shares = torch.from_numpy(tokens).bincount().double() / len(tokens)
    entropy = -float(torch.xlogy(shares, shares).sum())
    assert entropy == pytest.approx(3.32, abs=0.005)  # as tasks/text.py says
    assert sum(losses[-25:]) / 25 < entropy - 0.3


@pytest.mark.parametrize("learning_rate", [0.01, 0.1])
def test_the_small_transformer_is_stable_at_usual_learning_rates(learning_rate: float) -> None:
    losses = trained(MODELS["transformer_small"], 40, learning_rate)
    assert max(losses) < math.log(97) + 0.1
    assert sum(losses[-10:]) / 10 < losses[0] - 0.8


def test_an_embedding_with_sparse_gradients_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sparse_model.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Embedding(97, 4, sparse=True), nn.Linear(4, 97))\n"
    )
    monkeypatch.chdir(tmp_path)
    entry = replace(MODELS["transformer_small"], build="sparse_model:build")
    with pytest.raises(InputError, match="embedding 0 has sparse gradients") as refusal:
        build_model(entry, seed=0)
    assert "sparse=False" in (refusal.value.problems[0].hint or "")
