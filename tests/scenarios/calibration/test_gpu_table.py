"""`make gpu`: its page, of a stand-in for the GPU, and what it says without one.

The real page takes a GPU and half an hour; here its parts run small, on the CPU, with a clock that
ticks 40 us whenever it is read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gcsim.compressors.conformance import CHECKS
from gcsim.compressors.registry import compressor_class
from gcsim.compressors.streams import Clock
from gcsim.scenarios import catalog
from gcsim.scenarios.calibration.device import Calibration
from gcsim.simulator.devices.kernel_fits import Coefficients
from gcsim.traces.timing.clock import Dispersion
from tests.benchmarks import gpu_table
from tests.benchmarks.gpu_table import Plan

TICK = 40e-6
PLAN = Plan(names=("signsgd", "fp16"), elements=(2500,), models=("lenet",), transfer=(2500,))


class Ticking:
    device = "cpu"

    def __init__(self) -> None:
        ticks = itertools.count()
        self.now: Clock = lambda: next(ticks) * TICK

    def time(self, call: Callable[[], object], repeats: int, *, waits: bool = False) -> Dispersion:
        for _ in range(3):  # PowerSGD's hook compresses from its third step on
            call()
        return Dispersion(TICK / 8, TICK / 8)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what takes seconds: a calibration, and the compiler that DDP loads."""
    one = Coefficients(launch=1e-6, bandwidth=2e10, flop_rate=None)
    known = Calibration(
        device=catalog.device("cpu_2core"), samples=(), sites=(), sums={}, framework={},
        copies={"to the host": one}, additions={"int8": 3e9},
    )  # fmt: skip
    monkeypatch.setattr(gpu_table, "calibrate_device", lambda *_, **__: known)
    monkeypatch.setattr(gpu_table, "_deployed", lambda *_: iter(["## Hook"]))


def test_the_page_says_what_is_right_and_what_it_costs(small: None) -> None:
    text = "\n".join(gpu_table.page(Ticking(), PLAN))
    assert re.match(r"# Measured on a GPU\n\nWritten by `make gpu` .* on \d{4}-\d\d-\d\d, ", text)
    # on a "GPU" that is the CPU, all is as on the CPU
    for name in PLAN.names:
        assert f"| `{name}` | {len(CHECKS)} | equal | equal | on the GPU |" in text
    assert "Nothing fails." in text
    # a stretch is between two ticks, a copy an eighth of one
    assert "| method | step | 0.01 MB | lenet: 0.2468 MB, 10 tensors |" in text
    assert "| a copy | | 5 us | 5 us |" in text
    assert re.search(r"\| `fp16` \| step \| [\d.]+ / [\d.]+ \| [\d.]+ / [\d.]+ \|", text)
    assert "| PyTorch's powerSGD_hook, rank 4 | whole | 1.00 | 1.00 |" in text
    assert "Copies: to the host 1 us + 20 GB/s.\nAdditions: int8 3 GB/s." in text
    assert re.search(r"\| 2,500 \| kernels \| \d+ \| \d+% \| \d+% \|", text)


@pytest.mark.long
def test_the_page_says_what_the_hook_makes_of_it() -> None:
    """One rank: what is sent is what comes back."""
    plan = Plan(names=("signsgd", "fp16", "cser"))
    text = "\n".join(gpu_table._deployed("cpu", plan))
    for name in ("signsgd", "fp16"):
        assert re.search(rf"\| `{name}` \| equal \| [\d.]+ \| [\d.]+ \|", text)
    assert "cser" not in text  # DDP cannot carry it


def test_a_method_that_does_not_run_is_named_and_left_out(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, bucket: Any, step: int) -> Any:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(compressor_class("signsgd"), "exchange", broken)
    text = "\n".join(gpu_table.page(Ticking(), PLAN))
    assert "- `signsgd` does not run: RuntimeError: no such instruction" in text
    assert "| `signsgd` | step |" not in text
    assert "| `fp16` | step |" in text


def test_without_a_gpu_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        gpu_table.main([])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "sees no NVIDIA GPU here" in err
