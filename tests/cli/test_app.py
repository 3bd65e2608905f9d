"""What the commands print, where, and with which exit code they end.

The run itself is replaced: these tests are about the command line. `test_process.py` starts
the program as a user does.
"""

import errno
import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import Result as Outcome

from gcsim.api import Result as Shown
from gcsim.cli.list import accepted
from gcsim.cli.terminal import note_cached
from gcsim.errors import ExpectationError, InputError, InternalError, Problem
from gcsim.scenarios import catalog
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.result import FROM_CACHE, Result, Row, Span, Timeline
from tests.analysis.drawn import plain_row
from tests.command import invoked

SCENARIO = "alexnet_32node"


def row(kind: str, label: str, seconds: float, nmse: float) -> Row:
    speedup = 0.2 / seconds
    return plain_row(
        label, seconds, compressor=kind, speedup_vs_dense=speedup, compression_ratio=speedup,
        nmse=nmse, cosine_similarity=1 - nmse,
    )  # fmt: skip


RESULT = Result(
    scenario={"name": "four_nodes", "seed": 3},
    provenance={"gradients": {"source": "live", "workers": 2}, "seed": 3},
    rows=(row("none", "dense", 0.2, 0.0), row("topk", "Tôp-k 1%", 0.05, 0.25)),
    wall={"simulation_s": 0.5},
    timelines=(
        Timeline(
            compressor="none", label="dense", nodes=4, phase="step",
            spans=(
                Span(rank=0, resource="compute", kind="forward", name="forward",
                     start_s=0.0, end_s=0.01),
            ),
        ),
    ),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("GCSIM_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces the run; tells what it was called with."""
    called: dict[str, Any] = {}

    def run(scenario: Any, **options: Any) -> Result:
        called.update(options, scenario=scenario)
        with options["progress"].task("cluster sizes", 6) as task:
            task.advance()
            task.advance(5)
        return RESULT

    monkeypatch.setattr("gcsim.analysis.advice.advice.advised_run", run)
    return called


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    def set_error(error: BaseException) -> None:
        def run(*args: Any, **kwargs: Any) -> Result:
            raise error

        monkeypatch.setattr("gcsim.analysis.advice.advice.advised_run", run)

    return set_error


def gcsim(*arguments: str) -> Outcome:
    return invoked(arguments)


# --- run: what goes where ------------------------------------------------------------------------


@pytest.mark.parametrize(("fast", "offered"), [("a100_sxm_80gb", True), ("v100", False)])
def test_batches_by_speed_are_proposed_where_they_are_faster(fast: str, offered: bool) -> None:
    """An A100 is faster than a V100; two V100 have equal batches by speed, too."""
    Path("unlike.yaml").write_text(
        f"""\
model: googlenet
batch_size: 64
gradients: {{source: synthetic}}
cluster: {{network: 25gbe, groups: [{{nodes: 1, device: {fast}}}, {{nodes: 1, device: v100}}]}}
compressors: [none]
uncertainty: {{draws: 0}}
"""
    )
    done = gcsim("run", "unlike.yaml")
    assert done.exit_code == 0
    assert ("cluster.batch=by_speed" in done.stderr) is offered
    assert "cluster.network=" not in done.stderr


@pytest.mark.usefixtures("simulated")
def test_the_table_and_the_answer_are_stdout_and_the_rest_is_stderr() -> None:
    done = gcsim("run", SCENARIO)
    assert done.exit_code == 0
    assert "> Tôp-k 1%" in done.stdout
    # 0.2 s / 0.05 s = 4
    assert re.search(r"> Tôp-k 1% +4.00 ", done.stdout)
    assert done.stdout.index("method") < done.stdout.index("Tôp-k 1% on the shipped tasks")
    for text in ("Written to runs/alexnet_32node", "gcsim run", "cluster sizes"):
        assert text in done.stderr
        assert text not in done.stdout
    assert "gradients: live" not in done.stderr + done.stdout


@pytest.mark.usefixtures("simulated")
def test_with_v_all_columns_notes_and_sources_are_shown() -> None:
    brief, full = gcsim("run", SCENARIO), gcsim("run", SCENARIO, "-v")
    for text in ("network", "scaling", "NMSE: |update", "Gradient error of Tôp-k 1%: NMSE"):
        assert text in full.stdout
        assert text not in brief.stdout
    assert "gradients: live" in full.stderr
    assert "-v adds" in brief.stderr
    assert "-v adds" not in full.stderr
    shown = Shown(**{entry.name: getattr(RESULT, entry.name) for entry in fields(RESULT)})
    assert full.stdout == shown.summary(120, full=True)


@pytest.mark.usefixtures("simulated")
def test_the_screen_of_a_run_is_short() -> None:
    done = gcsim("run", SCENARIO)
    answer = done.stdout.strip().split("\n\n")[-1]
    assert answer.startswith("Tôp-k 1% on the shipped tasks")
    assert len(answer.splitlines()) <= 8
    assert done.stderr.count("Next, ") == 1


@pytest.mark.parametrize(
    ("started", "path", "said"),
    [
        ("here/bin/gcsim", "", "here/bin/gcsim run"),
        ("here/bin/gcsim", "here/bin", "gcsim run"),
        ("there/gcsim/__main__.py", "", "{python} -m gcsim run"),
    ],
)
@pytest.mark.usefixtures("simulated")
def test_the_next_command_is_found_by_the_users_shell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: str, path: str, said: str
) -> None:
    script = tmp_path / started
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", str(tmp_path / path) if path else "")
    command = gcsim("run", SCENARIO).stderr.rstrip().splitlines()[-1].strip()
    assert command.startswith(f"{said.format(python=sys.executable)} {SCENARIO} ")


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("width", [80, 120])
def test_a_results_summary_is_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = Shown(**{entry.name: getattr(RESULT, entry.name) for entry in fields(RESULT)})
    assert gcsim("run", SCENARIO, "-q").stdout == shown.summary(width)


@pytest.mark.usefixtures("simulated")
def test_quiet_leaves_stderr_empty_and_stdout_as_it_is() -> None:
    loud, quiet = gcsim("run", SCENARIO), gcsim("run", SCENARIO, "-q")
    assert quiet.stderr == ""
    assert quiet.stdout == loud.stdout


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("more", [[], ["-q"]])
def test_json_on_stdout_is_exactly_results_json(tmp_path: Path, more: list[str]) -> None:
    done = gcsim("run", SCENARIO, "--json", "-o", "out", *more)
    assert done.exit_code == 0
    assert done.stdout_bytes == (tmp_path / "out" / "results.json").read_bytes()
    assert done.stdout == RESULT.to_json()


@pytest.mark.usefixtures("simulated")
def test_files_go_to_runs_and_the_scenarios_name_or_where_one_says(tmp_path: Path) -> None:
    for where in ((), ("-o", "elsewhere/deep")):
        invoked(("run", SCENARIO, "-q", *where), pictures=True)
    names = {
        "report.html", "results.json", "results.csv", "speedup.png", "breakdown.png",
        "timeline.json", "scenario.yaml",
    }  # fmt: skip
    for folder in (tmp_path / "runs" / SCENARIO, tmp_path / "elsewhere" / "deep"):
        assert {path.name for path in folder.iterdir()} == names


def test_options_reach_the_scenario_and_the_run(simulated: dict[str, Any]) -> None:
    gcsim("run", SCENARIO, "--set", "cluster.nodes=[1, 4]", "--set", "batch_size=8",
          "--seed", "9", "--no-cache")  # fmt: skip
    assert simulated["scenario"].node_counts == (1, 4)
    assert simulated["scenario"].batch_size == 8
    assert simulated["scenario"].seed == 9
    assert simulated["cache"] is False


@pytest.mark.usefixtures("simulated")
def test_the_next_command_repeats_what_was_asked_for() -> None:
    done = gcsim("run", SCENARIO, "--set", "cluster.nodes=[1, 4]", "--seed", "9")
    last = done.stderr.rstrip().splitlines()[-1].strip()
    assert last == (
        "gcsim run alexnet_32node --set 'cluster.nodes=[1, 4]' --seed 9 "
        "--set cluster.network=25gbe -o runs/alexnet_32node_25gbe"
    )


TRACE = "{points: [[0 s, 1 Gbit/s], [1 s, 500 Mbit/s]], after: repeat}"
LINKS = {
    "named": "1gbe",
    "fast": "100gbe",
    "spelled out": "{bandwidth: 10 Gbit/s, latency: 50 us, overhead: 5 us}",
    "jitter": "{like: 10gbe, jitter: {distribution: exponential, mean: 1 ms}}",
    "loss": "{like: 10gbe, loss: {rate: 0.001, model: sampled}, background: 0.3}",
    "factors": "10gbe_smpi_factors",
    "trace": "{latency: 1 ms, trace: TRACE}",
    "trace over a catalogue's": "{like: lte, trace: TRACE}",
    "trace away": "{like: 5g_measured, up: {trace: TRACE}}",
    "uplink": "5g_50mbit",
    "grants": "5g_measured",
    "granted both ways": "{like: 10gbe, grant: 1 ms}",
    "air": "wifi_802.11n",
}
"""A link of every kind."""


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("network", LINKS.values(), ids=LINKS)
def test_the_next_command_loads_whatever_the_network_is(network: str) -> None:
    network = network.replace("TRACE", TRACE)
    done = gcsim("run", SCENARIO, "--set", f"cluster.network={network}")
    assert done.exit_code == 0, done.stderr
    _, command, scenario, *words = shlex.split(done.stderr.rstrip().splitlines()[-1])
    assert command == "run"
    folder = words.pop()
    assert words.pop() == "-o"
    checked = gcsim("check", scenario, *words)
    assert checked.exit_code == 0, checked.stderr
    before = load_scenario(SCENARIO, [f"cluster.network={network}"]).cluster.network
    now = load_scenario(scenario, words[1::2]).cluster.network
    name = folder.removeprefix(f"runs/{SCENARIO}_")
    assert now == catalog.link(name, "gloo") != before


# --- run: how it ends ----------------------------------------------------------------------------


def test_all_problems_are_shown_at_once(failing: Callable[[BaseException], None]) -> None:
    problems = [
        Problem(place="a.yaml:1:2", message="first", hint="do this"),
        Problem(place="a.yaml:3:4", message="second"),
    ]
    failing(InputError(problems))
    done = gcsim("run", SCENARIO, "-q")
    assert done.exit_code == 2
    assert done.stderr == "a.yaml:1:2: error: first; do this\na.yaml:3:4: error: second\n"


def test_a_failed_expectation_is_exit_1(failing: Callable[[BaseException], None]) -> None:
    failing(ExpectationError("speedup is 1.2, not 2"))
    done = gcsim("run", SCENARIO, "-q")
    assert (done.exit_code, done.stderr) == (1, "error: speedup is 1.2, not 2\n")


@pytest.mark.parametrize("error", [ValueError("odd"), InternalError("odd")])
def test_a_bug_is_exit_3_with_its_traceback_in_a_file(
    failing: Callable[[BaseException], None], tmp_path: Path, error: Exception
) -> None:
    failing(error)
    done = gcsim("run", SCENARIO, "-q")
    assert done.exit_code == 3
    assert len(done.stderr.splitlines()) == 1
    assert f"a bug in gcsim, {type(error).__name__}: odd" in done.stderr
    (saved,) = tmp_path.glob("gcsim-traceback-*.txt")
    assert str(saved) in done.stderr
    assert saved.read_text().startswith("Traceback (most recent call last)")
    assert gcsim("run", SCENARIO, "-q").exit_code == 3
    (last,) = tmp_path.glob("gcsim-traceback-*.txt")  # an earlier one is nobody's any more
    assert last != saved


def test_debug_shows_the_traceback(
    failing: Callable[[BaseException], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(ValueError("odd"))
    assert "Traceback" in gcsim("--debug", "run", SCENARIO, "-q").stderr
    monkeypatch.setenv("GCSIM_DEBUG", "1")
    done = gcsim("run", SCENARIO, "-q")
    assert "Traceback" in done.stderr
    assert done.exit_code == 3
    assert list(tmp_path.glob("gcsim-traceback-*")) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "error: Too many open files\n"),
        (MemoryError(), "error: not enough memory; use a smaller model, fewer workers or fewer "
         "iterations\n"),
    ],
)  # fmt: skip
def test_what_the_machine_lacks_is_no_bug(
    failing: Callable[[BaseException], None], error: Exception, said: str
) -> None:
    failing(error)
    done = gcsim("run", SCENARIO, "-q")
    assert (done.exit_code, done.stderr) == (2, said)


def test_a_bad_output_folder_is_refused_before_anything_runs(
    simulated: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    done = gcsim("run", SCENARIO, "-o", "file/inside")
    assert done.exit_code == 2
    assert "error: file is a file, not a folder" in done.stderr
    assert simulated == {}


# --- check, record -------------------------------------------------------------------------------


def test_check_says_what_would_run() -> None:
    done = gcsim("check", SCENARIO)
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert text.startswith("alexnet_32node: ok. alexnet, 32 samples per worker, live gradients;")
    assert "10 compressors; 1, 2, 4, 8, 16, 32 nodes of 2 devices" in text
    assert gcsim("check", SCENARIO, "-q").stdout == ""


TOPOLOGY = (
    "cluster.nodes=[2, 8]", "cluster.collectives={transport: gloo, servers: 2 "
    "dedicated, server_network: 40gbe}",
    "cluster.nics={3: 1gbe}", "cluster.racks={nodes: 4, uplink: 10gbe}", "cluster.shared_bus=true",
    "training={encode_on: side, side_slowdown: 1.5, accumulation: 4, slow_nodes: {3: 2}, "
    "noise: {variation: 0.1}, iterations: 50}",
)  # fmt: skip


def test_check_tells_the_topology_that_was_understood() -> None:
    options = [word for option in TOPOLOGY for word in ("--set", option)]
    done = gcsim("check", SCENARIO, *options)
    assert done.exit_code == 0
    assert done.stderr == ""
    said = {line[:13].strip(): line[13:].strip() for line in done.stdout.splitlines()}
    # TCP's framing leaves 1448 of 1538 bytes: 9.41 of 10 Gbit/s
    assert said["network"] == "10gbe: 9.41 Gbit/s of 10 Gbit/s, latency 120 us"
    assert said["NIC, node 3"] == "1gbe: 941 Mbit/s of 1 Gbit/s, latency 120 us"
    assert said["intra-node"].endswith("; devices share it")
    # the fullest rack has four 10-Gbit/s NICs on an uplink of 10 Gbit/s
    assert said["racks"].startswith("2 of up to 4 nodes; uplink 10gbe: ")
    assert said["racks"].endswith("oversubscribed 4.00:1")
    assert said["servers"].startswith("2, on dedicated machines, 40gbe: 15 Gbit/s of 40 ")
    assert said["encoding"] == "on a stream parallel to the backward pass, 1.50x as long"
    assert said["iteration"] == "4 micro-batches, one exchange"
    assert said["compute takes"] == "node 3 2.00x as long"
    assert said["random"] == "training.noise; means of 50 iterations, seed 0"
    assert said["transport"] == "gloo, copied through host memory"
    assert said["push-pull"] == "parameter servers: dist-EF-blockSGDM 1 bit"
    assert said["all-to-all"] == "pairwise all-to-all"
    assert said["tree-merge"] == "binomial tree merge"
    assert said["all-reduce"] == (
        "for a bucket of 1 MiB and of 25 MiB: Gloo ring all-reduce (chosen by gloo)"
    )
    assert "smaller" not in done.stdout  # Gloo's choice does not depend on the size


def test_check_tells_what_training_would_find() -> None:
    """200 steps of Top-k 1 % are 2 delays, and local steps are gcsim run's alone."""
    short = ("--set", "train.steps=200", "--set", "training.local_steps=4")
    done = gcsim("check", "characters_8", *short)
    text = " ".join(done.stdout.partition("\ntrain ")[2].split())
    assert text.startswith("refused: gcsim train exchanges in every step")
    assert "Top-k 1 %: inconclusive: 200 steps span only" in text
    assert "\ntrain " not in gcsim("check", "digits_8", "--set", "train.steps=10000").stdout


def test_check_tells_what_a_transport_chooses_by_size_and_nodes() -> None:
    # MPICH_CVAR_ALLREDUCE_SHORT_MSG_SIZE is 2 KiB; below, recursive doubling
    done = gcsim("check", SCENARIO, "--set", "cluster.collectives={transport: mpich}", "--set",
                 "ddp.first_bucket=2 KiB", "--set", "cluster.nodes=[1, 2, 3]")  # fmt: skip
    text = " ".join(done.stdout.split())
    assert (
        "all-reduce for a bucket of 2 KiB: recursive doubling all-reduce (chosen by mpich)" in text
    )
    assert "for a bucket of 25 MiB: recursive halving-doubling all-reduce (chosen by mpich)" in text
    # 6 ranks are no power of two: Bruck's for 6 blocks of 20 bytes
    assert (
        "for 1 % of a bucket of 2 KiB: recursive doubling all-gather on 1 to 2 nodes; Bruck's "
        "all-gather on 3 nodes (chosen by mpich)" in text
    )
    assert "smaller buckets" not in text  # below 2 KiB nothing changes
    larger = gcsim("check", SCENARIO, "--set", "cluster.collectives={transport: mpich}")
    assert "smaller buckets may use other algorithms" in larger.stdout


NAMED = "cluster.collectives={transport: custom, all_reduce: ring, all_gather: ring}"


@pytest.mark.parametrize(
    ("scenario", "changes", "said", "unsaid"),
    [
        (SCENARIO, ["training.encode_on=communicator"],
         "encoding on the collectives' stream, one bucket at a time", ()),
        # one worker alone asks nobody
        (SCENARIO, ["cluster.nodes=1", "cluster.devices_per_node=1"], "compute",
         ("all-reduce", "smaller buckets")),
        # LeNet's whole gradient is smaller than 25 MiB
        ("lenet_2node", [], "for a bucket of 1 MiB and of 25 MiB: ", ()),
        (SCENARIO, [NAMED], "as named", ("smaller buckets",)),
    ],
)  # fmt: skip
def test_check_tells_what_the_options_decide(
    scenario: str, changes: list[str], said: str, unsaid: tuple[str, ...]
) -> None:
    done = gcsim("check", scenario, *(word for one in changes for word in ("--set", one)))
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert said in text
    assert not any(words in text for words in unsaid)


@pytest.mark.parametrize("width", [80, 120])
def test_check_keeps_to_the_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    options = [word for option in TOPOLOGY for word in ("--set", option)]
    shown = gcsim("check", SCENARIO, *options).stdout.splitlines()
    assert max(map(len, shown)) <= width
    assert not any(line.endswith(" ") for line in shown)


@pytest.mark.parametrize("kept", [3, 1])
def test_record_passes_its_options_on_and_says_what_was_kept(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    called: dict[str, Any] = {}

    def record(scenario: Any, folder: Path, **options: Any) -> Path:
        called.update(options, name=scenario.name, folder=folder)
        return folder

    def open_trace(folder: Path, *, verify: bool) -> Any:
        assert not verify
        return SimpleNamespace(iterations=kept, workers=2, nbytes=1_048_576)

    monkeypatch.setattr("gcsim.scenarios.running.gradients.record", record)
    monkeypatch.setattr("gcsim.traces.storage.store.Trace.open", open_trace)
    done = gcsim(
        "record", SCENARIO, "-o", "my trace", "--iterations", "3", "--workers", "2", "--dtype",
        "float16", "--max-size", "2 GiB", "--second-moments", "--times",
    )  # fmt: skip
    assert done.exit_code == 0
    progress = called.pop("progress")
    assert hasattr(progress, "task")
    assert called == {
        "name": SCENARIO, "folder": Path("my trace"), "iterations": 3, "workers": 2,
        "dtype": "float16", "max_bytes": 2 * 1024**3, "second_moments": True,
        "times": True,
    }  # fmt: skip
    assert done.stdout == ""
    last = done.stderr.rstrip().splitlines()[-1].strip()
    assert last == (
        "gcsim run alexnet_32node --set 'gradients={source: recorded, trace: \"my trace\"}'"
    )
    held = "3 iterations" if kept == 3 else "1 iteration"
    assert f"Written to my trace: {held} of 2 workers, 1,048,576 bytes\n" in done.stderr
    said = "kept 1 of 3 iterations: no more fit in --max-size 2 GiB\n"
    assert (said in done.stderr) == (kept == 1)
    assert gcsim("record", SCENARIO, "-o", "t", "-q").stderr == ""


@pytest.mark.parametrize(
    ("size", "said"), [("2", "has no unit"), ("2 Gib", "unknown unit"), ("-1 GiB", "negative")]
)
def test_a_bad_size_is_refused(size: str, said: str) -> None:
    done = gcsim("record", SCENARIO, "-o", "t", "--max-size", size)
    assert done.exit_code == 2
    assert done.stderr.startswith("--max-size: error: ")
    assert said in done.stderr


# --- list ----------------------------------------------------------------------------------------


def test_the_schema_of_a_scenario_names_every_section() -> None:
    schema = json.loads(gcsim("schema").stdout)
    assert set(schema["required"]) == {"model", "batch_size", "cluster", "compressors"}
    assert "ClusterSection" in schema["$defs"]
    assert schema["$defs"]["TrainingSection"]["properties"]["overlap"]


@pytest.mark.parametrize(
    "kind", ["compressors", "scenarios", "models", "tasks", "traces", "devices", "links", "papers"]
)
def test_every_kind_lists_for_people_and_as_json(kind: str) -> None:
    shown, data = gcsim("list", kind), gcsim("list", kind, "--json")
    assert shown.exit_code == data.exit_code == 0
    entries = json.loads(data.stdout)
    assert entries
    assert all(entry["name"] in shown.stdout for entry in entries)
    for entry in entries[:3] + entries[-1:]:  # each one's page: test_links.py and others
        one = json.loads(gcsim("list", kind, entry["name"], "--json").stdout)
        assert one.items() >= entry.items()
        assert gcsim("list", kind, entry["name"]).exit_code == 0


def test_the_registered_compressors_are_listed_with_what_they_are() -> None:
    from gcsim.compressors.registry import REGISTRY

    entries = json.loads(gcsim("list", "compressors", "--json").stdout)
    assert [entry["name"] for entry in entries] == list(REGISTRY)
    wanted = {"title", "family", "collective", "bits", "unbiased", "state", "paper"}
    assert all(wanted <= entry.keys() for entry in entries)


def test_a_compressors_parameters_are_shown_with_default_range_and_meaning() -> None:
    # PowerSGD's rank: 4 by default, at least 1 (its class says so)
    text = gcsim("list", "compressors", "powersgd").stdout
    (line,) = [line for line in text.splitlines() if line.startswith("rank ")]
    assert line.split()[1:5] == ["4", "integer", ">=", "1"]
    assert "columns of the factors P and Q (r)" in line


@pytest.mark.parametrize("columns", [60, 80, 100, 120])
def test_no_parameter_is_cut_at_any_width(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    from gcsim.cli.list import Kind, details

    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("topk", "dgc", "sidco", "gtopk", "qsgd"):
        shown = gcsim("list", "compressors", name).stdout
        assert max(map(len, shown.splitlines())) <= columns
        words = " ".join(shown.split())
        for parameter in details(Kind.compressors, name)["parameters"]:
            assert parameter["name"] in shown
            assert all(word in words for word in parameter["meaning"].split())


def test_a_users_own_compressor_can_be_shown() -> None:
    done = gcsim("list", "compressors", "gcsim.compressors.low_rank.powersgd:PowerSgd")
    assert done.exit_code == 0
    assert "PowerSGD" in done.stdout


def test_a_shipped_scenario_is_shown_as_its_file() -> None:
    path = json.loads(gcsim("list", "scenarios", SCENARIO, "--json").stdout)["path"]
    assert gcsim("list", "scenarios", SCENARIO).stdout == Path(path).read_text(encoding="utf-8")


def test_an_unknown_name_gets_a_suggestion() -> None:
    done = gcsim("list", "compressors", "powersdg4")
    assert done.exit_code == 2
    assert done.stderr == "error: unknown compressor 'powersdg4'; did you mean 'powersgd'?\n"


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"type": "integer", "minimum": 1}, "integer >= 1"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number in (0, 1]"),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "number in [0, 1)"),
        ({"type": "number", "exclusiveMinimum": 0}, "number > 0"),
        ({"type": "number", "maximum": 3}, "number <= 3"),
        ({"type": "number", "exclusiveMaximum": 3}, "number < 3"),
        ({"type": "boolean"}, "true | false"),
        ({"enum": ["max", "l2"], "type": "string"}, "max | l2"),
        ({"const": "max"}, "max"),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, "integer >= 1 or null"),
        ({}, "any"),
    ],
)
def test_a_range_reads_as_mathematics(rule: dict[str, Any], text: str) -> None:
    assert accepted(rule) == text


@pytest.mark.parametrize(
    ("profiles", "simulation", "expected"),
    [
        ([], False, ""),
        (["dense"], False, "profiles of dense"),
        (["dense", "Tôp-k 1%"], True, "profiles of all 2 methods, and the simulation"),
    ],
)
def test_a_run_says_what_came_from_the_cache(
    capsys: pytest.CaptureFixture[str], profiles: list[str], simulation: bool, expected: str
) -> None:
    came = {"profiles": profiles, "simulation": simulation}
    note_cached(replace(RESULT, provenance={FROM_CACHE: came}))
    shown = " ".join(capsys.readouterr().err.split())
    wanted = f"From the cache: {expected} (--no-cache recomputes them)." if expected else ""
    assert shown == wanted
