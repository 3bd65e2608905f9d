"""Devices and links of the catalogue, from YAML to the simulator's own values.

A device or a link is one entry of `catalog/devices*.yaml` or `catalog/links.yaml`; a new entry
needs no code. An entry may say `like: NAME` and give only what differs. Every number has a
source, and says whether it was measured on that device (`estimate: false`) or not.

The wire is one, the software is not: Gloo has one TCP connection between two ranks, NCCL several;
what a message waits for in the software of both ends is another time for each. So an entry of
`catalog/links.yaml` has figures for all transports, and under `transports` those of single ones:

    25gbe:
      latency: 50 us
      transports:
        gloo: {latency: 110 us, latency_range: [50 us, 220 us], source: ...}

A figure that stands there comes with its own range, or with none.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import Field

from gcsim.compressors.kernels import KERNEL_CLASSES
from gcsim.errors import InputError, Problem
from gcsim.names import entry_named
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
    "devices_ampere_hopper.yaml",
    "devices_geforce.yaml",
    "devices_inference.yaml",
    "devices_edge.yaml",
)

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
    """The shipped devices by name, in the order of the files."""
    found: dict[str, Device] = {}
    for name in DEVICE_FILES:
        found |= read_devices(FOLDER / name)
    return MappingProxyType(found)


@functools.cache
def links(transport: TransportName | None = None) -> Mapping[str, Link]:
    """The shipped links by name, in the order of the file.

    With a transport: as it finds them, where the catalogue knows that.
    """
    return MappingProxyType(_as_found(_shipped_links(), transport))


@functools.cache
def _shipped_links() -> _LinkTable:
    return _link_table(FOLDER / "links.yaml")


@functools.cache
def own_figures() -> Mapping[str, tuple[TransportName, ...]]:
    """Transports that have figures of their own, by link."""
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
    """A shipped device; "V100" is v100.

    Raises `InputError` with a suggestion when there is none of that name.
    """
    return _named(name, "device", devices())


def model(name: str) -> ModelEntry:
    """A shipped model; "ResNet-50" is resnet50.

    Raises `InputError` with a suggestion when there is none of that name.
    """
    return _named(name, "model", MODELS, "your own model is written package.module:build")


def link(name: str, transport: TransportName | None = None) -> Link:
    """A shipped link, as a transport finds it where one is given.

    Raises `InputError` with a suggestion when there is none of that name.
    """
    return _named(name, "link", links(transport))


def shipped(value: Link) -> bool:
    """Whether a link is an unchanged entry, for one transport or for all."""
    transports = (None, *own_figures().get(value.name, ()))
    return any(links(transport).get(value.name) == value for transport in transports)


def fingerprint(value: Device | Link) -> str:
    """Fingerprint of every number and source of an entry: it changes when the entry does."""
    kernels: dict[str, Any] = {}
    if isinstance(value, Device):
        kernels.update((kind, value.kernels[kind]) for kind in KERNEL_CLASSES)
        kernels.update((what, rate) for what, rate in value.host.items())
        kernels.update(value.stages)
    return hashlib.sha256(repr((value, kernels)).encode()).hexdigest()[:16]


def _document(path: Path) -> Document:
    return (read_shipped if path.parent == FOLDER else read_file)(path, shown(path))


def read_devices(path: Path, *, like_shipped: bool = False) -> dict[str, Device]:
    """The devices of a file. Raises `InputError` with every problem and its line and column.

    With `like_shipped` an entry may also be like one of the catalogue.
    """
    document = _document(path)
    shipped = _shipped_entries if like_shipped else dict
    problems = inherit(document, "devices", merged_device, shipped)
    table, faults = check(DeviceTable, document)
    problems += faults
    for name, entry in table.devices.items() if table else ():
        missing = [kind for kind in KERNEL_CLASSES if kind not in entry.kernels]
        if missing:
            place = document.location_of_key(("devices", name, "kernels"))
            message = f"devices.{name}.kernels has no rate for: {', '.join(missing)}"
            problems.append(Problem(place=place, message=message))
        if entry.host and old_host(entry):
            _note(document.location_of_key(("devices", name, "host")))
    if problems or table is None:
        raise InputError(document.sorted(problems))
    return {name: build_device(name, entry) for name, entry in table.devices.items()}


@functools.cache
def _note(place: str) -> None:
    _LOG.warning(
        "%s: warning: prices of metered kernels, which an earlier gcsim wrote, are not used: the "
        "catalogue's of launches, operators and waits are; measure again by gcsim calibrate device",
        place,
    )


def read_links(path: Path, transport: TransportName | None = None) -> dict[str, Link]:
    """The links of a file, as a transport finds them.

    Raises `InputError` with every problem and its line and column.
    """
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
    """The catalogue's devices as they are written, complete."""
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
    """Complete entries that say `like: NAME` from an entry that stands above them.

    Or from one of `shipped`, which is only asked where none above has the name. With `others` an
    entry may be like something else, and stays as it is.
    """
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
                place = document.place((table, name, "like"))
                message = f"{table}.{name}.like = {base!r}: no entry of that name stands above"
                problems.append(Problem(place=place, message=message))
        above[name] = entries[name]
    return problems


@functools.cache
def _aliases() -> dict[str, dict[str, list[str]]]:
    return dict(_document(FOLDER / "aliases.yaml").data)


def _named(name: str, kind: str, known: Mapping[str, Entry], others: str = "") -> Entry:
    """The entry of this name; ideal links only by a name that says so."""
    if name in known:
        return known[name]
    aliases = _aliases()[f"{kind}s"]
    names = [one for one in known if not one.endswith("_ideal") or "ideal" in name.lower()]
    titles = {one: str(getattr(known[one], "title", "")).split(",")[0] for one in names}
    texts = {one: (title, *aliases.get(one, ())) for one, title in titles.items()}
    return known[entry_named(name, kind, texts, others=others)]


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
