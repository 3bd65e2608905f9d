"""A measurement whose own check failed, or that the bus inside a machine contradicts, is refused.

Each tool that checks what it measured has a failing log here, made of its fixture: nccl-tests
(`#wrong`, `Out of bounds values`), its JSON (`nwrong`, `out_of_bounds`), Gloo's benchmark
(`--verify`), iperf3 (`iperf3: error - `, `error`), ping (`wrong data byte`, `(BAD CHECKSUM)`), and
the flight recorder (`state`).
"""

import json
import re
from pathlib import Path

import pytest

from gcsim.analysis.calibration.link.checks import Inside, bus_of, check_inside, inside_of
from gcsim.analysis.calibration.measurements.collectives import Reading, Stated
from gcsim.analysis.calibration.measurements.reading import read
from gcsim.errors import InputError
from gcsim.scenarios import catalog
from tests.command import invoked

DATA = Path(__file__).parent / "data"
NCCL, NCCL_JSON = "nccl_tests_8_ranks.txt", "nccl_tests_8_ranks.json"


def data(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "before", "after", "place", "said"),
    [
        (NCCL, "53.48   93.58      0", "53.48   93.58     16", ":24", "#wrong is 16"),
        (NCCL, "55.74   97.54      0", "55.74   97.54   1e+3", ":24", "#wrong is 1e+3"),
        (NCCL, "values : 0 OK", "values : 16 FAILED", ":28", "16 values are out of bounds"),
        (NCCL_JSON, '"bus_bw":97.37,"nwrong":0.0', '"bus_bw":97.37,"nwrong":3.0',
         ": results[4]", "nwrong is 3 out_of_place"),
        (NCCL_JSON, '"out_of_bounds":{"count":0', '"out_of_bounds":{"count":16',
         ": out_of_bounds", "16 values are out of bounds"),
        ("gloo_benchmark_4_processes.txt", "  67108864     300117",
         "  what():  Mismatch at index: 17\n  67108864     300117", ":16", "index 17"),
        ("iperf3_2_streams.txt", "iperf Done.",
         "iperf3: error - control socket has closed unexpectedly", ":29", "control socket"),
        ("iperf3.json", "\"end\":\t{", "\"error\": \"the server has terminated\", \"end\": {", "",
         "the server has terminated"),
        ("ping.txt", "time=0.121 ms", "time=0.121 ms\nwrong data byte #8 should be 0x8 but was 0x0",
         ":5", "wrong data byte #8"),
        ("ping.txt", "time=0.121 ms", "time=0.121 ms (BAD CHECKSUM)", ":4", "(BAD CHECKSUM)"),
    ],
)  # fmt: skip
def test_a_log_whose_own_check_failed_is_refused_with_its_line(
    tmp_path: Path, name: str, before: str, after: str, place: str, said: str
) -> None:
    text = data(name)
    assert before in text
    (tmp_path / name).write_text(text.replace(before, after, 1), encoding="utf-8")
    done = invoked(["calibrate", "link", str(tmp_path / name), "-o", str(tmp_path / "l.yaml")])
    assert done.exit_code == 2
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"{tmp_path / name}{place}: error: the test")
    assert "failed" in first
    assert said in first
    assert not (tmp_path / "l.yaml").exists()


def test_a_check_that_was_not_made_is_no_failure(tmp_path: Path) -> None:
    """`-c 0` writes N/A; columns `error` of before 2.12 hold differences, not counts."""
    path = tmp_path / "a.txt"
    path.write_text(re.sub(r"(\d\d\.\d\d +)0\b", r"\g<1>N/A", data(NCCL)))
    assert len(read([path])[0].measurements) == 5
    path.write_text(data(NCCL).replace("#wrong", " error").replace("93.58      0", "93.58  1e-07"))
    assert len(read([path])[0].measurements) == 5


def test_a_collective_that_did_not_complete_is_not_timed(tmp_path: Path) -> None:
    body = json.loads(data("flight_recorder_4_ranks.json"))
    timed = [entry for entry in body["entries"] if "duration_ms" in entry]
    timed[-1]["state"] = "started"
    path = tmp_path / "a.json"
    path.write_text(json.dumps(body))
    before = len(read([DATA / "flight_recorder_4_ranks.json"])[0].measurements)
    assert len(read([path])[0].measurements) == before - 1


# --- the bus inside a machine --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "bus"),
    [
        ("Tesla P100-SXM2-16GB", "nvlink1"),
        ("Tesla P100-PCIE-16GB", "pcie3_x16"),
        ("Tesla V100-SXM2-32GB", "nvlink2"),
        ("Tesla V100-PCIE-16GB", "pcie3_x16"),
        ("NVIDIA A100-SXM4-40GB", "nvlink3"),
        ("NVIDIA A100 80GB PCIe", "pcie4_x16"),
        ("NVIDIA H100 80GB HBM3", "nvlink4"),
        ("NVIDIA H100 PCIe", "pcie5_x16"),
        ("NVIDIA H200", "nvlink4"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GeForce RTX 2080 Ti", "pcie3_host"),
        ("NVIDIA L40S", "pcie4_x16"),
        ("NVIDIA Unheard-of 9000", None),
        ("", None),
    ],
)
def test_a_drivers_name_tells_the_bus(driver: str, bus: str | None) -> None:
    assert bus_of(driver) == bus


def test_every_gpu_of_the_catalogue_is_known_by_its_own_words() -> None:
    for name, device in catalog.devices().items():
        if device.processor == "gpu":
            assert bus_of(name.replace("_", " ")) == (device.bus or "pcie3_x16"), name


def test_the_default_is_that_of_the_gpu_which_a_file_names() -> None:
    for name in (NCCL, NCCL_JSON):
        assert inside_of(None, read([DATA / name])).link == catalog.link("nvlink3")
    unknown = [Reading(file="a", tool="b", device="NVIDIA Unheard-of 9000")]
    assert inside_of(None, unknown).link == catalog.link("pcie3_x16")
    assert inside_of("pcie4_x16", read([DATA / NCCL])).link == catalog.link("pcie4_x16")


def test_a_bus_that_alone_takes_longer_than_was_measured_is_an_error(tmp_path: Path) -> None:
    """16 H100 in two machines at 360 GB/s of bus bandwidth, which PCIe 3 has no tenth of."""
    rows = []
    for power in range(24, 34, 2):
        size, micro = 1 << power, 100 + (1 << power) * 2 * 15 / 16 / 360e3
        rows.append(f"all_reduce,16,{size},{micro / 1e6:.6g}")
    head = ["# backend: nccl", "# devices_per_node: 8", "collective,ranks,bytes,seconds"]
    path = tmp_path / "a.csv"
    path.write_text("\n".join([*head, *rows]) + "\n")
    done = invoked(["calibrate", "link", str(path), "-o", str(tmp_path / "l.yaml")])
    assert done.exit_code == 2
    assert f"{path}:8: error: 4,294,967,296 bytes took " in done.stderr
    assert "but pcie3_x16 (assumed: no file names a known GPU) between the" in done.stderr
    assert "with --intra-node: nvlink4 agrees with the times" in done.stderr
    assert not (tmp_path / "l.yaml").exists()
    path.write_text("\n".join(["# device: NVIDIA H100 80GB HBM3", *head, *rows]) + "\n")
    (found,) = read([path], stated=Stated())
    check_inside(found.measurements, inside_of(None, [found]))
    done = invoked(["calibrate", "link", str(path), "-o", str(tmp_path / "l.yaml")])
    assert done.exit_code == 0
    assert "inside a machine: nvlink4, of NVIDIA H100 80GB HBM3" in done.stdout
    wrong = Inside(link=catalog.link("pcie5_x16"), why="--intra-node")
    with pytest.raises(InputError, match="--intra-node"):
        check_inside(found.measurements, wrong)
