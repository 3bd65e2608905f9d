"""What does SimGrid say? Runs MPI collectives in SMPI, where it is installed.

Model: CM02 without cross-traffic: a message takes latency + bytes / bandwidth, flows that meet
share fairly. Computation costs nothing. The network is a full-duplex star of hosts, and sends are
buffered; or hosts share NICs and racks (`Shared`), and a rank waits for what it sends.

Source: Casanova, Giersch, Legrand, Quinson and Suter 2014 (J. Parallel Distrib. Comput. 74(10)),
"Versatile, scalable, and accurate simulation of distributed applications and platforms".
"""

import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
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
_ROUTED = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="shared" routing="Full">
{parts}
  </zone>
</platform>
"""
SHORT_LATENCY_S = 2e-8
"""Of any path of a shared network. SMPI's senders wait until what they sent has arrived, ours until
it has left; and its flows share by the latencies of their paths, so that these are equal."""
_WAITING = (
    "smpi/send-is-detached-thresh:0",
    "smpi/async-small-thresh:0",
    # All shares at each event: its lazy updates, the default, are up to 0.6 % off here.
    "network/optim:Full",
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Hosts, one rank each, that share one NIC a node, and the uplinks of racks."""

    devices: int
    """Ranks a node."""
    card_bit_per_s: int
    bus_bit_per_s: int
    """Into a rank, from another of its node."""
    rack: int
    """Nodes a rack."""
    uplink_bit_per_s: int

    def platform(self, ranks: int) -> str:
        """As SimGrid reads it."""
        return _ROUTED.format(parts="\n".join(self._parts(ranks)))

    def _parts(self, ranks: int) -> Iterator[str]:
        nodes = ranks // self.devices
        nic, bus, uplink = self.card_bit_per_s, self.bus_bit_per_s, self.uplink_bit_per_s
        links = {f"NIC{node}": (nic, SHORT_LATENCY_S / 2) for node in range(nodes)}
        links |= {f"bus{rank}": (bus, SHORT_LATENCY_S) for rank in range(ranks)}
        links |= {f"rack{rack}": (uplink, 0.0) for rack in range(-(-nodes // self.rack))}
        for rank in range(ranks):
            yield f'<host id="host{rank}" speed="1Gf"/>'
        for name, (rate, latency) in links.items():
            for way in ("out", "in"):
                yield f'<link id="{name}{way}" bandwidth="{rate}bps" latency="{latency}s"/>'
        for a in range(ranks):
            for b in range(ranks):
                if a != b:
                    crossed = "".join(f'<link_ctn id="{link}"/>' for link in self._route(a, b))
                    ends = f'src="host{a}" dst="host{b}"'
                    yield f'<route {ends} symmetrical="NO">{crossed}</route>'

    def _route(self, a: int, b: int) -> list[str]:
        out, into = a // self.devices, b // self.devices
        if out == into:
            return [f"bus{b}in"]
        leaves, reaches = out // self.rack, into // self.rack
        between = [] if leaves == reaches else [f"rack{leaves}out", f"rack{reaches}in"]
        return [f"NIC{out}out", *between, f"NIC{into}in"]


def simulate(
    program: Path,
    operation: str,
    sizes: Sequence[int],
    *settings: str,
    enters_us: Sequence[int] = (),
    shared: Shared | None = None,
    timeout: float = 300,
) -> Outcome:
    """Run an operation with `sizes[r]` bytes of rank r; `settings` are SimGrid's NAME:VALUE.

    `enters_us`: microseconds after the common start at which each rank enters an exchange;
    `shared`: the network, where it is not a star.
    """
    folder, ranks = program.parent, len(sizes)
    (folder / "sizes").write_text(" ".join(map(str, sizes)))
    (folder / "hosts").write_text("".join(f"host{rank}\n" for rank in range(ranks)))
    platform = folder / "platform.xml"
    star = _PLATFORM.format(last=ranks - 1, bandwidth=BANDWIDTH_BIT_PER_S, latency=LATENCY_S / 2)
    platform.write_text(star if shared is None else shared.platform(ranks))
    files = [folder / "sizes"]
    if enters_us:
        files.append(folder / "enters")
        files[-1].write_text(" ".join(map(str, enters_us)))
    waiting = _WAITING if shared is not None else ()
    before = _children_cpu_s()
    run = subprocess.run(
        [
            *("smpirun", "-np", str(ranks), "-platform", platform, "-hostfile", folder / "hosts"),
            *(f"--cfg={setting}" for setting in (*_SETTINGS, *waiting, *settings)),
            program,
            operation,
            *files,
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
