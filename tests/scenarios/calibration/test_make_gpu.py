"""`make gpu`: parts run small on the CPU, and what fails or is cut off costs itself alone."""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import pytest
import torch

from gcsim.compressors.conformance import CHECKS
from gcsim.scenarios import catalog
from gcsim.scenarios.calibration.device import calibrate_device
from tests.benchmarks.gpu import __main__ as make_gpu
from tests.benchmarks.gpu import profiled, shipped
from tests.benchmarks.gpu.crew import Row, Table, read, work
from tests.benchmarks.gpu.page import page
from tests.command import Finished, gcsim

ROOT = Path(__file__).parents[3]
SUITE = ROOT / "analysis/validation/suites/gpu_hook"


def run(folder: Path, *parts: str) -> str:
    """The page of some parts of the smallest run."""
    to = ["--out", str(folder), "--page", str(folder / "page.md")]
    make_gpu.main([*parts, "--device", "cpu", "--tiny", "--only", "fp16", *to])
    return (folder / "page.md").read_text()


def test_on_a_gpu_that_is_the_cpu_all_is_equal_and_stages_take_time(tmp_path: Path) -> None:
    text = run(tmp_path, "correct", "stages")
    checks = f"{len(CHECKS)} of {len(CHECKS)}"
    assert f"| fp16 | equal | equal | on the GPU | {checks} |" in text
    _, rows = read(tmp_path / "stages.csv")
    timed = [row for row in rows if row["method"] == "fp16"]
    assert [(row["data"], row["stage"]) for row in timed] == [
        (data, stage) for data in ("2500", "lenet bucket 0") for stage in ("encode", "decode")
    ]
    assert all(float(row["host_us"]) > 0 and row["error"] == "" for row in timed)
    assert all(float(row["operators"]) > 0 for row in timed)


@pytest.mark.long
def test_the_other_parts_run_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their commands in this process, with one method's kernels."""

    def here(command: list[str], *, stdout: TextIO, **_: object) -> Finished:
        done = gcsim(*command[3:], folder=tmp_path)
        stdout.write(done.stdout + done.stderr)
        return done

    commands = SimpleNamespace(run=here, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(make_gpu, "subprocess", commands)
    few = partial(calibrate_device, seconds=1e-9, compressors=["signsgd"])
    monkeypatch.setattr("gcsim.scenarios.calibration.device.calibrate_device", few)
    text = run(tmp_path, "hook", "deployed", "calibrate", "main")
    assert "| fp16 | equal |" in text
    _, rows = read(tmp_path / "deployed.csv")
    assert [row["hook"] for row in rows] == ["dense", "fp16", "torch powerSGD_hook"]
    assert all(float(row["iteration_ms"]) > 0 for row in rows)
    assert text.count("exit code 0 after") == 2
    assert catalog.read_devices(tmp_path / "device.yaml")


def test_all_parts_together_take_eight_minutes_at_most() -> None:
    assert set(make_gpu.SECONDS) == set(make_gpu.PARTS)
    assert sum(make_gpu.SECONDS.values()) <= 480 - 10  # and what the command takes to start


def test_a_run_that_is_killed_keeps_its_rows_and_the_suite_gets_them(tmp_path: Path) -> None:
    to = ["--out", str(tmp_path), "--page", str(tmp_path / "page.md")]
    small = ["--device", "cpu", "--tiny", "--only", "fp16,qsgd,topk,powersgd", *to]
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "stages", *small]
    table, wanted = tmp_path / "stages.csv", b"fp16,"
    running = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + 100
        while running.poll() is None and time.monotonic() < ends:
            if table.is_file() and wanted in table.read_bytes():
                break
            time.sleep(0.05)
    finally:
        running.kill()
        running.wait(20)
    left = table.read_bytes()
    assert wanted in left
    make_gpu.main(["page", *small])
    assert table.read_bytes() == left
    assert "| fp16 |" in (tmp_path / "page.md").read_text()
    ours, theirs = (
        (folder / "stages.csv").read_text().splitlines() for folder in (tmp_path / "suite", SUITE)
    )
    assert ours[0].startswith("# Measured by `make gpu`: ")
    assert ours[1] == theirs[1]
    rows = list(csv.DictReader(ours[1:]))
    assert rows
    assert {row["method"] for row in rows} <= {"fp16", "qsgd", "topk", "powersgd"}
    assert all(row["launches"].isdigit() for row in rows)


def test_the_catalogues_entry_has_what_was_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an H100 that was calibrated in another place; its board is the catalogue's."""
    monkeypatch.setattr(shipped, "this_device", lambda: "h100_sxm")
    calibrated = (ROOT / "docs/measured/h100_2026-11-27_device.yaml").read_text()
    (tmp_path / "calibrated.yaml").write_text(calibrated)
    assert list(shipped.write(tmp_path)) == [tmp_path / "device.yaml"]
    ((name, found),) = catalog.read_devices(tmp_path / "device.yaml").items()
    (measured,) = catalog.read_devices(tmp_path / "calibrated.yaml").values()
    assert (name, found.title) == ("h100_sxm", catalog.device("h100_sxm").title)
    assert found.kernels == measured.kernels
    assert found.measured == catalog.device("h100_sxm").measured


def task(name: str) -> Iterator[Row]:
    """One row, and then what the name says."""
    yield {"done": name}
    if name == "fails":
        raise ValueError("no such instruction")
    if name == "dies":
        os._exit(1)
    if name == "hangs":
        time.sleep(60)


def test_an_item_that_fails_dies_or_hangs_keeps_its_rows_and_the_next_one_runs() -> None:
    items = [("fails",), ("dies",), ("hangs",), ("works",)]
    found = list(work(task, items, processes=1, limit=2, seconds=60))
    assert [(item[0], row.get("done", row.get("error"))) for item, row in found] == [
        ("fails", "fails"),
        ("fails", "ValueError: no such instruction"),
        ("dies", "dies"),
        ("dies", "the process died"),
        ("hangs", "hangs"),
        ("hangs", "not done after 2 s"),
        ("works", "works"),
    ]


def test_items_without_time_are_named() -> None:
    found = list(work(task, [("works",), ("works",)], processes=1, limit=2, seconds=0))
    assert [row for _, row in found] == [{"error": "no time was left"}] * 2


def test_rows_are_on_disk_before_the_table_ends(tmp_path: Path) -> None:
    with Table(tmp_path / "hook.csv", "A GPU.", ("method", "updates", "seconds")) as table:
        table.add({"method": "topk", "updates": "equal", "seconds": "1"})
        conditions, rows = read(tmp_path / "hook.csv")
        assert (conditions, rows[0]["updates"]) == ("A GPU.", "equal")
        assert "| topk | equal | 1 |" in list(page(tmp_path))


def event(
    name: str, begin: float, end: float, *, gpu: bool = False, inside: object = None
) -> object:
    kind = SimpleNamespace(name="CUDA" if gpu else "CPU")
    times = SimpleNamespace(start=begin, end=end)
    return SimpleNamespace(name=name, device_type=kind, time_range=times, cpu_parent=inside)


def test_counts_are_those_of_the_events_inside_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = SimpleNamespace(name="aten::add")
    events = [
        event("cudaLaunchKernel", -5, -4),  # before
        event("gcsim: step 0", 0, 100),
        event("gcsim: step 0", 1, 90, gpu=True),  # the mark's shadow on the GPU
        event("aten::add", 1, 4),
        event("aten::empty", 2, 3, inside=operator),
        event("cudaLaunchKernel", 3, 4, inside=operator),
        event("cuLaunchKernelEx", 5, 6),
        event("cudaMemcpyAsync", 7, 8),
        event("cudaStreamSynchronize", 8, 20),
        event("cudaDeviceSynchronize", 30, 99),  # the mark's own
        event("add_kernel", 10, 17, gpu=True),
        event("_rounded", 20, 33, gpu=True),
    ]
    profiler = SimpleNamespace(events=lambda: events)
    monkeypatch.setattr(profiled, "profile", lambda **_: nullcontext(profiler))
    rows: dict[str, Row] = {}
    with profiled.profiling(torch.device("cpu"), rows):
        pass
    assert rows == {
        "step 0": {
            "device_us": "20.0",
            "launches": 2,
            "triton_launches": 1,
            "copies": 1,
            "operators": 1,
            "waits": 1,
            "wait_us": "12.0",
        }
    }


def test_without_a_gpu_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        make_gpu.main([])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "sees no NVIDIA GPU here" in err
