"""Traffic profiles that come with gcsim: of this code, small, what is measured, and refused?"""

import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.advice.question import Words, ask, name_of, path_of, shipped_profile
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.run import traffic_profiles
from gcsim.scenarios.running.keys import profile_key
from gcsim.traces.models.registry import MODELS
from gcsim.traces.models.table import table_facts
from gcsim.traces.stage1 import shipped
from tests.benchmarks import shipped_profiles
from tests.benchmarks.shipped_profiles import compared, make, measure, models, scenario_of, stale
from tests.benchmarks.shipped_trajectories import made_here


@pytest.fixture
def one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of profiles of the smallest model's first two methods."""
    monkeypatch.setattr(shipped_profiles, "models", lambda: [MODELS["cnn_digits"]])
    monkeypatch.setattr(shipped_profiles, "others", lambda _: [])
    monkeypatch.setattr(shipped_profiles, "compared", lambda scenario: compared(scenario)[:2])
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "profiles")
    make(tmp_path / "profiles")
    return tmp_path / "profiles"


def test_they_are_those_of_this_code() -> None:
    """`make profiles` measures those that are stale again."""
    assert not stale()


def test_each_file_is_small_and_all_of_them_are() -> None:
    sizes = [path.stat().st_size for path in shipped.FOLDER.iterdir()]
    assert len(sizes) == len(models())
    assert max(sizes) < 400_000
    assert sum(sizes) < 6_000_000


@pytest.mark.parametrize("model", [one.name for one in models()])
def test_what_advice_compares_is_there(model: str) -> None:
    words = Words(model=model, device="v100", nodes=2, network="1gbe")
    scenario = ask(None, words, ["training.device_memory=100 TiB"]).scenario
    held = shipped.read(path_of(scenario.model))
    for choice in scenario.compressors:
        assert name_of(scenario.model, choice, scenario.buckets) in held, choice.label
    profile = shipped_profile(scenario, scenario.compressors[-1])
    assert profile is not None
    assert profile.model.parameters == MODELS[model].parameters
    assert profile.model.samples_per_worker == scenario.batch_size


def test_they_are_what_a_run_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of methods whose traffic does not go by values: these differ in the last bits between
    processors."""
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path))
    words = Words(model="cnn_digits", device="v100", nodes=2, network="1gbe")
    scenario = ask(None, words).scenario
    keys = [profile_key(scenario, choice) for choice in scenario.compressors]
    run = traffic_profiles(scenario, keys, use_cache=False, progress=SilentProgress())
    for choice, measured in zip(scenario.compressors, run, strict=True):
        came = shipped_profile(scenario, choice)
        assert came is not None
        assert (came.model, came.buckets) == (measured.model, measured.buckets)
        assert came.quality.nmse == pytest.approx(measured.quality.nmse, rel=1e-3, abs=1e-9)
        if choice.kind not in ("dgc", "thc"):
            assert came.phases == measured.phases, choice.label


def test_a_batch_of_another_size_has_the_same_traffic() -> None:
    words = Words(model="lenet", device="v100", nodes=2, network="1gbe")
    one, other = (ask(None, replace(words, batch_size=size)).scenario for size in (32, 7))
    profile, changed = (shipped_profile(s, s.compressors[0]) for s in (one, other))
    assert profile is not None
    assert changed is not None
    assert changed.model.samples_per_worker == 7
    assert replace(changed, model=profile.model) == profile


@pytest.mark.parametrize("model", ["gpt3_1.3b", "llama3_8b"])
def test_samples_of_another_length_have_the_same_traffic_and_their_own_passes(model: str) -> None:
    """Gradients have the shapes of the tensors, and are drawn; FLOPs are those of the formula."""
    words = Words(model=model, device="b200", nodes=2, network="400gbe", precision="bf16")
    one, other = (
        ask(None, replace(words, sequence=tokens), ["training.device_memory=1 TiB"]).scenario
        for tokens in (None, 512)
    )
    for choice in other.compressors:
        profile, changed = (shipped_profile(s, choice) for s in (one, other))
        assert profile is not None
        assert changed is not None
        assert replace(changed, model=profile.model) == profile
        assert changed.model == table_facts(other.model, other.batch_size)
        assert changed.model.forward_flops < profile.model.forward_flops / 4


def test_of_code_that_changed_there_is_none_and_it_is_measured(
    one_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    words = Words(model="cnn_digits", device="v100", nodes=2, network="1gbe")
    question = ask(None, words, ["compressors=[none, fp16]"])
    told: list[str] = []
    engine = Engine(question, tell=told.append)
    assert (engine.came, engine.measured, told) == (("dense", "fp16"), (), [])
    before = shipped.code_of
    monkeypatch.setattr(
        shipped, "code_of", lambda model, name: before(model, name) + "new" * ("half" in str(name))
    )
    assert [line.partition(":")[0] for line in stale(one_model)] == ["cnn_digits.json.xz"] * 1
    engine = Engine(question, tell=told.append)
    assert (engine.came, engine.measured) == (("dense",), ("fp16",))
    assert len(told) == 1
    assert "for fp16: measured now, about 5 s" in told[0]


def test_what_this_code_measures_alike_is_of_this_code_from_then_on(one_model: Path) -> None:
    path = path_of(MODELS["cnn_digits"], one_model)
    whole = shipped.read(path)
    elsewhere = {name: replace(one, made="elsewhere") for name, one in whole.items()}
    shipped.write(path, [replace(one, code="old") for one in elsewhere.values()])
    assert len(stale(one_model)) == len(whole) == 2
    make(one_model)
    assert shipped.read(path) == elsewhere  # and not measured again


def test_what_this_code_measures_otherwise_is_measured_again(
    one_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(MODELS["cnn_digits"], one_model)
    whole = shipped.read(path)
    wrong = [
        replace(one, code="old", body=one.body.replace(b'"period":1', b'"period":1 ', 1))
        for one in whole.values()
    ]
    shipped.write(path, wrong)
    make(one_model)
    assert shipped.read(path) == whole


@pytest.mark.parametrize("damage", [b"", b"half", lzma.compress(b'{"code": 3}\n{}')])
def test_a_damaged_file_is_as_good_as_none(damage: bytes, one_model: Path) -> None:
    path = path_of(MODELS["cnn_digits"], one_model)
    path.write_bytes(damage)
    shipped.read.cache_clear()
    words = Words(model="cnn_digits", device="v100", nodes=2, network="1gbe")
    scenario = ask(None, words).scenario
    assert shipped_profile(scenario, scenario.compressors[0]) is None
    assert stale(one_model) == [path.name]


def test_a_file_is_the_same_bytes_again(one_model: Path, tmp_path: Path) -> None:
    path = path_of(MODELS["cnn_digits"], one_model)
    shipped.write(tmp_path / "again.json.xz", reversed(list(shipped.read(path).values())))
    assert (tmp_path / "again.json.xz").read_bytes() == path.read_bytes()


def test_a_profile_reads_back_but_for_digits_of_its_error() -> None:
    scenario = scenario_of(MODELS["cnn_digits"])
    (wanted,) = compared(scenario)[3:4]
    (profile,) = measure(scenario, [wanted])
    name = name_of(scenario.model, *wanted)
    one = shipped.Shipped(name=name, code="", made=made_here(), body=shipped.packed(profile))
    found = one.profile()
    assert found is not None
    assert replace(found, quality=profile.quality) == profile
    assert found.quality.nmse == pytest.approx(profile.quality.nmse, rel=1e-5)


def test_the_fit_and_the_model_are_in_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = scenario_of(MODELS["cnn_digits"])
    choice = scenario.compressors[0]
    names = {
        name_of(model, choice, scenario.buckets) for model in (scenario.model, MODELS["lenet"])
    }
    monkeypatch.setattr("gcsim.scenarios.advice.question._fit", lambda: "another")
    names.add(name_of(scenario.model, choice, scenario.buckets))
    assert len(names) == 3
