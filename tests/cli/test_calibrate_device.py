"""`gcsim calibrate device`: its file, its notes, and what it refuses before it measures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gcsim.scenarios import catalog
from gcsim.scenarios.calibration import device as calibrate_device
from gcsim.scenarios.calibration.device import Calibration, CodeCost, Way
from gcsim.scenarios.catalog import read_devices
from gcsim.simulator.devices.kernel_fits import Coefficients
from tests.command import invoked


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the measurement was asked for; it answers with a device of the catalogue."""
    seen: dict[str, Any] = {}

    def measure(_: object, **given: Any) -> Calibration:
        seen.update(given)
        known = replace(catalog.device("cpu_2core"), name=given["name"])
        return Calibration(
            device=known,
            samples=(),
            sites=(),
            sums={"float16": 8.5e8},
            framework={"reducer": CodeCost(2e-5, 5e-5, 1e-9)},
        )

    monkeypatch.setattr(calibrate_device, "calibrate_device", measure)
    return seen


def test_it_writes_a_device_that_can_be_read(asked: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "my_gpu.yaml"
    outcome = invoked(
        ["calibrate", "device", "-o", str(path), "--threads", "1", "--quick", "--model", "lenet",
         "--batch", "8", "--device", "cpu"],
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    assert list(read_devices(path)) == ["my_gpu"]
    del asked["command"]
    assert asked == {
        "name": "my_gpu",
        "device": "cpu",
        "threads": 1,
        "quick": True,
        "models": [("lenet", 8)],
    }
    assert outcome.stdout == ""  # all of it is notes
    assert f"gcsim run alexnet_32node --set cluster.device={path}" in outcome.stderr
    assert "gcsim gcsim" not in outcome.stderr
    assert "framework: {reducer: {per_tensor: 20 us, per_bucket: 50 us" in " ".join(
        outcome.stderr.split()
    )


def test_of_a_gpu_copies_and_additions_are_said_too(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = calibrate_device.calibrate_device

    def on_a_gpu(progress: Any, **given: Any) -> Calibration:
        one = Coefficients(launch=9e-6, bandwidth=1.2e10, flop_rate=None)
        copies: dict[Way, Coefficients] = {"to the host": one, "from the host": one}
        return replace(measure(progress, **given), copies=copies, additions={"int8": 5e11})

    monkeypatch.setattr(calibrate_device, "calibrate_device", on_a_gpu)
    path = tmp_path / "a_gpu.yaml"
    outcome = invoked(["calibrate", "device", "-o", str(path)])
    assert outcome.exit_code == 0, outcome.output
    for text in (path.read_text(), " ".join(outcome.stderr.split())):
        assert "cluster.intra_node: {bandwidth: 12 GB/s, latency: 9 us}" in text
        assert "to the host 9 us + 12 GB/s" in text
        assert "cluster.sums: {int8: 5e+05 MB/s}" in text
    assert list(read_devices(path)) == ["a_gpu"]


def test_a_name_may_be_given(asked: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    assert invoked(
        ["calibrate", "device", "-o", str(path), "--name", "lab-3.a", "-q"]
    ).exit_code == 0  # fmt: skip
    assert list(read_devices(path)) == ["lab-3.a"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "x.yaml", "--name", "a b"], "--name: error: 'a b' cannot be a device's name"),
        (["-o", "x.yaml", "--model", "alexnt"], "did you mean 'alexnet'?"),
        (["-o", "."], "is a folder"),
        (["-o", "a_file/x.yaml"], "is a file, not a folder"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(
    asked: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a_file").write_text("")
    outcome = invoked(["calibrate", "device", *arguments])
    assert outcome.exit_code == 2
    assert said in outcome.stderr
    assert not asked
    assert [path.name for path in tmp_path.iterdir()] == ["a_file"]
