"""Network namespaces, one per rank, connected by a switch with rate-limited ports.

    rank 0 [net0]──veth──[port0] ┐
    rank 1 [net0]──veth──[port1] ├ a bridge, in one more namespace
    rank 2 [net0]──veth──[port2] ┘

Sends are shaped at the rank's end (`net0`), receives at the switch's (`port`): full duplex.
Everything is inside the new namespaces: the machine's own interfaces, routes and settings stay
untouched, and addresses cannot clash. Names of namespaces contain their maker's process number and
start time. They are removed when the context ends, those of killed processes by the next maker.

`tc tbf` passes bytes at the rate, and a burst at once after an idle period. With segmentation
offload a frame has up to 64 KB, 5 ms of data at 100 Mbit/s, and an equal burst would let it pass at
each start. With only a smaller burst the kernel would segment frames in software, on the measured
processor. So frames are limited to about a millisecond, and the burst is one frame.

A frame is charged with its segments' Ethernet, IP and TCP headers: 66 bytes per 1448 of data (TCP
time stamps, MTU 1500), without the 24 bytes of preamble, checksum and gap of a real wire. The
receiver's acknowledgements use the same bucket: 66 bytes per frame (1.1 times at 100 Mbit/s, 1.3 at
50).
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

from gcsim.errors import InputError, Problem
from gcsim.signals import shielded, stoppable

NIC = "net0"  # network interface inside each rank's namespace
CONTROLS = ("cubic", "reno")
"""Congestion controls; the first that a namespace allows is used. Linux defaults to the first and
always allows the second; a model-based one (BBR) would itself shape traffic."""
MOST_RANKS = 64
_SECONDS = 20.0  # time limit of a command
_NAME = re.compile(r"gcsim-(\d+)-(\d+)-\d+-(?:\d+|switch)")
_counter = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Existing namespaces and their network."""

    ranks: tuple[str, ...]  # names of their namespaces
    shape: Shape
    control: str  # TCP's congestion control

    interface: ClassVar[str] = NIC

    @staticmethod
    def address(rank: int) -> str:
        """Return a rank's IPv4 address, without prefix length."""
        return f"10.91.0.{rank + 1}"

    def command(self, rank: int, command: Sequence[str]) -> list[str]:
        """Return a command that runs `command` in a rank's namespace, in the same process."""
        return ["ip", "netns", "exec", self.ranks[rank], *command]


def missing() -> list[Problem]:
    """Return the requirements that this machine evidently lacks."""
    if platform.system() != "Linux":
        return [
            Problem(
                message=f"network namespaces exist on Linux only; this is {platform.system()}",
                place="--live",
                hint="run it on Linux, or in a virtual machine with Linux",
            )
        ]
    problems = [
        Problem(
            message=f"there is no command {tool!r}",
            place="--live",
            hint="install iproute2 (it has ip and tc)",
        )
        for tool in ("ip", "tc")
        if shutil.which(tool) is None
    ]
    if os.geteuid() != 0:
        problems.append(
            Problem(
                message="network namespaces need root's rights",
                place="--live",
                hint="run it with sudo: everything is done in new namespaces, which are removed "
                "afterwards",
            )
        )
    return problems


@contextmanager
def network(ranks: int, rate: int) -> Iterator[Network]:
    """Make namespaces for `ranks` ranks on links of `rate` bits per second in each direction.
    Raises `InputError` if rights, tools or kernel modules are missing, after cleaning up. SIGTERM
    and SIGHUP leave the context as Ctrl-C does."""
    problems = missing()
    if problems:
        raise InputError(problems)
    if not 1 <= ranks <= MOST_RANKS:
        raise InputError(f"{ranks} ranks: 1 to {MOST_RANKS} are possible")
    remove_stale()
    prefix = f"gcsim-{os.getpid()}-{_started(os.getpid())}-{next(_counter)}"
    switch, names = f"{prefix}-switch", tuple(f"{prefix}-{rank}" for rank in range(ranks))
    shape = Shape.of(rate)
    with stoppable():
        try:
            _make_switch(switch)
            for rank, name in enumerate(names):
                _make_rank(name, rank, switch, shape)
            control = _pin_control(names)
            yield Network(ranks=names, shape=shape, control=control)
        finally:
            with shielded():
                _remove([*names, switch])


def remove_stale() -> list[str]:
    """Remove namespaces of dead processes; return their names."""
    stale = []
    for name in _names():
        match = _NAME.fullmatch(name)
        if match and _started(int(match[1])) != match[2]:
            stale.append(name)
    _remove(stale)
    return stale


def run(command: Sequence[str]) -> str:
    """Return the output of a command; raises `InputError` with its message if it fails. It runs in
    its own session, so that Ctrl-C does not interrupt it."""
    done = _call(command)
    if done.returncode:
        raise InputError(
            f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}",
            place="--live",
            hint="the kernel must have namespaces, veth, bridges and tbf, and a container the "
            "right to use them (capabilities NET_ADMIN and SYS_ADMIN)",
        )
    return done.stdout


def _call(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - no shell, no words of the user's
            command,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"`{' '.join(command)}` failed: {error}", place="--live") from error


def _make_switch(switch: str) -> None:
    run(["ip", "netns", "add", switch])
    _quiet(switch)
    run(["ip", "-n", switch, "link", "add", "bridge0", "type", "bridge"])
    run(["ip", "-n", switch, "link", "set", "bridge0", "up"])


def _make_rank(name: str, rank: int, switch: str, shape: Shape) -> None:
    port = f"port{rank}"
    run(["ip", "netns", "add", name])
    _quiet(name)
    link = ["link", "add", port, "type", "veth", "peer", "name", NIC, "netns", name]
    run(["ip", "-n", switch, *link])
    run(["ip", "-n", name, "addr", "add", f"{Network.address(rank)}/24", "dev", NIC])
    for where, interface in ((name, NIC), (switch, port)):
        run(["ip", "-n", where, "link", "set", interface, "gso_max_size", str(shape.frame)])
        run(["tc", "-n", where, "qdisc", "replace", "dev", interface, "root", *shape.options()])
    run(["ip", "-n", switch, "link", "set", port, "master", "bridge0", "up"])
    run(["ip", "-n", name, "link", "set", "lo", "up"])
    run(["ip", "-n", name, "link", "set", NIC, "up"])


def _quiet(name: str) -> None:
    """Disable IPv6, which sends unsolicited packets."""
    _set(name, "ipv6/conf/all/disable_ipv6", "1")


def _pin_control(names: Sequence[str]) -> str:
    for control in CONTROLS:
        if all(_set(name, "ipv4/tcp_congestion_control", control) for name in names):
            return control
    raise InputError(
        f"the kernel allows none of {', '.join(CONTROLS)} in a namespace", place="--live"
    )


def _set(name: str, key: str, value: str) -> bool:
    """Set a network parameter of a namespace; return whether it has the value."""
    script = 'echo "$1" > "$2" && read -r now < "$2" && [ "$now" = "$1" ]'
    shell = ["sh", "-c", script, "sh", value, f"/proc/sys/net/{key}"]
    return _call(["ip", "netns", "exec", name, *shell]).returncode == 0


def _remove(names: Sequence[str]) -> None:
    """Remove those of the namespaces that exist, with their interfaces."""
    there = _names() if names else set()
    failed: list[Problem] = []
    for name in names:
        if name in there:
            try:
                run(["ip", "netns", "delete", name])
            except InputError as error:
                failed += error.problems
    if failed:
        raise InputError(failed)


def _names() -> set[str]:
    return {line.split()[0] for line in run(["ip", "netns", "list"]).splitlines() if line.strip()}


def _started(process: int) -> str:
    """Start of a process, in ticks since boot, which tells processes of one number apart; "" if
    gone. (proc(5), /proc/pid/stat, field 22; the second may hold blanks and brackets.)"""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


SEGMENT = 1448  # bytes of data in a full segment
CHARGED = 1514  # bytes charged for it
_FEWEST, _MOST = 4, 44  # segments per frame: fewer interrupt too often, more are refused
_FRAME_SECONDS = Fraction(1, 1000)
_HEADERS = CHARGED - SEGMENT
_QUEUE_SECONDS = Fraction(1, 10)  # longest queue; further frames are dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Limits of a NIC in each direction."""

    rate: int  # bits per second, with headers
    segments: int  # segments in the longest frame

    @staticmethod
    def of(rate: int) -> Shape:
        """Return the shape for a rate in bits per second."""
        segments = round(rate * _FRAME_SECONDS / 8 / CHARGED)
        return Shape(rate=rate, segments=min(_MOST, max(_FEWEST, segments)))

    @property
    def frame(self) -> int:
        """Bytes of the longest frame with one copy of the headers (`gso_max_size`)."""
        return self.segments * SEGMENT + _HEADERS

    @property
    def burst(self) -> int:
        """Bytes charged for the longest frame."""
        return self.segments * CHARGED

    @property
    def queue(self) -> int:
        """Bytes that may queue at a NIC in addition to the burst."""
        return max(4 * self.burst, int(self.rate * _QUEUE_SECONDS / 8))

    @property
    def efficiency(self) -> Fraction:
        """Data over charged bytes, for a rank that sends and receives at full rate."""
        return Fraction(self.segments * SEGMENT, self.segments * CHARGED + _HEADERS)

    def options(self) -> list[str]:
        """Return the arguments of `tc qdisc replace dev ... root`."""
        return [
            "tbf", "rate", f"{self.rate}bit",
            "burst", str(self.burst), "limit", str(self.burst + self.queue),
        ]  # fmt: skip
