"""A scenario that does not fit gets no time: by how much, and settings with which it fits."""

import itertools
import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from gcsim.cli.app import app
from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.checks.fits import DoesNotFitError, checkpointed, span
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.scenario import Scenario

TEXT = """\
model: {model}
batch_size: 1
gradients: {{source: synthetic}}
cluster: {{nodes: 2, device: h100_sxm, network: 100gbe}}
compressors: [none, fp16, onebit_adam]
"""

MORE = " GPUs ("  # in a remedy that takes more of them


def texts_of(refusal: pytest.ExceptionInfo[DoesNotFitError]) -> tuple[str, ...]:
    return tuple(one.text for one in refusal.value.misfit.remedies)


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def loaded(model: str, *overrides: str) -> Scenario:
        path = tmp_path / "large.yaml"
        path.write_text(TEXT.format(model=model))
        return load_scenario(path, overrides)

    return loaded


def test_what_is_too_large_is_told_with_its_place_and_by_how_much(load: Any) -> None:
    with pytest.raises(DoesNotFitError) as refusal:
        load("llama3_8b")
    (problem,) = refusal.value.problems
    assert problem.place.endswith("large.yaml:4:29")
    assert "of the 80 GiB of h100_sxm" in problem.message
    assert refusal.value.misfit.over == refusal.value.misfit.memory.low - 80 * 2**30
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("model", "given"), [("qwen3_4b", ["batch_size=8"]), ("gpt3_2.7b", ["batch_size=32"])]
)
def test_every_remedy_fits(load: Any, model: str, given: list[str]) -> None:
    with pytest.raises(DoesNotFitError) as refusal:
        load(model, *given)
    remedies = [one for one in texts_of(refusal) if MORE not in one]
    assert remedies
    for text in remedies:
        words = re.findall(r"--set (\S+)", text)
        scenario = load(model, *given, *words)
        held = scenario.tightest(scenario.compressors[0])[1]
        assert held.fits == ("perhaps" if ": may fit" in text else "yes")


def test_groups_have_the_remedies_of_nodes_that_are_alike(load: Any) -> None:
    """The same devices in two groups that differ in their network alone: the same memory, and
    sharded over as many GPUs."""
    given = ["training.precision=fp16", "training.checkpointing=full", "training.sequence=2048"]
    found = []
    for nodes in ("cluster.nodes=16", "cluster={groups: [{nodes: 12, device: h100_sxm, network: "
                  "200gbe}, {nodes: 4, device: h100_sxm, network: 100gbe}]}"):  # fmt: skip
        with pytest.raises(DoesNotFitError) as refusal:
            load("llama3_8b", *given, nodes)
        found.append(texts_of(refusal))
    alike, groups = found
    assert alike[0].startswith("--set training.strategy=zero2 (")
    assert not any(MORE in text for text in alike)
    named = "--set cluster.groups.0.device=mi300x --set cluster.groups.1.device=mi300x"
    assert groups == tuple(text.replace("--set cluster.device=mi300x", named) for text in alike)
    assert any(text.startswith(named) for text in groups)
    both = re.findall(r"--set (\S+)", named)
    assert load("llama3_8b", *given, nodes, *both).compressors


def test_a_divided_optimizer_is_a_setting_and_on_more_gpus_a_remedy(load: Any) -> None:
    """2.7 billion parameters in 16 bits with Adam have 4 bytes each on every GPU, and 12 that are
    divided: 39 GiB hold no whole optimizer, and a half of one."""
    given = ["training.checkpointing=full", "training.precision=bf16", "training.gradients=bf16",
             "training.device_memory=39 GiB", "training.sequence=512",
             "compressors=[none]"]  # fmt: skip
    with pytest.raises(DoesNotFitError) as refusal:
        load("gpt3_2.7b", *given, "cluster.nodes=1")
    text = texts_of(refusal)[-1]
    assert re.fullmatch(r"--set training.strategy=zero1 on 2 GPUs \(.* GiB\)", text)
    divided = load("gpt3_2.7b", *given, "cluster.nodes=2", "training.strategy=zero1")
    assert divided.tightest(divided.compressors[0])[1].fits == "yes"
    with pytest.raises(DoesNotFitError) as refusal:
        load("gpt3_2.7b", *given, "cluster.nodes=2")
    first, *others = texts_of(refusal)
    assert re.fullmatch(r"--set training.strategy=zero1 \(.* GiB: fits\)", first)
    assert not any(MORE in one for one in others)
    with pytest.raises(DoesNotFitError) as refusal:
        load("gpt3_2.7b", *given, "cluster.nodes=2", "training.local_steps=2")
    assert not any("strategy" in one for one in texts_of(refusal))


def test_no_stage_of_zero_is_offered_to_a_method_that_has_the_optimizer(load: Any) -> None:
    """1-bit Adam takes as much as Adam and Top-k's error: one memory, two lists of remedies."""
    given = ["training.checkpointing=full", "training.precision=bf16", "training.gradients=bf16",
             "training.device_memory=45 GiB", "training.sequence=512",
             "cluster.nodes=8"]  # fmt: skip
    for order in ("[none, topk, onebit_adam]", "[none, onebit_adam, topk]"):
        scenario = load("gpt3_2.7b", *given, f"compressors={order}")
        assert [one.label for one in scenario.compressors] == ["dense"]
        told = {text.split(" need")[0]: text for text in scenario.left_out}
        assert "would fit: --set training.strategy=zero1 (" in told["topk"]
        assert "strategy" not in told["onebit_adam"]


def test_a_device_instead_of_unlike_ones_is_no_slower_than_any_of_them(load: Any) -> None:
    """A T4 has 16 GiB, a GeForce RTX 5090 32 and is the faster."""
    nodes = "cluster={groups: [{nodes: 1, device: t4}, {nodes: 1, device: rtx_5090}]}"
    with pytest.raises(DoesNotFitError) as refusal:
        load("gpt3_1.3b", nodes, "cluster.network=100gbe")
    (told,) = (one for one in texts_of(refusal) if "device=" in one)
    names = re.findall(r"device=(\w+)", told)
    assert names
    known = catalog.devices()
    for name in names:
        rate = known["rtx_5090"].effective_flop_rate
        assert known[name].effective_flop_rate >= rate


@given(given=st.lists(st.integers(1, 400), min_size=2, max_size=6).map(sorted))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_fits_in_some_memory_fits_in_more(load: Any, given: list[int]) -> None:
    """No larger memory needs more parts, and no further method fails to fit."""
    scenario = load("gpt2_medium", "training.device_memory=400 GiB")
    order = ("no", "perhaps", "yes")
    seen: list[tuple[int, ...]] = []
    for size in given:
        training = replace(scenario.training, device_memory=size << 30)
        less = replace(scenario, training=training)
        held = [less.tightest(choice)[1] for choice in less.compressors]
        seen.append(tuple(order.index(one.fits) for one in held if one is not None))
    assert len(seen[0]) == len(scenario.compressors)
    for fewer, more in itertools.pairwise(seen):
        assert all(one <= other for one, other in zip(fewer, more, strict=True))


def test_no_device_holds_seventy_billion_parameters(load: Any) -> None:
    with pytest.raises(DoesNotFitError, match=r"strategy=zero3 on \d+ GPUs"):
        load("llama3_70b")
    with pytest.raises(DoesNotFitError, match=r"fit: --set training.strategy=zero3 "):
        load("llama3_70b", "cluster.nodes=10000")
    with pytest.raises(DoesNotFitError, match="would fit: nothing known"):
        load("mpt_70b", "cluster.device=gtx_1080_ti")


def test_a_smaller_micro_batch_keeps_the_batch_and_stated_memory_its_key(load: Any) -> None:
    with pytest.raises(DoesNotFitError) as refusal:
        load("gpt2_medium", "batch_size=12", "training.device_memory=20 GiB")
    smaller, again, *others = texts_of(refusal)
    size, parts = map(int, re.findall(r"=(\d+)", smaller))
    assert size * parts == 12
    # a forward pass again beside one and a backward pass of twice its FLOPs, but for the logits
    assert 25 <= int(again.partition("passes ")[2].split()[0]) <= 33
    assert others[-1].startswith("--set 'training.device_memory=80 GiB' (h100_sxm)")


def test_a_method_that_does_not_fit_is_left_out(
    load: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        scenario = load(
            "gpt3_1.3b", "training.device_memory=30 GiB", "training.sequence=512",
            "compressors=[none, fp16, gradient_sampling_bayes]",
        )  # fmt: skip
    assert [choice.label for choice in scenario.compressors] == ["dense", "fp16"]
    (text,) = scenario.left_out
    assert text.startswith("gradient_sampling_bayes needs at least")
    assert text.partition("; would fit: ")[0] in caplog.text
    assert "may fit" not in text  # where something surely does
    given = "training.device_memory=25 GiB", "training.sequence=512"
    (text,) = load("gpt3_1.3b", *given, "compressors=[none, powersgd, topk]").left_out
    assert text.startswith("powersgd, topk need at least")  # each an error of 4 bytes a parameter


def test_a_method_that_is_the_optimizer_is_counted_once(load: Any) -> None:
    """SGD keeps nothing behind 1-bit Adam's three floats and DGC's two; Adam keeps two, and Top-k's
    error is one more: 12, 8 and 12 bytes per parameter."""
    scenario = load("gpt2", "compressors=[none, onebit_adam, dgc, topk]")
    found = {}
    for choice in scenario.compressors:
        parts = {part.name: part.low for part in scenario.tightest(choice)[1].parts}
        own = parts.get("method", 0) + parts.get("optimizer", 0)
        found[choice.label] = own / scenario.model.parameters
    assert found == {"dense": 8, "onebit_adam": 12, "dgc": 8, "topk": 12}


def test_methods_that_need_more_are_told_with_the_mildest_cure_alone(load: Any) -> None:
    """Top-k keeps 4 bytes per parameter, gradient sampling 8; each refusal alone has the cures."""
    given = ["training.device_memory=26 GiB", "training.sequence=512"]
    first, second = load(
        "gpt3_1.3b", *given, "compressors=[none, gradient_sampling_bayes, topk]"
    ).left_out
    assert first.startswith("topk needs at least")
    assert "of the 26 GiB of h100_sxm" in first
    assert second.startswith("gradient_sampling_bayes needs at least")
    assert " | " in first
    assert " | " not in second
    for label, text in (("topk", first), ("gradient_sampling_bayes", second)):
        with pytest.raises(DoesNotFitError) as refusal:
            load("gpt3_1.3b", *given, f"compressors=[{label}]")
        cures = text.partition("; would fit: ")[2].split(" | ")
        assert set(cures) <= set(texts_of(refusal))


def test_memory_with_checkpointing_is_that_of_a_scenario_with_it(load: Any) -> None:
    given = "training.sequence=512", "training.precision=fp16"
    plain, full = load("gpt2_xl", *given), load("gpt2_xl", *given, "training.checkpointing=full")
    (text,) = checkpointed(plain, plain.compressors[0])
    held = full.tightest(full.compressors[0])[1]
    assert text.startswith(
        f"--set training.checkpointing=full ({span(held.low, held.high)}: fits; passes"
    )
    assert not checkpointed(full, full.compressors[0])
    small = load("resnet50")
    assert not checkpointed(small, small.compressors[0])


def test_resolved_settings_load_again(load: Any, tmp_path: Path) -> None:
    given = "training.sequence=512", "training.checkpointing=full", "training.precision=fp16"
    first = load("gpt2_xl", *given)
    assert first.model.input_shape == (512,)
    path = tmp_path / "again.yaml"
    path.write_text(json.dumps(first.resolved))
    assert load_scenario(path).resolved == first.resolved


def test_settings_of_models_by_formula_are_refused_elsewhere(load: Any) -> None:
    with pytest.raises(InputError, match="'resnet50' has its own layers") as refusal:
        load("resnet50", "training.checkpointing=full", "training.sequence=512")
    assert len(refusal.value.problems) == 2


def test_advice_says_what_would_fit() -> None:
    words = ["--model", "Llama 3 8B", "--device", "h100", "--gpus", "8", "--nodes", "2"]
    words = ["advise", *words, "--network", "400 Gbit/s", "--precision", "bf16"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0
    assert "llama3_8b on h100_sxm: does not fit" in said.output
    text = " ".join(said.output.split())
    assert "Change first --set training.strategy=zero3 (55.8-79.5 GiB: fits)" in text
    answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert answer["fits"] is False
    assert answer["over_bytes"] > 0

    cure = "training.strategy=zero3"
    assert answer["set"] == [cure]
    cured = [*words, "--set", cure]  # the advice is that of the command with the setting
    assert answer["advice"] == json.loads(CliRunner().invoke(app, [*cured, "--json"]).stdout)
    _, advice = said.stdout.split(f"\nWith --set {cure}:\n\n")
    assert advice == CliRunner().invoke(app, cured).stdout
    mapped = CliRunner().invoke(app, [*words, "--map", "bandwidth,latency"]).stdout
    assert mapped == said.stdout.split("\nWith --set")[0]  # and no map of other settings


def test_advice_gives_no_time_where_no_setting_surely_fits() -> None:
    words = ["--model", "qwen3_8b", "--device", "rtx_4090", "--gpus", "8", "--nodes", "2"]
    said = CliRunner().invoke(app, ["advise", *words, "--network", "25 Gbit/s"])
    assert "may fit; passes 31 % longer" in " ".join(said.stdout.split())
    assert "With --set" not in said.stdout
    assert " ms" not in said.stdout
