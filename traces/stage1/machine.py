"""Properties of this machine that a profile's bits depend on: threads, and kind of processor.

Sums over threads, and libraries' loops for different instruction sets, differ in the last bits, and
training and factorisations carry that into bytes and errors. A cached run does not load torch, so
the number of threads is determined without it, by torch's rule.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

_CHOSEN = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "NUMBA_CPU_NAME")
"""Environment variables that select the libraries' instructions."""
_KIND = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
_FEATURES = ("flags", "Features")
_VECTORS = ("sse", "ssse", "avx", "fma", "f16c", "amx", "asimd", "sve")
_all_cores: ContextVar[bool] = ContextVar("all cores", default=False)


def facts() -> dict[str, object]:
    """Facts about this process, as plain data."""
    chosen = {name: os.environ[name] for name in _CHOSEN if name in os.environ}
    return {"threads": threads(), "processor": processor(), **chosen}


def threads() -> int:
    """Return the number of torch's threads in this process, even before torch is loaded."""
    if _all_cores.get():
        return _cores()
    if "torch" in sys.modules:
        import torch

        return torch.get_num_threads()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        with suppress(KeyError, ValueError):
            told = int(os.environ[name].partition(",")[0])
            return max(1, min(_cores(range(os.cpu_count() or 1)), told))
    return _cores()


@contextmanager
def all_cores() -> Iterator[None]:
    """Context in which `threads` ignores the environment."""
    token = _all_cores.set(True)
    try:
        yield
    finally:
        _all_cores.reset(token)


def usable() -> list[int]:
    """Return the numbers of the processors that this process may use; all if the system has no such
    limit (macOS)."""
    allowed = getattr(os, "sched_getaffinity", None)
    return sorted(allowed(0)) if allowed else list(range(os.cpu_count() or 1))


def _cores(numbers: Iterable[int] = ()) -> int:
    """Count the physical cores of these processors, or of the usable ones: MKL counts two threads
    of a core as one."""
    siblings = set()
    for number in numbers or usable():
        topology = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        try:
            siblings.add(topology.read_text(encoding="ascii"))
        except OSError:
            siblings.add(str(number))
    return len(siblings)


def processor(path: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the processor's kind and its vector instructions."""
    try:
        first, _, _ = path.read_text(encoding="utf-8").partition("\n\n")
    except OSError:
        return [platform.machine(), platform.processor()]
    said = {
        key.strip(): value.strip()
        for key, _, value in (x.partition(":") for x in first.splitlines())
    }
    features = " ".join(said.get(name, "") for name in _FEATURES).split()
    vectors = sorted(name for name in features if name.startswith(_VECTORS))
    return [platform.machine(), *(said.get(name, "") for name in _KIND), *vectors]
