"""What a result says of its numbers is what they are: links, kernel rates, training times."""

import json
from pathlib import Path
from typing import Any

import pytest

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.scenarios import catalog
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.reading.document import write
from gcsim.scenarios.running.provenance import provenance
from gcsim.scenarios.running.simulate import Stage2
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.passes import measured_passes
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import training_times
from gcsim.traces.profile import Layer, ModelFacts
from tests.scenarios.files import load
from tests.simulator.traffic import traffic

TEXT = """\
model: lenet
batch_size: 16
cluster: {nodes: 2, device: p100_pcie, network: 10gbe}
compressors: [none]
"""


def facts_of(scenario: Scenario, model: str = "lenet") -> dict[str, Any]:
    facts = ModelFacts(
        name=model,
        parameters=10,
        layers=(Layer(name="all", parameters=(0,), forward_flops=1_000_000),),
        samples_per_worker=scenario.batch_size,
    )
    piece = TensorSlice(index=0, name="w", shape=(10,), offset=0)
    layout = BucketLayout(index=0, slices=(piece,))
    profile = traffic(
        compressor="none", gradients={"source": "live"}, model=facts, buckets=(layout,), phases=()
    )
    measured = measured_passes(scenario, profile)
    compute = training_times(facts, (layout,), scenario.cluster.device, measured)
    prices = PriceList(scenario.cluster.device)
    found = provenance(Stage2(scenario, [profile], {"stated": compute}, prices), ["key"], [[]])
    assert json.loads(json.dumps(found, allow_nan=False)) == found  # plain values
    return found


# --- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "calibration"),
    [
        ("pcie3_x16", "measured"),  # 12.15 GB/s, all of it: no framing is taken off
        ("10gbe", "estimate"),
        ("10gbe_ideal", "ideal"),
        ("{bandwidth: 10 Gbit/s, latency: 50 us}", "stated"),
        ("{name: my_ideal, bandwidth: 10 Gbit/s, latency: 50 us}", "stated"),
        ("{name: pcie3_x16, bandwidth: 99 GB/s, latency: 10 us}", "stated"),
        ("{like: pcie3_x16, latency: 1 us}", "stated"),
        ("{like: 10gbe, bandwidth: 5 Gbit/s}", "estimate"),
        ("{like: 10gbe_ideal, name: 10gbe_ideal, bandwidth: 5 Gbit/s}", "estimate"),
    ],
)
def test_a_link_is_called_what_it_is_also_when_its_resolved_file_is_run(
    tmp_path: Path, link: str, calibration: str
) -> None:
    scenario = load(tmp_path, TEXT, f"cluster.network={link}")
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(write(scenario.resolved), encoding="utf-8")
    for loaded in (scenario, load_scenario(resolved)):
        assert facts_of(loaded)["links"]["network"]["calibration"] == calibration


def test_every_link_of_the_catalogue_is_measured_estimated_or_ideal(tmp_path: Path) -> None:
    for name, link in catalog.links().items():
        found = facts_of(load(tmp_path, TEXT, f"cluster.network={name}"))["links"]["network"]
        wanted = "estimate" if link.estimate else "measured"
        assert found["calibration"] == ("ideal" if name.endswith("_ideal") else wanted)


# --- the device's coefficients -------------------------------------------------------------------


def test_every_kernel_class_stands_with_the_rates_that_priced_it(tmp_path: Path) -> None:
    scenario = load(tmp_path, TEXT)
    classes = facts_of(scenario)["kernels"]["classes"]
    assert set(classes) == set(scenario.cluster.device.kernels)
    for kind, rate in scenario.cluster.device.kernels.items():
        assert classes[kind] == {
            "source": rate.source,
            "estimate": rate.estimate,
            "launch_s": rate.launch,
            "bandwidth_bytes_per_s": rate.bandwidth,
            "flop_rate_per_s": rate.flop_rate,
        }
    # As devices.yaml has them: matmul 5 us, 443.8 GB/s, 8.63 TFLOP/s; a wait has a launch alone.
    matmul, wait = classes["matmul"], classes["host_sync"]
    assert (matmul["launch_s"], matmul["bandwidth_bytes_per_s"]) == (5e-6, 443.8e9)
    assert matmul["flop_rate_per_s"] == 8.63e12
    assert wait["bandwidth_bytes_per_s"] is wait["flop_rate_per_s"] is None


def test_forward_and_backward_follow_from_the_rate_beside_them(tmp_path: Path) -> None:
    compute = facts_of(load(tmp_path, TEXT, "model=alexnet"), "alexnet")["compute"]
    assert (compute["fixed_s"], compute["per_sample_s"]) == (3.3381e-3, 375.06e-6)
    total = compute["fixed_s"] + 16 * compute["per_sample_s"]  # a batch of 16
    assert compute["forward_s"] + compute["backward_s"] == pytest.approx(total, abs=1e-11)
    ratio = compute["backward_s"] / compute["forward_s"]
    assert ratio == pytest.approx(compute["backward_over_forward"], rel=1e-8)


def test_a_model_without_a_rate_names_the_flop_rate_instead(tmp_path: Path) -> None:
    compute = facts_of(load(tmp_path, TEXT))["compute"]
    # three passes over 16 samples of 1 MFLOP
    total = 3 * 16 * 1e6 / compute["effective_flop_rate_per_s"]
    assert compute["forward_s"] + compute["backward_s"] == pytest.approx(total, abs=1e-11)
    assert "fixed_s" not in compute


def test_the_users_own_times_stand_without_the_catalogues_rates(tmp_path: Path) -> None:
    measured = "compute={forward: 5 ms, backward: 10 ms}"
    compute = facts_of(load(tmp_path, TEXT, "model=alexnet", measured), "alexnet")["compute"]
    assert (compute["forward_s"], compute["backward_s"]) == (0.005, 0.01)
    assert set(compute) == {"source", "estimate", "forward_s", "backward_s"}


# --- topology, randomness, estimates -------------------------------------------------------------

EVERY_LINK = (
    "cluster.nodes=8",
    "cluster.nics={1: 1gbe, 2: {bandwidth: 5 Gbit/s, latency: 9 us}, 5: 1gbe}",
    "cluster.racks={nodes: 4, uplink: 10gbe_ideal}",
    "cluster.collectives={transport: gloo, servers: dedicated, server_network: 40gbe}",
)


def test_every_link_in_use_has_its_source(tmp_path: Path) -> None:
    links = facts_of(load(tmp_path, TEXT, *EVERY_LINK))["links"]
    assert list(links) == ["network", "nics", "rack_uplink", "intra_node", "server_network"]
    one, five = links["nics"]
    assert (one["nodes"], one["name"], one["calibration"]) == ([1, 5], "1gbe", "estimate")
    assert one["source"] == catalog.link("1gbe", "gloo").source
    assert (five["nodes"], five["name"], five["calibration"]) == ([2], "custom", "stated")
    assert links["rack_uplink"]["calibration"] == "ideal"
    assert links["server_network"]["name"] == "40gbe"


def test_links_that_nobody_uses_are_not_named(tmp_path: Path) -> None:
    assert list(facts_of(load(tmp_path, TEXT))["links"]) == ["network", "intra_node"]
    on_nodes = EVERY_LINK[3].replace("dedicated", "per_node")
    assert "server_network" not in facts_of(load(tmp_path, TEXT, on_nodes))["links"]


def test_settings_with_estimated_figures_are_listed(tmp_path: Path) -> None:
    estimates = facts_of(load(tmp_path, TEXT, *EVERY_LINK))["estimates"]
    # no compressor has run: kernels that nobody needs are not named
    assert [estimate["setting"] for estimate in estimates] == [
        "cluster.network", "cluster.nics.1", "cluster.nics.5", "cluster.racks.uplink",
        "cluster.collectives.server_network", "compute",
    ]  # fmt: skip
    own = ("compute={forward: 5 ms, backward: 10 ms}", "cluster.network=pcie3_x16")
    assert facts_of(load(tmp_path, TEXT, *own))["estimates"] == []


def test_what_is_random_is_told_with_its_seed(tmp_path: Path) -> None:
    assert facts_of(load(tmp_path, TEXT))["averages"] is None
    jitter = "{like: 10gbe, jitter: {distribution: exponential, mean: 100 us}}"
    averages = facts_of(
        load(tmp_path, TEXT, "training.noise.variation=0.1", "training.iterations=7", "seed=5",
             f"cluster.network={jitter}")
    )["averages"]  # fmt: skip
    assert averages == {
        "iterations": 7, "random": ["cluster.network", "training.noise"],
        "changing_with_time": [], "seed": 5,
    }  # fmt: skip


def test_what_changes_with_time_is_told(tmp_path: Path) -> None:
    up = "{bandwidth: 9 Mbit/s, latency: 18 ms, grant: 2.5 ms}"
    link = f"{{bandwidth: 30 Mbit/s, latency: 7 ms, up: {up}}}"
    averages = facts_of(load(tmp_path, TEXT, f"cluster.network={link}"))["averages"]
    assert (averages["random"], averages["changing_with_time"]) == ([], ["cluster.network"])
