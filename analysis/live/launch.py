"""Start, watch and end of ranks: a process each, of a round's tasks; bounded in time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gcsim import version
from gcsim.analysis.live.plan import Round, as_json
from gcsim.errors import InputError
from gcsim.files import temporary_folder

if TYPE_CHECKING:
    from gcsim.analysis.live.namespaces import Network

_POLL = 0.05
_STORE_PORT = 29400  # free in a namespace of its own


class Loopback:
    """This machine itself as a place for ranks: no limits, no rights needed."""

    interface = "lo"

    def address(self, rank: int) -> str:
        """The same for all."""
        return "127.0.0.1"

    def command(self, rank: int, command: Sequence[str]) -> list[str]:
        """The command, unchanged."""
        return list(command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Measured seconds of a task."""

    seconds: tuple[float, ...]
    """Collective: each repeat from the announced start to the last rank's end; training: each step,
    from one last end to the next."""
    replicas_agree: bool = True  # training: all ranks end with equal parameters, bit for bit


def run_tasks(
    place: Loopback | Network,
    one: Round,
    *,
    batch: int,
    seed: int,
    seconds: float,
    advance: Callable[[int], None] = lambda number: None,
) -> list[list[dict[str, Any]]]:
    """Run a round's tasks on its ranks; return their outputs by task and rank. `advance` gets the
    number of each finished task. After `seconds` everything is ended. Raises `InputError` with a
    failed rank's last words, or when time is over; no rank is left then."""
    with temporary_folder("gcsim-live-") as folder:
        plan = folder / "plan.json"
        plan.write_text(as_json(one, batch=batch, seed=seed), encoding="utf-8")
        port = _STORE_PORT if place.interface != "lo" else _free_port()
        ranks: list[_Rank] = []
        try:
            for rank in range(one.ranks):
                command = [
                    sys.executable, "-P", "-m", "gcsim.analysis.live.ranks",
                    "--rank", str(rank), "--world", str(one.ranks),
                    "--store", f"{place.address(0)}:{port}", "--plan", str(plan),
                    "--results", str(folder / f"results{rank}.json"),
                    "--seconds", str(int(seconds) + 1), "--parent", str(os.getpid()),
                ]  # fmt: skip
                log = folder / f"log{rank}"
                ranks.append(_Rank(place.command(rank, command), environment(place.interface), log))
            _watch(ranks, one, time.monotonic() + seconds, advance)
        finally:
            for started in ranks:
                started.end()
        found = [
            json.loads((folder / f"results{rank}.json").read_text(encoding="utf-8"))
            for rank in range(one.ranks)
        ]
    return [list(of_ranks) for of_ranks in zip(*found, strict=True)]


def environment(interface: str) -> dict[str, str]:
    """Environment of a rank: one thread, Gloo on that interface, nothing of another launcher's,
    above all LOCAL_WORLD_SIZE, with which torch would take the ranks for one machine's."""
    left_out = {"LOCAL_WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "RANK", "WORLD_SIZE"}
    kept = {key: value for key, value in os.environ.items() if key not in left_out}
    here = str(Path(version.__file__).resolve().parent.parent)
    paths = [here, *filter(None, [kept.get("PYTHONPATH", "")])]
    return kept | {
        "GLOO_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }


class _Rank:
    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._out: IO[str] = log.with_suffix(".out").open("w+", encoding="utf-8")
        with log.open("w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(  # noqa: S603 - no shell, no words of the user's
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the one that started it
            )

    def lines(self) -> int:
        """Number of printed lines."""
        with self._log.with_suffix(".out").open(encoding="utf-8") as out:
            return sum(line.endswith("\n") for line in out)

    def last_words(self) -> str:
        """End of its error output."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self.process.returncode}"

    def end(self) -> None:
        """End it at once, if alive."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._out.close()


def _watch(
    ranks: Sequence[_Rank], one: Round, until: float, advance: Callable[[int], None]
) -> None:
    done = 0
    while True:
        states = [started.process.poll() for started in ranks]
        while done < min(len(one.tasks), ranks[0].lines()):
            advance(done)
            done += 1
        failed = [rank for rank, state in enumerate(states) if state not in (None, 0)]
        if failed:
            raise InputError(
                f"rank {failed[0]} failed: {ranks[failed[0]].last_words()}", place=one.name
            )
        if all(state == 0 for state in states):
            return
        if time.monotonic() > until:
            raise InputError(
                f"not done in time; task {done + 1} of {len(one.tasks)} was under way",
                place=one.name,
                hint="is the machine busy with something else?",
            )
        time.sleep(_POLL)


def times_of(of_ranks: Sequence[Mapping[str, Any]]) -> Times:
    """Times of a task, from its ranks' files."""
    starts = of_ranks[0]["starts"]
    ends = [max(ends) for ends in zip(*(one["ends"] for one in of_ranks), strict=True)]
    if len(starts) == 1 < len(ends):  # steps, one after the other
        starts = [starts[0], *ends[:-1]]
    return Times(
        seconds=tuple(end - start for start, end in zip(starts, ends, strict=True)),
        replicas_agree=all(one.get("replicas", True) for one in of_ranks),
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
