"""A run that was simulated before comes from the cache, and never where anything has changed."""

import copy
import json
import logging
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcsim.files import sealed
from gcsim.scenarios.load import load_scenario, shipped_scenarios
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.result import FROM_CACHE, Result
from gcsim.scenarios.run import run, simulated_run
from gcsim.scenarios.running import result_cache
from gcsim.scenarios.running.keys import profile_key
from gcsim.scenarios.scenario import Scenario
from gcsim.traces.stage1 import cache as profile_cache

SCENARIO = """\
name: small
model: lenet
batch_size: 8
gradients: {source: live, workers: 2, warmup_steps: 1, iterations: 1, device: cpu}
cluster: {nodes: [1, 4], devices_per_node: 2, device: p100_pcie, network: 10gbe}
compressors: [none, {kind: topk, ratio: 0.01}]
"""
SIMULATED = "gcsim.scenarios.run.simulated_run"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("GCSIM_CACHE_DIR", str(folder))
        patch.setattr(result_cache, "_READ", 1e12)  # whatever it takes to read
        yield folder


@pytest.fixture(scope="module")
def small(cache: Path) -> Path:
    path = cache / "small.yaml"
    path.write_text(SCENARIO)
    return path


def told(result: Result) -> Result:
    """All that does not differ between runs."""
    provenance = {k: each for k, each in result.provenance.items() if k != FROM_CACHE}
    return replace(result, wall={}, provenance=provenance)


def never(*_: object, **__: object) -> Result:
    raise AssertionError("simulated again")


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "results").glob("*.z"))


def test_a_run_that_is_known_is_not_simulated(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(load_scenario(small))
    monkeypatch.setattr(SIMULATED, never)
    again = run(load_scenario(small))
    assert told(again) == told(first)
    assert json.dumps(told(again).document()) == json.dumps(told(first).document())
    with pytest.raises(AssertionError, match="simulated again"):
        run(load_scenario(small), cache=False)


# --- what changes makes another name -------------------------------------------------------------


def changed(value: Any) -> Iterator[tuple[str, Any]]:  # noqa: PLR0912 (a case each)
    """The value with one leaf changed, for each of its leaves, and the way there."""
    if is_dataclass(value):
        for field in fields(value):
            for way, other in changed(getattr(value, field.name)):
                twin = copy.copy(value)
                object.__setattr__(twin, field.name, other)
                yield f"{field.name}.{way}", twin
    elif isinstance(value, Mapping):
        for key, each in value.items():
            for way, other in changed(each):
                yield f"{key}.{way}", {**value, key: other}
        yield "(one more)", {**value, "more": 1}
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value[:3]):
            for way, other in changed(each):
                yield f"{place}.{way}", [*value[:place], other, *value[place + 1 :]]
        yield "(one more)", [*value, 1]
    elif isinstance(value, bool):
        yield "", not value
    elif value is None:
        yield "", 0
    elif isinstance(value, str):
        yield "", value + "x"
    elif isinstance(value, frozenset):
        yield "", value | {"x"}
    elif isinstance(value, Path):
        yield "", value / "x"
    else:
        yield "", value + 1


@pytest.mark.parametrize("name", ["lenet_2node", "alexnet_5g", "alexnet_32node_nccl_servers"])
def test_every_value_of_a_scenario_is_in_the_name(name: str) -> None:
    scenario = load_scenario(name)
    # the sections one by one, since a large one need not be written for each leaf of another
    for field in fields(Scenario):
        section = getattr(scenario, field.name)
        before = json.dumps(result_cache.canonical(section))
        for way, other in changed(section):
            assert json.dumps(result_cache.canonical(other)) != before, (field.name, way)
    assert len(result_cache.canonical(scenario)) == 1 + len(fields(Scenario))  # type: ignore[arg-type]


def test_shipped_scenarios_have_names_of_their_own() -> None:
    loaded = [load_scenario(name) for name in shipped_scenarios()]
    assert len({result_cache.result_key(one, ["a"], None) for one in loaded}) == len(loaded)
    scenario = loaded[0]
    assert result_cache.result_key(scenario, ["a"], None) != result_cache.result_key(
        scenario, ["b"], None
    )


def test_other_code_makes_another_name(monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    scenario = load_scenario(small)
    before = result_cache.result_key(scenario, ["a"], None)
    monkeypatch.setattr(result_cache, "simulation_code", lambda: "other")
    assert result_cache.result_key(scenario, ["a"], None) != before


SETTINGS = {
    "cluster.nodes": ["4", "[1, 4]", "3"],
    "cluster.network": ["1gbe", "10gbe"],
    "cluster.network.latency": ["20 us", "80 us"],
    "cluster.network.jitter": ["{distribution: uniform, mean: 50 us}"],
    "cluster.device": ["cpu_2core"],
    "cluster.collectives.all_reduce": ["ring", "halving_doubling"],
    "training.noise": ["{variation: 0.1}"],
    "training.slow_nodes": ["{0: 1.5}", "{0: 2}"],
    "training.overlap": ["none"],
    "training.iterations": ["20", "30"],
    "uncertainty.draws": ["0", "16"],
    "seed": ["1"],
    "name": ["other"],
}
chosen = st.dictionaries(st.sampled_from(list(SETTINGS)), st.integers(0, 2), max_size=3)


@settings(max_examples=6, deadline=None)
@given(st.lists(chosen, min_size=2, max_size=3))
def test_a_run_from_the_cache_is_what_a_run_without_one_is(
    small: Path, cases: list[dict[str, int]]
) -> None:
    """Whatever was run before: entries of all earlier examples lie there."""
    for case in cases:
        asked = {key: SETTINGS[key][number % len(SETTINGS[key])] for key, number in case.items()}
        scenario = load_scenario(small, {"cluster.nodes": "[1, 4]", **asked})
        kept_one = run(scenario)
        assert told(run(scenario)) == told(kept_one)
        keys = [profile_key(scenario, choice) for choice in scenario.compressors]
        profiles = [profile for key in keys if (profile := profile_cache.load(key)) is not None]
        fresh = simulated_run(scenario, keys, profiles, None, progress=SilentProgress())
        assert told(kept_one).document()["rows"] == fresh.document()["rows"]
        assert (kept_one.timelines, kept_one.inputs) == (fresh.timelines, fresh.inputs)


# --- what cannot be used -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: sealed(b"no zlib"),
        lambda data: sealed(zlib.compress(b'{"rows": 1}')),
    ],
)
def test_a_damaged_entry_is_simulated_again(small: Path, cache: Path, damage: Any) -> None:
    for path in entries(cache):
        path.unlink()
    first = run(load_scenario(small))
    (path,) = entries(cache)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert told(run(load_scenario(small))) == told(first)
    assert len(path.read_bytes()) > len(whole) // 2
    assert told(run(load_scenario(small))) == told(first)


def test_without_a_folder_it_works(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    first = run(load_scenario(small))
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "file" / "folder"))
    with pytest.warns(UserWarning, match="this profile is not cached"):
        found = run(load_scenario(small))
    assert [row.iteration_s for row in found.rows] == [row.iteration_s for row in first.rows]


def test_what_was_asked_for_last_stays(
    small: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in entries(cache):
        path.unlink()
    scenarios = [load_scenario(small, seed=seed) for seed in range(1, 5)]
    names: list[Path] = []
    for age, scenario in enumerate(scenarios[:3]):
        run(scenario)
        (new,) = set(entries(cache)) - set(names)
        names.append(new)
        os.utime(new, ns=(age, age))
    run(scenarios[0])  # asked for
    room = 3.5 * names[0].stat().st_size
    monkeypatch.setattr(result_cache, "ALL", room)
    run(scenarios[3])
    left = set(entries(cache))
    assert len(left) == 3
    assert names[0] in left
    assert names[1] not in left


def test_what_takes_as_long_to_read_is_not_kept(
    small: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_cache, "_READ", 1.0)
    before = entries(cache)
    run(load_scenario(small, seed=99))
    assert entries(cache) == before


def test_a_run_that_warns_warns_again(
    small: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def warning(*args: Any, **options: Any) -> Result:
        logging.getLogger("gcsim.simulator.any").warning("mind this")
        return simulated_run(*args, **options)

    monkeypatch.setattr(SIMULATED, warning)
    for _ in range(2):
        caplog.clear()
        run(load_scenario(small, seed=77))
        assert "mind this" in caplog.text


def test_a_warning_reaches_stderr_where_nobody_listens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("gcsim"), "propagate", False)
    with result_cache.collected_warnings() as heard:
        logging.getLogger("gcsim.simulator.any").warning("mind this")
    assert len(heard) == 1
    assert capsys.readouterr().err == "mind this\n"
