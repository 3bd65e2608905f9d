"""A figure that is stated alone leaves every other figure at its default.

The keys come from the schema of scenario files: all sections under `cluster` and `training`, at any
depth. The defaults are those of the resolved scenario, which states all that is in effect.
"""

import contextlib
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from gcsim.errors import InputError
from gcsim.fields import Unit
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.reading.checking import Section
from gcsim.scenarios.reading.document import Keys
from gcsim.scenarios.reading.values import As, Spelled
from gcsim.scenarios.run import run
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.file import ScenarioFile
from tests.scenarios.files import reread

TEXT = """\
model: lenet
batch_size: 32
gradients: {source: synthetic}
cluster:
  nodes: 8
  devices_per_node: 2
  device: v100
  network: 10gbe
  nics: {3: 1gbe}
  racks: {nodes: 4, uplink: 40gbe}
  intra_node: pcie3_x16
  collectives: {transport: gloo, servers: dedicated, server_network: 25gbe}
compressors: [none, fp16]
uncertainty: {draws: 0}
"""
CASES: Mapping[str, tuple[str, ...]] = {
    "gloo": (),
    "pytorch1": ("cluster.collectives.library=pytorch1",),
    "few cores": ("cluster.host.cores=2",),
    "mpich": ("cluster.collectives.transport=mpich",),
    "nccl": ("cluster.collectives={transport: nccl}",),
    "usual bus": ("cluster.intra_node=null",),
    "no framework": ("training.framework=none",),
    "noise": ("training.noise={variation: 0.1, slow_probability: 0.2, slow_factor: 3}",),
    "a link's overhead": (
        "cluster.network={like: 10gbe, overhead: 5 us, overhead_range: [1 us, 9 us]}",
    ),
    "pods": (
        "cluster.collectives={transport: nccl}",
        "cluster.racks={nodes: 2, uplink: 40gbe, uplinks: 3, pod: 2, pod_uplink: 100gbe}",
    ),
    "uplink": (
        "cluster.nics={}", "cluster.racks.nodes=8", "cluster.collectives={transport: gloo}",
        "cluster.network=lte",
    ),
}  # fmt: skip
"""Other defaults each."""
WORDS = {"name", "source", "estimate"}
"""Of a link: where its figures are from, which a stated figure changes."""


def figures(hint: Any, keys: Keys, data: Any) -> Iterator[tuple[Keys, bool]]:
    """Keys of the figures in and below what a hint allows, each with whether `data` has it."""
    if isinstance(hint, As):
        hint = hint.section
    if isinstance(hint, type) and issubclass(hint, Section):
        if hint is Spelled:  # its note says which
            return
        spelled = hint.spells if issubclass(hint, Spelled) else hint
        notes = get_type_hints(spelled, include_extras=True)
        present = data if isinstance(data, Mapping) else {}
        for name, field in hint.model_fields.items():
            key = field.alias or name
            with_unit = any(isinstance(note, Unit) for note in get_args(notes.get(name)))
            if f"{name}_range" in hint.model_fields or with_unit:
                yield (*keys, key), key in present
            for part in (field.annotation, *field.metadata):
                yield from figures(part, (*keys, key), present.get(key))
    elif get_origin(hint) is dict:
        for number, each in (data or {}).items():
            yield from figures(get_args(hint)[1], (*keys, number), each)
    elif get_origin(hint) is not list:
        for part in (*get_args(hint), *getattr(hint, "__metadata__", ())):
            yield from figures(part, keys, data)


def priced(scenario: Scenario) -> dict[Keys, bool]:
    """All keys of figures under `cluster` and `training`, and whether each is in effect."""
    found: dict[Keys, bool] = {}
    for keys, present in figures(ScenarioFile, (), scenario.resolved):
        if keys[0] in ("cluster", "training"):
            found[keys] = found.get(keys, False) or present
    return found


def flat(value: Any, keys: Keys = ()) -> dict[Keys, Any]:
    if not isinstance(value, Mapping):
        return {keys: value}
    return {
        key_path: each
        for key, inner in value.items()
        for key_path, each in flat(inner, (*keys, key)).items()
    }


def rest(scenario: Scenario, keys: Keys, *, with_range: bool) -> dict[Keys, Any]:
    """The resolved scenario without a figure, and without its range."""
    own = {keys, (*keys[:-1], f"{keys[-1]}_range")} if not with_range else set()
    return {
        key_path: value
        for key_path, value in flat(scenario.resolved).items()
        if key_path not in own and key_path[-1] not in WORDS
    }


def other(value: Any) -> str:
    """Half of it; of 0 a hundredth, or 1 of its unit."""
    number, _, unit = str(value).partition(" ")
    changed = Fraction(number) / 2 or Fraction(1 if unit else "0.01")
    return f"{changed if '/' in number else float(changed)} {unit}"


def load(folder: Path, *settings: str) -> Scenario:
    path = folder / "a.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return load_scenario(path, settings)


@pytest.mark.parametrize("case", CASES)
def test_a_stated_figure_leaves_the_others(tmp_path: Path, case: str) -> None:
    """Of all sections; in the cases after the first, of those that the case names or changes."""
    before = load(tmp_path, *CASES[case])
    known = flat(before.resolved)
    first = flat(load(tmp_path).resolved)
    others = {keys[:2] for keys in {*first, *known} if first.get(keys) != known.get(keys)}
    others |= {tuple(each.partition("=")[0].split(".")[:2]) for each in CASES[case]}
    every = [keys for keys, present in priced(before).items() if present]
    tried = [keys for keys in every if keys[:2] in others or not CASES[case]]
    assert len(every) > 15
    assert tried
    for keys in tried:
        key, bounds = ".".join(map(str, keys)), known.get((*keys[:-1], f"{keys[-1]}_range"))
        same = load(tmp_path, *CASES[case], f"{key}={known[keys]}")
        assert rest(same, keys, with_range=False) == rest(before, keys, with_range=False), key
        assert flat(same.resolved)[keys] == known[keys], key
        if bounds is not None:  # a figure is stated with its range, or is exact
            bounds = str(bounds).replace("'", "")
            same = load(tmp_path, *CASES[case], f"{key}={known[keys]}", f"{key}_range={bounds}")
            assert rest(same, keys, with_range=True) == rest(before, keys, with_range=True), key
            with contextlib.suppress(InputError):  # refused, or over the figure that is there
                alone = load(tmp_path, *CASES[case], f"{key}_range={bounds}")
                assert rest(alone, keys, with_range=True) == rest(before, keys, with_range=True)
        changed = load(tmp_path, *CASES[case], f"{key}={other(known[keys])}")
        assert rest(changed, keys, with_range=False) == rest(before, keys, with_range=False), key
        assert flat(changed.resolved)[keys] != known[keys], key


@pytest.mark.parametrize("case", [*CASES, "zero"])
def test_the_resolved_scenario_reads_back(tmp_path: Path, case: str) -> None:
    zero = ("cluster.network={like: 10gbe, overhead: 0 s, overhead_range: [0 s, 9 us]}",)
    scenario = load(tmp_path, *CASES.get(case, zero))
    again = reread(tmp_path, scenario)
    assert (again.cluster, again.training) == (scenario.cluster, scenario.training)


def test_every_priced_figure_is_in_effect_in_some_case(tmp_path: Path) -> None:
    """By its name in its section; links alone are of the same kind at several places."""
    known: set[str] = set()
    every: set[str] = set()
    for settings in CASES.values():
        for keys, present in priced(load(tmp_path, *settings)).items():
            every.add(str(keys[-1]))
            if present:
                known.add(str(keys[-1]))
    stated_alone = {
        "mean", "timeout", "segment", "grant", "batch", "horizon", "restart", "mtbf", "checkpoint",
    }  # fmt: skip
    assert every - known == stated_alone  # of mappings that no scenario has by default


def test_a_figure_at_its_default_leaves_the_result(tmp_path: Path) -> None:
    """Through the whole run, as stated: the range of a stated figure is gone."""
    settings = ("training.framework.hook.per_tensor=20 us", "cluster.host.dispatch=280 us")
    rows = [run(load(tmp_path, *stated)).rows for stated in ((), settings)]
    assert rows[0] == rows[1]
