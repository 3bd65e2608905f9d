"""What does SimGrid say? Runs MPI collectives in SMPI, where it is installed.

Model: CM02 without cross-traffic, a full-duplex star: a message takes latency + bytes / bandwidth,
flows that meet share fairly. Computation costs nothing, sends are buffered.

Source: Casanova, Giersch, Legrand, Quinson and Suter 2014 (J. Parallel Distrib. Comput. 74(10)),
"Versatile, scalable, and accurate simulation of distributed applications and platforms".
"""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MISSING = "SimGrid is not installed (Debian: apt-get install libsimgrid-dev)"
BANDWIDTH_BIT_PER_S = 10 * 10**9
LATENCY_S = 50e-6
"""Of a path between two hosts: two links of half as much each."""

_PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="star" prefix="host" suffix="" radical="0-{last}" speed="1Gf"
           bw="{bandwidth}bps" lat="{latency}s"/>
</platform>
"""
_SETTINGS = (
    "network/model:CM02",
    "network/crosstraffic:0",
    "smpi/simulate-computation:no",
    "smpi/send-is-detached-thresh:1000000000",
)


def installed() -> bool:
    """Whether SMPI's compiler and launcher are on the path."""
    return shutil.which("smpicc") is not None and shutil.which("smpirun") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What SMPI printed."""

    ends_s: tuple[float, ...]
    """By rank, from the common start."""
    arrivals_s: tuple[float, ...]
    """Star: by sender from rank 1 on."""
    cpu_s: float
    """Processor time of the simulator's process."""


def compiled(folder: Path) -> Path:
    """The program, compiled into `folder`."""
    program = folder / "collectives"
    source = Path(__file__).with_name("collectives.c")
    subprocess.run(["smpicc", "-O1", source, "-o", program], check=True, timeout=120)
    return program


def simulate(
    program: Path, operation: str, sizes: Sequence[int], *settings: str, timeout: float = 300
) -> Outcome:
    """Run an operation with `sizes[r]` bytes of rank r; `settings` are SimGrid's NAME:VALUE."""
    folder, ranks = program.parent, len(sizes)
    (folder / "sizes").write_text(" ".join(map(str, sizes)))
    (folder / "hosts").write_text("".join(f"host{rank}\n" for rank in range(ranks)))
    platform = folder / "platform.xml"
    platform.write_text(
        _PLATFORM.format(last=ranks - 1, bandwidth=BANDWIDTH_BIT_PER_S, latency=LATENCY_S / 2)
    )
    before = _children_cpu_s()
    run = subprocess.run(
        [
            *("smpirun", "-np", str(ranks), "-platform", platform, "-hostfile", folder / "hosts"),
            *(f"--cfg={setting}" for setting in (*_SETTINGS, *settings)),
            *(program, operation, folder / "sizes"),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=folder,
    )
    ends: dict[int, float] = {}
    arrivals: dict[int, float] = {}
    for line in run.stdout.splitlines():
        match line.split():
            case ["rank", rank, _, end]:
                ends[int(rank)] = float(end)
            case ["arrival", rank, end]:
                arrivals[int(rank)] = float(end)
    if sorted(ends) != list(range(ranks)):
        raise RuntimeError(f"SMPI's output has {len(ends)} of {ranks} ranks:\n{run.stdout}")
    return Outcome(
        ends_s=tuple(ends[rank] for rank in range(ranks)),
        arrivals_s=tuple(arrivals[rank] for rank in sorted(arrivals)),
        cpu_s=_children_cpu_s() - before,
    )


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
