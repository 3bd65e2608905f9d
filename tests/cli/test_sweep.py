"""`gcsim sweep` as scripts use it: exit codes, files, what survives a kill, a cluster of workers.

Everything runs on LeNet; nothing takes part that these tests did not start.
"""

import csv
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gcsim.analysis.report.sweep import parts
from gcsim.cli.progress import watching
from gcsim.errors import Problem
from gcsim.scenarios.findings import Evidence, Findings
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.sweeps.result import SweepPoint, SweepResult
from gcsim.scenarios.sweeps.tasks import Failure
from tests.analysis.drawn import between, drawn, plain_row
from tests.cli.dask import running_cluster
from tests.command import Finished, advised, as_a_user
from tests.command import gcsim as in_this_process
from tests.process import printed

TUTORIAL = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text(
    encoding="utf-8"
)
SCENARIO = """\
name: small
model: lenet
batch_size: 8
gradients: {source: live, workers: 2, warmup_steps: 1, iterations: 1, device: cpu}
cluster: {nodes: 4, devices_per_node: 2, device: p100_pcie, network: 10gbe}
compressors: [none, {kind: topk, ratio: 0.01}]
"""
FOUR = (
    "--grid",
    "cluster.nodes=2,[1, 8]",
    "--grid",
    "cluster.network.bandwidth=100Mbit/s,10 Gbit/s",
)
Run = Callable[..., Finished]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return as_a_user(tmp_path_factory.mktemp("cache"))  # a cluster's workers use all cores too


@pytest.fixture(scope="module")
def gcsim(environment: dict[str, str]) -> Run:
    cache = {"GCSIM_CACHE_DIR": environment["GCSIM_CACHE_DIR"]}

    def run(*arguments: object, folder: Path, **variables: str) -> Finished:
        return in_this_process(*arguments, folder=folder, **{**cache, **variables})

    return run


@pytest.fixture(scope="module")
def program(environment: dict[str, str]) -> Run:
    """`gcsim` as a process of its own."""

    def run(*arguments: object, folder: Path, **variables: str) -> Finished:
        return subprocess.run(
            command(*arguments), cwd=folder, env={**environment, **variables},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "gcsim", *map(str, arguments)]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    return tmp_path


@pytest.fixture(scope="module")
def done(program: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where four points have been run."""
    folder = tmp_path_factory.mktemp("done")
    (folder / "small.yaml").write_text(SCENARIO)
    ended = program("sweep", "small.yaml", *FOUR, "--json", "--jobs", "1", folder=folder)
    assert ended.returncode == 0, ended.stderr
    (folder / "stdout.json").write_text(ended.stdout)
    (folder / "stderr.txt").write_text(ended.stderr)
    return folder


OUT = Path("runs") / "small_sweep"


# --- files, stdout, stderr -----------------------------------------------------------------------


def test_results_are_files_and_json_on_stdout_is_results_json(done: Path) -> None:
    assert {path.name for path in (done / OUT).iterdir()} == {
        ".lock", "sweep.json", "points", "results.csv", "results.json", "report.html"
    }  # fmt: skip
    assert (done / "stdout.json").read_text() == (done / OUT / "results.json").read_text()
    assert len(list((done / OUT / "points").iterdir())) == 4
    with (done / OUT / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2 * (1 + 2) * 2


def test_stderr_tells_what_is_done_and_quiet_tells_nothing(done: Path, gcsim: Run) -> None:
    told = (done / "stderr.txt").read_text()
    assert "compressors: 2 of 2 in " in told
    assert "points: 4 of 4 in " in told
    assert f"Written to {OUT}: report.html, results.csv" in told
    again = gcsim("sweep", "small.yaml", *FOUR, folder=done)
    assert again.stderr.startswith(f"4 of 4 points are done already, in {OUT}\n")
    quiet = gcsim("sweep", "small.yaml", *FOUR, "-q", folder=done)
    assert (quiet.stderr, quiet.stdout) == ("", again.stdout)


def test_a_line_a_point_says_what_a_single_run_says(
    done: Path, gcsim: Run, environment: dict[str, str]
) -> None:
    """Expected: the only method, its numbers at the largest size in `results.json` of `gcsim run`,
    and what that run's sentences say."""
    table = gcsim("sweep", "small.yaml", *FOUR, "-q", folder=done).stdout
    options = ("-q", "--set", "cluster.nodes=[1, 8]", "--set",
               "cluster.network.bandwidth=100Mbit/s")  # fmt: skip
    alone = gcsim("run", "small.yaml", "--json", *options, folder=done)
    cache = {"GCSIM_CACHE_DIR": environment["GCSIM_CACHE_DIR"]}
    said = advised("run", "small.yaml", *options, folder=done, **cache).stdout
    rows = {row["compressor"]: row for row in json.loads(alone.stdout)["rows"] if row["nodes"] == 8}
    topk = rows["topk"]
    (line,) = [line for line in table.splitlines() if line.startswith("[1, 8]  100Mbit/s")]
    used = line.removeprefix("[1, 8]  100Mbit/s").split()[0]
    *_, label, speedup, between, pays = line.split()
    assert label == topk["label"]
    low, high = topk["speedup_low"], topk["speedup_high"]  # the P100's figures have ranges
    assert tuple(map(float, between.split("-"))) == pytest.approx((low, high), abs=0.005)
    assert float(speedup) == pytest.approx(topk["speedup_vs_dense"], abs=0.005)
    assert f"{label}: " in said
    use = re.search(r"^Use +(\S+?):? ", said, re.MULTILINE)
    assert use is not None
    assert used == use[1]
    assert pays


def row(label: str, speedup: float | None, seconds: float) -> Row:
    return plain_row(label, seconds, speedup_vs_dense=speedup)


def point(values: dict[str, Any], *rows: Row) -> SweepPoint:
    return SweepPoint(values=values, result=Result(scenario={}, provenance={}, rows=rows, wall={}))


def known(one: SweepPoint, steps: float) -> SweepPoint:
    """The point where top-k is known to train in so many times the steps."""
    assert one.result is not None
    evidence = Evidence(steps_vs_dense=steps, words="", source="")
    return replace(one, result=replace(one.result, advice=Findings(known={"topk": evidence})))


def rendered(points: Sequence[SweepPoint], width: int) -> list[str]:
    keys = points[0].values
    grid = {
        key: tuple({str(p.values[key]): p.values[key] for p in points}.values()) for key in keys
    }
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(*parts(SweepResult(grid=grid, versions={}, points=tuple(points)), width),
                      sep="\n")  # fmt: skip
    return capture.get().splitlines()


NETWORK = {"like": "10gbe", "latency": "220 us"}
POINTS = [
    point({"cluster.network": NETWORK, "seed": 1, "model": "lenet"},
          row("none", 1.0, 0.5), row("a method with quite a long name", 2.5, 0.2)),
    point({"cluster.network": "10gbe", "seed": 1, "model": "lenet"},
          row("none", 1.0, 0.05), row("slow", 0.1, 0.5)),
    point({"cluster.network": NETWORK, "seed": 2, "model": "lenet"}, row("topk", None, 1.25)),
    SweepPoint(values={"cluster.network": "10gbe", "seed": 2, "model": "lenet"},
               failure=Failure(problems=(Problem(message="bad"),))),
]  # fmt: skip


@pytest.mark.parametrize("width", [70, 80, 120])
def test_the_table_keeps_to_the_width_and_cuts_no_number(width: int) -> None:
    lines = rendered(POINTS, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for number in (" 2.50 ", " 1.00 ", " no", " yes", "failed"):
        assert number in text
    assert "model" not in text  # it has one value
    assert "seed" in text


@pytest.mark.parametrize("width", [76, 80, 100])
def test_headings_break_at_words_or_are_abbreviated(width: int) -> None:
    """All four columns of numbers, and two keys."""
    rows = drawn([row("none", 1.0, 0.5), row("topk", 2.5, 0.2)],
                 {"none": between(0.5, 0.5), "topk": between(0.14, 0.26)})  # fmt: skip
    key = "cluster.network.bandwidth"
    lines = rendered([point({"cluster.nodes": n, key: f"{n}Gbit/s"}, *rows) for n in (1, 8)], width)
    rule = next(n for n, line in enumerate(lines) if "──" in line)
    words = " ".join(lines[:rule]).split()
    whole = {"nodes", "bandwidth", "use", "speedup", "[x]", "range", "try", "pays"}
    cut = [word for word in words if word not in whole]
    assert all(word.endswith(".") and any(full.startswith(word[:-1]) for full in whole)
               for word in cut)  # fmt: skip
    assert not cut or width < 100
    assert all(len(line) <= width for line in lines)


def test_the_method_to_use_stands_beside_the_one_to_try() -> None:
    """Top-k is 5 times as fast and half precision twice; dense stays where nothing else is known to
    train or nothing is faster, and Top-k is used where it is known to train in 2 times the steps,
    not in 6 times."""
    dense, topk = row("none", 1.0, 0.5), row("topk", 5.0, 0.1)
    half = replace(row("fp16", 2.0, 0.25), nmse=1e-7)
    lines = rendered(
        [
            point({"seed": 1}, dense, topk, half),
            point({"seed": 2}, dense, topk),
            point({"seed": 3}, dense, row("topk", 0.5, 1.0)),
            point({"seed": 4}, dense, replace(topk, nmse=0.99, cosine_similarity=0.1)),
            point({"seed": 5}, topk),
            known(point({"seed": 6}, dense, topk, half), 2.0),
            known(point({"seed": 7}, dense, topk, half), 6.0),
        ],
        120,
    )
    cells = [" ".join(line.split()) for line in lines[3:10]]
    assert cells == [
        "1 fp16 2.00 topk 5.00 yes",
        "2 none 1.00 topk 5.00 yes",
        "3 none 1.00 - - no",
        "4 none 1.00 - - -",
        "5 - - topk 5.00 -",
        "6 topk * 5.00 topk 5.00 yes",
        "7 fp16 2.00 topk 5.00 yes",
    ]


@pytest.mark.parametrize("width", [72, 80, 120])
def test_speedups_that_are_open_stand_with_their_range(width: int) -> None:
    wide = drawn([row("none", 1.0, 0.5), row("topk", 2.5, 0.2)],
                 {"none": between(0.5, 0.5), "topk": between(0.14, 0.26)})  # fmt: skip
    sharp = drawn(wide, {"none": between(0.5, 0.5), "topk": between(0.1999, 0.2001)})
    maybe = drawn(wide, {"none": between(0.5, 0.5), "topk": between(0.3, 0.6)})
    hardly = drawn(wide, {"none": between(0.5, 0.5), "topk": between(0.4, 0.65)})
    failed = SweepPoint(values={"seed": 4}, failure=Failure(problems=(Problem(message="bad"),)))
    lines = rendered(
        [
            *(
                known(point({"seed": n}, *rows), 1.0)
                for n, rows in enumerate((wide, sharp, maybe), 1)
            ),
            failed,
            known(point({"seed": 5}, *hardly), 1.0),
        ],
        width,
    )
    assert all(len(line) <= width for line in lines)
    text = "\n".join(" ".join(line.split()) for line in lines)
    # the middle 80 % of 0.14 to 0.26 s: 0.152 to 0.248; 27 of 41 from 0.3 to 0.6 s are below 0.5
    assert "1 topk * 2.50 2.02-3.29 topk 2.50 2.02-3.29 yes" in text
    assert "2 topk * 2.50 - topk 2.50 - yes" in text
    assert "3 none 1.00 - topk 1.11 0.88-1.52 66 %" in text
    assert "4 failed" in text
    # 16 or 17 of 41 from 0.4 to 0.65 s are below 0.5: no method to try, and none that may pay
    assert "5 none 1.00 - - - -" in text
    assert "range: 10th to 90th percentile over draws" in text.replace("\n", " ")
    answer = "at 2 of 4 points (with a method known to train) and may be at 1 other. 1 point"
    assert answer in text.replace("\n", " ")
    assert "range" not in "\n".join(rendered(POINTS, width))


def test_headings_are_the_shortest_ends_that_tell_keys_apart() -> None:
    keys = ["cluster.network.latency", "cluster.intra_node.latency", "cluster.nodes", "a.b.1"]
    values = dict.fromkeys(keys, 7)
    (_, heading, *_) = rendered([point(values, row("none", 1.0, 0.1))], 120)
    assert heading.split()[:4] == ["network.latency", "intra_node.latency", "nodes", "b.1"]


def test_the_answer_counts_where_compression_pays() -> None:
    # of four points one failed and one has no dense row to compare with
    answer = "Compression is faster than dense training at 1 of 2 points"
    tried = " (with a method that you must train first). 1 point failed."
    assert rendered(POINTS, 140)[-1] == answer + tried
    # top-k, known to train, is faster in 29 of 41 worlds, the other in all
    rows = drawn([row("none", 1.0, 0.5), row("topk", 1.2, 0.4), row("other", 2.5, 0.2)],
                 {"none": between(0.5, 0.5), "topk": between(0.3, 0.58),
                  "other": between(0.14, 0.26)})  # fmt: skip
    lines = rendered([known(point({"seed": 1}, *rows), 1.0)], 140)
    assert any(line.split()[1:3] == ["topk", "*"] for line in lines)
    assert (
        lines[-1]
        == f"{answer.replace('2 points', '1 point')} (with a method that you must train first)."
    )


def test_half_precision_needs_no_training_first() -> None:
    """A safe method that surely pays per iteration is known to train, although two seeds leave its
    time to the target open."""
    half = replace(row("fp16", 1.02, 0.49), nmse=1e-7)
    rows = [
        replace(one, seeds_trained=2, seeds_at_target=2, steps_to_target_vs_dense=1.0,
                speedup_to_target=gain, speedups_to_target=(gain, gain), steps_to_target_error=0.1)
        for one, gain in ((row("none", 1.0, 0.5), 1.0), (half, 1.02))
    ]  # fmt: skip
    assert rendered([point({"seed": 1}, *rows)], 140)[-1].endswith(
        "at 1 of 1 point (with a method known to train)."
    )


@pytest.mark.parametrize(("every", "between"), [(0.0, 1), (60.0, 0)])
def test_a_log_gets_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, every: float, between: int
) -> None:
    monkeypatch.setattr("gcsim.cli.progress.LOG_EVERY", every)
    with watching(quiet=False) as progress, progress.task("points", 4) as task:
        task.advance(0, note="nothing is done yet")
        task.advance()
        task.advance(3)
    *lines, last = capsys.readouterr().err.splitlines()
    assert len(lines) == between
    assert all(re.fullmatch(r"points: 1 of 4, \S+/s, \d+ s left", line) for line in lines)
    assert re.fullmatch(r"points: 4 of 4 in \d+\.\d s", last)


def test_a_terminal_gets_the_rate_and_the_time_that_remains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with watching(quiet=False) as progress, progress.task("points", 4) as task:
        for number in range(3):
            task.advance(note=f"cluster.nodes={number}, {'a long value ' * 9}")
            time.sleep(0.01)
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert re.search(r"points \S+ 3/4 +\S+/s \d:\d\d:\d\d cluster\.no", drawn)
    assert max(map(len, re.split(r"[\r\n]", drawn))) <= 80


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "error: Missing option '--grid'"),
        (["--grid", "seed=1", "--jobs", "0"], "error: Invalid value for '--jobs'"),
        (["--grid", "seed=1", "--jobs", "2", "--dask", "tcp://127.0.0.1:1"],
         "--jobs: error: has no effect with --dask"),
        (["--grid", "seed=1", "-o", "small.yaml/in"], "small.yaml/in: error: small.yaml is a file"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_exit_2(
    here: Path, gcsim: Run, arguments: list[str], said: str
) -> None:
    ended = gcsim("sweep", "small.yaml", *arguments, folder=here)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(said)


MINE = """
from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.requests import AllReduce
from gcsim.errors import InputError, InternalError

class Mine(Compressor):
    class Parameters(CompressorParameters):
        fault: str = ""

    about = About(title="mine", family="dense", collective="all-reduce", bits="32",
                  unbiased=True, state="none", paper="none")

    def __init__(self, worker, parameters):
        super().__init__(worker, parameters)
        self.fault = parameters.fault

    def exchange(self, bucket, step):
        if self.fault == "input":
            raise InputError("this gradient has too few elements")
        if self.fault == "bug":
            raise InternalError("divided by nothing")
        total = yield AllReduce(tensor=bucket.gradient.clone())
        return total / self.worker.count
"""


@pytest.mark.long
def test_a_failed_point_stops_no_other_and_sets_the_exit_code(here: Path, gcsim: Run) -> None:
    (here / "mine.py").write_text(MINE)
    sets = ("--set", "compressors=[none, {kind: 'mine:Mine', label: mine}]")
    nodes = ("--grid", "cluster.nodes=2,4")
    # the second sweep adds a value: what failed is tried again, what is done is kept
    for faults in ("input", "input,bug"):
        values = f'compressors.1.fault={faults},""'
        ended = gcsim("sweep", "small.yaml", "--grid", values, *nodes, *sets, "-q", folder=here,
                      TMPDIR=str(here))  # fmt: skip
        failed = 2 * len(faults.split(","))
        assert ended.returncode == 2  # whatever a user's code raises is the user's
        assert "Traceback" not in ended.stderr
        document = json.loads((here / OUT / "results.json").read_text())
        assert [entry["point"]["cluster.nodes"] for entry in document["points"]] == [2, 4]
        assert [entry["bug"] for entry in document["failed"]] == [False] * failed
        assert "Compression is faster than dense training at 0 of 2 points" in ended.stdout
        assert f"{failed} points failed." in ended.stdout
        assert re.search(
            r"point compressors.1.fault=input, cluster.nodes=2 and 1 other point: mine, "
            r"\S*mine.py:\d+: error: this gradient has too few elements\n",
            ended.stderr,
        )
    assert re.search(r"mine.py:\d+: error: .*divided by nothing\n", ended.stderr)
    plotted = gcsim("plot", OUT, folder=here)
    assert plotted.returncode == 0, plotted.stderr
    assert "4 points of the sweep failed and stay empty\n" in plotted.stderr
    assert (here / OUT / "winner.png").exists()


# --- interrupts ----------------------------------------------------------------------------------

MANY = ("--grid", f"cluster.nodes={','.join(map(str, range(1, 21)))}", "--grid", "batch_size=8")


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in listed.read_text().split()]


def wait_until(condition: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def gone(pids: Sequence[int]) -> bool:
    def over(pid: int) -> bool:
        try:
            return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return True

    return all(map(over, pids))


@pytest.fixture
def started(
    here: Path, environment: dict[str, str]
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts sweeps, and ends them when a test does not."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command("sweep", "small.yaml", *arguments), cwd=here, text=True,
            env={**environment, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=600)


@pytest.fixture
def slow(here: Path) -> dict[str, str]:
    """Makes every point take a moment: a module that Python imports at its start."""
    (here / "slowly").mkdir()
    (here / "slowly" / "sitecustomize.py").write_text(
        "import sys, time\n"
        "if any('sweep_worker' in word for word in sys.orig_argv):\n"
        "    import gcsim.scenarios.sweeps.tasks as tasks\n"
        "    fast = tasks.run\n"
        "    def run(*arguments, **options):\n"
        "        time.sleep(0.5)\n"
        "        return fast(*arguments, **options)\n"
        "    tasks.run = run\n"
    )
    path = [str(here / "slowly"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join([*path, str(Path(__file__).resolve().parents[2])])}


@pytest.mark.long
def test_a_sweep_that_was_killed_goes_on_and_loses_nothing(
    here: Path, gcsim: Run, started: Callable[..., subprocess.Popen[str]], slow: dict[str, str]
) -> None:
    points = here / OUT / "points"
    process = started(*MANY, "--jobs", "2", "-q", OMP_NUM_THREADS="1", **slow)  # as here: same bits
    wait_until(lambda: points.is_dir() and len(list(points.glob("[!.]*.json"))) >= 4)
    workers = children(process.pid)
    assert len(workers) == 2
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)
    wait_until(lambda: gone(workers))
    kept = {path.name: path.stat().st_mtime_ns for path in points.glob("[!.]*.json")}
    assert 4 <= len(kept) < 20
    assert not (here / OUT / "results.csv").exists()
    ended = gcsim("sweep", "small.yaml", *MANY, folder=here)
    assert ended.returncode == 0, ended.stderr
    assert f"{len(kept)} of 20 points are done already" in ended.stderr
    assert {name: (points / name).stat().st_mtime_ns for name in kept} == kept
    whole = gcsim("sweep", "small.yaml", *MANY, "-q", "-o", "whole", folder=here)
    assert whole.stdout == ended.stdout
    for name in ("results.json", "results.csv"):
        assert (here / OUT / name).read_bytes() == (here / "whole" / name).read_bytes()


def test_an_interrupt_is_one_line_and_exit_130(
    here: Path, started: Callable[..., subprocess.Popen[str]], slow: dict[str, str]
) -> None:
    points = here / OUT / "points"
    process = started(*MANY, "--jobs", "1", "-q", **slow)
    wait_until(lambda: points.is_dir() and len(list(points.glob("[!.]*.json"))) >= 2)
    workers = children(process.pid)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=600)
    kept = len(list(points.glob("[!.]*.json")))
    assert process.returncode == 130
    assert output == ""
    assert errors == (
        f"interrupted; {kept} of 20 points are in {OUT}: repeat the command to continue\n"
    )
    assert gone(workers)


@pytest.mark.long
def test_gradients_that_are_being_made_are_removed_even_after_a_kill(
    here: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    empty = here / "cache"
    endless = ("--set", "gradients.warmup_steps=100000", "--grid", "cluster.nodes=1,2")
    process = started(*endless, GCSIM_CACHE_DIR=str(empty))
    wait_until(lambda: bool(list(empty.glob("gradients-*"))))
    workers = children(process.pid)
    assert len(workers) == 1  # stage 1 has the machine to itself
    time.sleep(1)  # until it trains: whoever has just made a folder does not hold it yet
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)
    wait_until(lambda: gone(workers))
    assert list(empty.glob("gradients-*")) == []


# --- many machines -------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path, environment: dict[str, str]) -> Iterator[str]:
    with running_cluster(tmp_path, environment, workers=2) as address:
        yield address


@pytest.mark.long
def test_a_cluster_gives_the_bytes_of_one_machine(
    here: Path, done: Path, program: Run, cluster: str
) -> None:
    ended = program("sweep", "small.yaml", *FOUR, "--dask", cluster, folder=here,
                    GCSIM_CACHE_DIR=str(here / "cache of the client"))  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    for name in ("results.json", "results.csv"):
        assert (here / OUT / name).read_bytes() == (done / OUT / name).read_bytes()
    profiles = list((here / "cache of the cluster").glob("*.json"))
    assert len(profiles) == 2  # one of each compressor
    assert list((here / "cache of the client").glob("*.json")) == []
    # a point that fails there is told as one that fails here
    (here / "mine.py").write_text(MINE)
    away = program("sweep", "small.yaml", "--grid", 'compressors.1.fault=input,""', "--set",
                 "compressors=[none, {kind: 'mine:Mine', label: mine}]", "-o", "faulty",
                 "--dask", cluster, folder=here)  # fmt: skip
    assert away.returncode == 2
    said = (
        r"point compressors.1.fault=input: mine, \S*mine.py:\d+: error: this gradient has too few"
    )
    assert re.search(said, away.stderr)


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs distributed")
def test_an_address_that_is_none_is_refused_at_once(here: Path, program: Run) -> None:
    ended = program("sweep", "small.yaml", *FOUR, "--dask", "nowhere", folder=here)
    assert ended.returncode == 2
    assert ended.stderr.startswith("--dask nowhere: error: ")
    assert not (here / OUT / "sweep.json").exists()


def test_without_distributed_the_extra_is_named(here: Path, program: Run, tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "distributed.py").write_text("raise ModuleNotFoundError('none')")
    path = os.pathsep.join(
        [str(tmp_path / "without"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    ended = program("sweep", "small.yaml", *FOUR, "--dask", "a:1", folder=here, PYTHONPATH=path)
    assert ended.returncode == 2
    assert ended.stderr == ("--dask: error: needs dask.distributed; pip install 'gcsim[cluster]'\n")


# --- the tutorial --------------------------------------------------------------------------------


def example(language: str, beginning: str) -> str:
    found = re.search(rf"```{language}\n({re.escape(beginning)}.*?)```", TUTORIAL, re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.mark.long
def test_the_examples_of_the_readme_run_as_they_stand(
    tmp_path: Path, environment: dict[str, str], gcsim: Run
) -> None:
    import shlex

    words = shlex.split(example("sh", "gcsim sweep"))
    ended = gcsim(*words[1:], "-q", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    table = re.search(r"```\n( +speedup .*? pays\n.*?)```", TUTORIAL, re.DOTALL)
    assert table is not None
    shown = table.group(1).splitlines()
    assert ended.stdout.splitlines()[: len(shown)] == shown
    (tmp_path / "sweep.py").write_text(example("python", "# sweep.py"))
    said = printed("sweep.py", folder=tmp_path, GCSIM_CACHE_DIR=environment["GCSIM_CACHE_DIR"])
    assert [line.split()[:2] for line in said.splitlines()] == [
        ["2", "0.01"], ["2", "0.001"], ["8", "0.01"], ["8", "0.001"]
    ]  # fmt: skip
