"""A fit's file is data that a stranger may have made: every fault is named, none is a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest

from gcsim.errors import InputError
from gcsim.traces.synthetic.fit_file import (
    DEFAULT,
    POINTS,
    ModelFit,
    default_fits,
    read_fits,
    write_fits,
)


def document() -> dict[str, Any]:
    side = {
        "scale": [1.0] * len(POINTS), "silent": [], "population": [0.5, 0.2], "family": "normal",
        "shape": 1.0, "coherence": 0.0, "offset": 0.0,
    }  # fmt: skip
    tensor = {
        "name": "fc.weight", "shape": [4, 6], "kind": "linear", "depth": 0.0, "rms": 0.5,
        "common": 0.25, "scatter": 0.0, "spectrum": [0.6, 0.3], "aligned": 0.0, "rows": side,
        "columns": side,
    }  # fmt: skip
    fit = {
        "model": "small", "samples_per_worker": 8, "workers": 2, "iterations": 2, "recording": {},
        "scatter": 0.0, "levels": [], "waves": [], "tensors": [tensor],
    }  # fmt: skip
    return {"schema": 1, "fits": [fit]}


def problems(path: Path, text: str) -> list[str]:
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_fits(path)
    return [str(problem) for problem in caught.value.problems]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    fits = (ModelFit.model_validate(document()["fits"][0]),)
    write_fits(tmp_path / "fit.json", fits)
    assert read_fits(tmp_path / "fit.json") == fits


def test_the_default_fit_covers_every_kind_of_layer() -> None:
    kinds = {tensor.kind for fit in default_fits() for tensor in fit.tensors}
    assert kinds == {"convolution", "linear", "embedding", "scale", "shift", "bias"}
    assert {fit.model for fit in default_fits()} >= {"lenet", "resnet20_cifar10", "alexnet"}
    assert DEFAULT.stat().st_size < 200_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is truncated or not JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ("[]", "is not a fit of gradients"),
        ('{"files": {}}', "is no fit of gradients"),
        ('{"schema": 2, "fits": []}', "has schema 2; this gcsim reads 1"),
        ('{"schema": 1, "fits": []}', "fits: must have at least 1 entry"),
        ('{"schema": 1, "fits": [{}], "more": 1}', "fits.0.model: is missing"),
    ],
)
def test_damage_is_named(tmp_path: Path, text: str, said: str) -> None:
    first = problems(tmp_path / "fit.json", text)[0]
    assert said in first
    assert first.startswith(str(tmp_path / "fit.json"))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rms", float("nan"), "rms (fc.weight) = nan: must be a finite number"),
        ("rms", -1.0, "rms (fc.weight) = -1.0: must be at least 0"),
        ("common", 1.5, "common (fc.weight) = 1.5: must be at most 1"),
        ("kind", "linaer", "kind (fc.weight) = 'linaer': is not a choice; did you mean 'linear'?"),
        ("shape", [4, 0], "shape.1 (fc.weight) = 0: must be at least 1"),
        ("spectrum", [0.9, 0.9], "the energies of spectrum are more than 1 in all"),
        ("spectrum", "0.9", "spectrum (fc.weight) = '0.9': must be a list"),
        ("extra", 1, "extra (fc.weight) = 1: is not a known key"),
    ],
)
def test_a_wrong_value_is_named_with_its_tensor(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    body = document()
    body["fits"][0]["tensors"][0][key] = value
    assert said in problems(tmp_path / "fit.json", json.dumps(body))[0]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("scale", [1.0, 2.0], f"must have at least {len(POINTS)} entries"),
        ("scale", [0.0] * len(POINTS), "scale has no entry above 0"),
        ("silent", [0.5], "silent has another length than scale"),
        ("population", [0.9, 0.9], "the shares of population are more than 1 in all"),
        ("shape", 0.0, "= 0.0: must be greater than 0"),
    ],
)
def test_a_wrong_side_is_named(tmp_path: Path, key: str, value: object, said: str) -> None:
    body = document()
    body["fits"][0]["tensors"][0]["rows"][key] = value
    assert said in problems(tmp_path / "fit.json", json.dumps(body))[0]


def test_a_heavy_tail_without_variance_is_refused(tmp_path: Path) -> None:
    body = document()
    body["fits"][0]["tensors"][0]["rows"] |= {"family": "student_t", "shape": 2.0}
    assert "more than 2 degrees" in problems(tmp_path / "fit.json", json.dumps(body))[0]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_fits(tmp_path / "none.json")
