"""How is a measured device stored? As YAML in the form of the catalogue's, to be read by it.

The file is a table `devices` with one entry. It is written whole or not at all.
"""

from __future__ import annotations

from pathlib import Path

from gcsim.files import write_text
from gcsim.scenarios.reading.values import text_of
from gcsim.simulator.devices.device import Device


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
    entry = text_of(device)
    entry = {"title": entry["title"], "source": entry["source"], **entry}
    text = yaml.dump(
        {"devices": {device.name: entry}},
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
    )
    comments = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    return f"{comments}\n{text}"
