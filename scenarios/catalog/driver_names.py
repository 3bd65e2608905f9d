"""Bus of a GPU by the name that its driver gives: `NVIDIA A100-SXM4-40GB` -> `nvlink3`.

A driver's name holds the words of the catalogue's name; "PCIe" and "NVL" tell a card from a module,
where both are made. Boards that the catalogue does not have are unknown.
"""

from __future__ import annotations

import re

from gcsim.scenarios import catalog

_FORM = re.compile(r"pcie|sxm\d*|\d+gb")
"""Words of a catalogue's name that tell boards of one chip apart."""
_CARD = {"pcie", "nvl"}


def bus_of(driver_name: str) -> str | None:
    """Name of the link between two such GPUs; None for an unknown one."""
    words = set(re.findall(r"[a-z0-9]+", driver_name.lower()))
    card = not words.isdisjoint(_CARD)
    found: list[tuple[int, bool, str]] = []
    for name, device in catalog.devices().items():
        own = name.split("_")
        chip = {word for word in own if not _FORM.fullmatch(word)}
        bus = device.bus or "pcie3_x16"
        if device.processor == "gpu" and chip <= words and not (card and bus.startswith("nvlink")):
            found.append((len(chip), ("pcie" in own) == card, bus))
    return max(found)[2] if found else None
