"""NICs per node, and switches that add: settings of a scenario and their mistakes."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.advice.question import Words, ask
from gcsim.scenarios.reading.document import write
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import execute
from tests.scenarios.files import load, problems, warnings

RACK = """\
name: rack
model: lenet
batch_size: 32
gradients: {workers: 2, warmup_steps: 1, iterations: 1, device: cpu}
cluster:
  nodes: 2
  devices_per_node: 8
  nics_per_node: 8
  device: h100_sxm
  network: infiniband_ndr
  intra_node: nvlink4
compressors: [none]
"""
REDUCE = CollectiveRecord(kind="all_reduce", sent=(1 << 26,), element=4)
MERGE = CollectiveRecord(kind="tree_merge", sent=(1 << 26,), pulled=1 << 26)


def seconds(record: CollectiveRecord, on: Cluster) -> int:
    return int(execute(record, np.zeros(on.workers, dtype=np.int64), on).max())


def test_eight_nics_are_one_of_their_sum(tmp_path: Path) -> None:
    rack = load(tmp_path, RACK).cluster
    one = load(tmp_path, RACK, "cluster.nics_per_node=1").cluster
    wide = replace(one, network=replace(one.network, bandwidth=8 * one.network.bandwidth))
    assert seconds(REDUCE, rack) == seconds(REDUCE, wide) < seconds(REDUCE, one)
    assert write(load(tmp_path, write(load(tmp_path, RACK).resolved)).resolved) == write(
        load(tmp_path, RACK).resolved
    )


@pytest.mark.parametrize("network", ["infiniband_ndr", "{like: 25gbe, flow: 5 Gbit/s}"])
def test_a_message_of_its_own_has_one_nic(tmp_path: Path, network: str) -> None:
    text = RACK.replace("infiniband_ndr", network)
    rack, one = (load(tmp_path, text, f"cluster.nics_per_node={nics}").cluster for nics in (8, 1))
    assert seconds(MERGE, rack) == seconds(MERGE, one)


def test_a_rail_optimised_fabric_is_a_rack_of_all_its_leaves_uplinks(tmp_path: Path) -> None:
    """Eight leaves with an uplink for each NIC hold nothing up, and are one of eight times the rate
    to a collective of eight NICs; a message of its own has one of them, as its NIC."""
    rails = "cluster.racks={nodes: 1, uplink: infiniband_ndr, uplinks: 8}"
    flat, full = (load(tmp_path, RACK, *more).cluster for more in ((), (rails,)))
    assert full.racks is not None
    up = full.racks.uplink
    one = replace(full, racks=replace(full.racks, uplinks=1))
    wide = replace(
        one, racks=replace(full.racks, uplinks=1, uplink=replace(up, bandwidth=8 * up.bandwidth))
    )
    assert seconds(REDUCE, wide) == seconds(REDUCE, full) < seconds(REDUCE, one)
    assert seconds(REDUCE, full) == seconds(REDUCE, flat) + up.latency_ps
    assert seconds(MERGE, one) == seconds(MERGE, full) == seconds(MERGE, flat) + 2 * up.latency_ps
    again = load(tmp_path, write(load(tmp_path, RACK, rails).resolved)).cluster
    assert again == full


def test_other_transports_use_one_nic_and_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, RACK)
    assert not warnings(tmp_path, caplog)
    found = load(tmp_path, RACK, "cluster.collectives.transport=gloo").cluster
    assert found.network == catalog.link("infiniband_ndr", "gloo")
    assert any("cluster.nics_per_node has no effect" in one for one in warnings(tmp_path, caplog))


@pytest.mark.parametrize(
    ("device", "bus", "network", "nics", "used"),
    [
        ("v100", "nvlink2", "100gbe", 16, 8),  # a GPU's 12 GB/s: the one NIC of 12.5
        ("v100", "nvlink2", "50gbe", 16, None),  # two of 6.25
        ("v100", "nvlink2", "50gbe", 17, 16),
        ("a100_sxm_80gb", "nvlink3", "200gbe_roce", 8, None),  # DGX A100
        ("a100_sxm_80gb", "nvlink3", "200gbe_roce", 10, 8),
        ("h100_sxm", "nvlink4", "100gbe_roce", 32, None),  # p5.48xlarge: 32 of 100 Gbit/s
        ("h100_sxm", "nvlink4", "200gbe_roce", 16, None),  # p5en.48xlarge
        ("h100_sxm", "nvlink4", "infiniband_ndr", 9, 8),
        ("l4", "pcie4_x16", "100gbe", 17, 16),
        ("b200", "nvlink5", "infiniband_ndr", 32, None),  # a GB200's GPUs reach NICs past PCIe
        ("p40", "pcie3_x16", "100gbe", 32, None),  # the catalogue knows no bus of it
    ],
)
def test_nics_without_a_channel_are_a_warning(
    tmp_path: Path, device: str, bus: str, network: str, nics: int, used: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Machines as sold have none; the lanes' 12, 24 and 48 GB/s are NCCL's own figures."""
    text = RACK.replace("h100_sxm", device).replace("nvlink4", bus)
    text = text.replace("infiniband_ndr", network).replace("node: 8\n  dev", f"node: {nics}\n  dev")
    load(tmp_path, text)
    found = [line for line in warnings(tmp_path, caplog) if "NCCL's channels" in line]
    assert [line.partition("NCCL's channels use only ")[2].split(",")[0] for line in found] == (
        [] if used is None else [str(used)]
    )
    assert all(line.startswith("a.yaml:8:18: warning: cluster.nics_per_node") for line in found)


def test_only_nccl_searches_for_channels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nine NICs are one more than fills eight boards' lanes."""
    chosen = "cluster.collectives={transport: custom, all_reduce: ring, all_gather: ring}"
    load(tmp_path, RACK, "cluster.nics_per_node=9", chosen)
    assert not [line for line in warnings(tmp_path, caplog) if "NCCL" in line]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "intra_node: nvlink4",
            "intra_node: nvlink4\n  collectives: {all_reduce: nccl_collnet_simple}",
            "sums: cluster.network: {like: infiniband_ndr, switch_adds: 1}",
        ),
        ("nics_per_node: 8", "nics_per_node: 0", "a.yaml:8:18: error: cluster.nics_per_node = 0"),
        ("nics_per_node: 8", "nics_per_node: 33", "cluster.nics_per_node = 33: must be at most 32"),
        (
            "nics_per_node: 8",
            "collectives: {all_reduce: nccl_collnet_simple}",
            "a.yaml:8:29: error: cluster.collectives.all_reduce = 'nccl_collnet_simple': no switch "
            "of cluster.network (infiniband_ndr) sums; nccl_ring_simple, or a link whose switch "
            "sums: cluster.network: {like: infiniband_ndr, switch_adds: 1}",
        ),
        (
            "intra_node: nvlink4",
            "intra_node: pcie5_x16\n  collectives: {all_reduce: nccl_nvls_simple}",
            "no switch of cluster.intra_node (pcie5_x16) sums; nccl_ring_simple, or a link whose "
            "switch sums: cluster.intra_node: nvlink4",
        ),
        (
            "intra_node: nvlink4",
            "intra_node: nvlink3\n  collectives: {all_gather: nccl_nvls_simple}",
            "cluster.collectives.all_gather = 'nccl_nvls_simple': no switch of cluster.intra_node",
        ),
        (
            "intra_node: nvlink4",
            "intra_node: nvlink4\n  collectives: {all_gather: nccl_nvls_simple}",
            "NCCL has it between nodes if their network sums (SHARP) and, for a gather, if each",
        ),
        (
            "network: infiniband_ndr",
            "network: 5g_measured",
            "cluster.nics_per_node: error: 8 NICs per node on",
        ),
        (
            "network: infiniband_ndr",
            "network: {like: 400gbe_roce, switch_adds: 1}",
            "a.yaml:10:45: error: cluster.network.switch_adds with 400gbe_roce, which has no "
            "SHARP, NCCL's sums in switches between nodes; leave it out, or write network: "
            "{like: infiniband_ndr, switch_adds: 1}",
        ),
        (
            "intra_node: nvlink4",
            "intra_node: {like: nvlink4, switch_adds: 2}",
            "cluster.intra_node.switch_adds",
        ),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert expected in "\n".join(problems(tmp_path, RACK.replace(old, new)))


@pytest.mark.parametrize(
    ("device", "bus", "devices", "hint"),
    [
        ("a100_sxm_80gb", "nvlink3", 8, "a device whose link sums, such as h100_sxm"),
        ("a40", "pcie4_x16", 8, "a device whose link sums, such as h100_sxm"),
        ("gtx_1080_ti", "pcie3_x16", 8, "a device whose link sums, such as h100_sxm"),
        ("b200", "pcie5_x16", 8, "a link whose switch sums: cluster.intra_node: nvlink5"),
        ("h100_sxm", "pcie5_x16", 1, "several devices in a node, whose switch sums"),
    ],
)
def test_what_would_have_a_switch_that_adds_is_a_link_of_the_board(
    tmp_path: Path, device: str, bus: str, devices: int, hint: str
) -> None:
    """The catalogue's `bus` of each device; NVLS is of Hopper's boards and later ones."""
    text = RACK.replace("h100_sxm", device).replace(
        "devices_per_node: 8", f"devices_per_node: {devices}"
    )
    chosen = f"intra_node: {bus}\n  collectives: {{all_reduce: nccl_nvls_simple}}"
    (found,) = problems(tmp_path, text.replace("intra_node: nvlink4", chosen))
    assert found.endswith(f"sums; nccl_ring_simple, or {hint}")


@pytest.mark.parametrize(
    ("device", "link", "own"),
    [
        ("v100", "nvlink4", "v100 has nvlink2; write nvlink2"),
        ("mi300x", "nvlink4_ideal", "mi300x has xgmi; write xgmi"),
        ("h100_sxm", "xgmi", "h100_sxm has nvlink4; write nvlink4"),
        ("a800_sxm_80gb", "nvlink3", "a800_sxm_80gb has nvlink_8_links; write nvlink_8_links"),
        (
            "rtx_4090",
            "nvlink4",
            "rtx_4090 has pcie4_host; write pcie4_host, or a bridge's own figures: "
            "{like: nvlink3, bandwidth: 56 GB/s}",
        ),
        (
            "v100",
            "{like: nvlink2, switch_adds: 0.5}",
            "v100 has nvlink2, whose switch does not sum; write nvlink2",
        ),
    ],
)
def test_a_board_has_no_link_of_another(tmp_path: Path, device: str, link: str, own: str) -> None:
    text = RACK.replace("h100_sxm", device).replace("intra_node: nvlink4", f"intra_node: {link}")
    name = "nvlink2, changed" if link.startswith("{") else link
    assert problems(tmp_path, text) == [f"a.yaml:11:15: error: cluster.intra_node = {name}: {own}"]


def test_boards_on_pcie_with_a_bridge_or_of_a_group_have_their_own(tmp_path: Path) -> None:
    """PCIe fits every board, figures of one's own any, and groups name their own place."""
    for device, link in (
        ("h100_sxm", "pcie5_x16"),
        ("rtx_3090", "{like: nvlink3, bandwidth: 56 GB/s}"),
        ("h100_sxm", "nvlink4_ideal"),
        ("p40", "nvlink3"),  # the catalogue knows no bus of it
    ):
        text = RACK.replace("h100_sxm", device).replace("node: nvlink4", f"node: {link}")
        assert load(tmp_path, text).cluster.crosses_intra_node
    alike = "  nodes: 2\n  devices_per_node: 8\n  nics_per_node: 8\n  device: h100_sxm\n"
    groups = """  devices_per_node: 8
  groups:
    - {nodes: 1, device: h100_sxm, intra_node: nvlink4}
    - {nodes: 1, device: v100, intra_node: nvlink4}
"""
    text = RACK.replace(alike, groups).replace("  intra_node: nvlink4\n", "")
    assert problems(tmp_path, text) == [
        "a.yaml:9:44: error: cluster.groups.1.intra_node = nvlink4: v100 has nvlink2; write nvlink2"
    ]


def test_one_box_needs_neither_nodes_nor_a_network() -> None:
    box = ask(None, Words(model="gpt2", device="h100", gpus=8), called=str).scenario.cluster
    assert (box.nodes, box.devices_per_node, box.intra_node.name) == (1, 8, "nvlink4")
    with pytest.raises(InputError, match="nodes: error: missing"):
        ask(None, Words(model="gpt2", device="h100", gpus=8, network="25gbe"), called=str)
    rack = ask(None, Words(model="gpt2", device="h100", gpus=8, nodes=2, nics=8, network="25gbe"))
    assert rack.scenario.cluster.network.bandwidth == Fraction(25 * 10**9)
