"""The fuzzer works, and finds what it is for: a fault of each sort that is planted into gcsim.

`make fuzz` tries thousands; here each kind of input that needs no process is tried a few times.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import typer

from gcsim.cli import check as cli_check
from tests.fuzz.__main__ import main
from tests.fuzz.case import Kind, Try, leftovers, wrong_figures
from tests.fuzz.mutation import as_json, damaged, lines, tree
from tests.fuzz.pool import PREPARE, Job, do, run
from tests.fuzz.registry import KINDS
from tests.fuzz.small import written
from tests.mistakes import COMPRESSORS, write

QUICK = ("scenarios", "links", "devices", "layers", "logs", "record")
LONGER = ("train", "reproduce", "advise", "explain", "compare", "plot", "hook")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in LONGER)]
)
def test_nothing_is_found_in_a_few_tries(tmp_path: Path, name: str) -> None:
    do(Job(name, 0, PREPARE), tmp_path)
    ends: list[str] = []
    tries = 4 if name in LONGER else 8
    for number in range({"logs": 2, "train": 8, "explain": 8}.get(name, tries)):
        outcome = do(Job(name, 0, number), tmp_path)
        assert outcome.found == []
        ends += outcome.ends
    # mutations are wrong, and that is told
    assert any(end.endswith((" 2", " refused")) for end in ends)


def _fails(*_: object) -> str:
    raise ZeroDivisionError("planted")


def _leaves(*_: object) -> str:
    (Path.cwd() / "tmp" / "gradients-abcdefgh").mkdir()
    return ""


def _silent(*_: object) -> str:
    print("Traceback (most recent call last)", file=sys.stderr)
    return ""


def _refuses(*_: object) -> str:
    raise typer.Exit(2)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (_fails, "ZeroDivisionError: planted"),
        (_leaves, "left behind: gradients-*"),
        (_silent, "exit 0: "),
        (_refuses, "refused without a word"),
    ],
)
def test_a_planted_fault_is_found_and_its_files_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., str], said: str
) -> None:
    def make(rng: Random, one: Try) -> None:
        written(one.folder)
        one.gcsim("check", "s.yaml")

    monkeypatch.setitem(KINDS, "planted", Kind(name="planted", make=make))
    monkeypatch.setattr(cli_check, "lines", fault)
    (found,) = do(Job("planted", 7, 1), tmp_path).found
    assert said in found
    assert (tmp_path / "planted-7-1" / "s.yaml").is_file()
    monkeypatch.undo()
    monkeypatch.setitem(KINDS, "planted", Kind(name="planted", make=make))
    assert do(Job("planted", 7, 1), tmp_path).found == []
    assert not (tmp_path / "planted-7-1").exists()


def test_the_report_on_a_faulty_compressor_is_a_word(tmp_path: Path) -> None:
    """`gcsim check MODULE:CLASS` prints it on stdout, for it is what was asked for."""
    write(tmp_path, "mine", COMPRESSORS["raises"], model=False)
    one = Try(folder=tmp_path, material=tmp_path)
    one.gcsim("check", "mine:Mine")
    assert (one.ends, one.found) == (["check 2"], [])


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ({"iteration_s": 1.0, "nmse": None, "cosine_similarity": -0.5, "memory": "none"}, []),
        ({"iteration_s": -1.0}, ["iteration_s is -1.0"]),
        ({"iteration_draws_s": [1.0, math.inf]}, ["iteration_draws_s is inf"]),
        ({"cosine_similarity": math.nan}, ["cosine_similarity is nan"]),
    ],
)
def test_figures_that_are_none_are_found(row: dict[str, object], wrong: list[str]) -> None:
    assert list(wrong_figures([row])) == wrong


def test_what_stays_is_named_the_same_each_time(tmp_path: Path) -> None:
    (tmp_path / ".results.json.ab3_x9zz.json").touch()
    (tmp_path / "results.json").touch()
    assert leftovers(tmp_path) == [".results.json.*.json"]


def test_a_try_is_its_kind_seed_and_number(tmp_path: Path) -> None:
    """What is printed makes the same file again; another number makes another."""
    texts = []
    for build, number in (("a", 3), ("b", 3), ("c", 4)):
        one = Try(folder=tmp_path / build, material=tmp_path)
        one.folder.mkdir()
        KINDS["layers"].make(Random(f"layers 0 {number}"), one)
        texts.append((one.folder / "net.csv").read_bytes())
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("change", ["tree", "lines", "bytes"])
def test_mutations_change_copies_and_come_from_the_generator(change: str) -> None:
    body = {"a": [1, 2.5, "10 Gbit/s", None], "b": {"c": True, "d": "x: 1\ny: 2"}}
    before = as_json(body)

    def made(seed: int) -> bytes:
        rng = Random(seed)
        if change == "tree":
            return as_json(tree(rng, body))
        text = lines(rng, before.decode()) if change == "lines" else None
        return damaged(rng, before) if text is None else text.encode("utf-8", "surrogatepass")

    several = [made(seed) for seed in range(200)]
    assert as_json(body) == before
    assert several == [made(seed) for seed in range(200)]
    assert len(set(several)) > 100


@pytest.mark.long
def test_a_hang_ends_its_process_and_is_told(tmp_path: Path) -> None:
    """A process that answers nothing in time is killed; the next try has another one."""
    jobs = [Job("layers", 0, 0), Job("layers", 0, 1)]  # half a second each, in a new process
    found = [outcome.found for _, outcome in run(jobs, tmp_path, processes=1, patience=0)]
    assert found == [["hang: more than 0 s"]] * 2


def test_an_unknown_kind_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "layer"]) == 2
    assert "unknown: layer; known: scenarios, " in capsys.readouterr().err
