"""A calibration finds the coefficients of the device that it measures, and stores them whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors.kernels import KERNEL_CLASSES, KernelClass, KernelCost
from gcsim.compressors.loops import array
from gcsim.compressors.meter import kernel, kernel_name, segment
from gcsim.compressors.streams import Clock
from gcsim.errors import InputError
from gcsim.scenarios.calibration import device as module
from gcsim.scenarios.calibration import machine
from gcsim.scenarios.calibration.device import (
    Calibration,
    as_bus,
    calibrate_device,
    in_words,
    primitive_curves,
    time_copies,
    time_device_sums,
    time_sums,
)
from gcsim.scenarios.calibration.host import Timed, all_methods
from gcsim.scenarios.calibration.kernels import time_compressors
from gcsim.scenarios.catalog import read_devices
from gcsim.scenarios.catalog.devices import device_yaml, write_device
from gcsim.scenarios.progress import SilentProgress
from gcsim.simulator.devices.pricing import ExactCurve
from gcsim.simulator.host import DTYPES
from gcsim.traces.profile import Compute
from gcsim.traces.timing.clock import DeviceClock, Dispersion
from gcsim.traces.timing.kernel_cases import CASES, Case, cost_of
from tests.compressors.standin import pretended_gpu

LAUNCH = {kind: (place + 1) * 1e-6 for place, kind in enumerate(KERNEL_CLASSES)}
BANDWIDTH = {kind: (place + 1) * 3e9 for place, kind in enumerate(KERNEL_CLASSES)}
FLOP_RATE = 5e12


class KnownDevice(DeviceClock):
    """A clock on a device that costs exactly launches + bytes / bandwidth + FLOPs / rate; kernels
    inside of compressors take a microsecond."""

    device = "cpu"

    def __init__(self) -> None:
        ticks = itertools.count()
        self.now: Clock = lambda: next(ticks) * 1e-6

    def time(self, call: Callable[[], object], repeats: int, *, waits: bool = False) -> Dispersion:
        with segment() as recorder:
            call()
        lowest = 0.0
        for cost in recorder.fixed:
            lowest += cost.launches * LAUNCH[cost.kind] + cost.flops / FLOP_RATE
            lowest += cost.nbytes / BANDWIDTH[cost.kind] if cost.kind != "host_sync" else 0.0
        return Dispersion(lowest, 1.5 * lowest)


@pytest.fixture(scope="module")
def known() -> Calibration:
    return calibrate_device(
        SilentProgress(),
        name="known",
        device="cpu",
        quick=True,
        models=[("lenet", 8)],
        clock=KnownDevice(),
        seconds=1e-9,  # the shortest buckets alone
        compressors=["signsgd"],
    )


@pytest.mark.parametrize("kind", KERNEL_CLASSES)
def test_known_coefficients_are_found(known: Calibration, kind: KernelClass) -> None:
    rate = known.device.kernels[kind]
    assert rate.launch == pytest.approx(LAUNCH[kind], rel=0.01)
    assert not rate.estimate
    if kind == "host_sync":
        assert rate.bandwidth is None
    else:
        assert rate.bandwidth == pytest.approx(BANDWIDTH[kind], rel=0.01)
    assert rate.flop_rate == (pytest.approx(FLOP_RATE, rel=0.01) if kind == "matmul" else None)
    assert rate.launch_range is not None
    assert rate.launch_range[0] <= rate.launch <= rate.launch_range[1]
    assert "1.50 times the minimum" in rate.source


def test_known_kernels_are_on_their_curves(known: Calibration) -> None:
    curve = ExactCurve(known.device.primitives["aten.clone"])
    for nbytes in (8_000, 100_000, 7_000_000):
        expected = LAUNCH["streaming"] + nbytes / BANDWIDTH["streaming"]
        assert float(curve.seconds(nbytes)) == pytest.approx(expected, rel=0.01)


def test_what_is_written_is_read_back(known: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "known.yaml"
    write_device(known.device, path, "A device.")
    (found,) = read_devices(path).values()
    assert found.processor == "cpu"  # so that a scenario's transport is Gloo, not NCCL
    assert found.kernels == known.device.kernels
    assert found.primitives == known.device.primitives
    assert found.effective_flop_rate == known.device.effective_flop_rate
    assert found.training["lenet"].fixed == known.device.training["lenet"].fixed
    assert found.title == known.device.title
    assert found.source == known.device.source
    assert path.read_text().startswith("# A device.\n")
    assert [file.name for file in tmp_path.iterdir()] == ["known.yaml"]


def test_a_file_that_cannot_be_written_leaves_the_earlier_one(
    known: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "known.yaml"
    path.write_text("earlier")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InputError, match="No space left"):
        write_device(known.device, path, "")
    monkeypatch.undo()
    assert path.read_text() == "earlier"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ("[[1000 B, 1 us], [500 B, 2 us]]", "ascend"),
        ("[[1000 B, 3 us], [5000 B, 2 us]]", "ascend"),
        ("[]", "at least 1 entry"),
        ("[[1000 B, 0 us]]", "zero"),
        ("[[1000, 1 us]]", "unit"),
    ],
)
def test_a_curve_that_cannot_be_is_refused_with_its_place(
    known: Calibration, tmp_path: Path, points: str, said: str
) -> None:
    path = tmp_path / "wrong.yaml"
    text = device_yaml(replace(known.device, primitives={"f": ((7, 1.0),)}), "")
    assert "f: [[7 B, 1 s]]" in text
    path.write_text(text.replace("[[7 B, 1 s]]", points))
    with pytest.raises(InputError) as raised:
        read_devices(path)
    assert any("wrong.yaml:" in problem.place for problem in raised.value.problems)
    assert said in str(raised.value)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.title}")
def test_a_case_is_one_kernel_of_its_class(case: Case) -> None:
    operands = case.make(5000, "cpu")
    assert cost_of(lambda: case.call(*operands)).kind == case.kind


def test_every_class_has_a_case() -> None:
    assert {case.kind for case in CASES} == set(KERNEL_CLASSES)


# --- clocks ------------------------------------------------------------------------------------


def test_the_cpu_clock_repeats_what_is_short_and_takes_the_lowest() -> None:
    now = 0.0
    durations = iter([9.0, 1e-5, *[2e-5] * 20, *[1e-5] * 20, *[3e-5] * 20])
    calls = 0

    def call() -> None:
        nonlocal now, calls
        now += next(durations)
        calls += 1

    found = DeviceClock("cpu", lambda: now).time(call, repeats=3)
    assert calls == 2 + 3 * 20  # a loop takes 200 us: 20 calls of 10 us
    assert found.lowest == pytest.approx(1e-5)
    assert found.median == pytest.approx(2e-5)


def test_the_gpu_clock_records_events_around_the_loop() -> None:
    """On a stand-in: a call takes the device 2 ms, an event one more, and is launched at once."""
    with pretended_gpu() as gpu:

        def call() -> None:
            gpu.tick()
            gpu.tick()

        found = DeviceClock("cuda").time(call, repeats=2)
        assert found.lowest == pytest.approx(3e-3)
        assert gpu.waits > 2  # until it was idle, and for the end of each loop


def test_copies_and_additions_are_found_as_they_are(tmp_path: Path) -> None:
    """To and from a "device" that is the host: each copy reads and writes its bytes, and counts
    once; an addition reads two and writes one."""
    launch, bandwidth = LAUNCH["streaming"], BANDWIDTH["streaming"]
    copies = time_copies(KnownDevice(), sizes=(4_000, 400_000, 4_000_000), repeats=1)
    assert set(copies) == {"to the host", "from the host", "within the device"}
    for found in copies.values():
        assert found.launch == pytest.approx(launch, rel=0.01)
        assert found.bandwidth == pytest.approx(bandwidth / 2, rel=0.01)
    # 1 us and half of 3 GB/s
    assert as_bus(copies) == "cluster.intra_node: {bandwidth: 1.5 GB/s, latency: 1 us}"
    assert as_bus({}) == in_words({}) == ""
    sums = time_device_sums(KnownDevice(), ("float32", "int8"), nbytes=1 << 20)
    expected = (1 << 20) / (launch + 3 * (1 << 20) / bandwidth)
    assert sums == {name: pytest.approx(expected) for name in ("float32", "int8")}


def test_a_file_says_which_gpu_and_software_it_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "version"
    told.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  1.2.3  Release\n")
    assert machine.driver(told) == "1.2.3"
    assert machine.driver(tmp_path / "none") == ""
    monkeypatch.setattr(machine.driver, "__defaults__", (told,))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    monkeypatch.setattr(torch.version, "cuda", "13.9")
    said = machine.conditions("cuda")
    assert said.startswith(f"A GPU, driver 1.2.3, CUDA 13.9, torch {torch.__version__}")
    assert machine.title("cuda") == f"A GPU, PyTorch {torch.__version__}"


# --- compressors' own kernels -------------------------------------------------------------------


def test_kernels_are_timed_where_they_occur_until_the_time_is_up() -> None:
    now = iter(range(10**9))
    sites = time_compressors(
        SilentProgress(),
        seconds=0.0,
        compressors=("topk", "signsgd"),
        sizes=(2500, 10_000, 4_000_000),
        clock=lambda: next(now) * 1e-6,
    )
    # small sizes at any price; what takes too long is halved until it is small
    assert {site.elements for site in sites} == {2500, 10_000, 500_000}
    assert {site.compressor for site in sites} == {"topk", "signsgd"}
    curves = primitive_curves([], sites)
    assert "packing.pack_signs" in curves
    # the clock ticks once a call: every kernel takes the same
    assert all(time == pytest.approx(1e-6) for curve in curves.values() for _, time in curve)


def test_a_loop_that_works_in_host_memory_is_counted_and_not_timed() -> None:
    """On a GPU: its time says nothing about the device."""
    ticks = itertools.count()

    @kernel("sort")
    def visits(x: torch.Tensor) -> None:
        array(Elsewhere())  # type: ignore[arg-type]

    @kernel("sort")
    def stays(x: torch.Tensor) -> None:
        array(x)

    class Elsewhere:
        is_cpu = False

        def numpy(self, *, force: bool) -> object:
            return None

    x = torch.zeros(3)
    with segment(lambda: next(ticks)) as recorder:
        visits(x)
        stays(x)
    assert [cost.name for cost in recorder.fixed] == [kernel_name(visits), kernel_name(stays)]
    assert [one.cost.name for one in recorder.timed] == [kernel_name(stays)]


class PlantedGroup:
    """A group of one process whose additions take a planted time, and whose clock tells it."""

    def __init__(self, rates: dict[str, float]) -> None:
        self.now, self.rates = 0.0, rates

    def allreduce(self, vectors: Sequence[Tensor], _options: Any) -> PlantedGroup:
        rate = self.rates[str(vectors[0].dtype).removeprefix("torch.")]
        self.now += 3e-5 + sum(vector.nbytes / rate for vector in vectors[1:])
        return self

    def wait(self) -> None:
        """Done at once."""


def test_planted_rates_are_found_again_whatever_a_call_costs() -> None:
    rates = {dtype: 1e9 * (place + 1) for place, dtype in enumerate(DTYPES)}
    group = PlantedGroup(rates)
    found = time_sums(nbytes=1 << 16, repeats=2, group=group, clock=lambda: group.now)
    assert found == {dtype: pytest.approx(rate) for dtype, rate in rates.items()}


def test_additions_that_drown_in_noise_have_no_rate() -> None:
    group = PlantedGroup(dict.fromkeys(DTYPES, -1e12))  # more vectors, less time
    assert time_sums(nbytes=1 << 16, repeats=2, group=group, clock=lambda: group.now) == {}


def test_this_machines_gloo_adds_every_type_that_a_scenario_may_price() -> None:
    found = time_sums(repeats=5)  # of the length that a calibration takes
    assert set(found) == set(DTYPES)
    assert all(1e7 < rate < 1e12 for rate in found.values())


def test_on_a_gpu_whole_stages_take_the_time_that_the_rest_leaves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The rest takes 40 s of the 45. Ten launches, operators or waits of 100 us price them; a
    method that prices nothing takes three times what its ten operators do."""
    one = KernelCost(kind="streaming", name="", launches=10, elements=1, nbytes=0)
    operators = replace(one, name="aten.add")
    stages = {
        ("fp16", 1e-3): replace(one, name="variance_words.take_out"),
        ("topk", 1e-3): replace(one, name="aten.item", kind="host_sync"),
        ("qsgd", 1e-3): operators,
        ("thc", 3e-3): operators,
    }
    asked: dict[str, object] = {}

    def time_stages(kind: str, methods: Sequence[str], **given: object) -> list[Timed]:
        asked.update(given, kind=kind, methods=methods)
        return [
            Timed(
                name=f"{method}, step, encode",
                elements=10**6,
                computes=(Compute(stage="encode", fixed=(cost,)),),
                seconds=seconds,
            )
            for (method, seconds), cost in stages.items()
        ]

    ticks = iter((100.0, 140.0))
    monkeypatch.setattr(
        module, "time", SimpleNamespace(monotonic=lambda: next(ticks), process_time=process_time)
    )
    monkeypatch.setattr(module, "time_stages", time_stages)
    monkeypatch.setattr(module, "pick_device", lambda device: "cuda")
    monkeypatch.setattr(machine, "conditions", lambda kind: "A GPU.")
    monkeypatch.setattr(machine, "title", lambda kind: "A GPU")
    found = calibrate_device(
        SilentProgress(), name="gpu", quick=True, models=[("lenet", 8)], clock=KnownDevice()
    ).device
    assert asked["seconds"] == 45 - 40
    assert (asked["kind"], asked["methods"]) == ("cuda", all_methods())
    assert found.host["operator"].launch == pytest.approx(1e-4, rel=0.05)
    assert float(found.stages["thc, step, encode"].host) == pytest.approx(3, rel=0.05)
    assert found.primitives == {}
    write_device(found, tmp_path / "gpu.yaml", "A GPU.")
    (again,) = read_devices(tmp_path / "gpu.yaml").values()
    assert (again.stages, again.host) == (found.stages, found.host)
