"""The program as a shell starts it: exit codes, start-up, closed pipes, signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gcsim
from gcsim.analysis.live.calibrate import cores
from gcsim.scenarios.sweeps.processes import default_jobs
from gcsim.scenarios.sweeps.tasks import measuring_alone
from gcsim.traces.stage1.machine import threads, usable
from tests.command import gcsim as in_this_process


def start(
    *arguments: str, code: str = "", folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "gcsim"]
    environment = {k: v for k, v in os.environ.items() if k not in ("GCSIM_DEBUG", "COLUMNS")}
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=600, cwd=folder,
        env={**environment, **variables}, check=False,
    )  # fmt: skip


LIGHT = {"torch", "matplotlib", "sklearn"}
HELP = LIGHT | {"scipy", "numpy", "yaml", "simpy", "dask", "pydantic"}
TYPED = HELP - {"pydantic"}  # typer itself uses it as soon as it converts an argument


def test_commands_that_compute_nothing_import_nothing_heavy() -> None:
    """In one process, the lightest first: what a command may import, those after it may, too."""
    commands = {
        "--help": HELP,
        **dict.fromkeys(("run --help", "--version", "list --help", "record --help"), TYPED),
        "sweep --help": TYPED,
        **dict.fromkeys(("calibrate device --help", "calibrate link --help"), LIGHT | {"scipy"}),
        "check alexnet_32node": LIGHT | {"simpy"},
        **dict.fromkeys(("list compressors", "list devices", "list tasks", "list models"), LIGHT),
        **dict.fromkeys(("list models vgg16", "list models vgg16 --json"), LIGHT),
    }
    code = (
        "import sys\n"
        "from gcsim.cli.app import main\n"
        f"for command, heavy in {commands}.items():\n"
        "    try:\n        main(command.split())\n"
        "    except SystemExit as end:\n"
        "        print(command, end.code, heavy & set(sys.modules), file=sys.stderr)\n"
    )
    said = start(code=code).stderr.splitlines()
    assert [line for line in said if line.endswith("set()")] == [f"{c} 0 set()" for c in commands]


def test_what_holds_no_tensor_imports_no_torch() -> None:
    code = (
        "import sys, gcsim.traces.profile, gcsim.traces.stage1.cache, gcsim.simulator.predict\n"
        "import gcsim.scenarios.load, gcsim.scenarios.run, gcsim.analysis.report.table\n"
        "import gcsim.traces.models.building\n"
        "from gcsim.traces.buckets import bucket_layouts\nbucket_layouts([('a', (3,))])\n"
        "from gcsim.compressors.registry import REGISTRY, check_parameters\n"
        "[check_parameters(name, {}) for name in REGISTRY]\n"
        "from gcsim.traces.synthetic.fit_file import default_fits\ndefault_fits()\n"
        "print('torch' in sys.modules)\n"
    )
    done = start(code=code)
    assert done.stdout == "False\n", done.stderr


def test_the_version(tmp_path: Path) -> None:
    done = in_this_process("--version", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"gcsim {gcsim.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "error: Missing argument 'SCENARIO'; see gcsim run --help"),
        (["run", "a", "--nodes", "3"], "error: No such option: --nodes"),
        (["advise", "--bandwidth", "1"], "error: No such option: --bandwidth; did you mean"),
        (["advise", "--batch", "32"], "error: No such option: --batch; did you mean --batch-size?"),
        (["plan", "--bandwidth", "1"], "error: No such option: --bandwidth; see gcsim plan"),
        (["advise", "--batch_size", "1"], "error: No such option: --batch_size; did you mean --ba"),
        (["advise", "--netwrok", "1"], "error: No such option: --netwrok; did you mean --network?"),
        (["advise", "--rdma"], "error: No such option: --rdma; did you mean --network?"),
        (["advise", "--tpu"], "error: No such option: --tpu; see gcsim advise"),
        (["rum"], "error: No such command 'rum'"),
        (["run", "a", "--seed", "x"], "error: Invalid value for '--seed'"),
        (["record", "a"], "error: Missing option '-o' / '--output'"),
        (["list", "planets"], "error: Invalid value for 'KIND'"),
        (["record", "a", "-o", "b", "--workers", "0"], "error: Invalid value for '--workers'"),
        (["run", "nowhere/a.yaml"], "nowhere/a.yaml: error: No such file"),
        (["run", "alexnet_33node"], "error: no scenario 'alexnet_33node'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    done = in_this_process(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(said)


def test_no_command_shows_help_on_stderr() -> None:
    done = start()
    assert done.returncode == 2
    assert "record" in done.stderr
    assert done.stdout == ""


def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "gcsim", "list", "devices", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before anything is written
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_a_full_disk_on_stdout_is_one_line_and_exit_2() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gcsim", "list", "models", "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=600, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "error: No space left on device\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_run_is_one_line_and_exit_130(
    number: signal.Signals, tmp_path: Path
) -> None:
    code = (
        "import sys, time, gcsim.analysis.advice.advice as stage\n"
        "from gcsim.cli.app import main\n"
        "def run(scenario, **options):\n"
        "    print('started', flush=True, file=sys.__stdout__)\n"
        "    time.sleep(50)\n"
        "stage.advised_run = run\n"
        "main(['run', 'alexnet_32node', '-o', sys.argv[1]])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(0.1)
        process.send_signal(number)
        _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert said == "interrupted; no file is half written\n"
    assert not (tmp_path / "out").exists()


def test_a_closed_terminal_that_hears_nothing_is_exit_130() -> None:
    code = (
        "import time, gcsim.cli.list as lists\n"
        "from gcsim.cli.app import main\n"
        "def entries(kind):\n"
        "    print('started', flush=True)\n"
        "    time.sleep(50)\n"
        "lists.entries = entries\n"
        "main(['list', 'models'])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"started\n"
        process.stderr.close()
        process.stdout.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(600) == 130


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["check", "lenet_2node"], 2)])
def test_a_working_folder_that_is_gone_is_said_where_it_matters(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    program = (
        "import os, sys\n"
        "from gcsim.cli.app import main\n"
        "os.rmdir(os.getcwd())\n"
        "main(sys.argv[1:])\n"
    )
    (tmp_path / "gone").mkdir()
    done = start(*arguments, code=program, folder=tmp_path / "gone")
    assert done.returncode == code
    if code:
        said = "the folder that the command was started in is gone; cd to an existing one"
        assert done.stderr == f"error: {said}\n"


@pytest.mark.parametrize("closed", ["1", "0 1 2"])
def test_streams_that_were_closed_lead_nowhere(closed: str) -> None:
    program = (
        "import os, sys\n"
        "for number in map(int, sys.argv[1].split()):\n"
        "    os.close(number)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'gcsim', 'check', 'lenet_2node'])\n"
    )
    done = start(closed, code=program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_a_limit_to_some_cores_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable() == list(range(os.cpu_count() or 1))
    assert default_jobs() >= 1
    assert cores() == os.cpu_count()
    assert threads() >= 1
    with measuring_alone():
        pass


def test_json_is_utf_8_whatever_the_terminal_speaks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gcsim", "list", "scenarios", "--json"],
        capture_output=True, check=True, timeout=600,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert "alexnet_32node" in done.stdout.decode("utf-8")


@pytest.mark.long
def test_without_a_cache_everything_works_and_says_so_once(tmp_path: Path) -> None:
    """A home that cannot be made: loops are compiled, profiles made, gradients kept elsewhere."""
    (tmp_path / "file").touch()
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef build():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4))\n"
    )
    (tmp_path / "s.yaml").write_text(
        "model: {build: 'net:build', input_shape: [3, 2, 2], classes: 4}\n"
        "batch_size: 2\ngradients: {source: live, workers: 2, iterations: 2}\n"
        "compute: {forward: 1 ms, backward: 2 ms}\n"
        "cluster: {nodes: [2], devices_per_node: 1, device: v100, network: 10gbe}\n"
        "compressors: [none, fp16]\n"
    )
    nowhere = str(tmp_path / "file" / "home")
    named = ("HOME", "XDG_CACHE_HOME", "GCSIM_CACHE_DIR", "NUMBA_CACHE_DIR")
    homeless = dict.fromkeys(named, nowhere)
    checked = start("check", "s.yaml", folder=tmp_path, **homeless)
    assert (checked.returncode, checked.stderr) == (0, "")
    ran = start("run", "s.yaml", "-q", "-o", "out", folder=tmp_path, **homeless)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("compiled loops are not kept") == 1
    assert ran.stderr.count("this profile is not cached") == 1
    assert (tmp_path / "out" / "results.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("way", ["module", "script"])
def test_what_lies_beside_a_scenario_is_not_imported_in_a_librarys_place(
    tmp_path: Path, way: str
) -> None:
    """A `yaml.py` of a downloaded folder; the compressor's module there is imported."""
    for name in ("yaml", "typer", "numpy", "simpy", "pydantic", "torch"):
        (tmp_path / f"{name}.py").write_text(f"open('{name} was here', 'w')\n")
    (tmp_path / "mine.py").write_text("from gcsim.compressors.dense import Dense as Mine\n")
    (tmp_path / "net.csv").write_text("name,shape,forward_flops\nfc.weight,40x30,2400\n")
    (tmp_path / "s.yaml").write_text(
        "model: {layers: net.csv}\nbatch_size: 2\n"
        "gradients: {source: synthetic, workers: 2, iterations: 1}\n"
        "compute: {forward: 1 ms, backward: 2 ms}\n"
        "cluster: {nodes: [2], devices_per_node: 1, device: v100, network: 10gbe}\n"
        "compressors: [none, {kind: 'mine:Mine'}]\n"
    )
    program = [sys.executable, "-m", "gcsim"]
    if way == "script":
        program = [str(Path(sys.executable).with_name("gcsim"))]
    grid = ("--grid", "cluster.network=1gbe,10gbe", "--jobs", "1")
    for arguments in (("check", "s.yaml"), ("sweep", "s.yaml", "-q", *grid)):
        done = subprocess.run(
            [*program, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert not list(tmp_path.glob("* was here")), arguments
