"""Mistakes of users in a compressor or a model: exit code 2, and their file and line are named.

`tests/mistakes.py` has the mistakes; the line that it marks is the oracle. They run through the
command line: compressors on a table of layers with synthetic gradients, models by training them.
"""

import json
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from typer.testing import Result

from tests.command import invoked
from tests.mistakes import COMPRESSORS, HARMLESS, MODELS, write

NUMBERS: Iterator[int] = count()


def run(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, *, model: bool = False
) -> tuple[Result, Path]:
    """The command's output on a module, and the module's file."""
    # of a name of its own: modules are kept
    path = write(folder, f"mine_{next(NUMBERS)}", text, model=model)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    arguments = ["run", "s.yaml", "-q", "--no-cache", "--json", "-o", "out"]
    return invoked(arguments), path


def expect(name: str, path: Path, done: Result) -> None:
    said = done.stderr
    assert "a bug in gcsim" not in said
    if name in HARMLESS:
        assert done.exit_code == 0, said
        assert json.loads(done.stdout)["rows"]
        return
    assert done.exit_code == 2, (done.exception, said)
    if f"{path.stem} has no 'Mine'" in said:  # whose line is the scenario's
        assert re.search(r"^s\.yaml:\d+:\d+: error", said, re.MULTILINE), said
        return
    named = [int(number) for number in re.findall(re.escape(str(path)) + r":(\d+)", said)]
    assert named, said
    lines = path.read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if "# HERE" in line]
    assert set(marked) <= set(named), said
    assert not (path.parent / "out/results.json").exists()


@pytest.mark.parametrize("name", COMPRESSORS)
def test_of_a_compressor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    done, path = run(tmp_path, COMPRESSORS[name], monkeypatch)
    expect(name, path, done)


@pytest.mark.parametrize("name", MODELS)
def test_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    done, path = run(tmp_path, MODELS[name], monkeypatch, model=True)
    expect(name, path, done)


def test_what_a_compressor_prints_is_not_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _ = run(tmp_path, COMPRESSORS["prints"], monkeypatch)
    assert "hello" in done.stderr
    assert "hello" not in done.stdout


def test_nothing_sent_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero bytes have no ratio; the row stands in the result all the same."""
    done, _ = run(tmp_path, COMPRESSORS["sends nothing"], monkeypatch)
    dense, row = json.loads(done.stdout)["rows"]
    assert (row["wire_bytes_per_worker"], row["compression_ratio"]) == (0, None)
    assert dense["compression_ratio"] == 1
