"""Which devices and links are known? The catalogue's YAML as the simulator's own values.

A device or a link is one entry of `catalog/devices.yaml` or `catalog/links.yaml`; a new entry
needs no code. An entry may say `like: NAME` and give only what differs. Every number has a
source, and says whether it was measured on that device (`estimate: false`) or not.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from pydantic import Field

from gcsim.compressors.kernels import KERNEL_CLASSES, KernelClass
from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.scenarios.checking import (
    Bandwidth,
    ComputeRate,
    Duration,
    PositiveDuration,
    Section,
    check,
)
from gcsim.scenarios.document import Document, read_file
from gcsim.scenarios.link_fields import LinkFields, over
from gcsim.scenarios.link_trace import read_traces
from gcsim.simulator.device import Device, KernelRate, TrainingRate
from gcsim.simulator.links import Link

FOLDER = Path(__file__).parent / "catalog"

Entry = TypeVar("Entry", Device, Link)

_Merge = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
_Text = Annotated[str, Field(min_length=1)]


class _KernelEntry(Section):
    launch: Duration
    bandwidth: Bandwidth | None = None
    flop_rate: ComputeRate | None = None
    estimate: bool
    source: _Text


class _TrainingEntry(Section):
    fixed: Duration
    per_sample: PositiveDuration
    estimate: bool
    source: _Text


class _DeviceEntry(Section):
    title: _Text
    source: _Text
    effective_flop_rate: ComputeRate
    backward_over_forward: float = Field(default=2.033, gt=0)
    kernels: dict[KernelClass, _KernelEntry]
    training: dict[str, _TrainingEntry] = {}  # noqa: RUF012


class _LinkEntry(LinkFields):
    estimate: bool
    source: _Text


class _DeviceTable(Section):
    devices: dict[str, _DeviceEntry]


class _LinkTable(Section):
    links: dict[str, _LinkEntry]


@functools.cache
def devices() -> Mapping[str, Device]:
    """The shipped devices by name, in the order of the file."""
    return MappingProxyType(read_devices(FOLDER / "devices.yaml"))


@functools.cache
def links() -> Mapping[str, Link]:
    """The shipped links by name, in the order of the file."""
    return MappingProxyType(read_links(FOLDER / "links.yaml"))


def device(name: str) -> Device:
    """A shipped device. Raises `InputError` with a suggestion when there is none of that name."""
    return _named(name, "device", devices())


def link(name: str) -> Link:
    """A shipped link. Raises `InputError` with a suggestion when there is none of that name."""
    return _named(name, "link", links())


def fingerprint(value: Device | Link) -> str:
    """Of every number and source of an entry: it changes when the entry does."""
    kernels: dict[str, Any] = {}
    if isinstance(value, Device):
        kernels = {kind: value.kernels[kind] for kind in KERNEL_CLASSES}
    return hashlib.sha256(repr((value, kernels)).encode()).hexdigest()[:16]


def read_devices(path: Path) -> dict[str, Device]:
    """The devices of a file. Raises `InputError` with every problem and its line and column."""
    document = read_file(path, _shown(path))
    problems = _inherit(document, "devices", _merged)
    table, faults = check(_DeviceTable, document)
    problems += faults
    for name, entry in table.devices.items() if table else ():
        missing = [kind for kind in KERNEL_CLASSES if kind not in entry.kernels]
        if missing:
            place = document.place_of_key(("devices", name, "kernels"))
            message = f"devices.{name}.kernels has no rate for: {', '.join(missing)}"
            problems.append(Problem(place=place, message=message))
    if problems or table is None:
        raise InputError(document.sorted(problems))
    return {name: _device(name, entry) for name, entry in table.devices.items()}


def read_links(path: Path) -> dict[str, Link]:
    """The links of a file. Raises `InputError` with every problem and its line and column."""
    document = read_file(path, _shown(path))
    problems = _inherit(document, "links", over)
    table, faults = check(_LinkTable, document)
    problems += faults
    if table is not None:
        problems += read_traces(table, document, path)
    if problems or table is None:
        raise InputError(document.sorted(problems))
    return {
        name: entry.link(name=name, source=entry.source, estimate=entry.estimate)
        for name, entry in table.links.items()
    }


def _device(name: str, entry: _DeviceEntry) -> Device:
    kernels: dict[KernelClass, KernelRate] = {
        kind: KernelRate(
            launch=float(rate.launch),
            bandwidth=None if rate.bandwidth is None else float(rate.bandwidth),
            flop_rate=None if rate.flop_rate is None else float(rate.flop_rate),
            source=rate.source,
            estimate=rate.estimate,
        )
        for kind, rate in entry.kernels.items()
    }
    training = {
        model: TrainingRate(
            model=model,
            fixed=float(rate.fixed),
            per_sample=float(rate.per_sample),
            source=rate.source,
            estimate=rate.estimate,
        )
        for model, rate in entry.training.items()
    }
    return Device(
        name=name,
        title=entry.title,
        kernels=kernels,
        training=training,
        effective_flop_rate=float(entry.effective_flop_rate),
        backward_over_forward=entry.backward_over_forward,
        source=entry.source,
    )


def _inherit(document: Document, table: str, merge: _Merge) -> list[Problem]:
    """Complete entries that say `like: NAME` from an entry that stands above them."""
    entries = document.data.get(table) if isinstance(document.data, dict) else None
    problems: list[Problem] = []
    above: dict[str, Any] = {}
    if not isinstance(entries, dict):
        return problems
    for name, entry in entries.items():
        if isinstance(entry, dict) and "like" in entry:
            base = entry.pop("like")
            if isinstance(base, str) and isinstance(above.get(base), dict):
                entries[name] = merge(above[base], entry)
            else:
                place = document.place((table, name, "like"))
                message = f"{table}.{name}.like = {base!r}: no entry of that name stands above"
                problems.append(Problem(place=place, message=message))
        above[name] = entries[name]
    return problems


def _merged(base: dict[str, Any], own: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """`own` over `base`; tables inside an entry are merged by key, rates replaced whole."""
    merged = dict(base)
    for key, value in own.items():
        inherited = merged.get(key)
        if depth == 0 and isinstance(inherited, dict) and isinstance(value, dict):
            merged[key] = _merged(inherited, value, depth + 1)
        else:
            merged[key] = value
    return merged


def _named(name: str, kind: str, known: Mapping[str, Entry]) -> Entry:
    if name not in known:
        variants = [entry for entry in known if name and entry.startswith(name)]
        hint = f"there are {', '.join(variants)}" if variants else did_you_mean(name, known)
        raise InputError(Problem(message=f"unknown {kind} {name!r}", hint=hint))
    return known[name]


def _shown(path: Path) -> str:
    """The path as a message gives it: relative where that is shorter."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
