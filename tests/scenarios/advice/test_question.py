"""Do words make the scenario that a file would, and are mistakes told as elsewhere?"""

import re
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path

import pytest

from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.advice.open_questions import open_questions
from gcsim.scenarios.advice.question import Words, ask, number, option, question_about
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.sections.network_words import network_of
from gcsim.traces.storage.store import shipped_traces

WORDS = Words(model="lenet", device="v100", gpus=4, nodes=8, network="25 Gbit/s")
FILE = """
name: advice
model: lenet
batch_size: 32
gradients: {source: synthetic, workers: 2, iterations: 2}
cluster:
  nodes: 8
  devices_per_node: 4
  device: v100
  network: 25gbe
  intra_node: nvlink2
  collectives: {transport: nccl}
training: {loop: ddp}
compressors: [none]
seed: 0
"""


def test_words_are_the_scenario_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "advice.yaml").write_text(FILE)
    found = ask(None, WORDS, ["compressors=[none]"]).scenario
    assert found == load_scenario(tmp_path / "advice.yaml")


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("25 Gbit/s", "25gbe"),
        ("3.125 GB/s", "25gbe"),
        ("100 Mbit/s", "100mbit_ethernet"),
        ("10gbe", "10gbe"),
        ("100mbit_ethernet", "100mbit_ethernet"),
        ("infiniband_edr", "infiniband_edr"),
        ("400 Gbit/s", "400gbe_roce"),
        ("200 GbE TCP", "200gbe"),
        ("400gbe", "400gbe"),
        ("25 Gbit/s RDMA", "25gbe_roce"),
    ],
)
def test_a_rate_alone_is_ethernet_of_that_rate(said: str, name: str) -> None:
    assert network_of(said) == name


def test_another_rate_has_the_latency_and_goodput_of_the_nearest_ethernet() -> None:
    words = Words(model="lenet", device="v100", nodes=8, network="30 Gbit/s")
    found = ask(None, words).scenario.cluster.network
    near = catalog.link("25gbe", "nccl")
    assert found.bandwidth == Fraction(30_000_000_000, 8)
    for figure in ("latency", "latency_range", "efficiency", "efficiency_range"):
        assert getattr(found, figure) == getattr(near, figure)


def test_a_link_may_be_spelled_out_as_in_a_scenario() -> None:
    for network in ("{like: 10gbe, latency: 20 us}", {"like": "10gbe", "latency": "20 us"}):
        words = Words(model="lenet", device="v100", nodes=8, network=network)
        assert ask(None, words).scenario.cluster.network.latency == Fraction(20, 10**6)


@pytest.mark.parametrize(
    ("words", "place", "said", "hint"),
    [
        (Words(network="25 Gbit/x"), "--network", "unknown unit 'Gbit/x'", "Gbit/s"),
        (Words(network="0 Gbit/s"), "--network", "is not a rate", "25 Gbit/s"),
        (Words(network="-25 Gbit/s"), "--network", "is not a rate", "25 Gbit/s"),
        (Words(network="10 GB"), "--network", "unknown unit", "10 Gbit/s"),
        (Words(network="10 gx"), "--network", "unknown unit 'gx'", "Gbit/s"),
        (Words(network="5G"), "--network", "unknown link '5G'", "there are 5g_50mbit,"),
        (Words(network=""), "--network", "", ""),
        (Words(model="resnet5"), "--model", "unknown model 'resnet5'", "resnet50"),
        (Words(device="v100x"), "--device", "unknown device 'v100x'", "v100"),
        (Words(gpus=0), "--gpus", "0", ""),
        (Words(gpus=number("4x")), "--gpus", "'4x'", "leave it out for 1"),
        (Words(nodes=-3), "--nodes", "-3", ""),
        (Words(batch_size=0), "--batch-size", "0", ""),
        (Words(cost_per_hour=-1.0), "--cost-per-hour", "-1", ""),
    ],
)
def test_a_mistake_names_the_option_the_value_and_what_is_meant(
    words: Words, place: str, said: str, hint: str
) -> None:
    given = asdict(WORDS) | {key: v for key, v in asdict(words).items() if v is not None}
    with pytest.raises(InputError) as caught:
        _ = ask(None, Words(**given), called=option).scenario
    (problem,) = caught.value.problems
    assert problem.place == place
    assert said in problem.message
    assert hint in problem.hint


def test_groups_are_written_as_answers_write_them_and_are_those_of_a_file() -> None:
    words = Words(model="resnet50", group=["4 x 8 a100 @ 4 x 100gbe", "8 x 8 v100 @ 25 Gbit/s"])
    data = dict(ask(None, words, called=option).document.data)
    assert "nodes" not in data["cluster"]
    assert data["cluster"]["groups"] == [
        {
            "nodes": 4, "device": "a100_sxm_80gb", "devices_per_node": 8,
            "nics_per_node": 4, "network": "100gbe",
        },
        {"nodes": 8, "device": "v100", "devices_per_node": 8, "network": "25 Gbit/s"},
    ]  # fmt: skip
    cluster = ask(None, words, called=option).scenario.cluster
    assert cluster.devices == "4 x 8 a100_sxm_80gb + 8 x 8 v100"
    assert {link.name for link in (cluster.intra_node, *cluster.buses.values())} == {
        "nvlink2", "nvlink3",
    }  # fmt: skip
    alike = Words(model="resnet50", group=["2 x a100"], gpus=8, network="25gbe")
    one = ask(None, alike, called=option).scenario.cluster
    assert one == ask(None, replace(alike, group=None, device="a100", nodes=2)).scenario.cluster


def test_the_groups_of_the_page_are_read_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    page = Path(__file__).parents[3] / "docs" / "advice.md"
    groups = re.findall(r'--group "([^"]+)"', page.read_text())
    assert len(groups) == 2
    ask(None, Words(model="resnet50", group=groups), called=option).scenario  # noqa: B018
    assert "warning" not in caplog.text


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("8 a100", "'8 a100' is not a group of nodes"),
        ("2 x 8 a100x", "unknown device 'a100x'"),
        ("2 x 8 a100", "no network"),
        ("0 x 8 a100 @ 1gbe", "nodes = 0 is not a number of nodes"),
    ],
)
def test_a_wrong_group_is_named_with_its_option(group: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        _ = ask(None, Words(model="resnet50", group=[group]), called=option).scenario
    (problem,) = caught.value.problems
    assert problem.place == "--group"
    assert said in problem.message


def test_groups_take_the_place_of_a_files_nodes() -> None:
    words = Words(group=["1 x p100_pcie", "2 x v100"])
    cluster = ask("alexnet_32node", words, called=option).scenario.cluster
    assert cluster.devices == "1 x 1 p100_pcie + 2 x 1 v100"


def test_all_words_that_are_missing_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        ask(None, Words(gpus=1), called=option)
    places = [problem.place for problem in caught.value.problems]
    assert places == ["--model", "--device", "--nodes", "--network"]


def test_all_mistakes_of_a_line_are_told_at_once() -> None:
    words = Words(model="resnet5", nodes=number("x"), network="10 gx", batch_size=0)  # no device
    with pytest.raises(InputError) as caught:
        ask(None, words, ["training.nonsense=1"], called=option)
    assert {problem.place for problem in caught.value.problems} == {
        "--model", "--device", "--nodes", "--network", "--batch-size", "--set training.nonsense",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("600M", "the nearest are mpt_760m (760 million), gpt2_large (774 million)"),
        ("60M", "resnet152 (60.2 million), alexnet (61.1 million)"),
        ("many", "is not a number above 0"),
    ],
)
def test_a_size_alone_is_a_model_or_asked_back(size: str, said: str) -> None:
    given = Words(device="v100", nodes=2, network="10gbe", parameters=size)
    with pytest.raises(InputError) as caught:
        ask(None, given, called=option)
    (problem,) = caught.value.problems
    assert problem.place == "--parameters"
    assert said in problem.message
    assert ask(None, replace(given, parameters="335M")).scenario.model.name == "bert_large"


@pytest.mark.parametrize(
    ("size", "name", "others"),  # the nearest by the entries' counts (`gcsim list models`)
    [
        ("1.3B", "gpt3_1.3b", "mpt_1b"),
        ("1.3 billion", "gpt3_1.3b", "mpt_1b"),
        ("7B", "llama2_7b", "mpt_7b, gpt3_6.7b"),
    ],
)
def test_a_size_of_several_transformers_is_the_nearest_and_names_the_others(
    size: str, name: str, others: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = Words(device="h100", gpus=8, nodes=2, network="400gbe", parameters=size)
    assert ask(None, given).document.data["model"] == name
    assert f"read as {name}" in caplog.text
    assert f"also {others} (--model)" in caplog.text


def test_a_size_between_two_transformers_is_the_nearest_with_its_size(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = Words(device="h100", gpus=8, nodes=2, network="400gbe", parameters="1.4B")
    near = catalog.by_size_alone(1.4e9)[0]
    assert ask(None, given).document.data["model"] == near
    assert f"note: 1.4B parameters are read as {near} (1.32 billion)" in caplog.text


@pytest.mark.parametrize("name", ["ViT-B/16", "gpt3_1.3b", "google/vit-base-patch16-224"])
def test_a_models_name_with_a_point_or_a_stroke_is_no_file(name: str) -> None:
    found = ask(name, replace(WORDS, model=None))
    assert found.document.data["model"] == catalog.model(name).name


def test_a_models_name_alone_is_the_model() -> None:
    words = replace(WORDS, model=None)
    assert ask("ResNet-50", words).scenario == ask(None, replace(words, model="resnet50")).scenario
    with pytest.raises(InputError, match=r"no scenario, recording or model .* mean 'lenet_2node'"):
        ask("lenet_2nod", words)
    with pytest.raises(InputError, match=r"recording or model .* mean 'resnet50'") as said:
        ask("resnt50", replace(words, device="v100x"), called=option)
    assert len(said.value.problems) == 2


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0", "MPS"])
def test_the_device_at_hand_is_asked_for_by_its_name(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = replace(WORDS, device=device)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA GeForce RTX 4090")
    assert ask(None, words).scenario.cluster.device.name == "rtx_4090"
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA GB300")
    with pytest.raises(InputError) as caught:
        ask(None, words, called=option).scenario  # noqa: B018
    (problem,) = caught.value.problems
    assert problem.place == "--device"
    assert "calibrate device" in problem.hint


def test_a_limit_is_a_setting_of_the_link() -> None:
    free, held = (ask(None, replace(WORDS, limited=one)).scenario for one in (False, True))
    assert held.cluster.network.efficiency < free.cluster.network.efficiency
    assert free.cluster.network.efficiency == ask(None, WORDS).scenario.cluster.network.efficiency


@pytest.mark.parametrize(
    ("word", "setting"),
    [
        ("FP16", "fp16"),
        ("mixed precision", "fp16"),
        ("mixed", "fp16"),
        ("AMP", "fp16"),
        ("BFloat16", "bf16"),
        ("float32", "fp32"),
    ],
)
def test_precisions_are_read_as_people_write_them(word: str, setting: str) -> None:
    assert ask(None, replace(WORDS, precision=word)).scenario.training.precision == setting


@pytest.mark.parametrize("word", ["PyTorch DDP", "DistributedDataParallel", "DDP"])
def test_loops_are_read_as_people_write_them(word: str) -> None:
    assert ask(None, replace(WORDS, loop=word)).document.data["training"]["loop"] == "ddp"


@pytest.mark.parametrize(
    ("word", "strategy"), [("FSDP", "fsdp"), ("zero3", "zero3"), ("DeepSpeed ZeRO-2", "zero2")]
)
def test_a_strategy_is_no_loop_but_a_setting(word: str, strategy: str) -> None:
    with pytest.raises(InputError, match=f"--set training.strategy={strategy}$") as refused:
        ask(None, replace(WORDS, loop=word), called=option).scenario  # noqa: B018
    assert [one.place for one in refused.value.problems] == ["--loop"]


def test_a_question_without_a_file_is_of_pytorchs_ddp_for_which_the_hook_is() -> None:
    silent, own = ask(None, WORDS), ask(None, replace(WORDS, loop="own"))
    stated = ask(None, replace(WORDS, loop="ddp"))
    assert silent.scenario == stated.scenario != own.scenario
    assert next(one.option for one in open_questions(silent)) == "--loop own"
    assert not any(one.option.startswith("--loop") for one in open_questions(stated))
    overlap = "training.overlap=none"
    assert ask(None, WORDS, [overlap]).supposed == ()


def test_tcp_is_asked_for_where_a_rate_supposes_rdma() -> None:
    words = replace(WORDS, network="400 Gbit/s")
    (one,) = (one for one in open_questions(ask(None, words)) if one.words == "TCP")
    there = ask(None, words).changed(one.overrides)
    assert there is not None
    assert (
        there.cluster.network
        == ask(None, replace(WORDS, network="400gbe")).scenario.cluster.network
    )
    named = open_questions(ask(None, replace(WORDS, network="400gbe_roce")))
    assert "TCP" not in [one.words for one in named]


@pytest.mark.parametrize("word", ["fp64", "16"])
def test_another_width_is_no_mistyped_precision(word: str) -> None:
    with pytest.raises(InputError, match=f"'{word}': is not a choice; known: "):
        ask(None, replace(WORDS, precision=word)).scenario  # noqa: B018


@pytest.mark.parametrize(("word", "precision"), [("16-mixed", "fp16"), ("bf16-mixed", "bf16")])
def test_precisions_of_lightning_are_understood(word: str, precision: str) -> None:
    assert ask(None, replace(WORDS, precision=word)).scenario.training.precision == precision


def test_bfloat16_has_the_times_of_half_precision_and_gradients_are_asked_for_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    question = ask(None, replace(WORDS, precision="bf16"), called=option)
    assert question.scenario.training.timed_as == "fp16"
    assert (
        "--precision: warning: training.precision = 'bf16': no times are known for v100"
        in caplog.text
    )
    assert "--set training.gradients=bf16" in [one.option for one in open_questions(question)]


def test_a_cap_and_rdma_are_asked_for_whatever_the_number_of_nics() -> None:
    one, two = (list(open_questions(ask(None, replace(WORDS, nics=n)))) for n in (None, 2))
    assert one == two
    assert {"--limited", "--network 25gbe_roce"} <= {answer.option for answer in two}


@pytest.mark.parametrize(("network", "wired"), [("1gbe", True), ("wifi_802.11n", False)])
def test_a_cap_is_asked_for_on_ethernet(network: str, wired: bool) -> None:
    words = Words(model="lenet", device="rpi4", nodes=4, network=network)
    options = [one.option for one in open_questions(ask(None, words))]
    assert ("--limited" in options) is wired


def test_words_beside_a_scenario_take_the_place_of_its_settings() -> None:
    found = ask("lenet_2node", Words(nodes=4, device="v100", network="10 Gbit/s")).scenario
    assert (found.cluster.nodes, found.node_counts) == (4, (4,))
    assert found.cluster.device.name == "v100"
    assert found.cluster.network.name == "10gbe"
    shipped = load_scenario("lenet_2node")
    assert found.compressors == shipped.compressors
    assert ask("lenet_2node", Words()).scenario.cluster == shipped.cluster


def test_a_loaded_scenario_is_asked_for_as_its_file() -> None:
    loaded = load_scenario("lenet_2node")
    found = question_about(loaded, Words()).scenario
    assert (found.cluster, found.compressors) == (loaded.cluster, loaded.compressors)


def test_a_trace_is_its_model_batch_and_gradients() -> None:
    name, folder = next(iter(shipped_traces().items()))
    words = Words(device="v100", nodes=2, network="1gbe")
    found = ask(str(folder), words).scenario
    assert found.model.name in name
    assert str(folder) in str(found.gradients)
    assert ask(None, replace(words, model=str(folder))).scenario.gradients == found.gradients


def test_a_change_that_is_no_scenario_is_none() -> None:
    question = ask(None, WORDS)
    assert question.changed(["cluster.network.latency=no"]) is None
    assert question.changed(["cluster.network.latency=1 us"]) is not None
