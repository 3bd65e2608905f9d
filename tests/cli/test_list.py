"""Models and tasks as lists: each at any width, what it takes, and tables of layers apart."""

import json
from pathlib import Path

import pytest

from gcsim.cli.list import Kind, details, entries, model_details, model_tables
from gcsim.errors import InputError
from gcsim.traces.models.registry import MODELS, shipped_model
from gcsim.traces.recording.model_traces import record_live
from gcsim.traces.synthetic.fit_file import read_fits
from gcsim.traces.tasks.registry import TASKS
from tests.command import Finished, invoked
from tests.command import gcsim as in_this_process


def shown(monkeypatch: pytest.MonkeyPatch, columns: int, *words: str) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    done = invoked(["list", "models", *words])
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_every_model_begins_one_line_and_no_word_is_cut(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    text = shown(monkeypatch, columns)
    assert max(map(len, text.splitlines())) <= columns
    first = [line.split()[0] for line in text.splitlines() if line.strip()]
    words = " ".join(text.split())
    for name, entry in MODELS.items():
        assert first.count(name) == 1
        assert f"{entry.parameters:,}" in words
        assert all(word in words for word in entry.title.split())


def test_the_image_models_take_a_line_each_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, 80).splitlines()
    images = [entry for entry in MODELS.values() if entry.build and entry.input == "samples"]
    start = lines.index("Images")
    assert [line.split()[0] for line in lines[start + 2 : start + 2 + len(images)]] == [
        entry.name for entry in images
    ]


def test_a_model_tells_its_loss_where_classifiers_stand_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = " ".join(shown(monkeypatch, 80, "googlenet_aux").split())
    assert "13,004,888; gradients of 52.02 MB in float32" in text  # 4 bytes each
    assert "sample 3 x 224 x 224" in text
    assert "0.3 times that of each one inside the network" in text
    assert "arXiv:1409.4842" in text
    assert "loss" not in dict(model_details(details(Kind.models, "googlenet")))


def test_a_table_of_layers_stands_apart_and_only_in_full_with_its_layers() -> None:
    layers = [
        {"name": "fc", "shape": [10, 5], "forward_flops": 100},
        {"name": "out", "shape": [5, 3], "forward_flops": 30},
    ]
    table = {
        **details(Kind.models, "lenet"), "name": "mine", "build": None, "layers": layers,
    }  # fmt: skip
    listed = model_tables([table, details(Kind.models, "lenet")])
    titles = {title: rows for title, _, rows in listed}
    assert [row[0] for row in titles["Images"]] == ["lenet"]
    (other,) = titles.keys() - {"Images"}
    assert "synthetic gradients only" in other
    assert [row[0] for row in titles[other]] == ["mine"]
    assert dict(model_details(table))["layers"] == "2, forward 130 FLOPs per sample"
    assert "layers" not in details(Kind.models, "lenet", full=False)


SCENARIO = """\
model: {layers: net.csv}
batch_size: 8
gradients: {source: synthetic, iterations: 1}
cluster: {nodes: [2], device: p100_pcie, network: 10gbe}
compressors: [none, fp16]
"""


def gcsim(*arguments: str, folder: Path, code: int = 0) -> Finished:
    variables = {"COLUMNS": "100", "GCSIM_CACHE_DIR": str(folder / "cache")}
    ran = in_this_process(*arguments, folder=folder, **variables)
    assert ran.returncode == code, ran.stderr
    return ran


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of two workers and two iterations of LeNet, and a table of it."""
    here = tmp_path_factory.mktemp("fit")
    record_live(
        model=shipped_model("lenet"), batch_size=8, workers=2, warmup_steps=1, iterations=2,
        learning_rate=0.01, momentum=0.9, device="cpu", seed=0, folder=here / "trace",
    )  # fmt: skip
    (here / "a.yaml").write_text(SCENARIO)
    return here


def test_a_fit_is_written_and_a_run_draws_from_it(folder: Path) -> None:
    (folder / "net.csv").write_text(
        gcsim("list", "models", "lenet", "--layers", folder=folder).stdout
    )
    ran = gcsim("fit", "trace", "-o", "fit.json", folder=folder)
    assert "Written to fit.json" in ran.stderr
    assert "lenet: 10 tensors, 61,706 elements, from 2 iterations of 2 workers" in ran.stderr
    (fit,) = read_fits(folder / "fit.json")
    assert len(fit.tensors) == 10
    changes = ["--set", "gradients.fit=fit.json", "--set", "model.name=lenet"]
    shown = gcsim("run", "a.yaml", *changes, "-v", "-o", "out", folder=folder)
    assert (
        "a: 2 nodes, 2 workers, NCCL over TCP, fp32, synthetic gradients, fastest first"
        in shown.stdout
    )
    assert "SYNTHETIC" in shown.stderr
    facts = json.loads((folder / "out/results.json").read_text())["provenance"]["gradients"]
    assert facts["source"] == "synthetic"
    assert facts["fit"].startswith("fit.json: each tensor by its name, from a recording of lenet")
    # what stands beside the results can be run again, from anywhere
    again = gcsim("run", "out/scenario.yaml", "-o", "again", "-q", "-v", folder=folder)
    assert again.stdout == shown.stdout


def test_checking_names_a_fit_that_cannot_be_read(folder: Path) -> None:
    (folder / "net.csv").write_text("name,shape,forward_flops\na,3,0\n")
    (folder / "damaged.json").write_text('{"schema": 1, "fits": [{"model": NaN}]}')
    told = gcsim("check", "a.yaml", "--set", "gradients.fit=damaged.json", folder=folder, code=2)
    assert "damaged.json: error: fits.0.model" in told.stderr
    assert "gcsim fit TRACE" in told.stderr
    assert "Traceback" not in told.stderr


def test_what_cannot_be_fitted_is_told_and_nothing_is_left(folder: Path) -> None:
    told = gcsim("fit", "none", "-o", "never.json", folder=folder, code=2)
    assert "none: error: there is no such folder" in told.stderr
    twice = gcsim("fit", "trace", "trace", "-o", "never.json", folder=folder, code=2)
    assert "two traces of 'lenet'" in twice.stderr
    assert not (folder / "never.json").exists()


def test_layers_are_those_of_a_model(folder: Path) -> None:
    told = gcsim("list", "models", "lenett", "--layers", folder=folder, code=2)
    assert "did you mean 'lenet'?" in told.stderr
    assert (
        "--layers needs the name of one model"
        in gcsim("list", "links", "--layers", folder=folder, code=2).stderr
    )


@pytest.mark.parametrize("columns", ["60", "80"])
def test_the_path_of_a_scenario_can_be_copied(columns: str) -> None:
    """Also one longer than the room next to the names."""
    words = invoked(["list", "scenarios"], env={"COLUMNS": columns}).stdout.split()
    assert {entry["path"] for entry in entries(Kind.scenarios)} <= set(words)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_every_task_is_listed_with_its_input_and_within_the_width(columns: str) -> None:
    shown = invoked(["list", "tasks"], env={"COLUMNS": columns}).stdout
    for task in TASKS.values():
        assert task.name in shown
        assert f"input: {task.input}" in shown
    assert max(map(len, shown.splitlines())) <= int(columns)


def test_each_model_is_the_default_of_one_task() -> None:
    named = [model for entry in entries(Kind.tasks) for model in entry["default_of"]]
    assert sorted(named) == sorted(MODELS)


def test_a_task_is_shown_alone_and_as_json() -> None:
    shown = invoked(["list", "tasks", "words", "--json"])
    assert json.loads(shown.stdout) == details(Kind.tasks, "words")
    assert "input: tokens; default of " in invoked(["list", "tasks", "words"]).stdout


def test_a_mistyped_task_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'words'"):
        details(Kind.tasks, "wrods")
