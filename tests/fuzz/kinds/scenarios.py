"""Scenarios: shipped ones with other words or other values, small ones with settings of the schema.

What `check` accepts, `run` must run or refuse; of what is accepted a share is run, at a size that
takes a second.
"""

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from gcsim.compressors.registry import REGISTRY, compressor_class
from gcsim.scenarios.load import load_scenario, shipped_scenarios
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.file import schema_json
from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.generation import drawn
from tests.fuzz.mutation import NASTY, as_yaml, pick, tree
from tests.fuzz.small import small

_RUN = 0.4
_TINY = "{source: synthetic, workers: 2, iterations: 1}"
_SECTIONS = ("cluster", "cluster", "training", "training", "ddp", "compute", "uncertainty")


def _make(rng: Random, one: Try) -> None:
    sets: list[str] = []
    way = rng.random()
    if way < 0.25:
        content = pick(rng, _texts())
    elif way < 0.45:
        content = as_yaml(tree(rng, rng.choice(_trees())))
    elif way < 0.6:
        content = as_yaml(tree(rng, small()))
    else:
        scenario = small()
        for _ in range(rng.choice((1, 1, 2, 3))):
            _set(rng, scenario)
        if choose(rng, 0.3):
            scenario["compressors"].append(drawn_compressor(rng))
        content = as_yaml(tree(rng, scenario) if choose(rng, 0.2) else scenario)
        if choose(rng, 0.2):
            sets = ["--set", option(rng, scenario)]
    path = write(one.folder / "s.yaml", content)
    done = one.gcsim("check", path.name, *sets)
    if done is not None and done.returncode == 0 and choose(rng, _RUN):
        one.run(path.name, *sets, *_smaller(load_scenario(path, sets[1:])))


def _set(rng: Random, scenario: dict[str, Any]) -> None:
    """One more setting of a section, or of what lies in it."""
    schema = schema_json()
    known = schema["$defs"]
    name = rng.choice(_SECTIONS)
    node, holder = schema["properties"][name], scenario
    while True:
        node = node["$ref"].rpartition("/")[2] if "$ref" in node else node
        node = known[node] if isinstance(node, str) else node
        others = [one for one in node.get("anyOf", node.get("oneOf", ())) if "$ref" in one]
        if others:
            node = known[rng.choice(others)["$ref"].rpartition("/")[2]]
        keys = list(node.get("properties", ()))
        if not keys or (holder is not scenario and choose(rng, 0.3)):
            holder[name] = drawn(rng, node, known)
            return
        below = holder.get(name)
        holder[name] = holder = below if isinstance(below, dict) else {}
        name = rng.choice(keys)
        node = node["properties"][name]


def drawn_compressor(rng: Random) -> dict[str, Any]:
    """A scenario's entry of a registered method with some of its parameters."""
    kind = rng.choice(sorted(REGISTRY))
    schema = compressor_class(kind).Parameters.model_json_schema()
    keys = schema.get("properties", {})
    chosen = rng.sample(sorted(keys), rng.randrange(min(3, len(keys)) + 1))
    values = {key: drawn(rng, keys[key], schema.get("$defs", {})) for key in chosen}
    return {"kind": kind, "label": "other", **values}


def option(rng: Random, scenario: dict[str, Any]) -> str:
    """A setting for `--set`."""
    section = rng.choice([key for key, value in scenario.items() if isinstance(value, dict)])
    key = rng.choice(list(scenario[section]) or ["a"])
    text = [word for word in map(str, NASTY) if "\0" not in word]
    return f"{section}.{key}={rng.choice(text)}"


def _smaller(scenario: Scenario) -> list[str]:
    """Options that make a large scenario one that takes a second."""
    cluster, found = scenario.cluster, []
    if scenario.model.name != "lenet" or scenario.gradients != _gradients():
        found += ["model=lenet", f"gradients={_TINY}", "batch_size=4"]
    if max(scenario.node_counts) > 8 or len(scenario.node_counts) > 2:
        found.append("cluster.nodes=[1, 3]")
    if cluster.devices_per_node > 4:
        found.append("cluster.devices_per_node=2")
    if scenario.draws > 4:
        found.append("uncertainty.draws=8")
    if scenario.training.iterations > 100:
        found.append("training.iterations=100")
    if len(scenario.compressors) > 3:
        found.append("compressors=[none, topk]")
    return [word for change in found for word in ("--set", change)]


@cache
def _texts() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in shipped_scenarios().values())


@cache
def _trees() -> tuple[Any, ...]:
    return tuple(map(yaml.safe_load, _texts()))


@cache
def _gradients() -> object:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "s.yaml", as_yaml(small()))
        return load_scenario(path).gradients


SCENARIOS = Kind(name="scenarios", make=_make)
