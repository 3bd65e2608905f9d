"""`training.strategy: zero1` in a scenario: refusals with their lines, methods that are left out, a
run's rows, and advice."""

from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gcsim.analysis.timeline import chrome_trace
from gcsim.cli.app import app
from gcsim.compressors.registry import REGISTRY, check_parameters
from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.advice.per_bucket import plan
from gcsim.scenarios.advice.question import Words, ask
from gcsim.scenarios.checks.conflicts import has_optimizer
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.run import run
from gcsim.scenarios.scenario import CompressorChoice
from tests.scenarios.files import check_mistake, load, problems, warnings

SCENARIO = """
model: lenet
batch_size: 8
gradients: {source: synthetic, iterations: 1}
cluster: {nodes: 2, device: v100, network: 1gbe, collectives: {transport: nccl}}
training: {strategy: zero1}
compressors: [none, fp16, {kind: topk, ratio: 0.01}]
"""
PARAMETERS = 61_706  # LeNet's


def test_fsdp_is_the_third_stage_and_others_are_refused(tmp_path: Path) -> None:
    scenario = load(tmp_path, SCENARIO.replace("zero1", "fsdp"))
    assert scenario.training.strategy == "zero3"
    training: Any = scenario.resolved["training"]
    assert training["strategy"] == "zero3"
    check_mistake(tmp_path, SCENARIO.replace("zero1", "zero"), "a.yaml:6:22: error: training.strat")


def test_a_smaller_cluster_of_a_sweep_has_its_own_memory(tmp_path: Path) -> None:
    """Two workers hold halves of the state and eight eighths: a row has the memory of a run of that
    size alone."""
    text = SCENARIO.replace("zero1", "zero3")
    both = run(load(tmp_path, text, "cluster.nodes=[2, 8]"), cache=False).rows
    alone = run(load(tmp_path, text), cache=False).rows
    assert [row.device_memory_low_bytes for row in both if row.nodes == 2] == [
        row.device_memory_low_bytes for row in alone
    ]
    assert (both[1].device_memory_low_bytes or 0) < (both[0].device_memory_low_bytes or 0)


@pytest.mark.parametrize(
    ("override", "other"),
    [
        ("training.local_steps=4", "training.local_steps"),
        ("cluster.collectives={transport: gloo, servers: 2}", "cluster.collectives.servers"),
        ("training.concurrent_collectives=2", "training.concurrent_collectives"),
        (
            "training.faults={horizon: 1 h, restart: 1 s, deaths: [{node: 0, at: 1 min}]}",
            "training.faults",
        ),
    ],
)
def test_what_it_does_not_go_with_is_refused(tmp_path: Path, override: str, other: str) -> None:
    found = problems(tmp_path, SCENARIO, override)
    assert found[0].startswith(f"a.yaml:6:22: error: training.strategy = 'zero1' with {other}: ")
    assert found[0].endswith("; leave one of the two out")
    assert not load(tmp_path, SCENARIO, override, "training.strategy=ddp").left_out


def test_methods_with_the_optimizers_state_are_those_with_momentum_or_local_steps() -> None:
    """Named by their papers: 1-bit Adam, DGC's momentum correction, local SGD and what has both."""
    kinds = {
        name
        for name in REGISTRY
        if has_optimizer(CompressorChoice(
            kind=name, label=name, parameters=check_parameters(name, {}).model_dump()
        ))
    }  # fmt: skip
    assert kinds == {
        "dgc", "signum", "ef_block_sgdm", "onebit_adam", "count_sketch", "local_sgd", "diloco",
        "qsparse_local_sgd", "cser", "csea", "cser_pl", "torch_post_local_sgd",
    }  # fmt: skip


def test_such_methods_are_left_out_and_alone_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = SCENARIO.replace("fp16,", "onebit_adam, cser,")
    scenario = load(tmp_path, text)
    assert [choice.kind for choice in scenario.compressors] == ["none", "topk"]
    why = "training.strategy=zero1 cannot shard"
    text = f"onebit_adam, cser: {why} their own optimizer state"
    assert scenario.left_out == (text,)
    (warning,) = warnings(tmp_path, caplog)
    assert warning == f"a.yaml:7:21: warning: {text}; left out"
    alone = SCENARIO.replace("none, fp16, {kind: topk, ratio: 0.01}", "onebit_adam")
    check_mistake(tmp_path, alone, f"a.yaml:7:15: error: onebit_adam: {why} its own ")
    result = CliRunner().invoke(app, ["run", str(tmp_path / "a.yaml")])
    assert result.exit_code == 2


def test_a_division_of_nothing_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, SCENARIO)
    assert not warnings(tmp_path, caplog)
    load(tmp_path, SCENARIO, "cluster.nodes=1")
    load(tmp_path, SCENARIO, "training.optimizer_state=none")
    alone, stateless = warnings(tmp_path, caplog)
    assert "'zero1' has no effect: one worker has the whole optimizer" in alone
    assert "'zero1' has no effect on memory: the optimizer has no state" in stateless


def test_a_run_takes_longer_in_each_world_and_sends_the_same_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two workers sends half of LeNet's weights, at 1 Gbit/s or less: 1 ms or more."""
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "a.yaml"
    path.write_text(SCENARIO)
    sharded = run(load_scenario(path))
    whole = run(load_scenario(path, ["training.strategy=ddp"]))
    for one, other in zip(sharded.rows, whole.rows, strict=True):
        assert one.iteration_s - other.iteration_s > 4 * PARAMETERS / 2 / 125e6
        worlds = zip(one.iteration_draws_s, other.iteration_draws_s, strict=True)
        assert all(longer > shorter for longer, shorter in worlds)
        assert one.wire_bytes_per_worker == other.wire_bytes_per_worker
        assert one.compression_ratio == other.compression_ratio
        assert one.decode_s == pytest.approx(other.decode_s, abs=2e-12)
        assert (one.device_memory_low_bytes or 0) < (other.device_memory_low_bytes or 0)
    assert chrome_trace(sharded).count('"gather of weights, bucket 0"') == 2 * len(sharded.rows)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("setting", ["training.strategy=zero1", "training.between=nodes"])
def test_a_method_for_each_bucket_is_changed_once(setting: str) -> None:
    """The faster of two methods for all buckets takes what it takes in a run."""
    words = Words(model="resnet50", device="v100", nodes=2, gpus=2, network="10 Gbit/s")
    engine = Engine(ask(None, words, ["uncertainty.draws=0", setting]))
    by_label = {choice.label: choice for choice in engine.scenario.compressors}
    found = plan(engine, [by_label["dense"], by_label["fp16"]])
    assert found is not None
    rows = engine.rows((), ["fp16"]) or {}
    assert found.alone.iteration_s == min(row.iteration_s for row in rows.values())


def test_a_state_of_the_whole_gradient_is_left_out_where_gradients_are_sharded(
    tmp_path: Path,
) -> None:
    """Top-k's residual is as long as the gradient; inside nodes it is that of a rank's part."""
    text = SCENARIO.replace("nodes: 2", "nodes: 2, devices_per_node: 2")
    methods = "[none, qsgd, topk, powersgd, signum]"
    for strategy, kept, named in (
        ("zero2", ["none", "qsgd"], "memory of the whole gradient"),
        ("zero3", ["none", "qsgd"], "memory of the whole gradient"),
        ("hsdp", ["none", "qsgd", "topk"], "matrices"),
    ):
        scenario = load(tmp_path, text.replace("zero1", strategy), f"compressors={methods}")
        assert [choice.kind for choice in scenario.compressors] == kept
        assert any(named in reason for reason in scenario.left_out)
        assert any("signum" in reason and "own optimizer state" in reason
                   for reason in scenario.left_out)  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "override", "other"),
    [
        ("zero3", "training.overlap=none", "training.overlap"),
        ("zero3", "training.encode_on=side", "training.encode_on"),
        ("zero2", "training.input={batch: 1 ms}", "training.input"),
        ("zero2", "cluster.collectives.transport=mpich", "cluster.collectives.transport"),
        ("hsdp", "cluster.nodes=2", "cluster"),
        ("hsdp", "cluster.devices_per_node=1", "cluster"),
    ],
)
def test_what_sharded_weights_do_not_go_with_is_refused(
    tmp_path: Path, strategy: str, override: str, other: str
) -> None:
    found = problems(tmp_path, SCENARIO.replace("zero1", strategy), override)
    assert f"a.yaml:6:22: error: training.strategy = {strategy!r} with {other}: " in found[0]


@pytest.mark.parametrize(
    ("strategy", "override", "hint"),
    [
        ("zero1", "training.gathered=int8", "write strategy: zero3, or zero2"),
        (
            "zero2",
            "training.secondary=true",
            "with several nodes of several devices, as many in each",
        ),
        (
            "zero3",
            "training.secondary=true",
            "with several nodes of several devices, as many in each",
        ),
    ],
)
def test_weights_that_nobody_gathers_so_are_refused(
    tmp_path: Path, strategy: str, override: str, hint: str
) -> None:
    (found,) = problems(tmp_path, SCENARIO.replace("zero1", strategy), override)
    assert f"with strategy {strategy}: it does not gather weights that way" in found
    assert found.endswith(hint)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("strategy", ["zero2", "zero3", "hsdp"])
def test_a_run_with_sharded_weights(tmp_path: Path, strategy: str) -> None:
    """Each node's NIC of 1 Gbit/s carries at least half of all gradients, and weights unless they
    are gathered inside nodes; all in each of the worlds."""
    path = tmp_path / "a.yaml"
    path.write_text(SCENARIO.replace("nodes: 2", "nodes: 2, devices_per_node: 2"))
    result = run(load_scenario(path, [f"training.strategy={strategy}"]))
    weights = {"zero2": 1, "zero3": 1, "hsdp": 0}[strategy]
    for row, width in zip(result.rows, (4, 2), strict=False):
        assert row.wire_bytes_per_worker == width * PARAMETERS
        assert row.iteration_s > (4 * weights + width) * PARAMETERS / 2 / 125e6
        assert min(row.iteration_draws_s) > (4 * weights + width) * PARAMETERS / 2 / 125e6
    trace = chrome_trace(result)
    assert "gather of weights, bucket 0" in trace
    assert ("reduce-scatter, bucket 0" in trace) == (result.rows[0].label == "dense")


def test_advice_says_how_to_shard_with_fsdp() -> None:
    """Names and arguments are PyTorch's."""
    words = ["advise", "--model", "gpt2", "--device", "a100", "--nodes", "2", "--gpus", "2", "-q"]
    words += ["--network", "10gbe", "--precision", "bf16", "--set", "compressors=[none, fp16]"]
    said = CliRunner().invoke(app, [*words, "--set", "training.strategy=hsdp"]).output
    assert 'init_device_mesh("cuda", (2, 2), mesh_dim_names=("nodes", "gpus"))' in said
    assert "param_dtype=torch.bfloat16, reduce_dtype=torch.float16" in said
    assert "fully_shard(module, mesh=mesh, mp_policy=types, reshard_after_forward=True)" in said
    assert "all state sharded inside nodes (HSDP)" in said
    assert "ddp_hook" not in said
    copied = ["training.strategy=zero3", "training.secondary=true", "training.gathered=fp8"]
    options = [word for one in [*copied, "training.checkpointing=full"] for word in ("--set", one)]
    words[2] = "gpt2_medium"
    said = CliRunner().invoke(app, [*words, *options]).output
    assert "fully_shard(module, mp_policy=types, reshard_after_forward=2)" in said
    assert "model.layers = torch.nn.ModuleList(map(checkpoint_wrapper, model.layers))\n" in said
    assert "# weights in fp8: torchao's enable_fsdp_float8_all_gather" in said
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    assert {"mesh", "mp_policy", "reshard_after_forward"} <= {*signature(fully_shard).parameters}
    assert {"param_dtype", "reduce_dtype"} <= {*signature(MixedPrecisionPolicy).parameters}
    assert {"set_all_reduce_hook", "set_custom_reduce_scatter"} <= {*dir(FSDPModule)}


def test_advice_says_how_to_shard_the_optimizer() -> None:
    words = ["advise", "--model", "resnet50", "--device", "v100", "--nodes", "4", "--network"]
    words += ["25gbe", "-q", "--set", "compressors=[none, fp16]"]
    said = CliRunner().invoke(app, [*words, "--set", "training.strategy=zero1"]).output
    assert (
        "optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=lr)" in said
    )
    assert "optimizer sharded (ZeRO-1)" in said
    assert "ZeroRedundancyOptimizer" not in CliRunner().invoke(app, words).output
