"""Groups of unlike nodes in a scenario: settings, mistakes, batches, memory, ranges, result."""

from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import pytest

from gcsim.analysis.report.table import bottleneck
from gcsim.scenarios import catalog
from gcsim.scenarios.result import Result
from gcsim.scenarios.run import run
from gcsim.simulator.devices.step_time import step_time
from gcsim.traces.models.table import table_facts
from tests.scenarios.files import load, problems, replaced, reread, warnings

GROUPS = """\
model: resnet20_cifar10
batch_size: 64
gradients: {source: synthetic}
cluster:
  network: 25gbe
  groups:
    - {nodes: 1, device: a100_sxm_80gb, devices_per_node: 2, intra_node: nvlink3}
    - {nodes: 2, device: v100, devices_per_node: 2, network: 10gbe}
compressors: [none, fp16]
uncertainty: {draws: 0}
"""
ONE = """\
model: resnet20_cifar10
batch_size: 64
gradients: {source: synthetic}
cluster: {nodes: 3, devices_per_node: 2, device: v100, network: 25gbe, nics_per_node: 2}
compressors: [none]
"""
AS_GROUP = replaced(
    ONE,
    "{nodes: 3, devices_per_node: 2, device: v100, network: 25gbe, nics_per_node: 2}",
    "{network: 25gbe, groups: [{nodes: 3, devices_per_node: 2, device: v100, nics_per_node: 2}]}",
)


def test_groups_become_nodes_in_order_with_their_own_links(tmp_path: Path) -> None:
    cluster = load(tmp_path, GROUPS).cluster
    assert [(group.nodes, group.device.name) for group in cluster.groups] == [
        (1, "a100_sxm_80gb"),
        (2, "v100"),
    ]
    assert (cluster.nodes, cluster.workers, cluster.ranks_of_groups) == (3, 6, (2, 4))
    assert [cluster.nic(node).name for node in range(3)] == ["25gbe", "10gbe", "10gbe"]
    inside = [cluster.buses.get(node, cluster.intra_node).name for node in range(3)]
    assert inside == ["nvlink3", "nvlink2", "nvlink2"]
    # NCCL's ranks agree on the least: its tuner sees the slow group's links
    assert (cluster.network.name, cluster.intra_node.name) == ("10gbe", "nvlink2")


@pytest.mark.parametrize(
    ("devices", "transport", "inside"),
    [(2, "nccl", ["nvlink4", "nvlink2"]), (2, "gloo", ["pcie3_x16"] * 2),
     (1, "nccl", ["pcie3_x16"] * 2)],
)  # fmt: skip
def test_several_devices_of_a_node_have_their_own_bus_with_nccl(
    tmp_path: Path, devices: int, transport: str, inside: list[str]
) -> None:
    """Their catalogue entries name it (`bus`), as in `gcsim advise`; copies to the host cross
    PCIe."""
    nodes = f"nodes: 1, devices_per_node: {devices}, network: 25gbe"
    collectives = f"collectives: {{transport: {transport}}}"
    head = ONE.partition("cluster:")[0] + "compressors: [none]\n"
    alike = f"cluster: {{device: h100_sxm, {nodes}, {collectives}}}\n"
    groups = f"groups: [{{device: h100_sxm, {nodes}}}, {{device: v100, {nodes}}}]"
    unlike = f"cluster: {{{groups}, {collectives}}}\n"
    assert load(tmp_path, head + alike).cluster.intra_node.name == inside[0]
    cluster = load(tmp_path, head + unlike).cluster
    assert [cluster.buses.get(node, cluster.intra_node).name for node in range(2)] == inside


def test_one_group_is_a_cluster_without_groups(tmp_path: Path) -> None:
    plain, grouped = load(tmp_path, ONE), load(tmp_path, AS_GROUP)
    assert grouped == plain
    assert grouped.resolved == plain.resolved


def test_the_resolved_groups_load_to_the_same(tmp_path: Path) -> None:
    for more in ((), ("cluster.batch=by_speed",), ("cluster.groups.1.batch_size=16",)):
        scenario = load(tmp_path, GROUPS, *more)
        again = reread(tmp_path, scenario)
        assert again.resolved == scenario.resolved
        assert again.cluster == scenario.cluster


def test_a_device_of_a_file_stands_in_a_group(tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text("devices: {mine: {like: v100, title: Mine}}\n")
    (tmp_path / "nic.yaml").write_text("links: {nic: {like: 10gbe, latency: 80 us}}\n")
    text = replaced(GROUPS, "device: v100", "device: gpu.yaml")
    text = replaced(text, "network: 10gbe", "network: nic.yaml")
    scenario = load(tmp_path, text)
    assert scenario.cluster.groups[1].device.title == "Mine"
    assert scenario.cluster.nic(2).latency == Fraction(80, 10**6)
    assert scenario.files["cluster.groups.1.device"] == str(tmp_path / "gpu.yaml")
    assert reread(tmp_path, scenario).cluster == scenario.cluster


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "network: 25gbe\n",
            "network: 25gbe\n  device: v100\n",
            "a.yaml:6:3: error: cluster.device with groups: each group has its own device; move "
            "it into the groups, or leave cluster.groups out",
        ),
        ("{nodes: 2, ", "{", "a.yaml:8:7: error: cluster.groups.1: key 'nodes' is missing; write"),
        ("{nodes: 2, ", "{nodes: 0, ", "a.yaml:8:15: error: cluster.groups.1.nodes = 0 is not a n"),
        ("device: v100, ", "", "a.yaml:8:7: error: cluster.groups.1: key 'device' is missing"),
        (
            "device: v100",
            "devic: v100",
            "a.yaml:8:18: error: unknown key 'devic' in cluster.groups.1; did you mean 'device'?",
        ),
        ("device: v100", "device: v10", "cluster.groups.1.device: unknown device 'v10';"),
        (
            "device: a100_sxm_80gb",
            "device: a10_sxm",
            "a.yaml:7:26: error: cluster.groups.0.device: unknown",
        ),
        (
            "intra_node: nvlink3",
            "nics_per_node: 40",
            "a.yaml:7:77: error: cluster.groups.0.nics_per_node = 40: must be at most 32; write "
            "32, or leave it out for 1",
        ),
        (
            "network: 25gbe",
            "network: {like: 25gbe, latncy: 9 us}",
            "a.yaml:5:26: error: unknown key 'latncy' in cluster.network",
        ),
        (
            "{nodes: 2, ",
            "{nodes: 2, nic: 3, ",
            "a.yaml:8:18: error: unknown key 'nic' in cluster.groups.1",
        ),
        ("device: v100", "device: cpu_2core", "error: cluster.groups: CPUs and GPUs have no"),
        (
            "compressors:",
            "compute: {forward: 1 ms, backward: 2 ms}\ncompressors:",
            "a.yaml:9:10: error: compute is for one device, but the groups have several; leave",
        ),
        (
            "compressors:",
            "training: {faults: {horizon: 9 s, restart: 1 s, deaths: [{node: 1, at: 2 s}]}}\n"
            "compressors:",
            "error: training.faults with cluster.groups; leave one of the two out",
        ),
        (
            "network: 10gbe}",
            "network: 10gbe, batch_size: 8}\n  batch: by_speed",
            "a.yaml:8:81: error: cluster.groups.1.batch_size with by_speed; leave one of the two",
        ),
        (
            "network: 25gbe\n",
            "network: 25gbe\n  batch: by_rank\n",
            "a.yaml:6:10: error: cluster.batch = 'by_rank'",
        ),
    ],
)
def test_mistakes_have_a_place_and_a_way_out(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    (found,) = problems(tmp_path, replaced(GROUPS, old, new))
    assert expected in found


SIZES = replaced(GROUPS, "v100, devices_per_node: 2", "v100, devices_per_node: 8")


def test_nodes_of_groups_have_their_own_numbers_of_devices(tmp_path: Path) -> None:
    scenario = load(tmp_path, SIZES)
    cluster = scenario.cluster
    assert (cluster.sizes, cluster.workers, cluster.ranks_of_groups) == ((2, 8, 8), 18, (2, 16))
    assert [cluster.node_of(rank) for rank in range(18)] == [0] * 2 + [1] * 8 + [2] * 8
    assert cluster.devices == "1 x 2 a100_sxm_80gb + 2 x 8 v100"
    assert reread(tmp_path, scenario).cluster == cluster
    row = result(tmp_path, "cluster.groups.1.devices_per_node=8").rows[0]
    assert row.workers == 18
    assert row.throughput_samples_per_s == pytest.approx(18 * 64 / row.iteration_s)
    # the bus of a node with one device carries no collective: the tuner sees the other's NVLink
    one = load(tmp_path, SIZES, "cluster.groups.1.devices_per_node=1").cluster
    assert (one.sizes, one.intra_node.name, one.buses[1].name) == (
        (2, 1, 1),
        "nvlink3",
        "pcie3_x16",
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("cluster.collectives.all_reduce=hierarchical", "'hierarchical' with different numbers of"),
        ("training.between=nodes", "with cluster.groups (different numbers of devices per node)"),
        ("training.strategy=hsdp", "with cluster.groups: its nodes have different numbers of dev"),
    ],
)
def test_nodes_of_unlike_size_have_no_parts_of_equal_size(
    tmp_path: Path, override: str, expected: str
) -> None:
    (found,) = problems(tmp_path, SIZES, override)
    assert expected in found


def test_a_setting_of_all_groups_that_each_of_them_states_is_no_silent_change(
    tmp_path: Path,
) -> None:
    """In a file it may stand as the default of a group to come; a change of it changes nothing."""
    own = "network: 40gbe, devices_per_node"
    text = replaced(GROUPS, "devices_per_node: 2, intra", f"{own}: 2, intra")
    assert load(tmp_path, text).cluster.nic(0).name == "40gbe"
    for change in ("cluster.network=1gbe", "cluster.network.bandwidth=1 Gbit/s"):
        (found,) = problems(tmp_path, text, change)
        assert "cluster.network: every group has its own; change that of a group" in found
    assert load(tmp_path, GROUPS, "cluster.network=1gbe").cluster.nic(0).name == "1gbe"


def test_groups_are_a_list_and_one_group_has_the_scenarios_batch(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, ONE, "cluster={groups: {nodes: 4}}")
    assert "cluster.groups is not a list of groups of nodes; write a list: groups: [{" in found
    (found,) = problems(tmp_path, AS_GROUP, "cluster.groups.0.batch_size=8")
    assert "cluster.groups.0.batch_size: there is only one group; write it as batch_size" in found


def test_a_node_costs_the_mean_of_its_group_and_the_others(tmp_path: Path) -> None:
    """One A100 node at 20 and two V100 nodes at 8 are 36 an hour, of three nodes."""
    own = ("cluster.groups.0.per_hour=20", "cluster.groups.1.per_hour=8")
    for more in (own, (own[0], "cost.per_hour=8"), ("cost.per_hour=20", own[1])):
        scenario = load(tmp_path, GROUPS, *more)
        assert scenario.cost_per_hour == pytest.approx(36 / 3)
        assert reread(tmp_path, scenario).cost_per_hour == scenario.cost_per_hour
    row = result(tmp_path, *own).rows[0]
    assert row.cost_per_1000_iterations == pytest.approx(36 * row.iteration_s * 1000 / 3600)
    assert load(tmp_path, GROUPS).cost_per_hour is None


def test_a_price_beside_groups_that_all_have_their_own_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = ("cluster.groups.0.per_hour=20", "cost.per_hour=8")
    load(tmp_path, GROUPS, *own)
    assert not warnings(tmp_path, caplog)
    load(tmp_path, GROUPS, *own, "cluster.groups.1.per_hour=8")
    (found,) = warnings(tmp_path, caplog)
    assert "cost.per_hour has no effect: each of cluster.groups has its own" in found


def test_a_group_without_a_price_beside_one_with_its_own_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GROUPS, "cluster.groups.0.per_hour=20")
    assert "a.yaml:8:7: error: cluster.groups.1: key 'per_hour' is missing; write the" in found
    (found,) = problems(tmp_path, AS_GROUP, "cluster.groups.0.per_hour=20")
    assert "cluster.groups.0.per_hour: there is only one group; write it as cost.per_hour" in found
    (found,) = problems(
        tmp_path, GROUPS, "cluster.groups.0.per_hour=0", "cluster.groups.1.per_hour=8"
    )
    assert "cluster.groups.0.per_hour = 0: must be greater than 0" in found


def test_nics_beyond_the_fewest_and_a_batch_without_groups_are_idle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, GROUPS, "cluster.groups.1.nics_per_node=4")
    load(tmp_path, ONE, "cluster.batch=by_speed")
    few, idle = warnings(tmp_path, caplog)
    assert "nics_per_node = 4 has no effect: in all nodes, NCCL uses the number of" in few
    assert "cluster.batch = 'by_speed' has no effect: there are no groups" in idle


def test_the_device_that_is_filled_most_decides_what_fits(tmp_path: Path) -> None:
    text = replaced(GROUPS, "resnet20_cifar10", "llama3_8b")
    text = replaced(text, "batch_size: 64", "batch_size: 1")
    found = problems(tmp_path, text)
    assert "of the 16 GiB of v100" in found[0]
    # with a batch twenty times as large the A100's 80 GiB are fuller than the V100's 16
    small = replaced(text, "llama3_8b", "gpt2_medium")
    usual, large = (
        load(tmp_path, small, "training.optimizer_state=none", *more)
        for more in ((), ("cluster.groups.0.batch_size=20",))
    )
    assert usual.tightest(usual.compressors[0])[0] == "v100"
    assert large.tightest(large.compressors[0])[0] == "a100_sxm_80gb"


def result(folder: Path, *overrides: str) -> Result:
    return run(load(folder, GROUPS, *overrides), cache=False)


def test_batches_by_speed_keep_the_samples_and_end_together(tmp_path: Path) -> None:
    layer = "{name: a.weight, shape: [64, 3, 11, 11], forward_flops: 300000000}"
    text = (f"model={{name: wide, layers: [{layer}]}}",)
    equal, by_speed = (
        result(tmp_path, *text, f"cluster.batch={how}") for how in ("equal", "by_speed")
    )
    before, after = (one.provenance["groups"] for one in (equal, by_speed))
    scenario = load(tmp_path, GROUPS, *text)
    model = table_facts(scenario.model, 64)
    # a worker's share: 64 samples of all workers in proportion to what each computes a second
    speeds = [1 / step_time(model, catalog.device(d)).seconds for d in ("a100_sxm_80gb", "v100")]
    expected = [round(64 * 3 * speed / (speeds[0] + 2 * speeds[1])) for speed in speeds]
    assert [one["batch_size"] for one in before] == [64, 64]
    assert [one["batch_size"] for one in after] == expected
    assert abs(expected[0] + 2 * expected[1] - 3 * 64) <= 1
    spread = [one["forward_s"] + one["backward_s"] for one in after]
    assert max(spread) / min(spread) < 1.05 < before[1]["backward_s"] / before[0]["backward_s"]
    assert by_speed.rows[0].iteration_s < equal.rows[0].iteration_s
    (slow,), (even,) = bottleneck(equal), bottleneck(by_speed)
    assert slow.startswith("Bottleneck: v100 nodes compute ")
    assert "cluster.batch=by_speed narrows that" in slow
    assert even.startswith("Bottleneck: none, all groups' passes take equally long (batches: ")


@pytest.mark.parametrize(("batch", "narrows"), [(1, False), (2, True)])
def test_batches_by_speed_are_offered_where_whole_samples_differ(batch: int, narrows: bool) -> None:
    """Devices of speeds 4 and 3 on a node each: of 2 samples 1.1 and 0.9 are 1 each; of 4 of speeds
    4 and 1, 3.2 and 0.8 are 3 and 1."""
    slower = 4 / 3 if batch == 1 else 4.0
    groups = [
        {
            "device": name,
            "workers": 1,
            "batch_size": batch,
            "forward_s": time,
            "backward_s": 0.0,
            "slowdown": 1.0,
        }
        for name, time in (("b200", 1.0), ("h100", slower))
    ]
    scenario = {"cluster": {"batch": "equal"}}
    told = Result(scenario=scenario, provenance={"groups": groups}, rows=(), wall={})
    (said,) = bottleneck(told)
    assert said.startswith("Bottleneck: h100 nodes compute ")
    assert said.endswith("; cluster.batch=by_speed narrows that.") is narrows


def test_the_bottleneck_is_the_slowest_worker_of_all_groups(tmp_path: Path) -> None:
    """The V100's passes take less than twice the A100's, so the A100 that takes 4 times as long is
    last; smaller batches on the V100 make it later still."""
    found = result(tmp_path, "training.slow_workers={1: 4}")
    fast, slow = found.provenance["groups"]
    longer = 4 / (
        (slow["forward_s"] + slow["backward_s"]) / (fast["forward_s"] + fast["backward_s"])
    )
    (said,) = bottleneck(found)
    expected = (
        f"the slowest a100_sxm_80gb worker computes {longer:.3g}x as long as the slowest v100 one"
    )
    assert said.startswith(f"Bottleneck: {expected}, which waits")
    assert "by_speed" not in said


def test_a_row_counts_every_groups_samples(tmp_path: Path) -> None:
    for change, workers, samples in (
        ((), 6, 6 * 64),
        (("cluster.groups.1.batch_size=16",), 6, 2 * 64 + 4 * 16),
        (("cluster.groups.1.devices_per_node=4", "cluster.groups.1.device=k80"), 10, 10 * 64),
    ):
        found = result(tmp_path, *change)
        row = found.rows[0]
        assert row.workers == workers == sum(one["workers"] for one in found.provenance["groups"])
        assert row.throughput_samples_per_s * row.iteration_s == pytest.approx(samples)
        # of what the devices compute alone: each group's samples over its own passes
        alone = sum(
            one["workers"] * one["batch_size"] / (one["forward_s"] + one["backward_s"])
            for one in found.provenance["groups"]
        )
        assert row.scaling_efficiency == pytest.approx(
            row.throughput_samples_per_s / alone, rel=0.05
        )


def test_each_groups_figures_have_ranges_of_their_own(tmp_path: Path) -> None:
    found = run(load(tmp_path, GROUPS, "uncertainty.draws=16"), cache=False)
    names = {one.name for one in found.inputs}
    assert "the time of forward and backward (v100)" in names
    (row, _) = found.rows
    assert row.iteration_low_s is not None
    assert row.iteration_high_s is not None
    assert row.iteration_low_s < row.iteration_s < row.iteration_high_s


def test_groups_of_one_kind_have_the_rows_of_the_cluster(tmp_path: Path) -> None:
    kind = "{devices_per_node: 2, device: v100, nodes: "
    two = replaced(AS_GROUP, "{nodes: 3, devices_per_node: 2, device: v100, nics_per_node: 2}",
                   f"{kind}1}}, {kind}2}}")  # fmt: skip
    plain = replaced(ONE, ", nics_per_node: 2", "")
    found, expected = (
        run(load(tmp_path, text, "uncertainty.draws=16"), cache=False) for text in (two, plain)
    )
    for row, other in zip(found.rows, expected.rows, strict=True):
        for one in fields(row):
            assert getattr(row, one.name) == getattr(other, one.name), one.name
