"""Models by formula: published parameter counts, FLOPs of PaLM's appendix B, activations of
Korthikanti et al.; a built GPT-2 as the oracle of tensors, FLOPs and outputs."""

import math
from dataclasses import replace

import pytest

from gcsim.scenarios.catalog import model
from gcsim.traces.models.registry import MODELS, ModelEntry, at_sequence, is_shipped
from gcsim.traces.models.table import facts_and_parameters, table_facts
from gcsim.traces.models.transformer import Transformer

BY_FORMULA = [entry for entry in MODELS.values() if entry.transformer]


def network(name: str) -> Transformer:
    found = MODELS[name].transformer
    assert found is not None
    return found


@pytest.mark.parametrize("entry", BY_FORMULA, ids=lambda entry: entry.name)
def test_tensors_hold_the_published_number_of_parameters(entry: ModelEntry) -> None:
    # transformers.csv: sizes of the published weights; MPT: the tables of llm-foundry
    assert sum(math.prod(row.shape) for row in entry.layers) == entry.parameters


@pytest.mark.parametrize("entry", BY_FORMULA, ids=lambda entry: entry.name)
def test_flops_are_two_per_parameter_and_attention(entry: ModelEntry) -> None:
    # PaLM, appendix B: a token of a training step takes 6 N + 12 L H Q T; here a forward pass
    n, found = network(entry.name), table_facts(entry, 1)
    embeddings = n.width * (n.positions + (0 if n.tied else n.vocabulary))
    passed = entry.parameters - embeddings  # type: ignore[operator]
    passed -= 3 * (n.experts - n.active) * n.blocks * n.width * n.inner if n.experts > 1 else 0
    expected = n.sequence * (2 * passed + 4 * n.blocks * n.heads * n.head_width * n.sequence)
    assert found.forward_flops == pytest.approx(expected, rel=1e-3)  # norms and biases


def test_gpt2_by_formula_is_gpt2_as_built() -> None:
    medium = network("gpt2_medium")
    small = replace(medium, blocks=12, width=768, heads=12, kv_heads=12, inner=3072)
    by_formula = replace(MODELS["gpt2_medium"], name="by_formula", transformer=small)
    facts, parameters = facts_and_parameters(by_formula, 1)
    built, shapes = facts_and_parameters(MODELS["gpt2"], 1)
    assert [shape for _, shape in parameters] == [shape for _, shape in shapes]
    assert facts.forward_flops == built.forward_flops
    outputs = sum(layer.outputs for layer in built.layers if layer.name != "lm_head")
    assert sum(layer.outputs for layer in facts.layers) == outputs
    products = [
        [layer.forward_flops for layer in found.layers if layer.name.startswith("h.")]
        for found in (facts, built)
    ]
    assert [flops for flops in products[0] if flops] == [flops for flops in products[1] if flops]


@pytest.mark.parametrize("name", ["gpt3_1.3b", "gpt3_6.7b"])
def test_activations_are_those_of_korthikanti(name: str) -> None:
    # arXiv:2205.05198, equations 1 and 2 and section 5, without tensor parallelism: s h (34 + 5 a s
    # / h) bytes a block and sample; 34 s h without the core; 2 s h with all computed again
    n = network(name)
    unit = n.sequence * n.width
    kept = [n.block_activations(c, flash=False, nbytes=2) for c in ("none", "selective", "full")]
    scores = 5 * n.heads * n.sequence**2
    assert kept == [34 * unit + scores, 34 * unit, 2 * unit]
    assert n.block_activations("none", flash=True, nbytes=2) == 34 * unit  # which keeps no scores


def test_computing_again_costs_what_its_products_cost() -> None:
    n = network("gpt3_6.7b")
    block = 24 * n.sequence * n.width**2 + 4 * n.sequence**2 * n.width  # Megatron, section 5.1
    assert n.computed_again("none", flash=True) == 0
    assert n.computed_again("full", flash=True) == n.blocks * block
    assert n.computed_again("selective", flash=False) == n.blocks * 4 * n.sequence**2 * n.width
    # with flash attention: attention's projection and the second layer, 2 and 8 of 24 s h^2
    assert n.computed_again("selective", flash=True) == n.blocks * 10 * n.sequence * n.width**2


def test_another_sequence_is_the_same_model() -> None:
    entry = MODELS["llama3_8b"]
    short = at_sequence(entry, 2048)
    assert is_shipped(short)
    assert short.input_shape == (2048,)
    assert 4 * table_facts(short, 1).forward_flops < table_facts(entry, 1).forward_flops
    assert [row.shape for row in short.layers] == [row.shape for row in entry.layers]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Llama 3 8B", "llama3_8b"), ("llama-3-8b", "llama3_8b"), ("Llama-3.1-8B", "llama3_8b"),
        ("Qwen3-8B", "qwen3_8b"), ("GPT-3 1.3B", "gpt3_1.3b"), ("GPT-3 13B", "gpt3_13b"),
        ("GPT-3 18B", "gpt3_18b"),
        ("meta-llama/Llama-2-7b", "llama2_7b"), ("GPT-2 XL", "gpt2_xl"), ("GPT-2", "gpt2"),
    ],
)  # fmt: skip
def test_names_are_read_as_people_write_them(said: str, name: str) -> None:
    assert model(said).name == name
