"""Each file is claimed by one format alone, whatever launcher, terminal or archive it came through.

Fixtures in `data/` have the layouts of real programs; a profile of the installed PyTorch is made
here. Prefixes are those of Slurm (`srun -l`), Open MPI 4 (`--tag-output`) and 5, kubectl and docker
(`--timestamps`), docker compose, torchrun, Markdown and terminals.
"""

import gzip
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from gcsim.analysis.calibration.measurements import json_text
from gcsim.analysis.calibration.measurements.collectives import Reading
from gcsim.analysis.calibration.measurements.formats import FORMATS
from gcsim.analysis.calibration.measurements.reading import contents, formats, read
from gcsim.errors import InputError
from tests.fuzz.corpus import ARRIVALS, MOVED, layouts

DATA = Path(__file__).parent / "data"
OF = {
    "deepbench_1080ti_4_gpus.csv": "csv",
    "deepspeed_8_ranks.txt": "deepspeed",
    "flight_recorder_4_ranks.json": "flight-recorder",
    "gloo_100mbit_2_ranks.csv": "csv",
    "gloo_100mbit_4_ranks.csv": "csv",
    "gloo_benchmark_4_processes.txt": "gloo",
    "horovod_4_ranks.json": "horovod",
    "iperf3.json": "iperf3",
    "iperf3_2_streams.txt": "iperf3",
    "mlbench_gloo_4_workers.csv": "csv",
    "nccl_tests_8_ranks.json": "nccl-tests-json",
    "nccl_tests_8_ranks.txt": "nccl-tests",
    "ping.txt": "ping",
    "torch_profile_2_ranks_of_2024.json": "torch-profile",
    "torch_profile_4_ranks.json": "torch-profile",
}
TEXTS = [name for name in OF if not name.endswith(".json")]


def claims(path: Path) -> list[str]:
    with contents(path) as content:
        return list(formats(content))


def figures(reading: Reading, name: str) -> tuple[object, ...]:
    """The content of a reading, but for the file's name."""
    points = [
        (p.collective, p.ranks, p.devices_per_node, p.nbytes, p.seconds, p.dtype, p.algorithm,
         p.place.replace(reading.file, name))
        for p in reading.measurements
    ]  # fmt: skip
    found = (reading.goodput, reading.latency, reading.line_rate, reading.device, reading.tool)
    return points, *found, [note.replace(reading.file, name) for note in reading.notes]


def test_every_fixture_is_claimed_by_its_format_alone() -> None:
    assert {path.name for path in DATA.iterdir()} == OF.keys()
    assert set(OF.values()) == FORMATS.keys()
    for name, own in OF.items():
        assert claims(DATA / name) == [own], name
        assert read([DATA / name])


def test_a_profile_of_the_installed_pytorch_is_a_profile(tmp_path: Path) -> None:
    """Its `distributedInfo` lists process groups, as a flight recorder's dump does."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/met", rank=0, world_size=1)
    try:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            dist.all_reduce(torch.ones(8))
    finally:
        dist.destroy_process_group()
    path = tmp_path / "p.json"
    profiler.export_chrome_trace(str(path))
    assert "pg_config" in json.loads(path.read_text())["distributedInfo"]
    assert claims(path) == ["torch-profile"]
    with pytest.raises(InputError, match=r"has no NCCL kernel.*Gloo has no kernels"):
        read([path])


def test_a_profile_of_2024_is_read() -> None:
    (found,) = read([DATA / "torch_profile_2_ranks_of_2024.json"])
    assert [(p.nbytes, p.seconds, p.ranks, p.dtype) for p in found.measurements] == [
        (2 * 524288, 61.5e-6, 2, "bfloat16"),
        (2 * 6553600, 690.25e-6, 2, "bfloat16"),
        (2 * 13107200, 1370.75e-6, 2, "bfloat16"),
        (2 * 26214400, 2731e-6, 2, "bfloat16"),
    ]
    assert found.device == "NVIDIA H100 80GB HBM3"


# --- how lines arrive ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("arrival", ARRIVALS)
def test_what_stands_around_lines_changes_nothing(tmp_path: Path, name: str, arrival: str) -> None:
    moved = arrival in MOVED
    if OF[name] == "csv" and moved:
        pytest.skip("a table of one's own has no other lines: each that is no row is a mistake")
    text = (DATA / name).read_text(encoding="utf-8")
    path = tmp_path / "a.txt"
    path.write_bytes(ARRIVALS[arrival](text).encode())
    assert claims(path) == [OF[name]]
    plain, found = read([DATA / name])[0], read([path])[0]
    one, other = figures(plain, "a"), figures(found, "a")
    if moved:
        one, other = one[1:], other[1:]
        assert [p.seconds for p in found.measurements] == [p.seconds for p in plain.measurements]
    assert other == one


@pytest.mark.parametrize("name", OF)
def test_gzip_is_read_by_every_reader_whatever_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(gzip.compress((DATA / name).read_bytes()))
    assert figures(read([path])[0], "a") == figures(read([DATA / name])[0], "a")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"a\.log: error: its gzip data are cut short"):
        read([path])


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str, encoding: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes((DATA / name).read_text(encoding="utf-8").encode(encoding))
    assert figures(read([path])[0], "a") == figures(read([DATA / name])[0], "a")


# --- sizes, and files that hold no measurement ---------------------------------------------------


@pytest.mark.parametrize("name", [name for name in OF if name.endswith(".json")])
def test_events_have_no_limit_and_other_values_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A rank's trace is 50 to 300 MB; here the limit is small and not the file large."""
    monkeypatch.setattr(json_text, "LARGEST", 1200)
    if OF[name] in {"torch-profile", "horovod"}:
        assert (DATA / name).stat().st_size > 2 * 1200
        assert read([DATA / name])
    else:
        with pytest.raises(InputError, match="is larger than 0 MiB without its traceEvents"):
            read([DATA / name])


def test_two_formats_in_a_file_are_told_apart_by_the_user(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    both = ("ping.txt", "iperf3_2_streams.txt")
    path.write_text("".join((DATA / name).read_text() for name in both))
    with pytest.raises(InputError) as caught:
        read([path])
    assert str(caught.value) == (
        f"{path}: error: holds several formats: iperf3 and ping; name one with --format, iperf3 or "
        "ping, or split it into two files"
    )
    assert read([path], "ping")[0].latency
    assert read([path], "iperf3")[0].goodput


def test_an_execution_trace_is_told_what_it_is(tmp_path: Path) -> None:
    attribute = b"\x0a\x06schema\xea\x01\x121.1.0-chakra.0.0.4"
    message = b"\x0a" + bytes([len(attribute)]) + attribute
    operators = {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "[root]"}]}
    for content, said in (
        (bytes([len(message)]) + message, "is a Chakra trace as protobuf (.et), whose nodes have"),
        (json.dumps(operators).encode(), "is an execution trace, which says which operators ran"),
    ):
        for packed in (content, gzip.compress(content)):
            (tmp_path / "rank0.et").write_bytes(packed)
            with pytest.raises(InputError, match=r"rank0\.et: error: is a") as caught:
                read([tmp_path / "rank0.et"])
            assert said in str(caught.value)
            assert "name the Kineto trace of the same steps" in str(caught.value)


def test_a_format_that_takes_something_else_is_told() -> None:
    with pytest.raises(InputError, match="is JSON object, and ping is text; leave --format out"):
        read([DATA / "iperf3.json"], "ping")


@pytest.mark.parametrize("name", [name for name, one in layouts().items() if one.of != "any"])
def test_every_layout_is_read_or_refused_for_its_own_reason(tmp_path: Path, name: str) -> None:
    layout = layouts()[name]
    path = tmp_path / "a.log"
    content = layout.content
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if layout.of:
        assert claims(path) == [layout.of]
        (found,) = read([path])
        assert found.measurements or found.goodput or found.latency
    else:
        with pytest.raises(InputError) as caught:
            read([path])
        assert layout.said in str(caught.value)
        assert str(caught.value).startswith(str(path))
