"""Whole results, or the earlier ones untouched; figures that cost nothing but themselves."""

import csv
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gcsim.analysis import write
from gcsim.analysis import write as module
from gcsim.errors import InputError, InternalError
from gcsim.scenarios.reading import document
from gcsim.scenarios.result import Result
from gcsim.scenarios.stored import read_results


@pytest.fixture(scope="module")
def result(result: Result) -> Result:
    """Three methods on two sizes, which are drawn faster."""
    rows = [row for row in result.rows if row.nodes in (2, 32)]
    labels = ("dense", "Top-k 1%", "PowerSGD rank 4")
    return replace(
        result,
        rows=tuple(row for row in rows if row.label in labels),
        timelines=tuple(one for one in result.timelines if one.label in labels),
    )


def test_all_files_are_written_and_nothing_else(result: Result, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    paths = (*write.write_results(result, folder), *write.draw_figures(result, folder))
    names = [
        "results.json", "results.csv", "timeline.json", "scenario.yaml", write.REPORT,
        "speedup.png", "breakdown.png",
    ]  # fmt: skip
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert all(path.stat().st_size for path in paths)


def test_a_file_from_the_cache_is_that_of_the_result(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    rows = tuple(replace(row, label=f"{row.label}'") for row in result.rows)
    changed = replace(result, rows=rows)
    drawn = []
    for number, (shown, cache) in enumerate(
        [(result, False), (result, True), (changed, True), (result, True)]
    ):
        if number == 3:  # all are in the cache by now: nothing is drawn
            monkeypatch.setattr("matplotlib.figure.Figure.savefig", None)
            monkeypatch.setattr("gcsim.analysis.timeline._events", None)
        folder = tmp_path / str(number)
        _, _, timeline, _ = write.write_results(shown, folder, cache=cache)
        paths = (timeline, *write.draw_figures(shown, folder, cache=cache))
        drawn.append([path.read_bytes() for path in paths])
    assert drawn[0] == drawn[1] == drawn[3]
    pairs = zip(drawn[1], drawn[2], strict=True)
    assert [one == other for one, other in pairs] == [True] + 3 * [False]  # the timeline is equal


def test_results_json_is_the_result(result: Result, tmp_path: Path) -> None:
    write.write_results(result, tmp_path)
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == result.to_json()


def test_csv_has_every_value_exactly(result: Result) -> None:
    lines = list(csv.DictReader(write.to_csv(result).splitlines()))
    assert tuple(lines[0]) == Result.columns()
    assert len(lines) == len(result.rows)
    for line, row in zip(lines, result.rows, strict=True):
        assert float(line["iteration_s"]) == row.iteration_s
        assert line["label"] == row.label


def test_csv_says_of_which_run_a_row_is(result: Result) -> None:
    links = {"device": {"name": "v100", "fingerprint": "x"}, "network": {"name": "10gbe"}}
    scenario = {**result.scenario, "model": {"build": "my:net"}, "cluster": links}
    line = next(csv.DictReader(write.to_csv(replace(result, scenario=scenario)).splitlines()))
    of_run = [line[name] for name in ("scenario", "model", "seed", "device", "network")]
    assert of_run == ["synthetic", "my:net", "0", "v100", "10gbe"]


def test_scenario_yaml_reads_back_with_its_keys_in_order(result: Result) -> None:
    read = document.read(write.to_yaml(result), "scenario.yaml").data
    assert read == result.scenario
    assert list(read) == list(result.scenario)


def failing(error: BaseException) -> Callable[[Result, Path], None]:
    def produce(result: Result, path: Path) -> None:
        path.write_bytes(b"half")
        raise error

    return produce


def leave_earlier_files(folder: Path) -> None:
    for name in (*write.RESULTS, *write.FIGURES):
        (folder / name).write_text("earlier")


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("name", list(write.RESULTS))
@pytest.mark.parametrize(
    ("error", "raised"),
    [(FULL, InputError), (KeyboardInterrupt(), KeyboardInterrupt), (ValueError("bug"), ValueError)],
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
    leave_earlier_files(tmp_path)
    monkeypatch.setitem(module.RESULTS, name, failing(error))
    with pytest.raises(raised) as caught:
        write.write_results(result, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        (*write.RESULTS, *write.FIGURES), "earlier"
    )
    if raised is InputError:
        assert str(tmp_path / name) in str(caught.value)
        assert "No space left" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "error", "raised"),
    [
        ("speedup.png", FULL, InputError),
        ("breakdown.png", KeyboardInterrupt(), KeyboardInterrupt),
        ("breakdown.png", ValueError("bug"), ValueError),
    ],
)
def test_no_result_is_lost_to_a_figure(
    result: Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str,
    error: BaseException,
    raised: type[BaseException],
) -> None:
    leave_earlier_files(tmp_path)
    monkeypatch.setitem(module.FIGURES, name, failing(error))
    write.write_results(result, tmp_path)
    with pytest.raises(InternalError if raised is ValueError else raised) as caught:
        write.draw_figures(result, tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert (
        set(write.RESULTS) <= left <= {*write.RESULTS, write.REPORT, *write.FIGURES} - {name}
    )  # no litter, and none of earlier
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == result.to_json()
    if raised is ValueError:
        assert left == {*write.RESULTS, write.REPORT, "speedup.png", "breakdown.png"} - {name}
        assert str(caught.value).startswith(f"{name} could not be drawn (ValueError: bug)")


def test_a_report_that_cannot_be_made_costs_nothing_but_itself(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / write.REPORT).write_text("earlier")
    monkeypatch.setattr(module, "run_page", lambda shown, command: 1 / 0)
    write.write_results(result, tmp_path)
    with pytest.raises(InternalError, match=f"{write.REPORT} could not be drawn"):
        write.draw_figures(result, tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*write.RESULTS, "speedup.png", "breakdown.png"}


@pytest.mark.parametrize("label", ["$\\frac$", "$10 and $20 \\ a_b^c"])
def test_labels_are_text(result: Result, tmp_path: Path, label: str) -> None:
    rows = tuple(
        replace(row, label=label) if row.label == "Top-k 1%" else row for row in result.rows
    )
    assert any(row.label == label for row in rows)
    write.draw_figures(replace(result, rows=rows), tmp_path)


def test_a_folder_that_is_a_file_is_the_users_mistake(result: Result, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot write"):
        write.write_results(result, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("killed_after", range(len(write.RESULTS)))
def test_a_folder_with_files_of_two_runs_is_refused_until_a_run_is_whole(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_after: int
) -> None:
    """As SIGKILL between two renames leaves it: some files of one run, some of the other."""
    write.write_results(result, tmp_path)
    other = replace(result, scenario={**result.scenario, "name": "other"})
    renamed: list[Path] = []
    rename = os.replace

    def dying(source: Path, path: Path) -> None:
        if path.parent == tmp_path and len(renamed) > killed_after:
            raise SystemExit
        renamed.append(path)
        rename(source, path)

    with monkeypatch.context() as patched:
        patched.setattr("gcsim.files.os.replace", dying)
        with pytest.raises(SystemExit):
            write.write_results(other, tmp_path)
    if killed_after:  # a file of the other run is there
        with pytest.raises(InputError, match="they come from two runs"):
            read_results(tmp_path)
    write.write_results(result, tmp_path)
    assert read_results(tmp_path).rows == result.rows


def test_figures_of_a_run_do_not_stand_beside_another_runs_results(
    result: Result, tmp_path: Path
) -> None:
    """Two runs with one folder: the second has written its results when the first one draws."""
    write.write_results(result, tmp_path)
    other = replace(result, scenario={**result.scenario, "name": "other"})
    write.write_results(other, tmp_path)
    with pytest.raises(InputError, match="another run has replaced"):
        write.draw_figures(result, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(write.RESULTS)


def test_figures_of_an_earlier_run_go_in_every_form(result: Result, tmp_path: Path) -> None:
    write.write_results(result, tmp_path)
    write.draw_figures(result, tmp_path)
    write.draw_again(result, tmp_path, "svg")
    (tmp_path / "notes.txt").write_text("mine")
    write.write_results(result, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*write.RESULTS, "notes.txt"}
