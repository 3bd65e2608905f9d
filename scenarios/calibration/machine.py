"""Names of this device and its software, for the title and the source of what is measured."""

from __future__ import annotations

import platform
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gcsim.compressors.lazy_torch import torch

_DRIVER = Path("/proc/driver/nvidia/version")


def title(kind: str) -> str:
    """Name of the "cpu" or "cuda" device, in a few words."""
    return f"{_name(kind)}, PyTorch {torch.__version__}"


def conditions(kind: str) -> str:
    """Under which everything is measured, as a sentence."""
    if kind == "cuda":
        return f"{_name(kind)}, {', '.join(versions())}, float32."
    one = torch.get_num_threads() == 1
    timing = ", CPU time" if one else ""
    return f"{_name(kind)}{timing}, torch {torch.__version__}, float32, freed memory is kept."


def versions() -> list[str]:
    """Versions of a GPU's software: its driver, CUDA, PyTorch, Triton; absent ones are left out."""
    found = {"driver": driver(), "CUDA": torch.version.cuda or "", "torch": torch.__version__}
    with suppress(PackageNotFoundError):
        found["Triton"] = version("triton")
    return [f"{name} {number}" for name, number in found.items() if number]


def driver(path: Path = _DRIVER) -> str:
    """The version of NVIDIA's driver; "" where Linux does not say."""
    with suppress(OSError):
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", path.read_text(encoding="utf-8"))
        return found[0] if found else ""
    return ""


def processor() -> str:
    """The CPU's name, as far as the system says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or platform.machine()


def _name(kind: str) -> str:
    if kind == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' * (threads > 1)}"
