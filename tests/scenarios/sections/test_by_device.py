"""A scenario without a transport has that of its device, everywhere, and says which."""

from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest

from gcsim.scenarios import catalog
from gcsim.scenarios.advice.question import Words, ask
from gcsim.scenarios.load import load_scenario, shipped_scenarios
from gcsim.scenarios.reading.document import read_file
from gcsim.scenarios.sections.link import carrier
from gcsim.simulator.cluster import TransportName
from tests.scenarios.files import load, reread

TEXT = """\
model: lenet
batch_size: 8
gradients: {source: synthetic}
cluster: {nodes: 2, device: DEVICE, network: 10gbe}
compressors: [none]
"""


@pytest.mark.parametrize("device", sorted(catalog.devices()))
def test_a_scenario_and_advice_take_the_devices_transport(tmp_path: Path, device: str) -> None:
    usual = "gloo" if catalog.device(device).processor == "cpu" else "nccl"
    scenario = load(tmp_path, TEXT.replace("DEVICE", device))
    advised = ask(None, Words(model="lenet", device=device, nodes=2, network="10gbe")).scenario
    for cluster in (scenario.cluster, advised.cluster):
        assert cluster.collectives.transport == usual
        assert cluster.network == catalog.link("10gbe", usual)
    assert reread(tmp_path, scenario).cluster == scenario.cluster


@pytest.mark.parametrize("device", ["v100", "cpu_2core"])
@pytest.mark.parametrize(
    "transport", [name for name in get_args(TransportName) if name != "custom"]
)
def test_every_transport_can_be_asked_for(tmp_path: Path, device: str, transport: str) -> None:
    text = TEXT.replace("DEVICE", device)
    scenario = load(tmp_path, text, f"cluster.collectives.transport={transport}")
    assert scenario.cluster.collectives.transport == transport
    assert scenario.resolved["cluster"]["collectives"]["transport"] == transport  # type: ignore[index]


def test_a_device_of_a_file_has_a_transport_and_links_of_files_are_as_it_finds_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.yaml").write_text("devices:\n  mine: {like: cpu_2core, title: Mine}\n")
    (tmp_path / "link.yaml").write_text("links:\n  mine: {like: 25gbe, overhead: 1 us}\n")
    text = TEXT.replace("DEVICE", "mine.yaml").replace("10gbe", "link.yaml")
    cluster = load(tmp_path, text).cluster
    assert cluster.collectives.transport == "gloo"
    assert cluster.network.latency == catalog.link("25gbe", "gloo").latency
    assert cluster.network.latency != catalog.link("25gbe").latency


@pytest.mark.parametrize("name", sorted(shipped_scenarios()))
def test_a_shipped_scenario_keeps_the_transport_that_it_states(name: str) -> None:
    path = shipped_scenarios()[name]
    stated = read_file(path, name).data["cluster"].get("collectives", {}).get("transport")
    device = load_scenario(path).cluster.device
    usual = "gloo" if device.processor == "cpu" else "nccl"
    assert load_scenario(path).cluster.collectives.transport == (stated or usual)


@pytest.mark.parametrize("name", sorted(Path("scenarios/papers/scenarios").glob("*.yaml")))
def test_scenarios_of_papers_name_their_transport(name: Path) -> None:
    """Their predictions are compared with print: no default may change them."""
    assert "transport" in read_file(name, name.name).data["cluster"]["collectives"]


@pytest.mark.parametrize("name", sorted(catalog.links()))
def test_networks_of_the_catalogue_are_carried_by_sockets_or_rdma(name: str) -> None:
    in_a_node = name.startswith(("pcie", "nvlink", "xgmi", "host_memory"))
    remote = any(word in name for word in ("roce", "infiniband", "efa"))
    wire = "" if in_a_node else " over RDMA" if remote else " over TCP"
    assert carrier("nccl", name) == f"NCCL{wire}"
    assert carrier("nccl", f"{name}, changed") == f"NCCL{wire}"
    assert carrier("gloo", name) == "Gloo over TCP"


@pytest.mark.parametrize("nics", [1, 2])
@pytest.mark.parametrize(("network", "widest"), [("25gbe", 2), ("25gbe_roce", Fraction(4, 3))])
def test_ncclls_choice_between_ring_and_tree_is_less_sure_over_tcp(
    tmp_path: Path, network: str, widest: Fraction, nics: int
) -> None:
    text = TEXT.replace("10gbe", network).replace("DEVICE", "v100")
    found = load(tmp_path, text, f"cluster.nics_per_node={nics}").cluster.collectives
    assert found.ring_over_tree_range == (1 / Fraction(widest), widest)
    named = load(tmp_path, text, "cluster.collectives.all_reduce=nccl_ring_simple")
    assert named.cluster.collectives.ring_over_tree_range is None
