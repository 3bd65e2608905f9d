"""Every setting of the schema that changes the mathematics is trained or refused; no other is.

The schema is walked: a setting of none of the four lists below fails the first test.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.file import schema_json
from gcsim.scenarios.trained.runs import Run
from gcsim.scenarios.trained.search import train_all
from gcsim.scenarios.trained.study import train
from tests.scenarios.test_settings import leaves, resolved

TEXT = """
model: {build: "tests.traces.training.world:small", input_shape: [64], classes: 10}
batch_size: 8
cluster: {nodes: 2, devices_per_node: 1, device: v100, network: 1gbe}
compressors: [none, fp16]
uncertainty: {draws: 0}
train: {workers: 2, steps: 4, evaluate_every: 2, target: {accuracy: 0.01}, seeds: 1, task: digits,
        device: cpu}
"""
CLOCK = {
    "name", "description", "cost", "uncertainty.draws", "uncertainty.discrepancy", "compute",
    "cluster.nodes", "cluster.devices_per_node",  # of the clock; of the mathematics: train.workers
    "cluster.nics_per_node", "cluster.groups", "cluster.batch",
    "cluster.device", "cluster.network", "cluster.nics", "cluster.intra_node", "cluster.shared_bus",
    "cluster.racks", "cluster.host", "cluster.sums",
    "cluster.collectives.transport", "cluster.collectives.library",
    "cluster.collectives.all_reduce", "cluster.collectives.all_gather",
    "cluster.collectives.pipeline_block", "cluster.collectives.push_pull",
    "cluster.collectives.servers", "cluster.collectives.server_network",
    "cluster.collectives.host_staging",
    "training.interference", "training.shared_node", "training.encode_on",
    "training.side_slowdown", "training.concurrent_collectives", "training.optimizer",
    "training.input", "training.on_host", "training.slow_nodes", "training.slow_workers",
    "training.noise", "training.iterations", "training.framework", "training.loop", "training.code",
    "training.exposed", "training.exposed_range", "training.failures", "training.checkpointing",
    "training.flash_attention", "training.sequence", "training.optimizer_state",
    "training.device_memory", "training.strategy", "training.secondary",
    # the gradients that a run compresses: trajectories have gradients of their own
    "gradients.workers", "gradients.warmup_steps", "gradients.iterations",
    "gradients.learning_rate", "gradients.momentum", "gradients.device", "gradients.source",
    "gradients.trace", "gradients.fit",
    # questions to a trajectory, which decide on nothing that is trained
    "train.target", "train.patience", "train.stop.hopeless", "compressors.*.label",
    "compressors.*.implementation",
}  # fmt: skip
"""Settings, and mappings of prices, that change no step."""

TRAINED: dict[str, tuple[str, ...]] = {
    "model": ("model=cnn_digits",),
    "model.build": ("model.build='tests.traces.training.world:normalised'",),
    "batch_size": ("batch_size=4",),
    "gradients.task": ("train.task=null", "model=cnn_digits", "gradients.task=textures"),
    "training.overlap": ("training.overlap=by_tensor",),
    "training.accumulation": ("training.accumulation=4",),
    "ddp.first_bucket": ("ddp.bucket=1 MiB", "ddp.first_bucket=512 B"),
    "ddp.bucket": ("ddp.bucket=512 B",),
    "compressors.*": ("compressors=[none, bf16]",),
    "compressors.*.kind": ("compressors=[none, {kind: qsgd, label: fp16}]",),
    "train.workers": ("train.workers=3",),
    "train.steps": ("train.steps=6",),
    "train.evaluate_every": ("train.evaluate_every=1",),
    "train.optimizer.name": ("train.optimizer.name=adam",),
    "train.optimizer.momentum": ("train.optimizer.momentum=0",),
    "train.optimizer.weight_decay": ("train.optimizer.weight_decay=0.1",),
    "train.optimizer.beta2": ("train.optimizer.name=adam", "train.optimizer.beta2=0.5"),
    "train.learning_rate": ("train.learning_rate=0.1",),
    "train.learning_rate.values.*": ("train.learning_rate={values: [0.1, 0.2]}",),
    "train.schedule.shape": ("train.schedule.shape=step",),
    "train.schedule.warmup": ("train.schedule.warmup=2",),
    "train.clip": ("train.clip=0.1",),
    "training.precision": ("training.precision=bf16",),
    "train.seeds": ("train.seeds=2",),
    "train.partition": ("train.partition={dirichlet: 0.3}",),
    "train.partition.clients": (
        "train.partition={clients: 20}", "train.partition={clients: 30}",
    ),
    "train.partition.round": (
        "train.partition={clients: 20}", "train.partition={clients: 20, round: 2}",
    ),
    "train.partition.dirichlet": (
        "train.partition={dirichlet: 0.3}", "train.partition={dirichlet: 3}",
    ),
    "train.task": ("model=cnn_digits", "train.task=textures"),
    "train.loss": ("train.loss='tests.traces.training.world:halved'",),
    "seed": ("seed=1",),
}  # fmt: skip
"""The last value changes what is trained under those before."""

IN_THE_KEY: dict[str, str] = {
    "model.input_shape.*": "model.input_shape=[1, 8, 8]",
    "model.classes": "model.classes=12",
    "model.input": "model.input=tokens",
    "model.auxiliary_weight": "model.auxiliary_weight=0.5",
    "train.stop.diverged": "train.stop.diverged=false",
    "train.device": "train.device=auto",
}
"""Passed on as they are; the small model and its data leave no other value that shows."""

REFUSED: dict[str, tuple[str, str]] = {
    "model.layers": ("model={layers: [{name: a, shape: [4, 4]}]}", ""),
    "model.name": ("model={name: a, layers: [{name: a, shape: [4, 4]}]}", ""),
    "training.gradients": ("training.gradients=bf16", "training.gradients"),
    "training.local_steps": ("training.local_steps=4", "training.local_steps"),
    "training.between": ("training.between=nodes", "training.between"),
    "training.gathered": ("training={strategy: zero3, gathered: int8}", "training.gathered"),
    "training.faults": (
        "training.faults={horizon: 1 h, restart: 1 s, deaths: [{node: 0, at: 1 min}]}",
        "training.faults",
    ),
}
"""With the place that the error names."""


def keys() -> list[str]:
    """All settings of the schema, entries of lists and mappings as `*`."""
    schema = schema_json()

    def below(node: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
        node = resolved(node, schema)
        for each in node.get("anyOf") or node.get("oneOf") or [node]:
            form = resolved(each, schema)
            if "anyOf" in form or "oneOf" in form:
                yield from below(form, path)
            elif "properties" in form:
                for key, inner in form["properties"].items():
                    yield from below(inner, (*path, key))
            elif "items" in form:
                yield from below(form["items"], (*path, "*"))
            elif form.get("type") != "null":  # that stands for the mapping around it
                yield ".".join(path)

    return list(dict.fromkeys(below(schema, ())))


def stands_under(key: str, names: set[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def test_every_setting_is_on_one_list() -> None:
    listed = {*TRAINED, *IN_THE_KEY}
    found = keys()
    assert len(found) > 300  # that the schema was walked
    for key in found:
        places = [stands_under(key, CLOCK), key in listed, stands_under(key, {*REFUSED})]
        assert sum(places) == 1, key
    assert listed <= set(found)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("settings") / "small.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture(autouse=True)
def _kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(file.parent))


def paths(scenario: Scenario) -> list[str]:
    """Names under which its trajectories are kept."""
    return [
        Run(scenario=scenario, choice=choice, rate=0.05, seed=scenario.seed, until=4).path.name
        for choice in scenario.compressors
    ]


def trained(file: Path, changes: tuple[str, ...]) -> list[Any]:
    found = train_all(load_scenario(file, changes), progress=SilentProgress())
    return [
        (t.buckets, t.losses, t.evaluations, t.windows) for one in found for t in one.trajectories
    ]


@pytest.mark.parametrize("key", TRAINED)
def test_a_setting_of_the_mathematics_changes_what_is_trained(key: str, file: Path) -> None:
    changes = TRAINED[key]
    assert trained(file, changes[:-1]) != trained(file, changes)


@pytest.mark.parametrize("key", IN_THE_KEY)
def test_a_setting_that_the_small_model_does_not_show_has_trajectories_of_its_own(
    key: str, file: Path
) -> None:
    assert not {*paths(load_scenario(file))} & {*paths(load_scenario(file, [IN_THE_KEY[key]]))}


@pytest.mark.parametrize("key", REFUSED)
def test_a_setting_that_training_cannot_follow_is_refused_with_place_and_hint(
    key: str, file: Path
) -> None:
    change, place = REFUSED[key]
    with pytest.raises(InputError) as caught:
        train(load_scenario(file, [change]))
    (problem,) = caught.value.problems
    assert problem.hint
    assert place in problem.place


@pytest.mark.parametrize(
    ("change", "place", "says"),
    [
        ("training.precision=fp16", "training.precision", "training.precision=bf16"),
        ("training.strategy=hsdp", "training.strategy", "strategy=zero3"),  # nodes exchange
        ("train.patience=3", "train.patience", "4 steps have 2 evaluations, not 3"),
        ("train.clip=0", "train.clip", "greater than 0"),
        ("train.clip=-1.0", "train.clip", "greater than 0"),
    ],
)
def test_what_cannot_be_trained_is_said_before_training(
    change: str, place: str, says: str, file: Path
) -> None:
    with pytest.raises(InputError) as caught:
        train(load_scenario(file, ["cluster.devices_per_node=2", change]))
    (problem,) = caught.value.problems
    assert place in problem.place
    assert says in f"{problem.message}; {problem.hint}"


def test_a_setting_of_the_clock_alone_trains_nothing_again(file: Path) -> None:
    schema = schema_json()
    before, taken = paths(load_scenario(file)), set()
    for section, node in schema["properties"].items():
        for key, value in leaves(node, (section,), schema):
            if not stands_under(key, CLOCK):
                continue
            try:
                changed = load_scenario(file, [f"{key}={value}"])
            except InputError:
                continue
            assert paths(changed) == before, (key, value)
            taken.add(key)
    assert len(taken) > 50
