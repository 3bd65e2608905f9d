"""Launch of a round's ranks, a process each: start, supervision with a time limit, and end."""

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
from gcsim.analysis.live.plan import RANK_PLAN, RankPlan, Round
from gcsim.errors import InputError
from gcsim.files import temporary_folder

if TYPE_CHECKING:
    from gcsim.analysis.live.namespaces import Network

_POLL = 0.05
_STORE_PORT = 29400  # always free in a separate namespace


class Loopback:
    """This machine as the place of ranks: no limits, and no rights needed."""

    interface = "lo"

    def address(self, rank: int) -> str:
        """Return the address of a rank, here the same for all."""
        return "127.0.0.1"

    def command(self, rank: int, command: Sequence[str]) -> list[str]:
        """Return the command unchanged."""
        return list(command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Measured seconds of a task."""

    seconds: tuple[float, ...]
    """Per repeat of a collective: from the announced start until the last rank ends. Per training
    step: from the last rank's end of one step to the next."""
    replicas_agree: bool = True  # whether all ranks end with bitwise equal parameters


def run_tasks(
    place: Loopback | Network,
    one: Round,
    *,
    batch: int,
    seed: int,
    seconds: float,
    advance: Callable[[int], None] = lambda number: None,
) -> list[list[dict[str, Any]]]:
    """Run a round's tasks on its ranks and return their outputs by task and rank. `advance` is
    called with the number of each finished task. After `seconds` all ranks are killed. Raises
    `InputError` with a failed rank's last error line, or on timeout; no rank remains then."""
    with temporary_folder("gcsim-live-") as folder:
        plan = folder / "plan.json"
        own = RankPlan(tasks=one.tasks, batch=batch, seed=seed)
        plan.write_bytes(RANK_PLAN.dump_json(own))
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
    """Return the environment of a rank: one thread, Gloo on this interface, no variables of other
    launchers. With their LOCAL_WORLD_SIZE, torch would place all ranks on one machine."""
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
                start_new_session=True,  # Ctrl-C is for the parent
            )

    def lines(self) -> int:
        """Return the number of complete lines it printed."""
        with self._log.with_suffix(".out").open(encoding="utf-8") as out:
            return sum(line.endswith("\n") for line in out)

    def last_words(self) -> str:
        """Return the last line of its error output."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self.process.returncode}"

    def end(self) -> None:
        """Kill it if it is alive."""
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
    """Return the times of a task from its ranks' files."""
    starts = of_ranks[0]["starts"]
    ends = [max(ends) for ends in zip(*(one["ends"] for one in of_ranks), strict=True)]
    if len(starts) == 1 < len(ends):  # consecutive steps
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
