"""Entries of devices, read from the catalogue and written for a measured device.

Keys of `devices*.yaml` are fields of `Device`. A device combines its entry (kernels, its own
training rates) with its `board`'s rows in the tables of `catalog/rates.py`. A measured device is
written in the same form, as a table `devices` with one entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from gcsim.compressors.queued import QUEUED, Queued
from gcsim.errors import InputError
from gcsim.fields import Key, Rule, Text
from gcsim.files import write_text
from gcsim.scenarios.catalog import rates
from gcsim.scenarios.reading.checking import Section
from gcsim.scenarios.reading.types import in_catalogue
from gcsim.scenarios.reading.values import As, Spelled, text_of
from gcsim.simulator.devices.device import Device, KernelRate, TrainingRate
from gcsim.simulator.devices.ranges import TimeRange, Times
from gcsim.simulator.devices.training_rates import MeasuredTimes, Precision

_MEASURED = (
    "Fitted to 67 stages of 29 methods of gcsim's on a million elements, on an H100 (2026-11-27, "
    "torch 2.11, Triton 3.6, CUDA 13), by their recorded launches: median error 12 % (gcsim "
    "validate gpu-hook). What the host does around a launch is in its price. Upper end: 90th "
    "percentile of measured over fitted."
)


def _host(launch: float, least: float, most: float, lower: str) -> KernelRate:
    source = f"{_MEASURED} Lower end: {lower}"
    return KernelRate(launch=launch, launch_range=(least, most), estimate=True, source=source)


HOST: dict[Queued, KernelRate] = {
    "kernel": _host(98e-6, 10e-6, 130e-6, "a launch of Triton takes a fast host 10 to 40 us."),
    "operator": _host(32e-6, 4e-6, 43e-6, "a launch of torch alone takes 4 to 12 us."),
    "wait": _host(74e-6, 8e-6, 98e-6, "a wait alone takes 8 to 11 us there."),
}
"""Default host times of a launch, operator and wait on a GPU."""


def old_host(entry: Spelled) -> bool:
    """Return whether `host` lacks a launch's price: older files price metered kernels by it."""
    return not set(QUEUED) <= set(entry.host or ())


def _check_board(name: str) -> None:
    if name not in rates.boards():
        hint = f"there are {', '.join(rates.boards())}"
        raise InputError(f"no board {name!r} stands in hardware.csv", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """Measured steps of another board, to be scaled by a factor."""

    board: Annotated[Text, Rule(_check_board)]
    factor: Annotated[Times, Key("time")]
    time_range: TimeRange | None = None
    source: Text


class DeviceTable(Section):
    """A file of devices."""

    devices: dict[
        str,
        Annotated[
            Spelled,
            As(
                Device,
                board=(Annotated[str, in_catalogue(_check_board)] | None, None),
                scaled_from=(Annotated[Spelled, As(Scaled)] | None, None),
                training=(dict[str, Annotated[Spelled, As(TrainingRate)]] | None, None),
            ),
        ],
    ]


def build_device(name: str, entry: Spelled) -> Device:
    """Build the device of a checked entry."""
    scaled = None if entry.scaled_from is None else entry.scaled_from.value(Scaled)
    board = _board(entry)
    processor = entry.processor if board is None else board.processor
    factors_of = [each for each in (entry.board, scaled and scaled.board) if each is not None]
    usual = rates.effective_range(processor or "gpu", entry.effective_flop_rate)
    training = (entry.training or {}).items()
    found: Device = entry.value(
        Device,
        name=name,
        processor=processor,
        training={model: rate.value(TrainingRate, model=model) for model, rate in training},
        measured=_measured(entry.board, scaled),
        layer_times={} if board is None else rates.layer_times(board, *factors_of),
        effective_flop_rate_range=entry.effective_flop_rate_range or usual,
    )
    return replace(found, host=HOST) if processor == "gpu" and old_host(entry) else found


def merged_device(
    base: Mapping[str, Any], own: Mapping[str, Any], depth: int = 0
) -> dict[str, Any]:
    """`own` over `base`: tables inside an entry merge by key, rates are replaced whole."""
    merged = dict(base)
    for key, value in own.items():
        inherited = merged.get(key)
        if depth == 0 and isinstance(inherited, dict) and isinstance(value, dict):
            merged[key] = merged_device(inherited, value, depth + 1)
        else:
            merged[key] = value
    return merged


def _measured(
    board: str | None, scaled: Scaled | None
) -> dict[tuple[str, Precision, int], MeasuredTimes]:
    """Return the board's own curves, and those scaled from another board for what it lacks."""
    own = {} if board is None else rates.measured_times(board)
    if scaled is None:
        return own
    return {
        key: replace(
            times,
            steps=tuple(
                replace(
                    step,
                    seconds=step.seconds * scaled.factor,
                    sources=(scaled.source, *step.sources),
                )
                for step in times.steps
            ),
            source=f"{scaled.source} They are: {times.source}",
            estimate=True,
            time_range=scaled.time_range,
        )
        for key, times in rates.measured_times(scaled.board).items()
    } | own


def _board(entry: Spelled) -> rates.Board | None:
    """Return the data for the layer model: the table's, or for a GPU the entry's kernel rates (on
    a CPU the model needs a factor)."""
    if entry.board is not None:
        return rates.boards()[entry.board]
    if entry.processor != "gpu":
        return None
    product, copy = entry.kernels.get("matmul"), entry.kernels.get("streaming")
    if product is None or copy is None or product.flop_rate is None or copy.bandwidth is None:
        return None
    return rates.Board(
        processor="gpu",
        bandwidth=copy.bandwidth,
        flop_rates={"fp32": product.flop_rate},
        estimate=product.estimate or copy.estimate,
        source="rates of matmul and streaming kernels of this device",
    )


def write_device(device: Device, path: Path, head: str) -> None:
    """Write `device` to `path` with the comment `head`. Raises `InputError` when the file cannot be
    written; an earlier file then stays."""
    write_text(path, device_yaml(device, head))


def device_yaml(device: Device, head: str) -> str:
    """Text of the file."""
    comments = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    return f"{comments}\n{entry_yaml(device.name, text_of(device))}"


def entry_yaml(name: str, entry: Mapping[str, Any], width: int = 100) -> str:
    """Text of a file with this entry: lists on one line, mappings as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Dumper with a representer of its own."""

    Dumper.add_representer(
        list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, True)
    )
    return yaml.dump(
        {"devices": {name: {"title": entry["title"], "source": entry["source"], **entry}}},
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=width,
    )
