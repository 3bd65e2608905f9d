"""A stored result is read back as it was, or refused with what is wrong in it."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gcsim.errors import InputError
from gcsim.scenarios.result import LISTS, Result
from gcsim.scenarios.stored import NUMBERS, read_results
from tests.analysis.drawn import plain_row

ROWS = tuple(
    replace(plain_row(label, 0.1 * number), iteration_draws_s=(0.1, 0.2), speedup_vs_dense=1.0)
    for number, label in enumerate(("none", "topk"), start=1)
)
RESULT = Result(scenario={"name": "mine"}, provenance={"seed": 3}, rows=ROWS, wall={"a": 0.5})


def test_a_folder_and_its_file_are_the_result(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(RESULT.to_json())
    assert read_results(tmp_path) == read_results(tmp_path / "results.json") == RESULT


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda body: body.update(schema=1), "is not a run's result of schema 3"),
        (lambda body: body.pop("rows"), "is not a run's result of schema 3"),
        (lambda body: body.update(rows=[]), "has no rows"),
        (lambda body: body["rows"][1].update(nodes="many"), "rows.1.nodes = 'many': must be"),
        (lambda body: body["rows"][0].pop("label"), "rows.0.label"),
        (lambda body: body["rows"].append(body["rows"][0]), "with the same label and size"),
        (lambda body: body["rows"][1].update(workers=9), "different numbers of workers"),
        (lambda body: body["rows"][1].update(label="none", nodes=9, workers=9), "two compressors"),
        (lambda body: body["rows"][1].update(iteration_s=0), "without nodes, workers, period"),
        (lambda body: body["rows"][1].update(nodes=0, workers=0), "without nodes, workers, period"),
        (lambda body: body["rows"][1].update(iteration_draws_s=[0.1]), "numbers of draws"),
        *(
            (lambda body, name=name: body["rows"][1].update({name: math.inf}), f"has {name} = inf")
            for name in NUMBERS
            if name not in LISTS
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    body = RESULT.document()
    change(body)
    file = tmp_path / "results.json"
    file.write_text(json.dumps(body))
    with pytest.raises(InputError) as error:
        read_results(tmp_path)
    assert str(error.value).startswith(f"{file}: error: ")
    assert said in str(error.value)


def test_a_folder_without_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"results\.json: error: cannot be read: .*gcsim run"):
        read_results(tmp_path)
