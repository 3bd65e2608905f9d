"""`gcsim plan`: bad words end with 2 and a hint, a small plan with its table and its files."""

import csv
import json
import shlex
from pathlib import Path

import pytest

from gcsim.cli.plan import hours
from gcsim.errors import InputError
from gcsim.scenarios.advice.question import count_of
from tests.command import gcsim

OFFERS = 'device,gpus,nodes,network,price\nv100,4,2,"25 Gbit/s",6.10\nt4,2,2,10gbe,1.5\n'
SET = ("--set", "compressors=[none, fp16]", "--set", "uncertainty.draws=20")
WORDS = {"--model": "lenet", "--samples": "10M", "--offers": "offers.csv", "--deadline": "2 h"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "offers.csv").write_text(OFFERS, encoding="utf-8")
    return tmp_path


def words(**changed: str | None) -> list[str]:
    given = {**WORDS, **{f"--{name}": value for name, value in changed.items()}}
    return [word for pair in given.items() if pair[1] is not None for word in pair if word]


@pytest.mark.parametrize(
    ("changed", "message", "hint"),
    [
        ({"samples": "many"}, "--samples: error: 'many' is not a number above 0", "10B"),
        ({"samples": None}, "--samples: error: is missing: lenet reads samples", "--samples 10M"),
        ({"tokens": "1M"}, "--samples: error: is missing: lenet reads samples", "--samples 10M"),
        ({"deadline": "3 moons"}, "--deadline: error: unknown unit 'moons' in '3 moons'", "min, "),
        ({"deadline": "3"}, "--deadline: error: 3 has no unit; write it like '3 days'", ""),
        ({"deadline": "0 days"}, "--deadline: error: '0 days' is not a time above 0", "3 days"),
        ({"budget": "0"}, "--budget: error: '0' is not a number above 0", "5000"),
        ({"batch": "-1"}, "--batch: error: '-1' is not a number above 0", "5000"),
        ({"model": "lenett"}, "'lenett'", "lenet"),
        ({"offers": "none.csv"}, "none.csv", "none.csv"),
        ({"output": "plan.txt"}, "plan.txt: error: '.txt' is not a format of a plan", ".md"),
        ({"set": "batch_siz=3"}, "'batch_siz'", "batch_size"),
    ],
)
def test_a_mistake_ends_with_2_and_a_hint(
    folder: Path, changed: dict[str, str | None], message: str, hint: str
) -> None:
    found = gcsim("plan", *words(**changed), folder=folder)
    assert found.returncode == 2
    assert not found.stdout
    assert message in found.stderr
    assert hint in found.stderr


def test_numbers_and_times_are_read_as_written() -> None:
    assert [count_of(text) for text in ("10B", "524,288", "3e11", "1.5 k")] == [
        1e10,
        524288,
        3e11,
        1500,
    ]
    assert [hours(text) for text in ("3 days", "40 h", "1 hour", "1.5 weeks")] == [72, 40, 1, 252]
    assert [hours(text) for text in ("3 minutes", "30 min")] == [0.05, 0.5]
    for text in ("0", "1x", "e3"):
        with pytest.raises(InputError):
            count_of(text)


def test_a_small_plan_is_told_and_written(folder: Path) -> None:
    table = gcsim("plan", *words(), *SET, "-o", "plan.md", folder=folder)
    assert table.returncode == 0, table.stderr
    assert "lenet, 10 M samples, 256 per step, deadline 2 hours" in table.stdout
    assert "Choose" in table.stdout
    lines = table.stdout.splitlines()
    (command,) = (line for line in lines if line.startswith("    gcsim advise --model lenet "))
    assert command.endswith("--set uncertainty.draws=20")  # one line, to be copied
    assert max(len(line) for line in lines if line != command) <= 100
    page = (folder / "plan.md").read_text(encoding="utf-8")
    assert page.splitlines()[2].startswith("| machines | method | micro-batch |".replace("-", ""))
    out = gcsim("plan", *words(), *SET, "--json", "-o", "plan.csv", folder=folder)
    answer = json.loads(out.stdout)
    (chosen,) = (row for row in answer["front"] if row["chosen"])
    assert chosen["device"] == "t4"  # a quarter of the price at the same time, a step's overhead
    assert chosen["money"] == pytest.approx(chosen["hours"] * chosen["nodes"] * 1.5)
    assert 0.8 <= chosen["probability_in_time"] <= 0.99
    with (folder / "plan.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["hours"]) for row in rows] == [row["hours"] for row in answer["front"]]
    said = shlex.split(chosen["command"])
    assert said[:4] == ["gcsim", "advise", "--model", "lenet"]
    assert {"compressors=[none, fp16]", f"batch_size={chosen['micro_batch']}"} <= set(said)


def test_what_fits_nowhere_is_told_with_what_would(folder: Path) -> None:
    given = {
        "model": "llama3_8b",
        "samples": None,
        "tokens": "1B",
        "deadline": None,
        "sequence": "512",
    }
    found = gcsim("plan", *words(**given), *SET, "--json", folder=folder)
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert answer["front"] == []
    assert [one["place"] for one in answer["does_not_fit"]] == ["offers.csv:2", "offers.csv:3"]
    assert any(
        "strategy=zero3" in text for one in answer["does_not_fit"] for text in one["would_fit"]
    )
