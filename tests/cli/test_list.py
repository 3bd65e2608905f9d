"""How models are listed: every one at any width, what they take, and tables of layers apart."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gcsim.cli.list import Kind, details, model_details, model_tables
from gcsim.traces.models.registry import MODELS
from tests.command import invoked


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
    titles = dict(model_tables([table, details(Kind.models, "lenet")]))
    assert [row[0] for row in titles["Images"]] == ["lenet"]
    (other,) = titles.keys() - {"Images"}
    assert "synthetic gradients only" in other
    assert [row[0] for row in titles[other]] == ["mine"]
    assert dict(model_details(table))["layers"] == "2, forward 130 FLOPs a sample"
    assert "layers" not in details(Kind.models, "lenet", full=False)


def test_listing_models_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from gcsim.cli.app import main\n"
        "try:\n"
        "    main(['list', 'models', *sys.argv[1:]])\n"
        "finally:\n"
        "    assert 'torch' not in sys.modules\n"
    )
    for words in ([], ["vgg16"], ["vgg16", "--json"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
        )
        assert "vgg16" in done.stdout
        assert "AssertionError" not in done.stderr
    assert json.loads(done.stdout)["parameters"] == 138_357_544
