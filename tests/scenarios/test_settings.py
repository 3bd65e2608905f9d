"""Every setting of the schema changes some result, or a warning names it, or it is refused.

A knob that is turned and does nothing is worse than an error. So each leaf of the schema under
`cluster`, `training`, `ddp` and `compute` is set to several values in small scenarios that differ
in what they have (transports, servers, one bucket, one node, chance), and the rows are compared.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.run import run, simulated_run
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.file import schema_json
from gcsim.scenarios.sections.recorded import warn_once

SECTIONS = ("cluster", "training", "ddp", "compute")
TOLD = {"source", "estimate", "like", "file", "fingerprint", "device", "name", "description"}
"""What says where figures come from, or stands for others; a device is priced kernel by kernel."""
BY_HAND = (
    ("cluster.network", "{like: 1gbe, loss: {rate: 0.01, model: capped}}"),
    ("cluster.network", "{like: 1gbe, jitter: [{distribution: uniform, mean: 1 ms}]}"),
    ("cluster.network", "{like: 1gbe, up: {bandwidth: 1 Mbit/s, latency: 1 ms}}"),
    ("cluster.network.factors", "[{from: 0 B, bandwidth: 0.5}]"),
    ("cluster.network.flow", "1 Mbit/s"),
    ("cluster.intra_node", "100mbit_ethernet"),
    ("cluster.intra_node.factors", "[{from: 0 B, bandwidth: 0.5}]"),
    ("cluster.intra_node.flow", "1 Mbit/s"),
    ("cluster.nics", "{1: 100mbit_ethernet}"),
    ("cluster.racks", "{nodes: 1, uplink: 100mbit_ethernet}"),
    ("cluster.racks", "{nodes: 2, uplink: 100mbit_ethernet}"),
    ("cluster.racks", "{nodes: 1, uplink: 10gbe, pod: 1, pod_uplink: 100mbit_ethernet}"),
    ("cluster.racks", "{nodes: 1, uplink: 100mbit_ethernet, uplinks: 2}"),
    ("cluster.host", "{per_message: 1 ms}"),
    ("cluster.host", "{cores: 1, per_call: 1 ms}"),
    ("cluster.sums", "{float32: 1 MB/s}"),
    ("cluster.collectives.servers", "2 dedicated"),
    ("training.slow_nodes", "{0: 2}"),
    ("training.slow_workers", "{1: 2}"),
    ("training.input.batch", "100 ms"),
    ("training.noise", "{variation: 0.1}"),
    ("training.on_host", "[encode]"),
    ("training.framework", "pytorch"),
    ("ddp.first_bucket", "8 KiB"),
    ("ddp.bucket", "8 KiB"),
    ("compute", "{forward: 1 ms, backward: 2 ms}"),
)
"""Settings that no single leaf makes, and values beyond limits that are not reached otherwise."""

CPUS = "device: cpu_2core, network: 1gbe"
GPUS = "device: p100_pcie, network: 10gbe, intra_node: pcie3_x16"
SMALL = "ddp: {first_bucket: 16 KiB, bucket: 32 KiB}\n"
BASES = {
    "one_bucket": f"cluster: {{nodes: 3, {CPUS}}}\n",
    "one_node": f"cluster: {{nodes: 1, devices_per_node: 4, {GPUS}, "
    f"collectives: {{transport: nccl}}}}\n{SMALL}",
    "textbook": f"cluster: {{nodes: 3, {CPUS}, collectives: {{transport: textbook}}}}\n{SMALL}",
    "gloo": f"cluster: {{nodes: 4, {CPUS}, collectives: {{transport: gloo}}}}\n{SMALL}",
    "gloo_gpus": f"cluster: {{nodes: 2, devices_per_node: 2, {GPUS}, shared_bus: true, "
    f"collectives: {{transport: gloo}}}}\n{SMALL}",
    "nccl": f"cluster: {{nodes: 2, devices_per_node: 4, {GPUS}, "
    f"collectives: {{transport: nccl}}}}\n{SMALL}",
    "mpich": f"cluster: {{nodes: 4, {CPUS}, collectives: {{transport: mpich}}}}\n{SMALL}",
    "servers": f"cluster: {{nodes: 3, {CPUS}, "
    f"collectives: {{transport: textbook, servers: per_node}}}}\n{SMALL}",
    "random": f"cluster: {{nodes: 3, device: cpu_2core, network: {{like: 1gbe, jitter: "
    f"[{{distribution: uniform, mean: 1 ms}}]}}, collectives: {{transport: textbook}}}}\n{SMALL}"
    "training: {noise: {variation: 0.1, slow_probability: 0.5, slow_factor: 2}, iterations: 3}\n",
}
COMMON = """
name: a
model: lenet
batch_size: 8
gradients: {source: live, workers: 2, warmup_steps: 1, iterations: 1, device: cpu}
compressors: [none, fp16, {kind: topk, ratio: 0.1}, {kind: topk, ratio: 0.9, label: most}, signsgd]
uncertainty: {draws: 0}
"""
NO_OTHER_VALUE = "cluster.intra_node.shared"
"""True is refused, and false is what it is."""
UNREACHED = {
    "mpich": {
        "cluster.collectives.pipeline_block": "payloads of a bucket are equally long, so that "
        "rings are not pipelined",
        "training.concurrent_collectives": "blocks of one bucket alone are long enough for a ring",
        "cluster.host.cores": "the one rank of a machine needs no second core",
    },
    "servers": dict.fromkeys(
        (
            "cluster.intra_node.bandwidth",
            "cluster.intra_node.factors",
            "cluster.intra_node.limited",
        ),
        "messages to the server of the own machine end before those over the network",
    ),
}


def resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    named = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return {**named, **{key: value for key, value in node.items() if key != "$ref"}}


def values(leaf: dict[str, Any]) -> list[Any]:
    """Some that the schema takes."""
    if "enum" in leaf or "const" in leaf:
        return list(leaf.get("enum", [leaf.get("const")]))
    match leaf.get("type"):
        case "boolean":
            return ["true", "false"]
        case "integer":
            return [v for v in (leaf.get("minimum", 0), 2, 3, 5) if v >= leaf.get("minimum", 0)]
        case "number":
            least, most = leaf.get("minimum", 0), leaf.get("maximum", 2.5)
            return [v for v in (0, 0.25, 0.5, 1, 2.5) if least <= v <= most]
        case _ if leaf.get("examples") and isinstance(leaf["examples"][0], str):
            number, unit = leaf["examples"][0].split()
            return [f"{number} {unit}", f"{int(number) * 7} {unit}"]
        case _:
            return []


def leaves(
    node: dict[str, Any], path: tuple[str, ...], schema: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Keys with values, below a place of the schema."""
    node = resolved(node, schema)
    for each in node.get("anyOf") or node.get("oneOf") or [node]:
        form = resolved(each, schema)
        if "anyOf" in form or "oneOf" in form:
            yield from leaves(form, path, schema)
        elif "properties" in form:
            for key, below in form["properties"].items():
                if key not in TOLD and not key.endswith("_range"):
                    yield from leaves(below, (*path, key), schema)
        else:
            yield from ((".".join(path), value) for value in values(form))


def settings() -> list[tuple[str, Any]]:
    schema = schema_json()
    found = [
        each
        for section in SECTIONS
        for each in leaves(schema["properties"][section], (section,), schema)
    ]
    assert len(found) > 300  # that the schema was walked
    return [*dict.fromkeys([*found, *BY_HAND])]


def chosen_by_name(value: Any) -> bool:
    """A name is a way of its own; of numbers the first that changes a result says enough."""
    return isinstance(value, str) and value.isidentifier() and value not in {"true", "false"}


def simulated(scenario: Scenario) -> tuple[Any, ...]:
    return scenario.cluster, scenario.training, scenario.buckets, scenario.compute


@pytest.mark.parametrize(
    "base", [pytest.param(n, marks=[] if n == "one_node" else [pytest.mark.long]) for n in BASES]
)
@pytest.mark.usefixtures("own_cache")
def test_what_is_accepted_changes_a_result_or_is_warned_of(
    base: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_alone = partial(simulated_run, timelines=False, sources=False)
    monkeypatch.setattr("gcsim.scenarios.run.simulated_run", rows_alone)
    path = tmp_path / "a.yaml"
    path.write_text(COMMON + BASES[base], encoding="utf-8")
    unchanged = load_scenario(path)
    rows = run(unchanged).rows
    caplog.clear()
    effects: defaultdict[str, list[str]] = defaultdict(list)
    for key, value in settings():
        if any(effects.get(key, ())) and not chosen_by_name(value):
            continue
        warn_once.cache_clear()
        caplog.clear()
        try:
            changed = load_scenario(path, [f"{key}={value}"])
        except InputError:
            continue
        if simulated(changed) == simulated(unchanged):
            continue
        named = {key, key.rpartition(".")[0]}
        if any(name in told for told in caplog.messages for name in named):
            effects[key].append("warned of")
            continue
        differ = run(changed).rows != rows
        told = any(key in message for message in caplog.messages)
        effects[key].append("changes rows" if differ else "warned of" if told else "")
    idle = {key: found for key, found in effects.items() if not any(found)}
    assert len(effects) > 30
    assert {*idle} - {NO_OTHER_VALUE} == {*UNREACHED.get(base, {})}


def test_the_walk_sees_a_setting_of_each_kind() -> None:
    """Of a schema whose leaves are known."""
    schema = {"$defs": {"Rate": {"type": "number", "minimum": 0, "maximum": 1}}}
    node = {
        "properties": {
            "loss": {"anyOf": [{"$ref": "#/$defs/Rate"}, {"type": "null"}]},
            "loss_range": {"type": "array"},
            "model": {"enum": ["a", "b"]},
            "latency": {"type": "string", "examples": ["2 ms"]},
        }
    }
    found = json.loads(json.dumps(list(leaves(node, ("network",), schema))))
    losses = [["network.loss", value] for value in (0, 0.25, 0.5, 1)]
    models = [["network.model", value] for value in ("a", "b")]
    assert found == [*losses, *models, ["network.latency", "2 ms"], ["network.latency", "14 ms"]]
