"""Scenario files: every mistake is named with its line and column, and all of them at once."""

import copy
import functools
import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario, shipped_scenarios
from gcsim.scenarios.reading.document import read_file, write
from gcsim.scenarios.scenario import LiveGradients, RecordedGradients
from gcsim.scenarios.sections.file import OwnModel
from gcsim.traces.models.registry import MODELS, own_model, shipped_model
from gcsim.traces.profile import PassTimes
from tests.scenarios.files import check_mistake, load, problems, replaced, reread
from tests.scenarios.sections.test_topology_and_training import FULL

GOOD = """\
name: small
model: alexnet
batch_size: 32
gradients: {source: live, workers: 2}
cluster:
  nodes: [1, 2, 4]
  devices_per_node: 2
  device: p100_pcie
  network:
    bandwidth: 10 Gbit/s
    latency: 50 us
    efficiency: 0.94
  intra_node: pcie3_x16
  collectives: {transport: gloo}
compute: {forward: 5 ms, backward: 10 ms}
compressors:
  - none
  - {kind: topk, label: top 1 %, ratio: 0.01}
  - topk
seed: 3
"""
changed = partial(replaced, GOOD)


def test_a_file_becomes_the_engines_own_values(tmp_path: Path) -> None:
    scenario = load(tmp_path, GOOD)
    assert scenario.name == "small"
    assert scenario.node_counts == (1, 2, 4)
    assert scenario.cluster.nodes == 4
    assert scenario.cluster.workers == 8
    assert scenario.cluster.network.bandwidth == Fraction(1_250_000_000)
    assert scenario.cluster.network.latency == Fraction(1, 20_000)
    assert scenario.cluster.network.efficiency == Fraction(94, 100)
    assert scenario.cluster.device.name == "p100_pcie"
    assert scenario.cluster.collectives.transport == "gloo"
    assert scenario.buckets.first == 2**20
    assert scenario.buckets.cap == 25 * 2**20
    assert isinstance(scenario.compute, PassTimes)
    assert (scenario.compute.forward, scenario.compute.backward) == (0.005, 0.01)
    assert [choice.label for choice in scenario.compressors] == ["dense", "top 1 %", "topk"]
    assert scenario.compressors[1].parameters["ratio"] == 0.01
    assert isinstance(scenario.gradients, LiveGradients)
    assert scenario.gradients.warmup_steps == 20
    assert scenario.seed == 3


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # old text of GOOD, what stands there instead, the message
        ("seed: 3", "sead: 3", "a.yaml:20:1: error: unknown key 'sead'; did you mean 'seed'?"),
        ("    bandwidth: 10 Gbit/s", "    bandwith: 10 Gbit/s", "a.yaml:10:5: error: unknown key "
         "'bandwith' in cluster.network; did you mean 'bandwidth'?"),
        ("    bandwidth: 10 Gbit/s\n", "", "a.yaml:9:3: error: cluster.network: key 'bandwidth' is "
         "missing"),
        ("batch_size: 32\n", "", "a.yaml:1:1: error: key 'batch_size' is missing"),
        ("  device: p100_pcie\n", "", "a.yaml:5:1: error: key 'device' is missing in cluster"),
        ("batch_size: 32", "batch_size: 0", "a.yaml:3:13: error: batch_size = 0: must be at least "
         "1"),
        ("batch_size: 32", "batch_size: 3.5", "= 3.5: must be a whole number; write 3 or 4"),
        ("batch_size: 32", "batch_size: '32'", "a whole number; write 32, without quotes"),
        ("batch_size: 32", "batch_size: true", "batch_size = true: must be a whole number"),
        ("batch_size: 32", "batch_size:", "batch_size = (nothing): must be a whole number; write "
         "its value, or leave the key out if it has a default"),
        ("batch_size: 32", "batch_size: [8, 16]", "a.yaml:3:13: error: batch_size: must be a whole "
         "number; for one run each: gcsim sweep --grid 'batch_size=8,16'"),
        ("bandwidth: 10 Gbit/s", "bandwidth: [1 Gbit/s, 10 Gbit/s]", "cluster.network.bandwidth: "
         "must be one value, not a list; for one run each: gcsim sweep --grid "
         "'cluster.network.bandwidth=1 Gbit/s,10 Gbit/s'"),
        ("nodes: [1, 2, 4]", "nodes: 4\n  host: 2", "cluster.host = 2: is not a choice; known: "
         "bare_metal, none, virtual_machine"),
        ("nodes: [1, 2, 4]", "nodes: 4\n  nics: {03: 1gbe}", "cluster.nics.03: '03' is not the "
         "number of a node; write 3"),
        ("nodes: [1, 2, 4]", "nodes: 4\n  nics: {0-3: 1gbe}", "'0-3' is not the number of a "
         "node; name each node of the range"),
        ("workers: 2", "learning_rate: 0", "gradients.learning_rate: 0 must be greater than 0"),
        ("workers: 2", "momentum: 1.0", "momentum: 1.0 must be at least 0 and less than 1"),
        ("workers: 2", "momentum: .nan", "gradients.momentum: nan is not a number or a ratio"),
        ("source: live", "source: lvie", "a.yaml:4:21: error: gradients.source = 'lvie': is not a "
         "choice; did you mean 'live'?"),
        ("workers: 2", "device: gpu", "gradients.device = 'gpu': is not a choice; "),
        ("workers: 2", "trace: t", "a.yaml:4:1: error: gradients: 'trace' would have no effect"),
        ("source: live", "source: recorded", "a.yaml:4:1: error: gradients: a recorded source "
         "needs `trace: PATH`"),
        ("{source: live, workers: 2}", "{source: recorded, trace: no_such_trace}", "a.yaml:4:38: "
         "error: gradients.trace: there is no "),
        ("{source: live, workers: 2}", "{source: recorded, trace: t, momentum: 0.5}", "gradients: "
         "'momentum' would have no effect with source 'recorded'"),
        ("gradients: {source: live, workers: 2}", "gradients: live", "gradients = 'live': must be"),
        ("nodes: [1, 2, 4]", "nodes: [1, 4, 2]", "a.yaml:6:10: error: cluster.nodes: 2 comes "
         "after 4; cluster sizes must ascend; write [1, 2, 4]"),
        ("nodes: [1, 2, 4]", "nodes: []", "cluster.nodes: must have at least 1 entry"),
        ("nodes: [1, 2, 4]", "nodes: [1, 0]", "a.yaml:6:14: error: cluster.nodes.1 = 0: must be"),
        ("nodes: [1, 2, 4]", "nodes: 1000000", "cluster.nodes = 1000000: must be at most 100000"),
        ("device: p100_pcie", "device: p10_pcie", "a.yaml:8:11: error: cluster.device: unknown "
         "device 'p10_pcie'; gcsim calibrate device measures yours; gcsim list devices has all"),
        ("device: p100_pcie", "device: 5", "cluster.device = 5: must be text"),
        ("intra_node: pcie3_x16", "intra_node: pcie3_x61", "a.yaml:13:15: error: "
         "cluster.intra_node: unknown link 'pcie3_x61'; did you mean 'pcie3_x16'?"),
        ("10 Gbit/s", "10 gb", "a.yaml:10:16: error: cluster.network.bandwidth: unknown unit "
         "'gb' in '10 gb', which should be a bandwidth; did you mean 'Gbit/s' or 'GB/s'?"),
        ("10 Gbit/s", "10", "cluster.network.bandwidth: 10 has no unit; write it like '10 Gbit/s'"),
        ("10 Gbit/s", "-1 Gbit/s", "cluster.network.bandwidth: -1 Gbit/s is negative"),
        ("10 Gbit/s", "0 Gbit/s", "cluster.network.bandwidth: 0 Gbit/s is zero; it must be more"),
        ("50 us", "50 uss", "cluster.network.latency: unknown unit 'uss'"),
        ("0.94", "1.5", "cluster.network.efficiency: 1.5 must be greater than 0 and at most 1"),
        ("transport: gloo", "transport: glooo", "a.yaml:14:28: error: "
         "cluster.collectives.transport = 'glooo': is not a choice; did you mean 'gloo'?"),
        ("transport: gloo", "servers: 0", "cluster.collectives.servers: 0 must be at least 1"),
        ("transport: gloo", "pipeline_block: 0 B", "pipeline_block: 0 B is zero"),
        ("transport: gloo", "pipeline_block: 0.5 B", "0.5 B is 0.5 bytes; a size is a whole"),
        ("forward: 5 ms", "forward: 0 ms", "a.yaml:15:20: error: compute.forward: 0 ms is zero"),
        ("forward: 5 ms, ", "", "a.yaml:15:1: error: compute: key 'forward' is missing"),
        ("model: alexnet", "model: alexnt", "a.yaml:2:8: error: model: unknown model 'alexnt'; did "
         "you mean 'alexnet'? your own model is recorded (gcsim.record), or written package"),
        ("model: alexnet", "model: my model:build", "'my model:build' does not name a function"),
        (
            "model: alexnet",
            "model: gcsim.traces.networks.gpt2:transformer_tiny_x8",
            "error: model: gcsim.traces.networks.gpt2 has no 'transformer_tiny_x8'; did you mean",
        ),
        ("model: alexnet", "model: gcsim.traces.networks.gpt9:gpt9", "gcsim has no module 'gcsim."),
        ("model: alexnet", "model: {build: m:b, input_shape: [3, 0]}", "model.input_shape.1 = 0"),
        ("model: alexnet", "model: {input_shape: [3]}", "key 'build' is missing in model"),
        ("  - none", "  - nnone", "a.yaml:17:5: error: unknown compressor 'nnone'; did you mean"),
        ("kind: topk", "kind: tpok", "a.yaml:18:12: error: unknown compressor 'tpok'; did you"),
        ("kind: topk, ", "", "a.yaml:18:5: error: key 'kind' is missing in compressors.1"),
        ("{kind: topk, label: top 1 %, ratio: 0.01}", "powersgd: {rank: 2}", "a.yaml:18:5: error: "
         "compressors.1: key 'kind' is missing; write kind: powersgd, and its parameters next"),
        ("  - none", "  - 5", "a.yaml:17:5: error: compressors.0 = 5: must be text"),
        ("ratio: 0.01", "ration: 0.01", "a.yaml:18:34: error: topk has no parameter 'ration'; did "
         "you mean 'ratio'?"),
        ("kind: topk, label: top 1 %, ratio: 0.01", "kind: qsgd, bits: 4",
         "write steps: 7 for 4 bits, 127 for 8"),
        ("kind: topk, label: top 1 %, ratio: 0.01", "kind: 'gcsim.errors:Nope'",
         "a.yaml:18:12: error: cannot import compressor 'gcsim.errors:Nope': gcsim.errors has no"),
        ("ratio: 0.01", "ratio: 0", "a.yaml:18:41: error: topk.ratio = 0"),
        ("ratio: 0.01", "ratio: .nan", "a.yaml:18:41: error: topk.ratio = nan"),
        ("ratio: 0.01", "ratio: few", "a.yaml:18:41: error: topk.ratio = 'few'"),
        ("label: top 1 %", "label: topk", "a.yaml:19:5: error: two compressors are labelled "
         "'topk'; first at a.yaml:18:5; give one its own `label:`"),
        ("label: top 1 %", "label: 1", "a.yaml:18:25: error: compressors.1.label = 1: must be"),
        ("label: top 1 %", "label: ''", "compressors.1.label = '': must not be empty"),
        ("seed: 3", "seed: -1", "a.yaml:20:7: error: seed = -1: must be at least 0"),
        ("seed: 3", f"seed: {2**63}", "seed = 9223372036854775808: must be less than"),
        ("seed: 3", "seed: 3\nseed: 4", "a.yaml:21:1: error: key 'seed' appears"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    check_mistake(tmp_path, changed(old, new), expected)


def test_the_functions_of_all_shipped_models_are_known() -> None:
    builds = [entry.build for entry in MODELS.values() if entry.build is not None]
    assert builds
    for build in builds:
        assert OwnModel(build=build).build == build


def test_two_numbers_are_no_labels_and_alike(tmp_path: Path) -> None:
    two = "- {kind: none, label: 1}\n  - {kind: none, label: 1}"
    found = problems(tmp_path, changed("- none", two))
    assert [("must be text" in one, "labelled 1; first at" in one) for one in found] == [
        (True, False), (True, False), (False, True)
    ]  # fmt: skip


def test_all_mistakes_of_a_file_are_reported_in_its_order(tmp_path: Path) -> None:
    text = (
        GOOD.replace("batch_size: 32", "batch_size: 0")
        .replace("latency: 50 us", "latency: 50")
        .replace("ratio: 0.01", "ratio: 2")
        .replace("seed: 3", "sed: 3")
    )
    places = [found.split(": error: ")[0] for found in problems(tmp_path, text)]
    assert places == ["a.yaml:3:13", "a.yaml:11:14", "a.yaml:18:41", "a.yaml:20:1"]


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, "[1, 2]") == [
        "a.yaml:1:1: error: a scenario is a mapping (key: value)"
    ]
    (tmp_path / "layers.csv").write_text("name,parameters")
    with pytest.raises(InputError, match=r"model: \{layers: .*layers.csv\}"):
        load_scenario(tmp_path / "layers.csv")


def test_an_unknown_name_suggests_a_shipped_scenario() -> None:
    with pytest.raises(InputError, match="did you mean 'alexnet_32node'"):
        load_scenario("alexnet_32nodes")
    with pytest.raises(InputError, match=r"no_such\.yaml: error: No such file"):
        load_scenario("no_such.yaml")
    with pytest.raises(InputError, match=r"is Python, .* your own compressor as test_load:CLASS"):
        load_scenario(__file__)


# --- options ---------------------------------------------------------------------------------


def test_an_option_changes_one_value(tmp_path: Path) -> None:
    scenario = load(
        tmp_path,
        GOOD,
        "cluster.nodes=8",
        "compressors.1.ratio=0.05",
        "compressors.2.ratio=0.5",
        "cluster.collectives.servers=per_node",
        "ddp.bucket=1 MiB",
        "compute=",
    )
    assert scenario.node_counts == (8,)
    assert scenario.compressors[1].parameters["ratio"] == 0.05
    assert scenario.compressors[2].parameters["ratio"] == 0.5
    assert scenario.buckets.cap == 2**20
    assert scenario.compute is None
    assert scenario.cluster.servers == 8


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        (("cluster.collectives.transport=GLOO",), ("cluster.collectives.transport=gloo",)),
        (
            ("train.optimizer.name=SGD", "train.optimizer.weight_decay=0.1"),
            ("train.optimizer.name=sgd", "train.optimizer.weight_decay=0.1"),
        ),
        (("gradients.source=Synthetic",), ("gradients.source=synthetic",)),
        (("training.strategy=Zero-1",), ("training.strategy=zero1",)),
        (("training.precision=float32",), ("training.precision=fp32",)),
    ],
)
def test_a_choice_is_read_in_any_case_and_by_its_usual_names(
    tmp_path: Path, words: tuple[str, ...], choices: tuple[str, ...]
) -> None:
    said, meant = (load(tmp_path, GOOD, *settings) for settings in (words, choices))
    assert said.resolved == meant.resolved


def test_a_limit_of_buckets_is_that_of_the_first_one_unless_that_is_stated(tmp_path: Path) -> None:
    """As PyTorch takes `bucket_cap_mb`: `test_ready_order.py` holds that against its Reducer."""
    mib = 2**20
    for options, limits in (
        ((), (mib, 25 * mib)),
        (("ddp.bucket=25 MiB",), (25 * mib, 25 * mib)),
        (("ddp.first_bucket=2 MiB",), (2 * mib, 25 * mib)),
        (("ddp.first_bucket=1 MiB", "ddp.bucket=4 MiB"), (mib, 4 * mib)),
    ):
        scenario = load(tmp_path, GOOD, *options)
        assert (scenario.buckets.first, scenario.buckets.cap) == limits
        assert load(tmp_path, write(scenario.resolved)).buckets == scenario.buckets


def test_options_may_be_a_mapping_and_the_seed_wins(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(GOOD)
    scenario = load_scenario(path, {"cluster.nodes": "[2, 3]", "seed": "5"}, seed=9)
    assert scenario.node_counts == (2, 3)
    assert scenario.seed == 9


def test_an_option_on_a_named_link_changes_a_copy_of_it(tmp_path: Path) -> None:
    text = GOOD.replace("intra_node: pcie3_x16", "intra_node: pcie3_x16\n  # comment")
    scenario = load(tmp_path, text, "cluster.intra_node.latency=1 ms")
    link = scenario.cluster.intra_node
    assert link.latency == Fraction(1, 1000)
    assert link.bandwidth == Fraction(12_150_000_000)  # pcie3_x16's
    assert link.name == "pcie3_x16, changed"
    assert "latency stated in the scenario, the rest as pcie3_x16" in link.source


def test_a_file_that_is_no_yaml_is_no_scenario(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("**A page**, not *YAML*\n")
    with pytest.raises(
        InputError, match=r"README\.md: error: is not a scenario, which is a YAML file"
    ):
        load_scenario(page)
    page.with_suffix(".yaml").write_text(page.read_text())
    with pytest.raises(InputError, match=r"README\.yaml:1:2: error: while scanning an alias"):
        load_scenario(page.with_suffix(".yaml"))


def test_a_key_inside_a_parameter_is_answered_with_the_keys_there(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GOOD, "compressors.2={kind: topk, warm_up: {steps: 9, to: 0.9}}")
    assert found.endswith("topk has no parameter 'warm_up.to'; warm_up has from, steps")


def test_a_whole_number_written_otherwise_is_suggested_once(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, changed("batch_size: 32", "batch_size: 1.0e+3"))
    assert found.endswith("batch_size = 1000.0: must be a whole number; write 1000")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("cluster.noeds=8", "--set cluster.noeds: error: unknown key 'noeds' in cluster; did you"),
        ("cluster.nodes=0", "--set cluster.nodes: error: cluster.nodes = 0: must be at least 1"),
        ("cluster.nodes=[1", "--set cluster.nodes: error: while parsing a flow sequence"),
        ("cluster.nodes", "--set cluster.nodes: error: no value; write --set key=value"),
        ("cluster.nodes.x=1", "--set cluster.nodes.x: error: cluster.nodes has no entry 'x'"),
        ("batch_size.x=1", "--set batch_size.x: error: batch_size is a single value"),
        ("cluster..nodes=1", "--set cluster..nodes: error: a word between two dots is missing"),
        ("compressors.7.ratio=1", "compressors has no entry '7': it has 3, from 0 to 2"),
        ("compressors.1.ratio=0", "--set compressors.1.ratio: error: topk.ratio = 0"),
        ("compressors.1.rat=1", "--set compressors.1.rat: error: topk has no parameter 'rat'"),
        ("cluster.network.latency=5", "--set cluster.network.latency: error: cluster.network.lat"),
        ("seed=x", "--set seed: error: seed = 'x': must be a whole number"),
        ("newkey.a=1", "--set newkey.a: error: unknown key 'newkey'"),
        (
            "cluster.shared_node=1",
            "--set cluster.shared_node: error: unknown key 'shared_node' in "
            "cluster; there is training.shared_node",
        ),
        (
            "training.optimizer=AdamW",
            "--set training.optimizer: error: training.optimizer: 'AdamW' "
            "is not a time; optimizer_state: adam, momentum or none states its kind",
        ),
        (
            "training.checkpointing=on",
            "--set training.checkpointing: error: "
            "training.checkpointing = 'on': is not a choice; known: full, none, selective",
        ),
        ("<name>=1", "--set <name>: error: unknown key '<name>'"),
        ("cluster.<table>=1", "--set cluster.<table>: error: unknown key '<table>' in cluster"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, option: str, expected: str) -> None:
    found = problems(tmp_path, GOOD, option)
    assert len(found) == 1
    assert expected in found[0]


def test_a_wrong_seed_option_is_named() -> None:
    with pytest.raises(InputError, match=r"--seed: error: seed = -1: must be at least 0"):
        load_scenario("lenet_2node", seed=-1)


# --- traces and own models -------------------------------------------------------------------


def test_a_traces_path_counts_from_the_scenarios_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "trace").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    text = changed("{source: live, workers: 2}", "{source: recorded, trace: ../here/trace}")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "there" / "a.yaml"
    path.write_text(text)
    wanted = RecordedGradients(trace=tmp_path / "here" / "trace", workers=None)
    assert load_scenario("there/a.yaml").gradients == wanted
    # An option's path counts from where the command is given.
    assert load_scenario("there/a.yaml", ["gradients.trace=here/trace"]).gradients == wanted


def test_an_own_model_gets_the_shape_of_imagenet_unless_it_says_otherwise(tmp_path: Path) -> None:
    plain = load(tmp_path, changed("model: alexnet", "model: my.models:build"))
    assert plain.model == own_model("my.models:build", (3, 224, 224), 1000)
    full = "model: {build: 'my.models:build', input_shape: [1, 28, 28], classes: 10}"
    own = load(tmp_path, changed("model: alexnet", full))
    assert own.model == own_model("my.models:build", (1, 28, 28), 10)
    shipped = load(tmp_path, GOOD)
    assert shipped.model == shipped_model("alexnet")


def test_one_server_per_node_follows_the_sweep(tmp_path: Path) -> None:
    scenario = load(tmp_path, changed("transport: gloo", "servers: per_node"))
    assert scenario.cluster.servers == 4
    assert [scenario.cluster_at(n).servers for n in (1, 2, 4)] == [1, 2, 4]
    assert scenario.cluster_at(4) == scenario.cluster
    fixed = load(tmp_path, changed("transport: gloo", "servers: 3"))
    assert [fixed.cluster_at(n).servers for n in (1, 2, 4)] == [3, 3, 3]
    assert fixed.cluster_at(2).nodes == 2


# --- the resolved file -----------------------------------------------------------------------

VARIANTS = [
    GOOD,
    changed("model: alexnet", "model: {build: 'm:b', input_shape: [1, 28, 28], classes: 10}"),
    changed("name: small\n", "description: 'off: 1e9'\nname: '1e3'\n"),
    changed("transport: gloo", "servers: per_node, pipeline_block: 1000 B"),
    changed("{forward: 5 ms, backward: 10 ms}", "{forward: 5.1234 us, backward: 1e-3 s}"),
    changed("    efficiency: 0.94", "    efficiency: 2/3\n    source: 'a: b'\n    name: mine"),
    changed("label: top 1 %", "label: '12:30'"),
    changed("intra_node: pcie3_x16", "intra_node: {like: pcie4_x16, latency: 7 us}"),
    changed("intra_node: pcie3_x16", "intra_node: 10gbe_ideal"),
    changed("    efficiency: 0.94", "    estimate: true"),
]  # fmt: skip


@pytest.mark.parametrize("text", VARIANTS)
def test_the_resolved_file_loads_to_the_same_scenario(tmp_path: Path, text: str) -> None:
    scenario = load(tmp_path, text)
    again = reread(tmp_path, scenario)
    assert again == scenario
    assert again.resolved == scenario.resolved


def test_the_resolved_file_of_a_recorded_trace_loads_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    text = changed("{source: live, workers: 2}", "{source: recorded, trace: t, workers: 2}")
    scenario = load(tmp_path, text)
    (tmp_path / "deeper").mkdir()
    elsewhere = tmp_path / "deeper" / "b.yaml"
    elsewhere.write_text(write(scenario.resolved))
    assert load_scenario(elsewhere) == scenario


def test_a_resolved_scenario_is_plain_json_and_needs_no_catalogue_for_its_links(
    tmp_path: Path,
) -> None:
    scenario = load(tmp_path, GOOD)
    assert json.loads(json.dumps(scenario.resolved, allow_nan=False)) == scenario.resolved
    cluster = scenario.resolved["cluster"]
    assert isinstance(cluster, dict)
    assert cluster["intra_node"]["bandwidth"] == "12.15 GB/s"
    assert "gearshifft" in cluster["intra_node"]["source"]


def test_a_device_that_has_changed_since_is_refused(tmp_path: Path) -> None:
    text = changed(
        "device: p100_pcie", "device: {name: p100_pcie, fingerprint: '0123456789abcdef'}"
    )
    (found,) = problems(tmp_path, text)
    assert found.startswith("a.yaml:8:3: error: cluster.device: the catalogue's p100_pcie has")
    assert "write `device: p100_pcie`" in found


# --- shipped scenarios, start-up time, robustness --------------------------------------------


@pytest.mark.parametrize("name", sorted(shipped_scenarios()))
def test_every_shipped_scenario_loads_and_resolves(name: str, tmp_path: Path) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert reread(tmp_path, scenario) == scenario


def test_the_papers_scenario_is_the_papers_cluster() -> None:
    # Song et al., CVPR 2021, section 4: up to 32 machines, 2 P100 each, 10 Gbit/s, 2048 images.
    scenario = load_scenario("alexnet_32node")
    assert scenario.node_counts == (1, 2, 4, 8, 16, 32)
    assert scenario.cluster.workers == 64
    assert scenario.batch_size * scenario.cluster.workers == 2048
    assert scenario.cluster.network.bandwidth == Fraction(10**10, 8)
    assert scenario.cluster.collectives.transport == "gloo"
    assert (scenario.buckets.first, scenario.buckets.cap) == (2**20, 25 * 2**20)
    kinds = [choice.kind for choice in scenario.compressors]
    assert kinds[0] == "none"
    paper = {"gradient_sampling_bayes", "cser", "qsparse_local_sgd", "dgc", "ef_block_sgdm"}
    assert paper < set(kinds)
    assert len(set(kinds)) == 10
    chosen = {choice.kind: choice.parameters for choice in scenario.compressors}
    assert chosen["gradient_sampling_bayes"]["tau"] == 100
    assert chosen["gradient_sampling_bayes"]["alpha"] == 0.9
    for kind in ("gradient_sampling_bayes", "topk", "dgc"):
        assert chosen[kind]["ratio"] == 0.01
    assert chosen["qsparse_local_sgd"]["ratio"] == 0.08


_WORDS = st.sampled_from(
    ["name", "model", "alexnet", "batch_size", "cluster", "nodes", "compressors", "topk", "kind",
     "network", "10gbe", "gradients", "source", "live", "1", "-1", "0.5", "10 Gbit/s", "", "null",
     ".nan", "label", "ratio", "device", "seed", "[1, 2]", "{a: 1}", "true", "x:y", "like", "ddp",
     "bucket", "servers", "per_node", "compute", "forward", "5 ms", "trace", "*a", "&a", "<<", "é"]
)  # fmt: skip
_VALUES = st.recursive(
    _WORDS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(_WORDS, inner, max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs.items()) + "}"
        )
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.tuples(_WORDS, _VALUES), max_size=8))
def test_any_small_file_loads_or_is_refused_as_input(
    tmp_path: Path, lines: list[tuple[str, str]]
) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in lines)
    found = "loaded"
    try:
        load(tmp_path, text)
    except InputError as error:
        found = " ".join(problem.place for problem in error.problems)
    assert found == "loaded" or all("a.yaml" in place for place in found.split())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key_path=st.lists(_WORDS | st.sampled_from(["0", "1", "2", "-1"]), min_size=1, max_size=3),
    value=_VALUES,
)
def test_any_option_is_taken_or_refused_as_input(
    tmp_path: Path, key_path: list[str], value: str
) -> None:
    try:
        scenario = load(tmp_path, GOOD, f"{'.'.join(key_path)}={value}")
    except InputError:
        return  # and nothing but InputError
    assert reread(tmp_path, scenario) == scenario


def choosing(collectives: str) -> str:
    return changed("collectives: {transport: gloo}", f"collectives: {{{collectives}}}")


@pytest.mark.parametrize("transport", ["textbook", "gloo", "nccl", "mpich"])
def test_what_is_not_named_the_transport_chooses(
    tmp_path: Path, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = load(tmp_path, choosing(f"transport: {transport}")).cluster.collectives
    assert (chosen.transport, chosen.all_reduce, chosen.all_gather) == (transport, "auto", "auto")
    chosen = load(
        tmp_path, choosing(f"transport: {transport}, all_reduce: ring")
    ).cluster.collectives
    assert (chosen.all_reduce, chosen.all_gather) == ("ring", "auto")
    assert not caplog.records


def test_parts_of_choices_name_them(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GOOD, "cluster.collectives.all_reduce=tree")
    assert "is not a choice; there are binomial_tree, double_tree, nccl_nvls_tree_simple," in found


def test_a_library_s_algorithm_can_be_named(tmp_path: Path) -> None:
    text = choosing("all_reduce: nccl_tree_ll128, all_gather: gloo_ring")
    collectives = load(tmp_path, text).cluster.collectives
    assert (collectives.all_reduce, collectives.all_gather) == ("nccl_tree_ll128", "gloo_ring")
    found = problems(tmp_path, choosing("all_reduce: nccl_tree"))
    assert (
        "error: cluster.collectives.all_reduce = 'nccl_tree': is not a choice; did you" in found[0]
    )


CUT = "only pipelined rings (all_gather) and double_tree (all_reduce) cut messages"


@pytest.mark.parametrize(
    ("collectives", "expected"),
    [
        (
            "transport: textbook, pipeline_block: 64 KiB",
            "a.yaml:14:54: warning: cluster.collectives.pipeline_block has no effect with "
            "transport 'textbook', all_reduce 'auto' and all_gather 'auto'; " + CUT,
        ),
        (
            "transport: gloo, pipeline_block: 64 KiB, all_reduce: ring",
            "a.yaml:14:50: warning: cluster.collectives.pipeline_block has no effect with "
            "transport 'gloo', all_reduce 'ring' and all_gather 'auto'; " + CUT,
        ),
        (
            "transport: nccl, all_reduce: ring, all_gather: ring",
            "a.yaml:14:28: warning: cluster.collectives.transport = 'nccl' has no effect: "
            "all_reduce and all_gather name their algorithms; leave them out, or write auto",
        ),
        ("pipeline_block: 32 KiB", ""),  # the default
        ("pipeline_block: 64 KiB, all_gather: pipelined_ring", ""),
        ("pipeline_block: 64 KiB, all_gather: pipelined_ring_sync", ""),
        ("pipeline_block: 64 KiB, all_reduce: double_tree", ""),
        ("pipeline_block: 64 KiB, transport: mpich", ""),
        ("transport: gloo, all_reduce: ring, all_gather: ring", ""),  # copies through the host
        ("transport: mpich, all_reduce: ring", ""),
    ],
)
def test_a_setting_without_effect_is_a_warning(
    tmp_path: Path, collectives: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, choosing(collectives))
    said = [record.getMessage().replace(f"{tmp_path}/", "") for record in caplog.records]
    assert said == ([expected] if expected else [])


def test_a_shipped_trace_is_found_by_its_name_and_a_folder_of_that_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "package" / "resnet-early"
    shipped.mkdir(parents=True)
    monkeypatch.setattr(
        "gcsim.scenarios.sections.workload.shipped_traces", lambda: {shipped.name: shipped}
    )
    text = changed("{source: live, workers: 2}", "{source: recorded, trace: resnet-early}")
    assert load(tmp_path, text).gradients == RecordedGradients(trace=shipped, workers=None)
    (tmp_path / "resnet-early").mkdir()
    own = load(tmp_path, text).gradients
    assert own == RecordedGradients(trace=tmp_path / "resnet-early", workers=None)
    (found,) = problems(tmp_path, text.replace("resnet-early", "resnet-erly"))
    assert "did you mean 'resnet-early'" in found


# --- text that no file, table or terminal should get ---------------------------------------------


@pytest.mark.parametrize("character", ["\\0", "\\e", "\\r", "\\x7f", "\\x9b", "\\ud800"])
@pytest.mark.parametrize(
    "setting",
    [
        'description="a{}"',
        'name="a{}"',
        'model="a{}:b"',
        'cluster.device="./a{}.yaml"',
        'cluster.network="./a{}.yaml"',
        'cluster.network.name="a{}"',
        'compressors=[{{kind: topk, label: "a{}"}}]',
        'compressors=["a{}:B"]',
        'gradients={{source: recorded, trace: "a{}"}}',
        'cluster={{"a{}": 1}}',
    ],
)
def test_control_characters_and_halves_of_characters_are_refused(
    tmp_path: Path, setting: str, character: str
) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    with pytest.raises(InputError, match="is not allowed in text; leave it out") as refusal:
        load_scenario(tmp_path / "a.yaml", [setting.format(character)])
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("setting", ["compressors.1.label", "cluster.network.name"])
def test_what_stands_in_a_table_is_one_line(tmp_path: Path, setting: str) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    with pytest.raises(InputError, match="is not a single line"):
        load_scenario(tmp_path / "a.yaml", {setting: '"a\\nb"'})


@pytest.mark.parametrize("key", ["<name>", "<mapping>", "<table>", "[key]"])
def test_a_key_may_be_called_anything_and_is_unknown(tmp_path: Path, key: str) -> None:
    (said,) = problems(tmp_path, f'{GOOD}"{key}": 1\n')
    assert f"unknown key '{key}'" in said


@pytest.mark.parametrize("name", ["...yaml", "a b.yaml", "a\x1b.yaml", "-.yaml"])
def test_a_files_name_is_held_to_what_a_name_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(GOOD.replace("name: small\n", ""))
    with pytest.raises(InputError, match="cannot be the name of the results folder; state name: "):
        load_scenario(tmp_path / name)
    assert load_scenario(tmp_path / name, ["name=mine"]).name == "mine"


# --- every problem has a way out -----------------------------------------------------------------

ODD = [
    None, True, -1, 0, 1, 2.5, 10**30, 1e308, "", "x", "10 Gbit/s", "-1 us", "0x10", "3 days",
    [], [1], {}, {"a": 1}, "10gbe", {"like": "10gbe"}, {"3": "1gbe"}, {"3": 2}, {"batch": "1 s"},
    {"variation": 1}, {"nodes": 2, "uplink": "10gbe"}, {"int8": "1 GB/s"},
    [{"node": 0, "at": "1 s"}], "3/2", "1/0", ".inf", "5 ms", "nccl", "custom", "none", "dedicated",
    "3 dedicated", "side",
    {"bandwidth": "50 Mbit/s", "latency": "2 ms", "shared": True, "name": "air"},
]  # fmt: skip


def ways(data: Any, way: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """To each value of a document."""
    inner = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in inner:
        yield (*way, key)
        if isinstance(value, dict | list):
            yield from ways(value, (*way, key))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_mutated_scenario_reads_back_or_each_of_its_problems_has_a_suggestion(
    tmp_path: Path, data: st.DataObject
) -> None:
    (tmp_path / "full.yaml").write_text(FULL)
    files = {**shipped_scenarios(), "full": tmp_path / "full.yaml"}
    file = files[data.draw(st.just("full") | st.sampled_from(sorted(files)))]
    body = read_file(file).data if data.draw(st.booleans()) else resolved_of(file)
    body = copy.deepcopy(body)
    *way, key = data.draw(st.sampled_from(sorted(ways(body), key=str)))
    holder = body
    for step in way:
        holder = holder[step]
    change = data.draw(st.sampled_from(["delete", "rename", "replace", "replace"]))
    if change == "replace":
        holder[key] = data.draw(st.sampled_from(ODD))
    else:
        value = holder.pop(key)
        if change == "rename" and isinstance(holder, dict):
            holder[f"{key}x"] = value
    without: list[str] | None = None
    try:
        scenario = load(tmp_path, write(body))
    except InputError as error:
        without = [str(problem) for problem in error.problems if not problem.hint]
    if without is not None:
        assert without == []
        return
    assert replace(reread(tmp_path, scenario), name=scenario.name) == scenario
    for nodes in scenario.node_counts:
        assert scenario.cluster_at(nodes).nodes == nodes
        scenario.training_at(nodes)


@functools.cache
def resolved_of(path: Path) -> Any:
    return load_scenario(path).resolved


@pytest.mark.parametrize(
    "key",
    [
        ("model",), ("batch_size",), ("cluster",), ("compressors",),
        ("cluster", "nodes"), ("cluster", "device"), ("cluster", "network"),
        ("compressors", 1, "kind"),
    ],
)  # fmt: skip
def test_a_missing_key_is_shown_with_a_value_that_is_taken(
    tmp_path: Path, key: tuple[str | int, ...]
) -> None:
    body: Any = read_file(shipped_scenarios()["lenet_2node"]).data
    body["compressors"] = ["none", {"kind": "topk"}]
    holder = body
    for step in key[:-1]:
        holder = holder[step]
    del holder[key[-1]]
    (tmp_path / "a.yaml").write_text(write(body))
    with pytest.raises(InputError) as refusal:
        load_scenario(tmp_path / "a.yaml")
    (problem,) = refusal.value.problems
    assert problem.message.startswith(f"key '{key[-1]}' is missing")
    name, _, value = problem.hint.removeprefix("write ").partition(": ")
    assert name == key[-1]
    load_scenario(tmp_path / "a.yaml", {".".join(map(str, key)): value})
