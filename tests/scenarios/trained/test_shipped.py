"""Trajectories that come with gcsim: are they those of this code, and are they taken?"""

import lzma
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gcsim.analysis.report.answer import plain
from gcsim.analysis.trained.table import parts
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained import make_shipped
from gcsim.scenarios.trained import search as searching
from gcsim.scenarios.trained.result import TrainingResult
from gcsim.scenarios.trained.runs import Run
from gcsim.scenarios.trained.search import train_all
from gcsim.scenarios.trained.study import train
from gcsim.traces.profile import Phase
from gcsim.traces.training import shipped
from gcsim.traces.training.trajectory import Trajectory, Window
from tests.benchmarks import shipped_trajectories as maker
from tests.scenarios.trained.here import SMALL, here


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small scenario, and in `shipped` what is made for it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "small.yaml").write_text(SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "LocalWorkers", here([]))
        patch.setattr(make_shipped, "SCENARIOS", (folder / "small.yaml",))
        patch.setattr(make_shipped, "PAPERS", ())
        patch.setattr(make_shipped, "ALIKE", ())
        patch.setattr(make_shipped, "wanted", lambda one: list(one.compressors))
        patch.setattr(shipped, "FOLDER", folder / "shipped")
        patch.setenv("GCSIM_CACHE_DIR", str(folder / "cache"))
        maker.make(folder / "shipped")
    return folder


@pytest.fixture
def scenario(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """A small one, whose trajectories come with gcsim."""
    shutil.copy(made / "small.yaml", tmp_path)
    shutil.copytree(made / "shipped", tmp_path / "shipped")
    monkeypatch.setattr(make_shipped, "SCENARIOS", (tmp_path / "small.yaml",))
    monkeypatch.setattr(make_shipped, "PAPERS", ())
    monkeypatch.setattr(make_shipped, "ALIKE", ())
    monkeypatch.setattr(make_shipped, "wanted", lambda one: list(one.compressors))
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "users"))
    return load_scenario(tmp_path / "small.yaml")


def told(result: TrainingResult) -> TrainingResult:
    """All but what differs between runs, and where trajectories come from."""
    return replace(result, wall={}, rows=tuple(replace(row, made="") for row in result.rows))


def trained_now(run: Run) -> Trajectory:
    found = run.perform(SilentProgress())
    assert isinstance(found, Trajectory)
    return found


def test_they_are_those_of_this_code() -> None:
    """`make trajectories` trains those that are stale again."""
    assert not [path.name for path in maker.stale()]


@pytest.mark.parametrize("name", make_shipped.SCENARIOS)
def test_a_shipped_scenario_trains_nothing(
    name: str, work: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path))
    scenario = load_scenario(name)
    result = train(scenario)
    assert not work
    assert all(row.made and len(row.ended) == 3 for row in result.rows)
    for width in (80, 120):
        shown = plain(parts(result, width), width)
        assert max(map(len, shown.splitlines())) <= width
        assert "…" not in shown


def test_they_are_small() -> None:
    assert sum(path.stat().st_size for path in shipped.FOLDER.iterdir()) < 8e6


@pytest.mark.parametrize("name", make_shipped.SCENARIOS)
def test_they_are_what_training_gives(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the first evaluation; other processors and libraries round otherwise."""
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path))
    scenario = load_scenario(name)
    assert scenario.train is not None
    rate, steps = scenario.train.learning_rate.values[0], scenario.train.evaluate_every
    for choice in scenario.compressors[1:6:4]:
        run = Run(scenario=scenario, choice=choice, rate=rate, seed=0, until=steps)
        assert run.known is not None
        came, made = run.known
        trained = trained_now(replace(run, fresh=True))
        assert "torch" in made
        assert [w.wire_bytes_per_worker for w in trained.windows] == [
            w.wire_bytes_per_worker for w in came.windows
        ]
        pairs = zip(trained.evaluations, came.evaluations, strict=True)
        assert all(one.loss == pytest.approx(other.loss, rel=1e-3) for one, other in pairs)
        assert trained.losses == pytest.approx(came.losses, rel=6e-3)  # three digits


def test_what_comes_with_gcsim_is_not_trained_and_gives_the_same(
    scenario: Scenario, work: list[Any]
) -> None:
    del work[:]
    came = train(scenario)
    assert not work
    trained = train(scenario, fresh=True)
    assert {run.choice.kind for run in work} == {"none", "topk"}
    assert told(came) == told(trained)
    assert all("torch" in row.made for row in came.rows)
    assert not any(row.made for row in trained.rows)
    shown = plain(parts(came, 80), 80).replace("\n", " ")
    assert "shipped with gcsim: all methods (trained on" in shown
    assert "shipped" not in plain(parts(trained, 80), 80)


def test_only_their_maker_searches_beyond_their_rates(scenario: Scenario, work: list[Any]) -> None:
    """Of two rates the best is at the edge: an answer says so, and the maker trains the next."""
    (path,) = shipped.FOLDER.glob("none-*")
    made = shipped.read(path)
    assert made is not None
    left = tuple(one for one in made.trajectories if one.learning_rate in (0.01, 0.1))
    assert len(left) < len(made.trajectories)
    shipped.write(path, replace(made, trajectories=left))
    shipped.read.cache_clear()
    del work[:]
    dense, _ = train_all(scenario, progress=SilentProgress())
    assert not work
    assert dense.at_edge
    dense, _ = train_all(scenario, widen=True, progress=SilentProgress())
    assert work
    assert {0.01, 0.1} < set(dense.rates)


def test_of_a_method_that_changed_it_is_trained_again(
    scenario: Scenario, work: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shipped.code_of
    monkeypatch.setattr(
        shipped, "code_of", lambda entry, name: before(entry, name) + "new" * ("topk" in name)
    )
    (stale,) = maker.stale(shipped.FOLDER)
    assert stale.name.startswith("topk-")
    del work[:]
    dense, topk = train_all(scenario, progress=SilentProgress())
    assert {run.choice.kind for run in work} == {"topk"}
    assert dense.made
    assert not topk.made


def test_of_other_code_that_trains_alike_the_kernels_are_renewed(
    scenario: Scenario, work: list[Any]
) -> None:
    """All trajectories of a file with the kernels of dense training get this code's; a file whose
    losses differ is trained again."""
    (path,) = shipped.FOLDER.glob("topk-*")
    made = shipped.read(path)
    assert made is not None
    (dense,) = map(shipped.read, shipped.FOLDER.glob("none-*"))
    assert dense is not None
    phases = (phase for window in made.trajectories[0].windows for phase in window.phases)
    others = dense.trajectories[0].windows[0].phases[0].steps[0].exchanges
    kernels = {maker._kind(phase): others for phase in phases}
    old = tuple(maker._launching(one, kernels) for one in made.trajectories)
    assert old != made.trajectories
    shipped.write(path, replace(made, code="of another", trajectories=old))
    maker.make(shipped.FOLDER)
    first = made.trajectories[0].windows[0].phases[0]
    own = {maker._kind(first): first.steps[0].exchanges}
    new = tuple(maker._launching(one, own) for one in made.trajectories)
    assert shipped.read(path) == replace(made, trajectories=new)
    other = tuple(replace(one, losses=tuple(1.01 * x for x in one.losses)) for one in old)
    heavier = tuple(replace(one, windows=tuple(map(_with_more_bytes, one.windows))) for one in old)
    for wrong in (other, heavier):
        shipped.write(path, replace(made, code="of another", trajectories=wrong))
        maker.make(shipped.FOLDER)
        assert shipped.read(path) == made


def _with_more_bytes(window: Window) -> Window:
    """A window whose collectives have a fifth more bytes."""

    def more(phase: Phase) -> Phase:
        (step,) = phase.steps
        exchanges = tuple(
            replace(
                each,
                collectives=tuple(
                    replace(one, sent=tuple(n * 6 // 5 for n in one.sent))
                    for one in each.collectives
                ),
            )
            for each in step.exchanges
        )
        return replace(phase, steps=(replace(step, exchanges=exchanges),))

    return replace(window, phases=tuple(map(more, window.phases)))


@pytest.mark.parametrize("damage", [b"", b"half", lzma.compress(b'{"code": 3}')])
def test_a_damaged_file_is_as_good_as_none(
    damage: bytes, scenario: Scenario, work: list[Any]
) -> None:
    (path,) = shipped.FOLDER.glob("none-*")
    path.write_bytes(damage)
    shipped.read.cache_clear()
    del work[:]
    train_all(scenario, progress=SilentProgress())
    assert {run.choice.kind for run in work} == {"none"}
    assert maker.stale(shipped.FOLDER) == [path]


def test_what_is_trained_otherwise_is_trained_here(
    scenario: Scenario, tmp_path: Path, work: list[Any]
) -> None:
    """Another target is a question to the same trajectories; another batch is another one."""
    for change, trained in (("train.target={accuracy: 0.06}", 0), ("batch_size=8", 2)):
        del work[:]
        train_all(load_scenario(tmp_path / "small.yaml", [change]), progress=SilentProgress())
        assert len({run.choice.kind for run in work}) == trained, change


def test_a_file_is_the_same_bytes_again_and_keeps_all_but_digits_of_losses(
    scenario: Scenario, tmp_path: Path
) -> None:
    for path in shipped.FOLDER.iterdir():
        found = shipped.read(path)
        assert found is not None
        shipped.write(tmp_path / path.name, found)
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
        (full, *_) = (one for one in found.trajectories if one.ended)
        run = Run(
            scenario=scenario, rate=full.learning_rate, seed=0, until=20, fresh=True,
            choice=next(one for one in scenario.compressors if one.kind == full.compressor),
        )  # fmt: skip
        trained = trained_now(run)
        assert full.losses == pytest.approx(trained.losses, rel=5e-3)  # three digits
        assert replace(full, losses=()) == replace(trained, losses=())
