"""Names of this device and its software, for titles and sources of measurements."""

from __future__ import annotations

import platform
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gcsim.compressors.lazy_torch import torch
from gcsim.scenarios.catalog import this_machine

_DRIVER = Path("/proc/driver/nvidia/version")


def title(kind: str) -> str:
    """Return a short name of the "cpu" or "cuda" device."""
    return f"{_name(kind)}, PyTorch {torch.__version__}"


def conditions(kind: str) -> str:
    """Return the conditions of measurement as a sentence."""
    if kind == "cuda":
        return f"{_name(kind)}, {', '.join(versions())}, float32."
    one = torch.get_num_threads() == 1
    timing = ", CPU time" if one else ""
    return f"{_name(kind)}{timing}, torch {torch.__version__}, float32, freed memory kept."


def versions() -> list[str]:
    """Return the versions of a GPU's driver, CUDA, PyTorch and Triton, if present."""
    found = {"driver": driver(), "CUDA": torch.version.cuda or "", "torch": torch.__version__}
    with suppress(PackageNotFoundError):
        found["Triton"] = version("triton")
    return [f"{name} {number}" for name, number in found.items() if number]


def driver(path: Path = _DRIVER) -> str:
    """Return the version of NVIDIA's driver; "" without one."""
    with suppress(OSError):
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", path.read_text(encoding="utf-8"))
        return found[0] if found else ""
    return ""


def processor() -> str:
    """Return the CPU's name, if known."""
    return this_machine.processor() or platform.processor() or platform.machine()


def _name(kind: str) -> str:
    if kind == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' * (threads > 1)}"
