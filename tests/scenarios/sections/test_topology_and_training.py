"""What a file says of topology and training arrives, reads back, and is refused where it is wrong.

Places are counted by hand in `FULL`; every mistake and every warning names its line and column.
"""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.catalog import loops
from gcsim.scenarios.reading.document import write
from gcsim.scenarios.running.keys import profile_key
from gcsim.scenarios.sections.cluster import links_of, random_settings, timed_settings
from gcsim.scenarios.uncertainty.figures import uncertain_inputs
from gcsim.simulator.cluster import Collectives
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.steps.noise import longest
from gcsim.simulator.training import Fault, Faults, InputLoading, Interference, SharedNode, Training
from gcsim.traces.buckets import bucket_layouts
from tests.scenarios.files import check_mistake, load, problems, replaced, reread, warnings

FULL = """\
name: full
model: lenet
batch_size: 32
gradients: {workers: 2, warmup_steps: 1, iterations: 1, device: cpu}
cluster:
  nodes: [2, 8]
  devices_per_node: 2
  device: p100_pcie
  network: 10gbe
  nics: {3: 1gbe, 5: {like: 10gbe, bandwidth: 5 Gbit/s}}
  racks: {nodes: 4, uplink: {like: 10gbe, bandwidth: 20 Gbit/s}}
  intra_node: pcie3_x16
  shared_bus: true
  collectives:
    transport: gloo
    servers: 2 dedicated
    server_network: 40gbe
    host_staging: false
training:
  encode_on: side
  side_slowdown: 1.3
  concurrent_collectives: 2
  optimizer: 3 ms
  accumulation: 4
  input: {batch: 40 ms, prefetch: 3}
  slow_nodes: {3: 1.5, 0: 3/2}
  noise: {distribution: gamma, variation: 0.1, slow_probability: 0.03, slow_factor: 4}
  iterations: 50
  faults: {horizon: 1 h, restart: 30 s, deaths: [{node: 3, at: 10 min, down: 5 min}]}
ddp: {bucket: 64 KiB}
compressors: [none, {kind: topk, ratio: 0.01}, signsgd]
"""
changed = partial(replaced, FULL)
PLAIN = """\
model: lenet
batch_size: 32
cluster:
  nodes: 8
  devices_per_node: 2
  device: p100_pcie
  network: 10gbe
  collectives: {transport: textbook}
compressors: [none]
"""


# --- what arrives --------------------------------------------------------------------------------


def test_the_topology_becomes_the_engines_own_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = load(tmp_path, FULL).cluster
    assert cluster.network == catalog.link("10gbe", "gloo")
    assert list(cluster.nics) == [3, 5]
    assert cluster.nic(3) == catalog.link("1gbe", "gloo")
    assert cluster.nic(5).bandwidth == Fraction(625_000_000)
    assert cluster.nic(4) == cluster.network
    assert cluster.racks is not None
    assert cluster.racks.nodes == 4
    assert cluster.racks.uplink.bandwidth == Fraction(2_500_000_000)
    assert cluster.shared_bus
    assert cluster.collectives == Collectives(
        transport="gloo", servers=2,
        server_hosts="dedicated", server_network=catalog.link("40gbe", "gloo"), host_staging=False,
    )  # fmt: skip
    assert not cluster.collectives.stages
    assert not caplog.records


def test_the_training_becomes_the_engines_own_values(tmp_path: Path) -> None:
    assert load(tmp_path, FULL).training == Training(
        code=loops.code(loops.UNKNOWN),
        exposed_range=(Fraction(0), Fraction(1)),
        reducer=loops.framework("pytorch")[0],
        hook=loops.framework("pytorch")[1],
        interference=loops.interference("gloo"),
        shared_node=loops.shared_node("gloo"),
        encode_on="side",
        side_slowdown=Fraction(13, 10),
        concurrent_collectives=2,
        optimizer=Fraction(3, 1000),
        accumulation=4,
        input=InputLoading(batch=Fraction(1, 25), prefetch=3),
        slow_nodes={3: Fraction(3, 2), 0: Fraction(3, 2)},
        noise=replace(
            loops.workers(),
            distribution="gamma",
            variation=Fraction(1, 10),
            slow_probability=Fraction(3, 100),
            slow_factor=Fraction(4),
        ),
        iterations=50,
        faults=Faults(
            horizon=Fraction(3600),
            restart=Fraction(30),
            deaths=(Fault(node=3, at=Fraction(600), down=Fraction(300)),),
        ),
    )


def test_without_any_of_it_everything_is_as_usual(tmp_path: Path) -> None:
    scenario = load(tmp_path, PLAIN, "training.framework=none", "training.overlap=ddp")
    assert scenario.training == Training(  # what may be, and is not
        overlap="ddp", noise=loops.workers(), code=loops.code(loops.UNKNOWN)
    )
    assert longest(scenario.training.noise, 64) == 1
    assert not load(tmp_path, PLAIN).training.reducer.free  # a framework's code has a price
    assert not scenario.cluster.nics
    assert scenario.cluster.collectives == Collectives()
    assert random_settings(scenario.cluster, scenario.training) == []


def test_a_point_of_the_sweep_has_only_its_own_nodes(tmp_path: Path) -> None:
    first = "[{node: 1, at: 1 s, down: 1 s}, {node: 2, at: 9 s}]"
    scenario = load(
        tmp_path,
        changed("3: 1gbe,", "0: 1gbe, 2: 1gbe,"),
        "training.slow_nodes={1: 2, 2: 4}",
        f"training.faults.deaths={first}",
    )
    assert list(scenario.cluster_at(2).nics) == [0]
    assert scenario.cluster_at(8) == scenario.cluster
    two = scenario.training_at(2)
    assert two.slow_nodes == {1: Fraction(2)}
    assert two.faults is not None
    assert [death.node for death in two.faults.deaths] == [1]
    everywhere = {"slow_nodes": scenario.training.slow_nodes, "faults": scenario.training.faults}
    assert replace(two, **everywhere) == scenario.training  # type: ignore[arg-type]
    assert scenario.training_at(8) == scenario.training


def test_nothing_of_it_makes_a_new_profile(tmp_path: Path) -> None:
    text = "compressors: [none]\nddp: {bucket: 64 KiB}\n" + FULL.split("cluster:", maxsplit=1)[0]
    plain = load(tmp_path, text + "cluster: {nodes: 1, device: p100_pcie, network: 1gbe}\n")
    full = load(tmp_path, FULL)
    assert profile_key(full, full.compressors[0]) == profile_key(plain, plain.compressors[0])
    other = replace(plain, batch_size=8)
    assert profile_key(other, other.compressors[0]) != profile_key(plain, plain.compressors[0])


# --- the resolved file ---------------------------------------------------------------------------

JITTER = "{like: 10gbe, jitter: {distribution: exponential, mean: 100 us}}"
VARIANTS = [
    FULL,
    PLAIN,
    changed("side_slowdown: 1.3", "side_slowdown: 1/3"),
    changed("variation: 0.1", "variation: 1e-9"),
    changed("{batch: 40 ms, prefetch: 3}", "{batch: 1.5 us}"),
    changed(", down: 5 min", ""),
    changed("host_staging: false", "host_staging: true"),
    changed("    host_staging: false\n", ""),
    changed("slow_factor: 4", "slow_factor: 2.7182818284590452354"),
    changed("network: 10gbe\n", f"network: {JITTER}\n"),
    changed("{3: 1gbe,", "{3: {bandwidth: 1 Mbit/s, latency: 3 ms, name: '3'},"),
]


@pytest.mark.parametrize("text", VARIANTS)
def test_the_resolved_file_loads_to_the_same_scenario_and_warns_of_nothing(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    scenario = load(tmp_path, text)
    again = reread(tmp_path, scenario)
    assert replace(again, name=scenario.name) == scenario
    assert again.resolved == scenario.resolved
    assert not caplog.records


DEFAULTS = """
precision: fp32
gradients: fp32
checkpointing: none
flash_attention: true
exposed: 0
exposed_range: [0, 1]
between: workers
strategy: ddp
gathered: stored
secondary: false
on_host: []
local_steps: 1
code: {slowdown: 1, slowdown_range: [0.71, 1.41]}
interference: {computation: 0, bus: 0}
shared_node: {slowdown: 0}
framework:
  reducer: {per_tensor: 15 us, per_tensor_range: [5 us, 35 us], per_bucket: 50 us,
            per_bucket_range: [20 us, 80 us], per_step: 0 s, passes: 4, passes_range: [2, 4]}
  hook: {per_tensor: 20 us, per_tensor_range: [10 us, 50 us], per_bucket: 160 us,
         per_bucket_range: [100 us, 300 us], per_step: 0 s, passes: 8, passes_range: [4, 10]}
encode_on: compute
side_slowdown: 1
concurrent_collectives: 1
optimizer: 0 s
accumulation: 1
noise: {distribution: lognormal, variation: 0, slow_probability: 0, slow_factor: 1, skew: 0,
        skew_range: [0, 0.06]}
iterations: 100
"""


def test_every_default_of_the_training_stands_in_the_resolved_file(tmp_path: Path) -> None:
    assert load(tmp_path, PLAIN).resolved["training"] == yaml.safe_load(DEFAULTS)


def test_what_a_loop_costs_beside_its_passes_is_the_catalogues_or_stated(tmp_path: Path) -> None:
    training = load(tmp_path, PLAIN, "cluster.collectives.transport=nccl").training
    assert training.interference == loops.interference("nccl")
    assert training.interference.bus_range is not None
    usual = tuple(loops.between_nodes(one, "nccl") for one in loops.framework("pytorch"))
    assert (training.reducer, training.hook) == usual
    assert load(tmp_path, PLAIN).training.interference == Interference()  # textbook
    assert training.shared_node == loops.shared_node("nccl")
    assert training.shared_node.slowdown_range is not None
    alone = load(tmp_path, PLAIN, "training.shared_node={slowdown: 0.2}").training
    assert alone.shared_node == SharedNode(slowdown=Fraction(1, 5))
    assert load(tmp_path, PLAIN).training.shared_node == SharedNode()  # textbook
    none = load(tmp_path, PLAIN, "training.framework=none").training
    assert none.hook.free
    assert none.reducer.free
    own = load(
        tmp_path, PLAIN, "training.interference={computation: 0.1, computation_range: [0, 1/4]}",
        "training.framework={hook: {per_bucket: 90 us, per_bucket_range: [80 us, 0.1 ms]}}",
    )  # fmt: skip
    assert own.training.interference == Interference(
        computation=Fraction(1, 10), computation_range=(Fraction(0), Fraction(1, 4))
    )
    assert own.training.hook == replace(
        loops.framework("pytorch")[1],
        per_bucket=Fraction(9, 10**5),
        per_bucket_range=(Fraction(8, 10**5), Fraction(1, 10**4)),
    )
    assert own.training.reducer == loops.framework("pytorch")[0]
    assert load(tmp_path, write(own.resolved)).training == own.training
    [problem] = problems(tmp_path, PLAIN, "training.framework=pytorhc")
    assert "unknown framework 'pytorhc'; did you mean 'pytorch'?" in problem
    [problem] = problems(tmp_path, PLAIN, "training.interference={bus: 2, bus_range: [0, 1]}")
    assert "bus lies outside of bus_range" in problem


def test_by_tensor_is_a_rule_for_buckets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scenario = load(tmp_path, PLAIN, "training.overlap=by_tensor")
    parameters = [("a", (3, 3)), ("b", (1,)), ("c", (5_000_000,))]
    made = bucket_layouts(parameters, first=scenario.buckets.first, cap=scenario.buckets.cap)
    assert [[piece.name for piece in layout.slices] for layout in made] == [["c"], ["b"], ["a"]]
    assert "ddp" not in scenario.resolved
    assert "overlap: by_tensor" in write(scenario.resolved)
    again = load(tmp_path, write(scenario.resolved))
    assert again.buckets == scenario.buckets
    assert not caplog.records
    load(tmp_path, PLAIN, "training.overlap=by_tensor", "ddp.bucket=1 MiB")
    assert "ddp has no effect: training.overlap is by_tensor" in caplog.text


@pytest.mark.parametrize("overlap", ["ddp", "none"])
def test_a_stated_overlap_is_known_and_an_unstated_one_is_not(tmp_path: Path, overlap: str) -> None:
    assert load(tmp_path, PLAIN).training.overlap is None
    scenario = load(tmp_path, PLAIN, f"training.overlap={overlap}")
    assert scenario.training.overlap == overlap
    assert load(tmp_path, write(scenario.resolved)).training.overlap == overlap


@pytest.mark.parametrize(
    ("loop", "transport", "exposed"),
    [
        ("ddp", "nccl", (0, 0.5)), ("horovod", "nccl", (0, 1)), ("horovod", "mpich", (0.5, 1)),
        ("paddle", "nccl", None), ("deepspeed", "nccl", None), ("own", "gloo", None),
    ],
)  # fmt: skip
def test_a_named_loop_says_how_long_exchanges_wait(
    tmp_path: Path, loop: str, transport: str, exposed: Any
) -> None:
    """A stated overlap comes first; Horovod's sums on the host overlap less than NCCL's."""
    text = PLAIN.replace("transport: textbook", f"transport: {transport}")
    scenario = load(tmp_path, text, f"training.loop={loop}")
    found = scenario.training
    assert found.exposed_range == exposed
    if exposed is None:
        assert found.exposed == 1
    assert load(tmp_path, write(scenario.resolved)).training == found
    known = load(tmp_path, text, f"training.loop={loop}", "training.overlap=ddp").training
    assert known.waits == 0
    assert known.exposed_range is None
    with pytest.raises(InputError, match=r"unknown loop 'horovood'.*horovod"):
        load(tmp_path, text, "training.loop=horovood")


def test_one_process_for_all_devices_of_a_node_slows_them_more(tmp_path: Path) -> None:
    text = PLAIN.replace("transport: textbook", "transport: nccl")
    usual = load(tmp_path, text).training.shared_node
    scenario = load(tmp_path, text, "training.shared_node=process_for_all")
    assert scenario.training.shared_node.slowdown > usual.slowdown
    assert load(tmp_path, write(scenario.resolved)).training == scenario.training
    with pytest.raises(InputError, match=r"unknown kind of processes 'one'.*process_each"):
        load(tmp_path, text, "training.shared_node=one")


def test_the_transport_of_a_resolved_file_may_be_changed(tmp_path: Path) -> None:
    text = PLAIN.replace("transport: textbook", "transport: gloo")
    resolved = write(load(tmp_path, text).resolved)
    changed_later = load(tmp_path, resolved, "cluster.collectives.transport=nccl")
    assert not changed_later.cluster.collectives.stages  # what gloo does is not carried over


# --- mistakes ------------------------------------------------------------------------------------

WIFI = "{bandwidth: 50 Mbit/s, latency: 2 ms, shared: true, name: air}"
CELL = "{bandwidth: 50 Mbit/s, latency: 7 ms, up: {bandwidth: 9 Mbit/s, latency: 18 ms}, name: 5g}"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # NICs
        ("{3: 1gbe,", "{8: 1gbe,", "a.yaml:10:10: error: cluster.nics: there is no node 8; nodes "
         "count from 0; the last of 8 is 7"),
        ("{3: 1gbe,", "{x: 1gbe,", "a.yaml:10:10: error: cluster.nics.x: 'x' is not the number of "
         "a node; nodes count from 0"),
        ("{3: 1gbe,", "{3: 1gbee,", "a.yaml:10:13: error: cluster.nics.3: unknown link '1gbee'; "
         "did"),
        ("bandwidth: 5 Gbit/s", "bandwith: 5 Gbit/s", "a.yaml:10:36: error: unknown key 'bandwith' "
         "in cluster.nics.5; did you mean 'bandwidth'?"),
        ("5: {like: 10gbe, bandwidth: 5 Gbit/s}", "5: {bandwidth: 5 Gbit/s}", "a.yaml:10:19: "
         "error: cluster.nics.5: key 'latency' is missing"),
        ("{3: 1gbe, 5: {like: 10gbe, bandwidth: 5 Gbit/s}}", "[1gbe]", "a.yaml:10:9: error: "
         "cluster.nics: must be a mapping"),
        ("{3: 1gbe,", f"{{3: {WIFI},", "a.yaml:10:10: error: cluster.nics.3: air is one medium "
         "for all nodes; it can only be cluster.network"),
        # racks
        ("racks: {nodes: 4,", "racks: {nodes: 0,", "a.yaml:11:18: error: cluster.racks.nodes = 0: "
         "must be at least 1"),
        ("{nodes: 4, uplink: {like: 10gbe, bandwidth: 20 Gbit/s}}", "{nodes: 4}",
         "a.yaml:11:3: error: key 'uplink' is missing in cluster.racks"),
        ("{like: 10gbe, bandwidth: 20 Gbit/s}", "20gbee", "a.yaml:11:29: error: "
         "cluster.racks.uplink: unknown link '20gbee'; "),
        ("{like: 10gbe, bandwidth: 20 Gbit/s}", CELL, "a.yaml:11:21: error: cluster.racks.uplink: "
         "5g is an access link with two different directions; it connects a node"),
        ("intra_node: pcie3_x16", f"intra_node: {WIFI}", "a.yaml:12:3: error: cluster.intra_node: "
         "air is one medium for all nodes"),
        ("{like: 10gbe, bandwidth: 20 Gbit/s}", "{like: 10gbe, grant: 1 ms}", "a.yaml:11:21: "
         "error: cluster.racks.uplink: 10gbe, changed waits for grants, which no switch does; "
         "leave grant out"),
        ("racks: {nodes: 4,", "racks: {nodes: 4, pod: 2,", "a.yaml:11:21: error: cluster.racks.pod "
         "without pod_uplink; write racks.pod_uplink, or leave both out"),
        ("{nodes: 4, uplink: {like: 10gbe, bandwidth: 20 Gbit/s}}", "{nodes: 4, uplinks: 2, uplink:"
         " {trace: {points: [[0 s, 1 Gbit/s], [1 s, 2 Gbit/s]], duration: 2 s, after: hold}, "
         "latency: 1 ms}}",
         "a.yaml:11:30: error: cluster.racks.uplinks = 2: the rate of custom changes over time; "
         "write one uplink with the rates of all"),
        ("racks: {nodes: 4,", "racks: {nodes: 4, uplinks: 0,", "a.yaml:11:30: error: "
         "cluster.racks.uplinks = 0: must be at least 1"),
        ("shared_bus: true", "shared_bus: 1", "a.yaml:13:15: error: cluster.shared_bus = 1: must "
         "be true or false"),
        # collectives
        ("servers: 2 dedicated", "servers: 2 dedicate", "a.yaml:16:14: error: "
         "cluster.collectives.servers: '2 dedicate' is not a number of parameter servers; write a "
         "number, per_node, dedicated (as many machines as nodes) or 2 dedicated"),
        ("servers: 2 dedicated", "server_hosts: dedicated", "a.yaml:16:5: error: unknown key "
         "'server_hosts' in cluster.collectives; did you mean 'servers'?"),
        ("server_network: 40gbe", "server_network: 40gbee", "a.yaml:17:21: error: "
         "cluster.collectives.server_network: unknown link '40gbee'; did you mean '40gbe'?"),
        ("host_staging: false", "host_staging: never", "a.yaml:18:19: error: "
         "cluster.collectives.host_staging = 'never': must be true or false"),
        # training
        ("encode_on: side", "encode_on: sid", "a.yaml:20:14: error: training.encode_on = 'sid': is "
         "not a choice; did you mean 'side'?"),
        ("side_slowdown: 1.3", "side_slowdown: 0", "a.yaml:21:18: error: training.side_slowdown: 0 "
         "must be greater than 0 and at most 1,000,000"),
        ("side_slowdown: 1.3", "side_slowdown: slow", "training.side_slowdown: slow is not a "
         "number or a ratio such as 3/2"),
        ("side_slowdown: 1.3", "side_slowdown: 1/0", "1/0 is not a number or a ratio"),
        ("concurrent_collectives: 2", "concurrent_collectives: 3", "a.yaml:22:27: error: "
         "training.concurrent_collectives = 3: is not a choice; known: 1, 2"),
        ("optimizer: 3 ms", "optimizer: 3", "a.yaml:23:14: error: training.optimizer: 3 has no "
         "unit"),
        ("accumulation: 4", "accumulation: 0", "a.yaml:24:17: error: training.accumulation = 0: "
         "must be at least 1"),
        ("{batch: 40 ms, prefetch: 3}", "{prefetch: 3}", "a.yaml:25:3: error: key 'batch' is "
         "missing in training.input"),
        ("batch: 40 ms", "batch: -1 ms", "a.yaml:25:18: error: training.input.batch: "
         "-1 ms"),
        ("prefetch: 3", "prefetch: 0", "a.yaml:25:35: error: training.input.prefetch = 0: must be "
         "at"),
        ("slow_nodes: {3: 1.5,", "slow_nodes: {9: 1.5,", "a.yaml:26:16: error: "
         "training.slow_nodes: there is no node 9; nodes count from 0; the last of 8 is 7"),
        ("slow_nodes: {3: 1.5,", "slow_nodes: {3: 0,", "a.yaml:26:19: error: "
         "training.slow_nodes.3: 0 must be greater than 0"),
        ("distribution: gamma", "distribution: normal", "a.yaml:27:25: error: "
         "training.noise.distribution = 'normal': is not a choice; did you mean 'lognormal'?"),
        ("variation: 0.1", "variation: -0.1", "training.noise.variation: -0.1 must be at least 0 "
         "and at most 10"),
        ("slow_probability: 0.03", "slow_probability: 2", "training.noise.slow_probability: 2 must "
         "be at least 0 and at most 1"),
        ("slow_factor: 4", "slow_factor: 0", "training.noise.slow_factor: 0 must be greater than "
         "0"),
        ("  iterations: 50", "  iterations: 0", "a.yaml:28:15: error: training.iterations = 0: "
         "must"),
        # faults
        ("  faults:", "  failures: {mtbf: 0 h, restart: 1 min, checkpoint: 1 min}\n  faults:",
         "training.failures.mtbf: 0 h is zero; it must be more; for example 2000 h"),
        ("horizon: 1 h", "horizon: 0 h", "a.yaml:29:21: error: training.faults.horizon: 0 h is "
         "zero"),
        ("horizon: 1 h, ", "", "a.yaml:29:3: error: key 'horizon' is missing in training.faults"),
        ("[{node: 3, at: 10 min, down: 5 min}]", "[]", "a.yaml:29:49: error: "
         "training.faults.deaths: must have at least 1 entry"),
        ("{node: 3, at", "{node: 8, at", "a.yaml:29:57: error: training.faults.deaths.0.node: "
         "there is no node 8; nodes count from 0; the last of 8 is 7"),
        ("at: 10 min", "at: 60 min", "a.yaml:29:64: error: training.faults.deaths.0.at: node 3 "
         "dies after the end of the run; training.faults.horizon is the length of the run"),
        ("down: 5 min}", "down: 5 min}, {node: 3, at: 12 min}", "a.yaml:29:86: error: "
         "training.faults.deaths.1: node 3 dies while it is down; the deaths of a node must not"),
        ("down: 5 min}", "down: 5 min}, {node: 3, at: 9 min}", "a.yaml:29:86: error: "
         "training.faults.deaths.1: node 3 dies while it is down"),
        ("{node: 3, at: 10 min, down: 5 min}", "{node: 1, at: 1 s}, {node: 0, at: 2 s, down: 1 s}",
         "a.yaml:29:70: error: training.faults.deaths.1: with 2 nodes no node is left when node 0 "
         "dies; have fewer nodes down at a time, or leave this cluster size out"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    check_mistake(tmp_path, changed(old, new), expected)


@pytest.mark.parametrize(
    "deaths",
    [
        "[{node: 3, at: 1 min, down: 1 min}, {node: 3, at: 2 min}]",  # back, and again
        "[{node: 1, at: 1 min, down: 1 min}, {node: 0, at: 2 min}]",  # one after the other
        "[{node: 7, at: 0 s}, {node: 6, at: 0 s}, {node: 5, at: 0 s}, {node: 4, at: 0 s}]",
    ],
)
def test_deaths_that_leave_somebody_are_taken(tmp_path: Path, deaths: str) -> None:
    load(tmp_path, FULL, f"training.faults.deaths={deaths}")


def test_nodes_are_counted_at_the_largest_size_and_the_living_at_every_size(tmp_path: Path) -> None:
    assert load(tmp_path, FULL, "cluster.nodes=[4, 6]").cluster.nodes == 6
    assert len(problems(tmp_path, FULL, "cluster.nodes=[2, 4]")) == 1  # the NIC of node 5
    found = problems(tmp_path, FULL, "cluster.nodes=[1, 8]", "training.faults.deaths.0.node=0")
    assert "with 1 node no node is left when node 0 dies" in found[0]


@pytest.mark.parametrize("missing", ["all_reduce", "all_gather"])
def test_a_custom_transport_names_its_algorithms(tmp_path: Path, missing: str) -> None:
    both = {"all_reduce": "ring", "all_gather": "bruck"}
    named = ", ".join(f"{key}: {value}" for key, value in both.items() if key != missing)
    collectives = f"{{transport: custom, {named}}}"
    (found,) = problems(tmp_path, PLAIN, f"cluster.collectives={collectives}")
    assert found.startswith(
        f"--set cluster.collectives: error: cluster.collectives.{missing} = 'auto': the transport "
        "'custom' chooses no algorithm; name one: "
    )
    written = f"{{transport: custom, {missing}: auto, {named}}}"
    text = PLAIN.replace("{transport: textbook}", written)
    column = text.splitlines()[7].index("auto") + 1
    assert problems(tmp_path, text)[0].startswith(f"a.yaml:8:{column}: error: ")
    load(tmp_path, PLAIN, f"cluster.collectives={{transport: custom, {named}, {missing}: ring}}")


def test_a_shared_medium_has_neither_racks_nor_cards(tmp_path: Path) -> None:
    found = problems(tmp_path, changed("network: 10gbe\n", f"network: {WIFI}\n"))
    assert found == [
        "a.yaml:10:3: error: cluster.nics: all nodes share the medium of cluster.network (air), "
        "so no NIC differs; leave one of the two out",
        "a.yaml:11:3: error: cluster.racks: all nodes share the medium of cluster.network (air), "
        "so there are no racks; leave one of the two out",
    ]
    load(tmp_path, PLAIN, f"cluster.network={WIFI}")
    load(tmp_path, PLAIN, f"cluster.network={CELL}", f"cluster.nics={{1: {CELL}}}")


def test_copies_over_a_link_that_changes_with_time_are_refused(tmp_path: Path) -> None:
    text = changed("intra_node: pcie3_x16", "intra_node: {like: pcie3_x16, grant: 1 ms}")
    load(tmp_path, text)  # host_staging: false
    assert problems(tmp_path, text, "cluster.collectives.host_staging=true") == [
        "a.yaml:12:3: error: cluster.intra_node: pcie3_x16, changed changes over time, but "
        "copies between device and host cannot; leave trace and grant out, or set "
        "cluster.collectives.host_staging to false"
    ]


def test_contradictions_stand_beside_other_mistakes(tmp_path: Path) -> None:
    text = changed("{3: 1gbe,", "{9: 1gbe,").replace("ratio: 0.01", "ratio: 2")
    assert [line.split(": error: ")[0] for line in problems(tmp_path, text)] == [
        "a.yaml:10:10", "a.yaml:31:41"
    ]  # fmt: skip


# --- warnings ------------------------------------------------------------------------------------

IDLE = [
    ("racks: {nodes: 4,", "racks: {nodes: 8,", "a.yaml:11:18: warning: cluster.racks.nodes has no "
     "effect: one rack of 8 holds all 8 nodes; make racks smaller than the cluster"),
    ("racks: {nodes: 4,", "racks: {nodes: 4, pod_uplinks: 2,", "a.yaml:11:34: warning: "
     "cluster.racks.pod_uplinks has no effect: there are no pods; write racks.pod and "
     "racks.pod_uplink, or leave it out"),
    ("{3: 1gbe,", "{3: 10gbe,", "a.yaml:10:13: warning: cluster.nics.3 has no effect: it is "
     "10gbe, as cluster.network; leave it out"),
    ("devices_per_node: 2", "devices_per_node: 1", "a.yaml:12:15: warning: cluster.intra_node has "
     "no effect: a node has one device, and nothing is copied through its host; set "
     "cluster.devices_per_node, or leave it out\n"
     "a.yaml:13:15: warning: cluster.shared_bus has no effect: a node has one device, which has "
     "its bus to itself; set cluster.devices_per_node"),
    ("servers: 2 dedicated", "servers: 2", "a.yaml:17:21: warning: "
     "cluster.collectives.server_network has no effect: the servers run on the nodes and use "
     "their NICs; write servers: dedicated"),
    ("transport: gloo", "transport: nccl", "a.yaml:22:27: warning: training.concurrent_collectives "
     "= 2 has no effect: no algorithm here is a ring, and nccl runs all others one by one; write "
     "1, or set all_reduce or all_gather to ring or gloo_ring"),
    ("bucket: 64 KiB", "bucket: 1 MiB", "a.yaml:22:27: warning: training.concurrent_collectives "
     "= 2 has no effect: the gradient (246,824 bytes) is a single bucket; "
     "set ddp.bucket below that, or leave it out\n"
     "a.yaml:30:15: warning: ddp.bucket is above the gradient (246,824 bytes), which is one "
     "bucket; set it below that, or leave it out"),
    (", signsgd", "", "a.yaml:16:14: warning: cluster.collectives.servers has no effect: no "
     "method here pushes to servers; gcsim list compressors names those that do, or set all_reduce "
     "or all_gather to parameter_server"),
    ("encode_on: side", "encode_on: compute", "a.yaml:21:18: warning: training.side_slowdown has "
     "no effect: encoding runs on the compute stream; write encode_on: side"),
    ("{distribution: gamma, variation: 0.1, slow_probability: 0.03, slow_factor: 4}\n  iterations: "
     "50", "{slow_probability: 0}\n  iterations: 100",
     "a.yaml:27:10: warning: training.noise has no effect: variation is 0 and no worker is ever "
     "slow; set variation, or slow_probability and slow_factor"),
    ("slow_probability: 0.03", "slow_probability: 0", "a.yaml:27:82: warning: "
     "training.noise.slow_factor has no effect: slow_probability is 0; set slow_probability"),
    ("slow_factor: 4", "slow_factor: 1", "a.yaml:27:66: warning: training.noise.slow_probability "
     "has no effect: slow_factor is 1; set slow_factor"),
    ("  noise: {distribution: gamma, variation: 0.1, slow_probability: 0.03, slow_factor: 4}\n", "",
     "a.yaml:27:15: warning: training.iterations has no effect: nothing is random or changes with "
     "time, so one iteration is enough; set training.noise, or a link with jitter, sampled loss or "
     "a trace"),
    ("model: lenet", "model: alexnet", "a.yaml:23:14: warning: training.optimizer counts twice: "
     "the measured rate of alexnet on p100_pcie is for whole steps, including the optimiser; give "
     "`compute:` without it, or leave training.optimizer out"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), IDLE)
def test_a_setting_without_effect_is_a_warning(
    tmp_path: Path, old: str, new: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, changed(old, new))
    assert warnings(tmp_path, caplog) == expected.split("\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("side_slowdown: 1.3", "side_slowdown: 1"),
        ("slow_probability: 0.03, slow_factor: 4", "slow_probability: 0, slow_factor: 1"),
        ("slow_nodes: {3: 1.5, 0: 3/2}", "slow_nodes: {3: 1}"),
        ("optimizer: 3 ms", "optimizer: 0 s"),
    ],
)
def test_values_that_mean_nothing_special_are_no_warning(
    tmp_path: Path, old: str, new: str, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, changed(old, new))
    assert not caplog.records


def test_iterations_have_an_effect_where_a_link_is_random_or_timed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for link in ("network", "intra_node"):
        scenario = load(tmp_path, PLAIN, "training.iterations=17", f"cluster.{link}={JITTER}")
        assert random_settings(scenario.cluster, scenario.training) == [("cluster", link)]
    grants = CELL.replace("18 ms", "18 ms, grant: 2.5 ms")
    scenario = load(tmp_path, PLAIN, "training.iterations=7", f"cluster.network={grants}")
    assert timed_settings(scenario.cluster) == [("cluster", "network")]
    assert not caplog.records


def test_an_optimizer_beside_ones_own_measurement_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    measured = "compute={forward: 5 ms, backward: 10 ms}"
    load(tmp_path, changed("model: lenet", "model: alexnet"), measured)
    assert not caplog.records


# --- options and sweeps --------------------------------------------------------------------------


def test_options_reach_every_setting(tmp_path: Path) -> None:
    scenario = load(
        tmp_path,
        PLAIN,
        "training.accumulation=2",
        "training.noise.variation=0.2",
        "training.slow_nodes.3=2",
        "cluster.nics.3=1gbe",
        "cluster.nics.3.latency=1 ms",
        "cluster.racks={nodes: 4, uplink: 10gbe}",
        "cluster.racks.uplink.bandwidth=20 Gbit/s",
        "cluster.collectives.servers=dedicated",
        "cluster.collectives.server_network=10gbe",
        "cluster.collectives.server_network.bandwidth=40 Gbit/s",
    )
    assert scenario.training.accumulation == 2
    assert scenario.training.noise == replace(loops.workers(), variation=Fraction(1, 5))
    assert scenario.training.slow_nodes == {3: Fraction(2)}
    ways = links_of(scenario.cluster)
    assert ways["cluster", "nics", "3"].latency == Fraction(1, 1000)
    assert ways["cluster", "nics", "3"].bandwidth == catalog.link("1gbe").bandwidth
    assert ways["cluster", "racks", "uplink"].bandwidth == 2_500_000_000
    assert ways["cluster", "collectives", "server_network"].bandwidth == 5_000_000_000


# --- too few draws -------------------------------------------------------------------------------

RARE = "training.noise={slow_probability: 0.01, slow_factor: 4}"


def test_rare_events_that_hardly_occur_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # 8 nodes of 2 workers: 16 draws an iteration, 10 events in 1000 draws, so in 62.5 iterations
    load(tmp_path, PLAIN, RARE, "training.iterations=62")
    (said,) = warnings(tmp_path, caplog)
    assert said == (
        "--set training.noise: warning: training.noise.slow_probability = 0.01: only 9.9 slow "
        "workers are expected in total (16 workers, 62 iterations), too few for their mean; write "
        "training.iterations: 63 or more"
    )
    caplog.clear()
    load(tmp_path, PLAIN, RARE, "training.iterations=63")
    assert not caplog.records


@pytest.mark.parametrize("random", ["training.noise={variation: 0.1}", f"cluster.network={JITTER}"])
def test_few_random_iterations_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, random: str
) -> None:
    load(tmp_path, PLAIN, random, "training.iterations=9")
    (said,) = warnings(tmp_path, caplog)
    setting = random.partition("=")[0]
    assert said == (
        "--set training.iterations: warning: training.iterations = 9: the mean of so few random "
        f"iterations is mostly chance ({setting}); write at least 10; the more, the smaller "
        "the standard error"
    )
    caplog.clear()
    load(tmp_path, PLAIN, random, "training.iterations=10")
    assert not caplog.records


# --- per cent ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.noise.slow_probability=1", ""),
        ("training.noise.slow_probability=5", "at most 1; write 5 % if you mean that"),
        ("cluster.network.background=30", "less than 1; write 30 % if you mean that"),
        ("cluster.network.efficiency=94", "at most 1; write 94 % if you mean that"),
        ("cluster.network.efficiency=940 %", "940 %, which is 9.4, must be greater than 0 and at "
         "most 1; leave it out for 1"),
        ("cluster.network.background=-1", "be at least 0 and less than 1; leave it out for 0"),
        ("cluster.network.background=many %", "or a ratio such as 3/2; leave it out for 0"),
    ],
)  # fmt: skip
def test_a_share_may_be_meant_in_per_cent(tmp_path: Path, override: str, said: str) -> None:
    if not said:
        load(tmp_path, PLAIN, override)
        return
    with pytest.raises(InputError) as error:
        load(tmp_path, PLAIN, override)
    (problem,) = error.value.problems
    assert str(problem).endswith(said)


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("training.noise.variation=10 %", "training.noise.variation=0.1"),
        ("training.noise.variation=2.5%", "training.noise.variation=0.025"),
        ("training.side_slowdown=130 %", "training.side_slowdown=1.3"),
        ("cluster.network.background=0.1 %", "cluster.network.background=0.001"),
        ("cluster.network.efficiency=94 %", "cluster.network.efficiency=0.94"),
        ("cluster.network.bandwidth=25 Gbps", "cluster.network.bandwidth=25 Gbit/s"),
        ("cluster.network={like: 10GbE, efficiency: 90%}",
         "cluster.network={like: 10gbe, efficiency: 0.9}"),
        ("cluster.network=25GbE", "cluster.network=25gbe"),
        ("cluster.device=V100", "cluster.device=v100"),
        ("model=ResNet18", "model=resnet18"),
        ("compressors=[none, {kind: topk, ratio: 1 %}]",
         "compressors=[none, {kind: topk, ratio: 0.01}]"),
    ],
)  # fmt: skip
def test_what_people_write_is_what_it_means(tmp_path: Path, written: str, same: str) -> None:
    more = ("training.encode_on=side",) if "side" in written else ()
    assert load(tmp_path, PLAIN, written, *more) == load(tmp_path, PLAIN, same, *more)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("cluster.devices_per_node=100000", "workers in total; at most 100,000"),
        ("cluster.collectives.servers=1000000000", "too many; at most 100,000"),
        ("training.iterations=1000000000", "must be at most 100000"),
        ("training.accumulation=1000000", "must be at most 1000"),
    ],
)
def test_what_would_run_for_ever_is_refused(tmp_path: Path, override: str, said: str) -> None:
    (found,) = problems(tmp_path, PLAIN, override)
    assert override.partition("=")[0] in found
    assert said in found


def test_two_collectives_at_a_time_have_few_enough_workers(tmp_path: Path) -> None:
    many = ("cluster.nodes=257", "cluster.devices_per_node=1", "training.concurrent_collectives=2")
    (found,) = problems(tmp_path, PLAIN, *many)
    assert "at most 256 workers" in found


# --- what is not known ---------------------------------------------------------------------------

NO_PASSES = {
    "stated": ComputeTimes(forward=10**9, backward=10**9, parts=(10**9,), provenance="a test")
}


@pytest.mark.parametrize(
    ("transport", "all_reduce", "tuned"),
    [("gloo", "auto", False), ("nccl", "auto", True),
     ("nccl", "ring", False), ("gloo", "nccl", True)],
)  # fmt: skip
def test_a_links_ranges_and_the_tuners_border_are_drawn(
    tmp_path: Path, transport: str, all_reduce: str, tuned: bool
) -> None:
    chosen = f"cluster.collectives={{transport: {transport}, all_reduce: {all_reduce}}}"
    cluster = load(tmp_path, PLAIN, chosen).cluster
    inputs = {each.name: each for each in uncertain_inputs(cluster, Training(), NO_PASSES)}
    latency = inputs["the network's latency"]
    assert (latency.main.low, latency.main.high) == pytest.approx(
        (50e-6, 220e-6) if transport == "gloo" else (20e-6, 160e-6)
    )
    assert "the network's goodput over its line rate" in inputs
    assert ("NCCL's choice between ring and tree" in inputs) == tuned
    assert ("what all-to-alls reach of the network" in inputs) == (transport == "nccl")
    assert ("the links' inside a node goodput over its line rate" in inputs) == (
        transport == "nccl"
    )
    stated = load(tmp_path, PLAIN, chosen, "cluster.network={bandwidth: 1 Gbit/s, latency: 1 ms}")
    known = {each.name for each in uncertain_inputs(stated.cluster, Training(), NO_PASSES)}
    assert not any(name.startswith("the network's") for name in known)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("cluster.device=cpu_2core", "training.shared_node.slowdown=0.3"), "training.shared_node"),
        (("training.interference.bus=0.4", "cluster.collectives.transport=gloo"),
         "training.interference.bus"),
        (("ddp.bucket=100 MiB",), "ddp.bucket"),
    ],
)  # fmt: skip
def test_idle_settings_are_warned_of(
    tmp_path: Path, overrides: tuple[str, ...], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """LeNet's gradient is one bucket, and CPUs share cores."""
    load(tmp_path, PLAIN, *overrides)
    assert any(said in line for line in warnings(tmp_path, caplog))
