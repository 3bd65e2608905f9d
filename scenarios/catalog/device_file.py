"""How is a measured device stored? As YAML in the form of the catalogue's, to be read by it.

The file is a table `devices` with one entry. It is written whole or not at all.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

from gcsim.files import write_text
from gcsim.simulator.devices.device import Device, KernelRate, Range, TrainingRate
from gcsim.units import Dimension, exact


def write_device(device: Device, path: Path, head: str) -> None:
    """Write `device` to `path`; `head` goes in front of it as comments.

    Raises `InputError` when the file cannot be written; an earlier file is then as it was.
    """
    write_text(path, device_yaml(device, head))


def device_yaml(device: Device, head: str) -> str:
    """The file's text."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Lists on one line, mappings as blocks."""

    Dumper.add_representer(
        list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, True)
    )
    text = yaml.dump(
        {"devices": {device.name: _entry(device)}},
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
    )
    comments = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    return f"{comments}\n{text}"


def _entry(device: Device) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "title": device.title,
        "source": device.source,
        "effective_flop_rate": _text(device.effective_flop_rate, "compute rate"),
    }
    if device.effective_flop_rate_range is not None:
        entry["effective_flop_rate_range"] = _pair(device.effective_flop_rate_range, "compute rate")
    entry["backward_over_forward"] = device.backward_over_forward
    entry["kernels"] = {kind: _kernel(rate) for kind, rate in device.kernels.items()}
    if device.primitives:
        entry["primitives"] = {
            name: [[f"{nbytes} B", _text(seconds, "time")] for nbytes, seconds in points]
            for name, points in device.primitives.items()
        }
    if device.training:
        entry["training"] = {model: _training(rate) for model, rate in device.training.items()}
    return entry


def _kernel(rate: KernelRate) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for name, value, bounds, dimension in (
        ("launch", rate.launch, rate.launch_range, "time"),
        ("bandwidth", rate.bandwidth, rate.bandwidth_range, "bandwidth"),
        ("flop_rate", rate.flop_rate, rate.flop_rate_range, "compute rate"),
    ):
        if value is not None:
            entry[name] = _text(value, dimension)  # type: ignore[arg-type]  # the literals above
        if bounds is not None:
            entry[f"{name}_range"] = _pair(bounds, dimension)  # type: ignore[arg-type]
    return {**entry, "estimate": rate.estimate, "source": rate.source}


def _training(rate: TrainingRate) -> dict[str, Any]:
    return {
        "fixed": _text(rate.fixed, "time"),
        "per_sample": _text(rate.per_sample, "time"),
        "estimate": rate.estimate,
        "source": rate.source,
    }


def _pair(bounds: Range, dimension: Dimension) -> list[str]:
    return [_text(bounds[0], dimension), _text(bounds[1], dimension)]


def _text(value: float, dimension: Dimension) -> str:
    """Four significant digits."""
    return exact(Fraction(f"{value:.4g}"), dimension)
