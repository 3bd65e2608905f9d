"""`gcsim calibrate device`: measure this machine as a device that a scenario can name."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gcsim.cli.options import QuietOption, check_writable, option
from gcsim.cli.outcome import reported
from gcsim.errors import InputError

if TYPE_CHECKING:
    from gcsim.simulator.devices.device import Device

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_BATCH = 32


class Target(StrEnum):
    """Device to measure."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@reported
def calibrate_device_command(
    *,
    output: Annotated[Path, option("-o --output FILE", "The YAML file to write.")],
    device: Annotated[Target, option("--device", "auto: a GPU if there is one.")] = (Target.auto),
    name: Annotated[str | None, option("--name NAME", "Default: the file's name.")] = None,
    threads: Annotated[
        int | None, option("--threads", "CPU threads. Default: torch's.", min=1)
    ] = None,
    model: Annotated[
        list[str] | None, option("--model NAME", "Also time its training steps. Repeatable.")
    ] = None,
    batch: Annotated[
        int, option("--batch", "Samples per step; a quarter is also timed.", min=2)
    ] = _BATCH,
    quick: Annotated[
        bool, option("--quick", "Short tensors and few repeats, for a first look.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Measure this machine as a device.

    Times its kernels in about a minute (five on a GPU), for cluster.device of a scenario.
    """
    from gcsim.cli.progress import watching
    from gcsim.cli.terminal import note, note_next
    from gcsim.traces.models.registry import shipped_model

    if output.is_dir():
        raise InputError("is a folder", place=str(output), hint="name a file: my_gpu.yaml")
    called = output.stem if name is None else name
    if not _NAME.fullmatch(called):
        raise InputError(
            f"{called!r} cannot be a device's name",
            place="--name",
            hint="letters, digits, '_', '-' and '.'",
        )
    check_writable(output.parent)
    models = [(shipped_model(one).name, batch) for one in model or ()]
    from gcsim.scenarios.calibration.device import (
        as_bus,
        calibrate_device,  # brings torch
        in_words,
    )
    from gcsim.scenarios.catalog.devices import write_device

    command = shlex.join(["gcsim", *sys.argv[1:]])
    with watching(quiet) as progress:
        calibration = calibrate_device(
            progress,
            name=called,
            device=device.value,
            threads=threads,
            quick=quick,
            models=models,
            command=command,
        )
    measured = calibration.device
    others = {
        "sums": _sums(calibration.sums),
        "framework": calibration.setting or "torch has no Gloo here",
    }
    if calibration.copies:
        bus = as_bus(calibration.copies)
        others["bus"] = f"{bus} over Gloo ({in_words(calibration.copies)})"
        others["device sums"] = _sums(calibration.additions)
    write_device(
        measured, output, _HEAD + "".join(f"{key:11} {text}\n" for key, text in others.items())
    )
    if not quiet:
        note(
            *_lines(measured),
            *(f"  {_OTHERS[key]}: {text}" for key, text in others.items()),
            f"written: {output}",
        )
        change = f"cluster.device={output}"
        note_next(["run", "alexnet_32node", "--set", change], "use it")


_OTHERS = {
    "sums": "Gloo's summation",
    "framework": "DDP around an exchange",
    "bus": "copies",
    "device sums": "summation on the device",
}
"""Measurements for other sections of a scenario."""
_HEAD = """A measured device. Set cluster.device of a scenario to this file's path.
kernels     by class: rates for kernels without their own measurement
primitives  by kernel: bytes and time of one launch, interpolated linearly
stages      by method on a GPU: factors on its host time and its kernels' time
"""


def _sums(rates: Mapping[str, float]) -> str:
    """Return rates in a scenario's notation."""
    if not rates:
        return "torch has no Gloo here"
    told = ", ".join(f"{dtype}: {rate / 1e6:.3g} MB/s" for dtype, rate in rates.items())
    return f"cluster.sums: {{{told}}}"


def _lines(device: Device) -> list[str]:
    rates = device.kernels
    shown = [
        f"{kind} {rate.launch * 1e6:.3g} us + {rate.bandwidth / 1e9:.3g} GB/s"
        for kind, rate in rates.items()
        if rate.bandwidth is not None
    ]
    return [
        device.title,
        *(f"  {line}" for line in shown),
        f"  {len(device.stages)} whole stages measured"
        if device.stages
        else f"  {len(device.primitives)} kernels measured by name",
        *(
            f"  {model}: {rate.fixed * 1e3:.4g} ms + {rate.per_sample * 1e3:.4g} ms per sample"
            for model, rate in device.training.items()
        ),
    ]
