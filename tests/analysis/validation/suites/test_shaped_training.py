"""The suite shaped-training: its rows send and share what was measured, and it keeps its bounds."""

import csv
import statistics
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from gcsim.analysis.validation import suites
from gcsim.analysis.validation.folder import Folder
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.rows import Row, read_suite
from tests.benchmarks import shaped_training_kernels

NAME = "shaped-training"
SLOW, FAST = "2 ranks, 100 Mbit/s, 25-MB buckets", "4 ranks, 1 Gbit/s, 25-MB buckets"


@cache
def folder() -> Folder:
    """With a host that costs nothing."""
    path = Path(suites.__path__[0]) / "shaped_training"
    found = Folder(path, *read_suite(path))
    found.values = {"goodput": 0.95} | dict.fromkeys(("message", "byte", "call", "copy"), 0.0)
    return found


@cache
def rows() -> Mapping[str, Row]:
    return {row["name"]: row for row in folder().rows}


def test_a_step_hands_over_what_its_hook_counted() -> None:
    """PowerSGD's hook counts 4 bytes with each of three collectives."""
    assert len(rows()) == 39
    for row in rows().values():
        (run,) = folder().runs(row)
        more = 12 if row["method"] == "powersgd" else 0
        assert run.sent + more == row.number("_payload_bytes"), row["name"]


def test_given_passes_are_medians_of_the_measured_ones() -> None:
    """By model and number of ranks; on a core of its own, which more ranks than cores share."""
    for row in rows().values():
        alike = [one for one in rows().values() if one["group"][:9] == row["group"][:9]]
        own, known = folder().runs(row)[0], folder().runs(row, catalogue=True)[0]
        medians = [
            statistics.median(one.number(f"_solo_{part}_s") for one in alike)
            for part in ("forward", "backward", "optimizer")
        ]
        assert [known.passes.forward / 1e12, known.passes.backward / 1e12] == pytest.approx(
            medians[:2], rel=1e-6
        )
        share = 1.0 if row["_mode"] == "phantom" else min(1, 2 / own.cluster.workers)
        assert own.passes.forward == pytest.approx(known.passes.forward * share, rel=1e-6)
        after = {"phantom": 2 / 4}.get(row["_mode"], share) * medians[2] + 0.0007215
        assert float(own.training.optimizer) == pytest.approx(after, rel=1e-6)


def test_given_stages_are_those_of_the_rows_that_serve() -> None:
    """Two ranks on two cores at 100 Mbit/s: as measured there, but for how ranks vary."""
    for hook in ("dense", "fp16", "PowerSGD rank 4", "Top-k 1 %", "signs"):
        row = rows()[f"{hook}, MLP, {SLOW}"]
        encodings = 2 if "PowerSGD" in hook else 1
        payloads = 2 if hook in {"Top-k 1 %", "signs"} else 1
        assert row.number("traffic.let.encode") * encodings == pytest.approx(
            row.number("_encode_s"), rel=0.08
        )
        assert row.number("traffic.let.decode") * payloads == pytest.approx(
            row.number("_decode_s"), rel=0.08
        )


def test_powersgd_reduces_what_it_leaves_alone_while_it_computes() -> None:
    (run,) = folder().runs(rows()[f"PowerSGD rank 4, MLP, {FAST}"])
    alone, products = run.profile.phases[0].steps[0].exchanges
    assert [len(each.collectives) for each in (alone, products)] == [1, 2]
    biases, columns = 1024 + 1024 + 100, 3 * 1024
    sent = [one.sent[0] for each in (alone, products) for one in each.collectives]
    assert sent == [4 * biases, 4 * 4 * biases, 4 * 4 * columns]


def test_every_point_is_cited_and_bounds_are_kept(report: Report) -> None:
    assert all("measured for this project" in point.source for point in report.findings.points)
    assert all(kept.kept for kept in report.bounds)
    compressed = report.series["Top-k, signs, PowerSGD, both rates"]
    assert compressed.unfitted_median is not None
    assert compressed.median < compressed.unfitted_median / 3
    assert report.decisions is not None
    assert report.decisions.share >= 0.95


def test_the_catalogues_kernels_are_what_our_compressors_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shaped_training_kernels.main()
    groups = {"none": "dense", "topk": "Top-k", "signsgd": "signs", "powersgd": "PowerSGD"}
    for cost in csv.DictReader(capsys.readouterr().out.splitlines()):
        said = str(folder().file.groups[groups.get(cost["hook"], cost["hook"])]["catalogue"])
        assert f"['{cost['kind']}', {cost['launches']}, '{cost['bytes']}*" in said, cost
        assert cost["flops"] == "0" or f"'{cost['flops']}*" in said
