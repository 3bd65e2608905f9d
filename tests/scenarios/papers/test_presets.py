"""Does every preset run, with what its paper prints beside it?"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gcsim.analysis.papers.table import legend
from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.papers import preset as presets
from gcsim.scenarios.papers.orq import AWAY, ERROR, RANGE, USED
from gcsim.scenarios.papers.preset import PRESETS, Reproduction, preset, printed, reproduce
from gcsim.scenarios.papers.sampling import ALL, LARGEST, VISITED
from gcsim.scenarios.papers.trained import ACCURACY, RATIO
from gcsim.scenarios.trained import search as searching
from tests.scenarios.trained.here import here

FOLDER = Path(presets.__file__).parent
_ALONE = ("orq_fig1", "orq_table3", "sampling_fig3", "sampling_visits", "ce_sgd_table2")
PAGE = (Path(__file__).parents[3] / "docs/papers.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "papers"))
    monkeypatch.setattr(searching, "LocalWorkers", here([]))  # not a process for each preset


def small(name: str) -> Reproduction:
    """The reduced size of a preset, in this process's cache; what every one must be is checked."""
    found = reproduce(preset(name), quick=True, jobs=1)
    outcome = found.outcome
    assert outcome.cells
    judged = not any("model" in changed for changed in preset(name).quick.values())
    assert bool(outcome.verdicts) is judged
    assert all(line.x for panel in outcome.panels for line in panel.lines)
    shown = {(cell.row, cell.column): cell.printed for cell in outcome.cells}
    kept = {place: value for place, value in printed(name).items() if place in shown}
    assert {place: value for place, value in shown.items() if value is not None} == kept
    json.loads(found.to_json())  # no NaN, no infinity
    columns = {cell.column.lstrip("0123456789 ") for cell in outcome.cells}
    assert legend(outcome).count("\n") == len(columns)  # each is explained
    return found


def test_every_preset_has_its_own_name_a_source_and_a_line_in_the_page() -> None:
    for name in PRESETS:
        found = preset(name)
        assert found.name == name
        assert any(place in found.source for place in ("Table", "Figure", "sec. "))
        assert f"gcsim reproduce {name}" in PAGE


def test_what_is_printed_is_of_a_preset_and_says_where() -> None:
    with (FOLDER / "printed.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["preset"] for line in lines} <= set(PRESETS)
    assert all(line["where"] for line in lines)
    places = [(line["preset"], line["row"], line["column"]) for line in lines]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    "path", sorted((FOLDER / "scenarios").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_scenario_loads_and_is_named_as_its_file(path: Path) -> None:
    assert load_scenario(path).name == path.stem


def test_no_method_of_the_orq_paper_clips() -> None:
    # with clipping of some, the order is that of who clips
    for name in ("orq_train", "orq_gradients"):
        scenario = load_scenario(FOLDER / "scenarios" / f"{name}.yaml")
        kinds = {choice.kind for choice in scenario.compressors}
        assert "terngrad" not in kinds  # clips, and has one scalar a tensor
        for choice in scenario.compressors:
            assert choice.parameters.get("clip") is None
            assert choice.parameters.get("bucket", 2048) == 2048


def test_quantisers_in_miniature() -> None:
    """The tiny one: a worker's three gradients of ResNet-20 through five quantisers."""
    found = small("orq_fig1")
    cells = {(cell.row, cell.column): np.array(cell.here) for cell in found.outcome.cells}
    methods = ("QSGD-9", "Linear-9", "ORQ-9", "BinGrad-pb", "BinGrad-b")
    assert {row for row, _ in cells} == set(methods)
    for name in methods:
        most = np.log2(9 if name.endswith("9") else 2)
        assert ((cells[name, USED] > 0) & (cells[name, USED] <= most)).all()
        assert (cells[name, AWAY] > 0).all()
    # by their definitions: ORQ minimises what random rounding to as many levels loses, BinGrad-b's
    # class means lose less than rounding at random to two levels
    assert (cells["ORQ-9", ERROR] < cells["QSGD-9", ERROR]).all()
    assert (cells["ORQ-9", ERROR] < cells["Linear-9", ERROR]).all()
    assert (cells["BinGrad-b", ERROR] < cells["BinGrad-pb", ERROR]).all()
    # Eq. 15: b times all elements is the sum of those beyond b, so b is at most their mean size,
    # about which BinGrad-b's two levels lie; the paper has BinGrad-pb's range the wider one
    assert (cells["BinGrad-pb", RANGE] < cells["BinGrad-b", RANGE]).all()
    assert {len(values) for values in cells.values()} == {3}
    assert len(found.outcome.panels) == 1 + len(methods)


def test_buckets_in_miniature() -> None:
    found = small("orq_table3")
    cells = {(cell.row, cell.column): np.array(cell.here) for cell in found.outcome.cells}
    for size in (128, 2048, 32768):
        orq, even = f"ORQ-3, {size}", f"TernGrad-noclip, {size}"
        # ORQ's outer levels are the bucket's ends, its middle one the best: never worse than zero
        assert (cells[orq, ERROR] < cells[even, ERROR]).all()
        # five base-3 digits a byte; three levels or one scale of 32 bits a bucket
        for name, scalars in ((orq, 3), (even, 1)):
            assert cells[name, RATIO] == pytest.approx(32 / (1.6 + 32 * scalars / size), rel=2e-3)
    for name in ("ORQ-3", "TernGrad-noclip"):
        assert (cells[f"{name}, 128", ERROR] < cells[f"{name}, 2048", ERROR]).all()
        assert (cells[f"{name}, 2048", ERROR] < cells[f"{name}, 32768", ERROR]).all()


def test_data_and_steps_of_the_user_replace_a_presets(tmp_path: Path) -> None:
    for number in range(20):
        image = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        path = tmp_path / ("test" if number >= 16 else "train") / f"class {number % 2}"
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path / f"{number}.png")
    found = reproduce(preset("ce_sgd_table1"), quick=True, data=tmp_path, steps=2, jobs=1)
    (scenario,) = found.scenarios
    assert scenario["model"] == "resnet20_cifar10"
    plan = scenario["train"]
    assert isinstance(plan, dict)
    assert (plan["task"], plan["steps"], plan["evaluate_every"]) == (f"folder:{tmp_path}", 2, 1)
    assert str(tmp_path) in found.outcome.notes[0]
    # two classes, two images of each held out: quarters
    assert {value % 25.0 for cell in found.outcome.cells if cell.column == ACCURACY
            for value in cell.here} == {0.0}  # fmt: skip


def test_a_preset_that_trains_nothing_takes_no_data(tmp_path: Path) -> None:
    for asked in ({"data": tmp_path}, {"steps": 5}):
        with pytest.raises(InputError, match="orq_fig1 trains nothing"):
            reproduce(preset("orq_fig1"), **asked)


@pytest.mark.long
def test_the_same_preset_gives_the_same_bytes() -> None:
    assert small("orq_fig1").to_json() == small("orq_fig1").to_json()


@pytest.mark.long
def test_sampling_in_miniature() -> None:
    found = small("sampling_fig3")
    cells = {(cell.row, cell.column): np.array(cell.here) for cell in found.outcome.cells}
    # twenty steps of 1 %: 1 - 0.99^20 = 18.2 % are visited by chance, 1 % of them are the largest
    assert np.mean(cells["RS", VISITED]) == pytest.approx(18.2, abs=1.0)
    assert np.mean(cells["RS", LARGEST]) == pytest.approx(1.0, abs=0.5)
    assert np.mean(cells["GS", LARGEST]) > 2 * np.mean(cells["RS", LARGEST])
    assert np.mean(cells["GS", VISITED]) < np.mean(cells["RS", VISITED])


@pytest.mark.long
def test_visits_in_miniature() -> None:
    found = small("sampling_visits")
    cells = {(cell.row, cell.column): np.array(cell.here) for cell in found.outcome.cells}
    # 100 steps: an element is missed at random with probability 0.9^100 = 0.003 %
    assert cells["RS, 0.1", ALL] == pytest.approx(100 * (1 - 0.9**100), abs=0.02)
    # twice as many draws as elements cannot visit all of them if any comes thrice
    assert (cells["GSB, 0.1", ALL] < 100).all()
    assert (cells["GSB, 0.1, alpha 0.6", ALL] > cells["GSB, 0.1", ALL]).all()
    assert (cells["GS, 0.1", ALL] < cells["RS, 0.1", ALL]).all()


@pytest.mark.long
def test_bytes_of_networks_in_miniature() -> None:
    found = small("ce_sgd_table2")
    cells = {(cell.row, cell.column): cell.here for cell in found.outcome.cells}
    sizes = {cells[row, "size [MB]"] for row in ("MobileNet", "VGG11", "WideResNet")}
    assert sizes == {(4 * 269_722 / 1e6,)}  # the small size has ResNet-20 for all


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PRESETS if name not in _ALONE])
def test_every_other_preset_runs_at_its_reduced_size(name: str) -> None:
    found = small(name)
    assert found.quick
    assert found.scenarios
    assert {verdict.agrees for verdict in found.outcome.verdicts} <= {
        "agrees", "in part", "disagrees", "open",
    }  # fmt: skip
