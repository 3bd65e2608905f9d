"""What is this machine, and how busy is it with other things?"""

from __future__ import annotations

import platform
import time
from pathlib import Path

from gcsim.traces.stage1.machine import usable

_KINDS = 8
"""Of processor time."""


def cores() -> int:
    """That this process may use."""
    return len(usable())


def machine() -> str:
    """Processor, cores, kernel and torch, for people."""
    from gcsim.compressors.lazy_torch import torch
    from gcsim.scenarios.calibration.machine import processor

    return f"{processor()}, {cores()} cores, Linux {platform.release()}, torch {torch.__version__}"


def busy_share(seconds: float = 1.0) -> float | None:
    """Of this machine's processor time, what others use, in [0, 1]; None where nobody says."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def stolen() -> tuple[int, int] | None:
    """Since boot: processor time that the hypervisor gave to others, and all; None where nobody
    says. In ticks of all cores (proc(5), /proc/stat)."""
    counts = _counts()
    return None if counts is None else (counts[7], sum(counts))


def _ticks() -> tuple[int, int] | None:
    """Busy and all since boot."""
    counts = _counts()
    return None if counts is None else (sum(counts) - counts[3] - counts[4], sum(counts))


def _counts() -> list[int] | None:
    """Of all cores since boot: user, nice, system, idle, waiting, interrupts (2), stolen; guests
    are in the first two."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()
    except (OSError, IndexError):
        return None
    counts = [int(word) for word in first[1:9]]
    return counts if len(counts) == _KINDS else None
