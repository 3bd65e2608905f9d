"""This machine: the catalogue entry of its GPU, else of its processor, and its free memory."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from pathlib import Path

from gcsim.errors import InputError
from gcsim.scenarios import catalog

AUTO = "auto"  # word for this machine's device
_NAMES = re.compile(rf"{AUTO}|cuda(:\d+)?|mps", re.IGNORECASE)
_LOG = logging.getLogger(__name__)
_BOARD, _PROCESSOR = Path("/proc/device-tree/model"), Path("/proc/cpuinfo")


def device_named(word: str) -> str:
    """Return the catalogue entry for a word, which may be `AUTO`; raises `InputError`."""
    return this_device() if means_this_device(word) else catalog.device(word).name


def means_this_device(word: object) -> bool:
    """Return whether a word stands for this machine's device."""
    return isinstance(word, str) and _NAMES.fullmatch(word) is not None


def this_device() -> str:
    """Return the entry of this machine's GPU by torch.cuda's name, else of its board or processor
    by Linux's; raises `InputError` if the catalogue has none."""
    import torch

    gpu = torch.cuda.is_available()
    called = torch.cuda.get_device_name() if gpu else _processor()
    try:
        found = catalog.device(called).name
    except InputError as error:
        what = "GPU" if gpu else "processor"
        raise InputError(
            f"the {what} of this machine, {called!r}, is not in the catalogue",
            hint="measure it: gcsim calibrate device -o my_device.yaml; then --device "
            "my_device.yaml",
        ) from error
    if not gpu:
        _LOG.warning("note: no GPU found; the device is %s, by %r", found, called)
    return found


def _processor() -> str:
    if _BOARD.is_file():
        return _BOARD.read_text(encoding="utf-8", errors="replace").strip("\0\n ")
    return processor() or "unknown"


def processor() -> str:
    """Return the CPU's name by Linux; "" if unknown."""
    lines = _PROCESSOR.read_text(encoding="utf-8").splitlines() if _PROCESSOR.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "")


def free_memory() -> int:
    """Return the free bytes of the machine, within the container's limit."""
    free = [1 << 62]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(1024 * next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable:")))
    group = Path("/sys/fs/cgroup")
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" means no limit
            free.append(int((group / limit).read_text()))
    return min(free)
