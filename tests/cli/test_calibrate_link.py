"""`gcsim calibrate link` and `gcsim.calibrate_link`: from measurements to a link in a scenario."""

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from gcsim import calibrate_link
from gcsim.analysis.calibration.link.model import Model
from gcsim.analysis.calibration.measurements.collectives import Measurement, Stated
from gcsim.analysis.calibration.measurements.reading import read
from gcsim.api import run
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.sections.named_files import read_link
from gcsim.simulator.host import Sums
from gcsim.simulator.network.links import Link
from tests.command import invoked
from tests.process import OVER_LOOPBACK

DATA = Path(__file__).parent.parent / "analysis" / "calibration" / "data"
SCENARIO = """\
model: lenet
batch_size: 8
cluster: {nodes: 4, device: v100, network: my_link.yaml, collectives: {transport: gloo}}
compressors: [none]
"""


def gcsim(*arguments: str | Path) -> tuple[int, str, str]:
    done = invoked(list(map(str, arguments)))
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- gcsim calibrate link ------------------------------------------------------------------------


def test_from_a_log_to_a_scenario(here: Path) -> None:
    log = here / "log.txt"
    log.write_text((DATA / "gloo_benchmark_4_processes.txt").read_text(encoding="utf-8"))
    rate = ("--line-rate", "25 Gbit/s")
    code, out, err = gcsim("calibrate", "link", log, *rate, "-o", "my_link.yaml")
    assert (code, "Traceback" in err) == (0, False)
    assert out.startswith("my_link: 11 measurements of 11 sizes, all_reduce on 4 ranks, carried")
    assert "intervals: 95 %, by the covariance of the fit" in out
    assert "errors of 11 sizes: median " in out
    assert max(map(len, out.splitlines())) <= 80
    assert "268,435,456" in out
    assert err.splitlines()[-1] == (
        "wrote my_link.yaml; in a scenario: network: my_link.yaml, with the transport that was "
        "measured (cluster.collectives.transport)"
    )
    (here / "a.yaml").write_text(SCENARIO, encoding="utf-8")
    link = load_scenario("a.yaml").cluster.network
    assert link.name == "my_link"
    assert "log.txt (Gloo benchmark)" in link.source
    code, out, _ = gcsim("check", "a.yaml")
    assert code == 0
    assert "from files cluster.network: my_link.yaml" in " ".join(out.split())
    code, out, _ = gcsim("list", "links", "my_link.yaml")
    assert code == 0
    assert "in a scenario network: my_link.yaml" in " ".join(out.split())
    assert sorted(path.name for path in here.iterdir()) == ["a.yaml", "log.txt", "my_link.yaml"]


def test_a_fitted_link_gives_a_scenario_the_fitted_times_as_the_command_says(here: Path) -> None:
    """Ranks on one machine measure `intra_node`; Gloo's times include what the host adds."""
    scenario = """
model: {{name: one, layers: [{{name: w, shape: [1024, 256], forward_flops: 1}}]}}
batch_size: 1
gradients: {{source: synthetic}}
compute: {{forward: 1 ms, backward: 1 ms}}
training: {{framework: none}}
uncertainty: {{draws: 0}}
compressors: [none]
cluster: {{device: {device}, collectives: {{transport: {transport}}}, {where}}}
"""
    for transport, device, nodes, each, use in (
        ("nccl", "a100_sxm_80gb", 1, 4, "intra_node: my_link.yaml"),
        ("gloo", "cpu_2core", 4, 1, "network: my_link.yaml, host: none, sums: none"),
    ):
        rows = [f"all_reduce,4,{4**k << 10},{2e-4 + 4**k * 3e-6}" for k in range(7)]
        (here / "m.csv").write_text("\n".join(["collective,ranks,bytes,seconds", *rows]))
        options = ("--algorithm", transport, "--devices-per-node", str(each), "-o", "my_link.yaml")
        code, out, err = gcsim("calibrate", "link", "m.csv", *options)
        assert code == 0
        assert all(setting in err for setting in use.split(", "))
        where = f"nodes: {nodes}, devices_per_node: {each}, {use}"
        where += ", network: 10gbe" * (nodes == 1)
        text = scenario.format(device=device, transport=transport, where=where)
        (here / "b.yaml").write_text(text)
        (row,) = run("b.yaml").rows
        line = next(line for line in out.splitlines() if " 1,048,576 " in line)
        _, fitted, unit, _ = line.rsplit(maxsplit=3)
        assert unit == "ms"
        assert row.communication_s == pytest.approx(float(fitted) / 1e3, rel=1e-3)


def test_iperf3_and_ping_make_a_link_with_ranges(here: Path) -> None:
    for name in ("iperf3.json", "ping.txt"):
        (here / name).write_text((DATA / name).read_text(encoding="utf-8"), encoding="utf-8")
    code, out, err = gcsim("calibrate", "link", "iperf3.json", "ping.txt", "-o", "my_link.yaml")
    assert (code, err) == (0, "wrote my_link.yaml; in a scenario: network: my_link.yaml\n")
    assert out.startswith("my_link: from iperf3.json (iperf3), ping.txt (ping); no collective was")
    assert max(map(len, out.splitlines())) <= 80
    (here / "a.yaml").write_text(SCENARIO, encoding="utf-8")
    link = load_scenario("a.yaml").cluster.network
    assert float(link.latency) == 60e-6
    assert link.latency_range is not None
    assert link.efficiency_range is not None
    assert not link.estimate
    assert "half of the median of 4 round trips" in link.source
    code, out, err = gcsim(
        "calibrate", "link", "iperf3.json", "-o", "my_link.yaml", "--line-rate", "1 Gbit/s"
    )
    assert code == 0
    assert "the goodput, 9.375 Gbit/s, exceeds the stated line rate, 1 Gbit/s" in err
    code, out, _ = gcsim("calibrate", "link", "iperf3.json", "-o", "my_link.yaml")
    assert code == 0
    assert "latency: not measured: as 10gbe of the catalogue, with its range" in out
    assert load_scenario("a.yaml").cluster.network.estimate


def test_beside_collectives_what_two_hosts_measured_is_compared(here: Path) -> None:
    for name in ("horovod_4_ranks.json", "ping.txt", "iperf3.json"):
        (here / name).write_text((DATA / name).read_text(encoding="utf-8"), encoding="utf-8")
    alone = gcsim("calibrate", "link", "horovod_4_ranks.json")[1].splitlines()
    code, out, _ = gcsim("calibrate", "link", "horovod_4_ranks.json", "ping.txt", "iperf3.json")
    assert code == 0
    assert out.splitlines()[:9] == alone[:9]  # the fit is that of the collectives
    said = " ".join(out.split())
    assert "ping.txt: 60 us is half of the median of 4 round trips; " in said
    assert "iperf3.json: 9.375 Gbit/s measured, " in said


def test_two_types_tell_what_an_addition_costs(here: Path) -> None:
    """Times of the simulator itself: 100 us, 1 GB/s, half precision added at 50 MB/s."""
    link = Link(name="truth", bandwidth=Fraction(10**9), latency=Fraction(100, 10**6))
    points = [
        Measurement(
            collective="all_reduce", ranks=4, nbytes=nbytes, seconds=1.0, element=element,
            dtype=dtype, algorithm="gloo", place="",
        )
        for dtype, element in (("float32", 4), ("float16", 2))
        for nbytes in (4000, 40_000, 400_000, 4_000_000, 40_000_000)
    ]  # fmt: skip
    times = Model(points, link, Sums(float16=Fraction(5 * 10**7))).seconds(link)
    rows = [
        f"all_reduce,4,{point.nbytes},{time:.9g},{point.dtype}"
        for point, time in zip(points, times, strict=True)
    ]
    text = "\n".join(["# backend: gloo", "collective,ranks,bytes,seconds,dtype", *rows])
    (here / "m.csv").write_text(text, encoding="utf-8")
    code, out, _ = gcsim("calibrate", "link", "m.csv", "-o", "mine.yaml")
    assert code == 0
    told = next(line for line in out.splitlines() if line.startswith("summation of float16: "))
    found = told.partition(": ")[2].partition(" (")[0]
    assert f"# {told}" in (here / "mine.yaml").read_text(encoding="utf-8")
    assert "5 sizes" in out  # the link is float32's alone
    # what is told is what a scenario takes
    (here / "my_link.yaml").write_text((here / "mine.yaml").read_text(encoding="utf-8"))
    setting = found.replace("cluster.sums: ", "cluster.sums=")
    (here / "a.yaml").write_text(SCENARIO, encoding="utf-8")
    sums = load_scenario("a.yaml", [setting]).cluster.sums
    assert float(sums.float16 or 0) == pytest.approx(5e7, rel=0.02)
    assert sums.float16_range is not None


@pytest.mark.long
def test_several_files_and_what_the_user_states(here: Path) -> None:
    for ranks in (2, 4):
        data = DATA / f"gloo_100mbit_{ranks}_ranks.csv"
        (here / data.name).write_text(data.read_text(encoding="utf-8"), encoding="utf-8")
    files = ["gloo_100mbit_2_ranks.csv", "gloo_100mbit_4_ranks.csv"]
    code, _, err = gcsim("calibrate", "link", *files)
    assert code == 2
    assert "error: different numbers of ranks were measured: 2 at gloo_100mbit_2_ranks.csv:" in err
    assert "select one with --ranks 4" in err
    code, out, _ = gcsim("calibrate", "link", *files, "--ranks", "2", "--ranks", "4",
                         "--name", "both", "--line-rate", "100 Mbit/s")  # fmt: skip
    assert code == 0
    assert out.startswith("both: ")
    assert "on 2, 4 ranks" in out
    assert "of 100 Mbit/s" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.csv"], "nothing.csv: error: cannot be read: No such file or directory"),
        (
            ["a.csv", "--algorithm", "rings"],
            "--algorithm: error: 'rings' does not implement all_reduce",
        ),
        (["a.csv", "--ranks", "8"], "--ranks: error: nothing was measured on 8 ranks"),
        (["a.csv", "--line-rate", "10"], "--line-rate: error: 10 has no unit"),
        (["a.csv", "--line-rate", "0 bit/s"], "--line-rate: error: 0 bit/s is zero"),
        (["a.csv", "--intra-node", "pci"], "error: unknown link 'pci'; similar: pcie3_x16"),
        (["a.csv", "--collective", "barrier"], "--collective: error: 'barrier' is not a"),
        (["a.csv", "--format", "glo"], "--format: error: 'glo' is not a known format; did you"),
        (["a.csv", "--format", "gloo"], "a.csv: error: has no line with elements and times"),
        (["a.csv", "-o", "a.csv/link.yaml"], "cannot write"),
        (["a.csv", "-o", "x.txt"], "x.txt: error: a scenario recognises a link file by its ending"),
    ],
)
def test_what_is_wrong_ends_with_code_2(here: Path, arguments: list[str], message: str) -> None:
    lines = [f"all_reduce,4,{4**power},{1e-3 + 1e-9 * 4**power}" for power in range(5, 13)]
    text = "\n".join(["collective,ranks,bytes,seconds", *lines, ""])
    (here / "a.csv").write_text(text, encoding="utf-8")
    code, _, err = gcsim("calibrate", "link", *arguments)
    assert code == 2
    assert message in err
    assert [path.name for path in here.iterdir()] == ["a.csv"]


# --- torchrun -m gcsim.calibrate_link ------------------------------------------------------------


RANKS = """
import os, runpy, sys
import torch
import torch.distributed as dist
import gcsim.cli.calibrate.link, gcsim.cli.outcome
from tests.forked import ranks

def work(rank, count, port):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                   "TORCHELASTIC_USE_AGENT_STORE": "True"}
    torch.set_num_threads(1)
    runpy.run_module("gcsim.calibrate_link", run_name="__main__")

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
ranks(work, 2, 2, store.port)
"""
"""As torchrun starts them, but forked: torch is imported once."""


@pytest.mark.long
def test_a_live_cluster_is_measured_and_fitted(here: Path) -> None:
    ranks, collectives = 2, "all_reduce,all_gather,reduce_scatter"
    for _ in range(3):  # on a busy machine the times may be too noisy for a link
        (here / "m.csv").unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", RANKS, "-o", "m.csv", "--link", "my_link.yaml",
             "--backend", "gloo", "--collective", collectives, "--max-size", "64 KiB",
             "--seconds-budget", "1", "--dtype", "float32,float16", "--line-rate", "10 Gbit/s"],
            env={**os.environ, **OVER_LOOPBACK}, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        too_noisy = "above 50% no link is written" in " ".join(done.stderr.split())
        if not too_noisy:
            break
    assert too_noisy or done.returncode == 0, done.stderr
    (reading,) = read([Path("m.csv")], stated=Stated())
    assert reading.tool.startswith("gcsim ")
    kinds = {point.collective for point in reading.measurements}
    reduced = {p.dtype for p in reading.measurements if p.collective == "all_reduce"}
    assert reduced == {"float32", "float16"}
    assert kinds == set(collectives.split(","))
    for point in reading.measurements:
        assert (point.ranks, point.devices_per_node, point.algorithm) == (ranks, ranks, "gloo")
        # loopback on a busy machine: neither free nor slower than a minute for 64 KiB
        assert 1e-6 < point.seconds < 60
    sizes = sorted({point.nbytes for point in reading.measurements if point.nbytes})
    assert sizes[0] <= 1024 <= sizes[-1] <= 1 << 16
    text = Path("m.csv").read_text(encoding="utf-8")
    for said in ("# backend: gloo", "# date: ", "# command: torchrun -m gcsim.calibrate_link"):
        assert said in text
    again = ("calibrate", "link", "m.csv", "--name", "my_link", "--line-rate", "10 Gbit/s")
    if too_noisy:  # the times stay, and the command that reads them finds the same
        assert done.returncode != 0
        assert [path.name for path in here.iterdir()] == ["m.csv"]
        code, _, err = gcsim(*again)
        assert (code, "above 50% no link is written" in " ".join(err.split())) == (2, True)
        return
    assert "summation of float16: " in done.stdout
    assert done.stdout.startswith("my_link: ")
    link, _ = read_link("my_link.yaml", here)
    assert "m.csv (gcsim " in link.source
    assert sorted(path.name for path in here.iterdir()) == ["m.csv", "my_link.yaml"]
    code, out, _ = gcsim(*again)
    assert code == 0
    assert out.splitlines()[2:] == done.stdout.splitlines()[2:]  # the same fit


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the ranks of the cluster are not known; start it with: torchrun"),
        (["--collective", "barrier"], "--collective: error: 'barrier': not measured here; known"),
        (["--dtype", "half"], "--dtype: error: 'half': not measured here; known: float64, "),
        (["--min-size", "1 MiB", "--max-size", "4 MiB"], "--min-size: error: from 1,048,576 to"),
        (["--max-size", "4 lots"], "--max-size: error: unknown unit 'lots'"),
        (["--seconds-budget", "0"], "--seconds-budget: error: must be more than 0"),
    ],
)
def test_what_is_wrong_with_the_options(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert calibrate_link.main(arguments) == 2
    assert message in capsys.readouterr().err
