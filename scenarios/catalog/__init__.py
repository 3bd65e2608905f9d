"""Devices and links of the catalogue, from YAML to the simulator's values.

A new entry of `catalog/devices*.yaml` or `catalog/links.yaml` needs no code. It may say
`like: NAME` and give only the differences. Every number has a source, and says whether it was
measured there (`estimate: false`).

Gloo has one TCP connection between two ranks, NCCL several, and messages wait differently in their
software. So a link has figures for all transports, and under `transports` those of single ones,
each with its own range or none:

    25gbe:
      latency: 50 us
      transports:
        gloo: {latency: 110 us, latency_range: [50 us, 220 us], source: ...}
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import Field

from gcsim.compressors.kernels import KERNEL_CLASSES
from gcsim.errors import InputError, Problem
from gcsim.names import compact, entry_named
from gcsim.scenarios.catalog.devices import DeviceTable, build_device, merged_device, old_host
from gcsim.scenarios.links.csv_table import shown
from gcsim.scenarios.links.fields import LinkFields, over
from gcsim.scenarios.links.rate_trace import with_traces
from gcsim.scenarios.reading.checking import Section, check
from gcsim.scenarios.reading.document import Document, read_file, read_shipped
from gcsim.scenarios.reading.types import Duration, Share
from gcsim.scenarios.reading.values import As, Spelled
from gcsim.simulator.cluster import TransportName
from gcsim.simulator.devices.device import Device
from gcsim.simulator.network.links import RANGED, Link
from gcsim.traces.models.registry import MODELS, ModelEntry

_LOG = logging.getLogger(__name__)
FOLDER = Path(__file__).parent
DEVICE_FILES = (
    "devices.yaml",
    "devices_data_centre.yaml",
    "devices_geforce.yaml",
    "devices_inference.yaml",
    "devices_edge.yaml",
)

_ALIKE, _ABOUT = 0.05, 0.15
"""Relative differences of parameters up to which one model stands for another, and a transformer by
formula for another."""
_MODEL_SIZE = re.compile(r"(?<![x\d.])(\d+(?:\.\d+)?)([BM])(\d?)\b", re.IGNORECASE)
Entry = TypeVar("Entry")

_Merge = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
_Text = Annotated[str, Field(min_length=1)]


class _LinkEntry(LinkFields):
    estimate: bool
    source: _Text
    transports: dict[TransportName, Annotated[Spelled, _REACHED]] | None = None


class _LinkTable(Section):
    links: dict[str, _LinkEntry]


@functools.cache
def devices() -> Mapping[str, Device]:
    """Shipped devices by name, in file order."""
    found: dict[str, Device] = {}
    for name in DEVICE_FILES:
        found |= read_devices(FOLDER / name)
    return MappingProxyType(found)


@functools.cache
def links(transport: TransportName | None = None) -> Mapping[str, Link]:
    """Shipped links by name, in file order; with a transport, as it finds them."""
    return MappingProxyType(_as_found(_shipped_links(), transport))


@functools.cache
def _shipped_links() -> _LinkTable:
    return _link_table(FOLDER / "links.yaml")


@functools.cache
def own_figures() -> Mapping[str, tuple[TransportName, ...]]:
    """Transports with their own figures, by link."""
    return MappingProxyType(
        {
            name: tuple(
                transport
                for transport in get_args(TransportName)
                if links(transport)[name] != shipped
            )
            for name, shipped in links().items()
        }
    )


def device(name: str) -> Device:
    """Shipped device ("V100" is v100); `InputError` with a suggestion for an unknown name, and with
    its device for a machine's."""
    plain = "" if name in devices() else re.sub("^(standard|ml)", "", compact(name))
    if plain in _machines():
        raise InputError(f"{name!r} is a machine", hint=_machines()[plain])
    return _named(name, "device", devices())


@functools.cache
def _machines() -> dict[str, str]:
    """Settings that describe a machine, by its name without case and hyphens."""
    found: dict[str, str] = {}
    for machine, (board, number, *network) in _aliases()["machines"].items():
        around = "".join(f", network {link}" for link in network[:1])
        around += "".join(f", nics_per_node {nics} (--nics)" for nics in network[1:])
        found[compact(machine)] = f"write {board}, devices_per_node {number} (--gpus){around}"
    return found


def model(name: str) -> ModelEntry:
    """Shipped model ("ResNet-50" is resnet50); `InputError` with a suggestion if unknown."""
    own = "your own model is recorded (gcsim.record), or written package.module:build"
    if (size := _MODEL_SIZE.search(name)) is None:
        return _named(name, "model", MODELS, own)
    text = f"{size[1]}{f'.{size[3]}' if size[3] else ''}{size[2].upper()}"
    count = float(text[:-1]) * {"M": 1e6, "B": 1e9}[text[-1]]
    if by_size_alone(count):
        own = f"gcsim advise --parameters {text} takes one of that size; {own}"
    return _named(
        name,
        "model",
        MODELS,
        own,
        lambda one: count < 2 * (MODELS[one].parameters or 0) < 4 * count,
    )


def models_by_size(count: float) -> list[str]:
    """Shipped models whose size is known, those nearest to `count` parameters first."""
    known = {name: one.parameters for name, one in MODELS.items() if one.parameters}
    return sorted(known, key=lambda name: abs(math.log(known[name] / max(count, 1))))


def by_size_alone(count: float) -> list[str]:
    """Shipped models that `count` parameters stand for, the nearest first: transformers by formula,
    which differ little, of that size or about it, before others of it; or a single other one."""

    near = models_by_size(count)
    apart = {name: abs((MODELS[name].parameters or 0) / max(count, 1) - 1) for name in near}
    alike = [name for name in near if apart[name] <= _ALIKE]
    about = [name for name in near[:1] if apart[name] <= _ABOUT]
    by_formula = [name for name in alike or about if MODELS[name].transformer]
    others = [name for name in alike if name not in by_formula]
    return [*by_formula, *others] if by_formula or len(others) == 1 else []


def link(name: str, transport: TransportName | None = None) -> Link:
    """Shipped link, as a transport finds it; `InputError` with a suggestion if unknown."""
    return _named(name, "link", links(transport))


def shipped(value: Link) -> bool:
    """Whether a link is an unchanged entry, for one transport or all."""
    transports = (None, *own_figures().get(value.name, ()))
    return any(links(transport).get(value.name) == value for transport in transports)


def fingerprint(value: Device | Link) -> str:
    """Fingerprint of an entry's numbers and sources."""
    kernels: dict[str, Any] = {}
    if isinstance(value, Device):
        kernels.update((kind, value.kernels[kind]) for kind in KERNEL_CLASSES)
        kernels.update((what, rate) for what, rate in value.host.items())
        kernels.update(value.stages)
    return hashlib.sha256(repr((value, kernels)).encode()).hexdigest()[:16]


def _document(path: Path) -> Document:
    return (read_shipped if path.parent == FOLDER else read_file)(path, shown(path))


def read_devices(path: Path, *, like_shipped: bool = False) -> dict[str, Device]:
    """Devices of a file; `InputError` with every problem and its place. With `like_shipped` an
    entry may also be like one of the catalogue."""
    document = _document(path)
    shipped = _shipped_entries if like_shipped else dict
    problems = inherit(document, "devices", merged_device, shipped)
    table, faults = check(DeviceTable, document)
    problems += faults
    for name, entry in table.devices.items() if table else ():
        missing = [kind for kind in KERNEL_CLASSES if kind not in entry.kernels]
        if missing:
            message = f" has no rate for: {', '.join(missing)}"
            problems.append(document.problem(("devices", name, "kernels"), message, of_key=True))
        if entry.host and old_host(entry):
            _note(document.location_of_key(("devices", name, "host")))
    if problems or table is None:
        raise InputError(document.sorted(problems))
    return {name: build_device(name, entry) for name, entry in table.devices.items()}


@functools.cache
def _note(place: str) -> None:
    _LOG.warning(
        "%s: warning: an earlier gcsim's prices of metered kernels are not used, but the "
        "catalogue's of launches, operators and waits; measure again with gcsim calibrate device",
        place,
    )


def read_links(path: Path, transport: TransportName | None = None) -> dict[str, Link]:
    """Links of a file, as a transport finds them; `InputError` with every problem and its place."""
    return _as_found(_link_table(path), transport)


def _link_table(path: Path) -> _LinkTable:
    document = _document(path)
    return with_traces(_LinkTable, document, path, inherit(document, "links", over))


def _as_found(table: _LinkTable, transport: TransportName | None) -> dict[str, Link]:
    found: dict[str, Link] = {}
    for name, entry in table.links.items():
        shipped = entry.link(name=name, source=entry.source, estimate=entry.estimate)
        own = (entry.transports or {}).get(transport) if transport else None
        found[name] = (
            shipped if own is None or transport is None else _reached(own, shipped, transport)
        )
    return found


@functools.cache
def _shipped_entries() -> dict[str, Any]:
    """The catalogue's devices as written, complete."""
    found: dict[str, Any] = {}
    for name in DEVICE_FILES:
        document = _document(FOLDER / name)
        inherit(document, "devices", merged_device)
        found |= document.data["devices"]
    return found


def inherit(
    document: Document,
    table: str,
    merge: _Merge,
    shipped: Callable[[], Mapping[str, Any]] = dict,
    *,
    others: bool = False,
) -> list[Problem]:
    """Complete entries that say `like: NAME` from an entry above, or from `shipped`, asked only if
    needed. With `others`, entries like something else stay as they are."""
    entries = document.data.get(table) if isinstance(document.data, dict) else None
    problems: list[Problem] = []
    above: dict[str, Any] = {}
    if not isinstance(entries, dict):
        return problems
    for name, entry in entries.items():
        if isinstance(entry, dict) and "like" in entry:
            base = entry["like"]
            own = {key: value for key, value in entry.items() if key != "like"}
            if isinstance(base, str) and isinstance(above.get(base), dict):
                entries[name] = merge(above[base], own)
            elif isinstance(base, str) and base in (known := shipped()):
                entries[name] = merge(known[base], own)
            elif not others:
                entries[name] = own
                message = f" = {base!r}: no entry above has that name"
                problems.append(document.problem((table, name, "like"), message))
        above[name] = entries[name]
    return problems


_DETAILS = re.compile(r",| (?:for|with|on|of|at) ")  # ends the part of a title that names its entry


@functools.cache
def _aliases() -> dict[str, dict[str, list[Any]]]:
    return dict(_document(FOLDER / "aliases.yaml").data)


def _named(
    name: str,
    kind: str,
    known: Mapping[str, Entry],
    others: str = "",
    akin: Callable[[str], bool] = bool,
) -> Entry:
    """Entry of this name; ideal links only by their full name."""
    if name in known:
        return known[name]
    aliases = _aliases()[f"{kind}s"]
    names = [one for one in known if not one.endswith("_ideal") or "ideal" in name.lower()]
    titles = {one: _DETAILS.split(str(getattr(known[one], "title", "")))[0] for one in names}
    texts = {one: (title, *aliases.get(one, ())) for one, title in titles.items()}
    return known[entry_named(name, kind, texts, others=others, akin=akin)]


_RANGES = {f"{figure}_range" for figure in RANGED}
_NO_FIGURES: dict[str, Any] = {
    field.name: None for field in fields(Link) if field.name not in {*RANGED, *_RANGES}
}
_REACHED = As(
    Link,
    title="ReachedSection",
    **_NO_FIGURES
    | {
        "latency": (Duration | None, None),
        "efficiency": (Share | None, None),
        "overhead": (Duration | None, None),
        "source": (Annotated[str, Field(min_length=1)], ...),
    },
)


def _reached(section: Spelled, link: Link, transport: TransportName) -> Link:
    """The link as this transport finds it."""
    figures = {
        name: getattr(section, name) for name in RANGED if getattr(section, name) is not None
    }
    source = f"{transport}: {section.source} Others: {link.source}"
    return section.value(Link, link.exactly(**figures, source=source))
