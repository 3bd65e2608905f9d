"""Six whole files, seven where nodes die, or the earlier ones untouched."""

from __future__ import annotations

import csv
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gcsim.analysis import write as module
from gcsim.analysis.write import FAULTS_ONLY, FILES, to_csv, to_yaml, write
from gcsim.errors import InputError
from gcsim.scenarios.reading import document
from gcsim.scenarios.result import FaultyRuns, Result


def test_all_files_are_written_and_nothing_else(result: Result, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    paths = write(result, folder)
    names = [
        "results.json", "results.csv", "speedup.png", "breakdown.png", "timeline.json",
        "scenario.yaml",
    ]  # fmt: skip
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert all(path.stat().st_size for path in paths)


def test_results_json_is_the_result(result: Result, tmp_path: Path) -> None:
    write(result, tmp_path)
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == result.to_json()


def test_csv_has_every_value_exactly(result: Result) -> None:
    lines = list(csv.DictReader(to_csv(result).splitlines()))
    assert tuple(lines[0]) == Result.columns()
    assert len(lines) == len(result.rows)
    for line, row in zip(lines, result.rows, strict=True):
        assert float(line["iteration_s"]) == row.iteration_s
        assert line["label"] == row.label


def test_scenario_yaml_reads_back_with_its_keys_in_order(result: Result) -> None:
    read = document.read(to_yaml(result), "scenario.yaml").data
    assert read == result.scenario
    assert list(read) == list(result.scenario)


def failing(error: BaseException) -> Callable[[Result, Path], None]:
    def produce(result: Result, path: Path) -> None:
        path.write_bytes(b"half")
        raise error

    return produce


@pytest.mark.parametrize("name", list(FILES))
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), InputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ValueError("bug"), ValueError),
    ],
)
def test_a_failure_leaves_earlier_results_whole_and_no_litter(
    result: Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str,
    error: BaseException,
    raised: type[BaseException],
) -> None:
    if name in FAULTS_ONLY:
        faulty = FaultyRuns(horizon_s=1.0, nodes=32, outages=(), progress=())
        result = replace(result, faulty=faulty)
    for earlier in FILES:
        (tmp_path / earlier).write_text("earlier")
    monkeypatch.setattr(module, "FILES", {key: FILES[key] for key in FILES if "png" not in key})
    monkeypatch.setitem(module.FILES, name, failing(error))
    with pytest.raises(raised) as caught:
        write(result, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        FILES, "earlier"
    )
    if raised is InputError:
        assert str(tmp_path / name) in str(caught.value)
        assert "No space left" in str(caught.value)


def test_a_folder_that_is_a_file_is_the_users_mistake(result: Result, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot write"):
        write(result, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
