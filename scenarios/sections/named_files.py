"""Links, devices and background traffic of a scenario that are in separate files.

cluster:
      network: my_link.yaml                    # the file's one link
      intra_node: my_links.yaml:pcie           # one of several, by name
      nics: {3: {like: my_link.yaml, latency: 80 us}}
      device: my_gpu.yaml
      network: {like: 10gbe, background: "runs/other:dense"}   # what that run takes of the network

A name that ends in .yaml or .yml is a file; a part after a colon is one of its entries. Paths in a
scenario file are relative to that file's folder, those in options to the working directory. The
files have the catalogue's form, with a table `links:` or `devices:`; `like:` refers to an entry of
the catalogue, or to an earlier one in the file. A resolved scenario has links by value; a device by
its file, name and a fingerprint, so that a changed file is noticed; and a run as the share of the
network that it takes.

The device decides the defaults of its cluster, transport and bus. PyTorch's documentation names the
transport: NCCL between GPUs, Gloo between CPUs
(https://docs.pytorch.org/docs/stable/distributed.html, "Which backend to use?").
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.scenarios import catalog
from gcsim.scenarios.catalog.this_machine import means_this_device, this_device
from gcsim.scenarios.links.csv_table import shown
from gcsim.scenarios.links.fields import over
from gcsim.scenarios.links.rate_trace import with_traces
from gcsim.scenarios.reading.checking import Section
from gcsim.scenarios.reading.document import Document, Keys, dotted, read_file
from gcsim.scenarios.reading.overrides import LINKS
from gcsim.scenarios.sections.background_run import share_of_run
from gcsim.scenarios.sections.link import LinkSection, changed_link, plain_link
from gcsim.scenarios.sections.network_words import network_of
from gcsim.simulator.cluster import TransportName
from gcsim.simulator.devices.device import Device
from gcsim.simulator.network.links import Link

_FILE = re.compile(r"(?P<path>.+\.ya?ml)(?::(?P<name>.*))?", re.DOTALL)
_DEVICE: Keys = ("cluster", "device")

Value = TypeVar("Value", Link, Device)


class _LinkTable(Section):
    links: dict[str, LinkSection]


def names_a_file(text: object) -> bool:
    """Whether a name is that of a file instead of a catalogue entry."""
    return isinstance(text, str) and _FILE.fullmatch(text) is not None


def read_link(text: str, folder: Path, transport: TransportName | None = None) -> tuple[Link, Path]:
    """Read the link of `FILE.yaml` or `FILE.yaml:NAME` for a transport; also its file. Raises
    `InputError` without the file or entry, for several entries without a name, and for mistakes in
    the file, with their places."""
    return _read(text, folder, "link", functools.partial(_links, transport=transport))


def read_device(text: str, folder: Path) -> tuple[Device, Path]:
    """Read the device of `FILE.yaml` or `FILE.yaml:NAME`; return also the file; as `read_link`."""
    return _read(text, folder, "device", _devices)


def device_in(file: str, name: str) -> Device:
    """Read the device of a file by absolute path; raises `InputError`."""
    return read_device(f"{file}:{name}", Path("/"))[0]


def insert_files(document: Document, path: Path) -> tuple[dict[str, str], list[Problem]]:
    """Replace names of files by their contents, words for a network by its link, a background run
    by its share, and fill in the device's defaults. `document` is unchecked; `path`: its file.
    Returns the absolute path of each file by setting, and the files' problems with their places;
    wrong values are replaced by valid ones."""
    files: dict[str, str] = {}
    problems: list[Problem] = []
    for holder, key_path in _places(document.data):
        key = key_path[-1]
        try:
            if key == "device":
                found = _device_section(document, key_path, holder[key], path)
                if means_this_device(holder[key]):
                    holder[key] = this_device()
            else:
                found = _link_section(document, key_path, holder[key], path)
                if found is None and key != "intra_node":
                    holder[key] = _in_words(holder[key])
        except InputError as error:
            inner = ("file" if key == "device" else "like",)
            at = document.place((*key_path, *inner) if isinstance(holder[key], dict) else key_path)
            problems += [
                problem if problem.place else replace(problem, place=at)
                for problem in error.problems
            ]
            holder[key] = "h100_sxm" if key == "device" else next(iter(catalog.links()))
            continue
        if found is not None:
            holder[key], files[dotted(key_path)] = found
        if key == "network":
            problems += _replace_background_run(
                document, (*key_path, "background"), holder[key], path
            )
        if key == "device":
            with suppress(InputError):  # the check of the device reports it
                _fill_in(_within(document.data, ("cluster",)), holder, _device(holder[key]))
    return files, problems


def _replace_background_run(
    document: Document, key_path: Keys, link: Any, path: Path
) -> list[Problem]:
    """Replace a run in a link's `background` by its share of the rate; return problems."""
    named = link.get("background") if isinstance(link, dict) else None
    if not isinstance(named, str):
        return []
    try:
        share = share_of_run(named, folder_of(document, key_path, path), link)
    except InputError as error:
        link["background"], at = "0", document.place(key_path)
        return [replace(problem, place=problem.place or at) for problem in error.problems]
    link["background"] = share or named
    return []


def _places(data: Any) -> Iterator[tuple[dict[Any, Any], Keys]]:
    """Yield the sections with a link or a device, and their paths."""
    for key_path in (_DEVICE, *LINKS):  # how a transport finds a link: the device's by default
        holder = _within(data, key_path[:-1])
        if key_path[-1] in holder:
            yield holder, key_path
    nics = _within(data, ("cluster", "nics"))
    for node in list(nics):
        yield nics, ("cluster", "nics", node)
    for number, group in enumerate(_within(data, ("cluster",)).get("groups") or ()):
        for key in ("device", "network", "intra_node"):
            if key in group:
                yield group, ("cluster", "groups", number, key)


def _within(data: Any, key_path: Keys) -> dict[Any, Any]:
    for key in key_path:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def _link_section(
    document: Document, key_path: Keys, value: Any, path: Path
) -> tuple[dict[str, Any], str] | None:
    named = _within(document.data, ("cluster", "collectives")).get("transport")
    transport = next((known for known in get_args(TransportName) if known == named), None)
    if isinstance(value, str) and names_a_file(value):
        link, file = read_link(value, folder_of(document, key_path, path), transport)
        return plain_link(link), str(file)
    if isinstance(value, dict) and names_a_file(value.get("like")):
        base, file = read_link(
            value["like"], folder_of(document, (*key_path, "like"), path), transport
        )
        stated = {key: given for key, given in value.items() if key != "like"}
        return changed_link(base, stated), str(file)
    return None


def _in_words(value: Any) -> Any:
    """Replace words for a rate, as a link or its `like:`, by the catalogue's names."""
    said = value.get("like") if isinstance(value, dict) else value
    if not isinstance(said, str) or (named := network_of(said)) == said:
        return value
    if not isinstance(value, dict):
        return named
    base = {"like": named} if isinstance(named, str) else named
    return {**base, **value, "like": base["like"]}


def _device_section(
    document: Document, key_path: Keys, value: Any, path: Path
) -> tuple[dict[str, Any], str] | None:
    if isinstance(value, str) and names_a_file(value):
        device, file = read_device(value, folder_of(document, key_path, path))
        fingerprint = catalog.fingerprint(device)
        section = {"file": str(file), "name": device.name, "fingerprint": fingerprint}
        return section, str(file)
    if isinstance(value, dict) and names_a_file(value.get("file")):
        folder = folder_of(document, (*key_path, "file"), path)
        name = value.get("name")
        device, file = read_device(f"{value['file']}:{name}" if name else value["file"], folder)
        return {**value, "file": str(file), "name": device.name}, str(file)
    return None


def folder_of(document: Document, key_path: Keys, path: Path) -> Path:
    """Return the folder that a path is relative to: the file's, or for options the working one."""
    from_option = document.values.get(key_path, "").startswith("--set")
    return Path.cwd() if from_option else path.resolve().parent


def _read(
    text: str, folder: Path, kind: str, read: Callable[[Path], Mapping[str, Value]]
) -> tuple[Value, Path]:
    match = _FILE.fullmatch(text)
    assert match is not None  # noqa: S101  # `names_a_file`
    path = (folder / match["path"]).resolve()
    if not path.is_file():
        message = f"there is no file {shown(path)}"
        hint = "paths are relative to the scenario file's folder, with --set to the current one"
        raise InputError(message, hint=hint)
    entries = read(path)
    name = match["name"]
    if name is None:
        if len(entries) != 1:
            message = f"{shown(path)} has {len(entries)} {kind}s: {', '.join(entries)}"
            hint = f"name one: {match['path']}:{next(iter(entries), 'NAME')}"
            raise InputError(message, hint=hint)
        name = next(iter(entries))
    if name not in entries:
        raise InputError(f"{shown(path)} has no {kind} {name!r}", hint=did_you_mean(name, entries))
    return entries[name], path


def _device(section: Any) -> Device:
    if not isinstance(section, dict):
        return catalog.device(str(section))
    name = str(section.get("name"))
    return device_in(section["file"], name) if section.get("file") else catalog.device(name)


def _links(path: Path, transport: TransportName | None) -> Mapping[str, Link]:
    document = read_file(path, shown(path))
    catalog.inherit(document, "links", over, others=True)
    table = with_traces(_LinkTable, document, path)
    return {
        name: replace(section.build(path.name, transport), name=name)
        for name, section in table.links.items()
    }


def _devices(path: Path) -> Mapping[str, Device]:
    stamp = path.stat()
    return _cached_devices(path, stamp.st_mtime_ns, stamp.st_size)


@functools.lru_cache(maxsize=64)
def _cached_devices(path: Path, _changed: int, _size: int) -> Mapping[str, Device]:
    return catalog.read_devices(path, like_shipped=True)


def usual_bus(device: Device, devices: object, transport: object) -> str:
    """Return the usual link of `devices` in a node: between ranks on a CPU; the device's own
    between several GPUs with NCCL; else the PCIe of most GPUs, for copies to the host."""
    if device.processor == "cpu":
        return "host_memory"
    return (transport == "nccl" and devices != 1 and device.bus) or "pcie3_x16"


def _fill_in(cluster: dict[str, Any], nodes: dict[str, Any], device: Device) -> None:
    """Fill in the transport, if `nodes` is the cluster and no group, and the bus that an incomplete
    `intra_node` changes."""
    if nodes is cluster and cluster.get("collectives") is None:
        cluster["collectives"] = {}
    collectives, bus = cluster.get("collectives"), nodes.get("intra_node")
    transport = collectives.get("transport") if isinstance(collectives, dict) else None
    if nodes is cluster and isinstance(collectives, dict) and transport is None:
        transport = "gloo" if device.processor == "cpu" else "nccl"
        collectives["transport"] = transport
    if isinstance(bus, Mapping) and "like" not in bus:
        whole = "latency" in bus and {"bandwidth", "trace"} & {*bus}
        if not whole:
            usual = usual_bus(device, nodes.get("devices_per_node", 1), transport)
            nodes["intra_node"] = {"like": usual, **bus}
