"""Runs side by side, and their pictures again: of what `results.json` says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcsim.analysis.plots.pareto import front, pareto_figure
from gcsim.analysis.report.compare import differences
from gcsim.compressors.ddp.measured import Measured, MeasuredBucket
from gcsim.scenarios.result import Result
from gcsim.scenarios.sweeps.store import HEADER
from tests.analysis.conftest import result as of_analysis
from tests.analysis.drawn import plain_row
from tests.command import gcsim

result = of_analysis  # the fixture


def stored(folder: Path, name: str, network: str, **seconds: float) -> None:
    rows = tuple(
        replace(plain_row(label, time), compressor=label, speedup_vs_dense=seconds["none"] / time)
        for label, time in seconds.items()
    )
    cluster = {"nodes": 4, "network": {"name": "x", "bandwidth": network, "source": network}}
    found = Result(scenario={"name": name, "cluster": cluster}, provenance={}, rows=rows, wall={})
    (folder / name).mkdir()
    (folder / name / "results.json").write_text(found.to_json())


def test_methods_settings_and_answers_stand_side_by_side(tmp_path: Path) -> None:
    stored(tmp_path, "slow", "125 MB/s", none=0.2, topk=0.05)
    stored(tmp_path, "fast", "10 Gbit/s", none=0.1, powersgd=0.08)
    done = gcsim("compare", "slow", "fast", folder=tmp_path, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    # milliseconds and speedup of the one, then of the other; what one has not is a dash
    assert "none 200 1.00 100 1.00" in lines
    assert "topk 50.0 4.00 - -" in lines
    assert "powersgd - - 80.0 1.25" in lines
    assert "cluster.network.bandwidth 1 Gbit/s 10 Gbit/s" in lines
    assert not any("source" in line for line in lines)
    assert "slow: Use: dense: 200 ms." in lines  # of top-k 1 % nobody knows that it trains


def measured_by_hook(**changes: object) -> Measured:
    bucket = MeasuredBucket(elements=100, sent_bytes=2e5, computed_s=0.01, exchanged_s=0.02)
    given = {
        "compressor": "topk", "parameters": {"ratio": 0.01}, "other_buckets": {}, "workers": 8,
        "rank": 0, "steps": 50, "iteration_s": 0.04, "buckets": [bucket, bucket],
    }  # fmt: skip
    return Measured(**{**given, **changes})  # type: ignore[arg-type]


def test_what_the_hook_measured_stands_beside_the_prediction(tmp_path: Path) -> None:
    row = replace(
        plain_row("top", 0.05), compressor="topk", workers=8, encode_s=0.018, decode_s=0.004,
        communication_s=0.03, wire_bytes_per_worker=4.2e5, iteration_low_s=0.03,
        iteration_high_s=0.06,
    )  # fmt: skip
    entry = {"kind": "topk", "label": "top", "ratio": 0.01, "more": 1}
    kept = {**entry, "label": "kept", "dense_tensors": {"below": 100, "names": []}}
    found = Result(
        scenario={"name": "x", "compressors": [kept, entry]}, provenance={},
        rows=(replace(row, label="kept", iteration_s=0.07), row), wall={},
    )  # fmt: skip
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text(found.to_json())
    measured_by_hook().write(tmp_path / "m.json")
    done = gcsim("compare", "run", "m.json", folder=tmp_path, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    # by hand: 50 of 40 ms; 22 of 2 x 10; 420 kB of 2 x 200 kB
    assert "iteration, median [ms] 50.0 30.0-60.0 40.0 25.0 % too high" in lines
    assert "encoding, decoding, mean [ms] 22.0 - 20.0 10.0 % too high" in lines
    assert "sent per worker [MB] 0.420 - 0.400 5.0 % too high" in lines
    # one rank cannot tell the exchange from its wait, and no error is made of both
    assert "collectives only, mean [ms] 30.0 - - -" in lines
    assert "collectives + wait, mean [ms] - - 40.0 -" in lines
    assert "name the measurements of all ranks" in " ".join(lines)
    # the last rank to enter each bucket's exchange is the fourth: 2 x 16 ms without waiting
    waits = [0.004 * abs(rank - 3) for rank in range(8)]
    names = []
    for rank, wait in enumerate(waits):
        bucket = MeasuredBucket(
            elements=100, sent_bytes=2e5, computed_s=0.01, exchanged_s=0.016 + wait
        )
        names.append(f"rank{rank}.json")
        measured_by_hook(rank=rank, buckets=[bucket, bucket]).write(tmp_path / names[-1])
    done = gcsim("compare", "run", *names, folder=tmp_path, COLUMNS="80")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines.count("collectives only, mean [ms] 30.0 - 32.0 6.2 % too low") == 8
    for wait in waits:
        assert f"collectives + wait, mean [ms] - - {32 + 2e3 * wait:.1f} -" in lines
    assert "wait for others, mean [ms] - - 24.0 -" in lines
    assert "measurements of all ranks" not in " ".join(lines)
    for changes, said in (
        ({"workers": 4}, "made by 4 workers; run has 8"),
        ({"ranks_per_part": 4}, "made with 4 ranks acting as one worker (between); run has 1"),
        ({"parameters": {"ratio": 0.1}}, "made with topk ratio 0.1; run has kept, top"),
    ):
        measured_by_hook(**changes).write(tmp_path / "other.json")
        done = gcsim("compare", "run", "other.json", folder=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
    done = gcsim("compare", "m.json", "m.json", folder=tmp_path)
    assert done.returncode == 2
    assert "a measurement without a prediction" in done.stderr


def test_one_run_is_refused_and_so_is_what_is_none(tmp_path: Path) -> None:
    stored(tmp_path, "slow", "1 Gbit/s", none=0.2)
    for words, said in ((["slow"], "cannot be compared"), (["slow", "none"], "cannot be read")):
        done = gcsim("compare", *words, folder=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr


def test_a_sweep_is_refused_with_a_way_to_compare_its_points(tmp_path: Path) -> None:
    stored(tmp_path, "swept", "1 Gbit/s", none=0.2)
    (tmp_path / "swept" / HEADER).write_text("{}")
    for name in ("swept", "swept/results.json"):
        done = gcsim("compare", name, name, folder=tmp_path)
        assert done.returncode == 2
        assert f"{name}: error: is a sweep; compare files of its points" in done.stderr


def test_differences_are_those_of_the_values() -> None:
    one = {"name": "a", "cluster": {"nodes": [1, 2], "network": {"source": "x", "latency": "1 us"}}}
    other = {"name": "b", "cluster": {"nodes": [1], "network": {"source": "y"}}, "seed": 3}
    assert dict(differences([one, other])) == {
        "cluster.nodes": [[1, 2], [1]],
        "cluster.network.latency": ["1 us", None],
        "seed": [None, 3],
    }
    assert dict(differences([one, one])) == {}
    recorded = {"model": "recorded", "gradients": {"trace": "run"}, "compute": {"recorded": True}}
    found = differences([{**one, "gradients": {"warmup_steps": 20}}, {**one, **recorded}])
    *first, last = (key for key, _ in found)
    assert set(first) == {"model", "gradients.trace", "compute.recorded"}
    assert last == "gradients.warmup_steps"


@pytest.mark.parametrize(
    ("form", "begins"),
    [
        ("png", b"\x89PNG"),
        pytest.param("svg", b"<?xml", marks=pytest.mark.long),
        pytest.param("pdf", b"%PDF", marks=pytest.mark.long),
    ],
)
def test_pictures_are_drawn_in_every_format_the_same_each_time(
    result: Result, tmp_path: Path, form: str, begins: bytes
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text(result.to_json())
    drawn = []
    for folder in ("one", "two"):
        done = gcsim("plot", "run", "--format", form, "-o", folder, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        names = [f"{name}.{form}" for name in ("speedup", "breakdown", "pareto")]
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == sorted(names)
        drawn.append([(tmp_path / folder / name).read_bytes() for name in names])
    assert drawn[0] == drawn[1]
    assert all(picture.startswith(begins) for picture in drawn[0])


def test_a_table_for_a_paper_is_of_a_run_alone(result: Result, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(result.to_json())
    done = gcsim("plot", ".", "--format", "tex", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"table.tex", "references.bib"} <= {path.name for path in tmp_path.iterdir()}


def test_the_front_is_what_no_other_beats_in_both() -> None:
    assert front([(3, 1), (1, 3), (2, 4), (4, 1), (2, 2)]) == [(1, 3), (2, 2), (3, 1)]


def test_every_method_with_an_error_is_a_point(result: Result) -> None:
    rows = tuple(
        replace(row, nmse=None) if row.compressor == "qsgd" else row for row in result.rows
    )
    left, right = pareto_figure(replace(result, rows=rows)).axes
    largest = [row for row in rows if row.nodes == 32 and row.nmse is not None]
    for axes, wanted in (
        (left, [row.iteration_s * 1e3 for row in largest]),
        (right, [row.wire_bytes_per_worker / 1e6 for row in largest]),
    ):
        points = {str(line.get_label()): np.asarray(line.get_xdata()) for line in axes.lines[1:]}
        assert [float(points[row.label][0]) for row in largest] == pytest.approx(wanted)


def test_an_exact_update_is_called_so_and_methods_without_a_point_are_named(result: Result) -> None:
    """FP16 has the smallest error, 8.3e-8. Its decade begins at 1e-8; the next one has no error."""
    rows = tuple(
        replace(row, nmse=None)
        if row.compressor == "qsgd"
        else replace(row, wire_bytes_per_worker=0.0)
        if row.compressor == "dgc"
        else row
        for row in result.rows
    )
    figure = pareto_figure(replace(result, rows=rows))
    left, right = figure.axes
    for axes in (left, right):
        points = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.lines[1:]}
        assert float(points["dense"][0]) == pytest.approx(1e-9)
        assert axes.yaxis.get_major_formatter()(1e-9, 0) == "no error"
        assert axes.yaxis.get_major_formatter()(1e-8, 0) == "1e-08"
        assert 1e-9 in axes.get_yticks()
    (said,) = [" ".join(text.get_text().split()) for text in figure.texts]
    assert said.startswith("Not shown: QSGD 4 bit: the update has")
    assert said.endswith("not shown on the right: DGC 0.1%.")
