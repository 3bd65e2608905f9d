"""What is one try of a fuzzer, and what of its end is a finding?

A try has a folder of its own, runs commands there and keeps what they did wrong: an exit code that
is not of a person's making (3), a raw traceback, refusals without a word, more than `SLOW` seconds
of processor time, figures that are NaN, infinite or negative, temporary files that stay.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.command import Finished, as_a_user, gcsim

SLOW = 30.0
"""Seconds of processor time for one command."""
PATIENCE = 600.0
"""Seconds on the clock for one try: on a machine that is busy with other work a try of a minute of
processor time takes as long."""
_ENDS = {0, 1, 2}
_REPORT = re.compile(r" fails \d+ of \d+ checks")
"""What `gcsim check MODULE:CLASS` prints, on stdout, of a method that is not what it says."""
_SIGNED = {"cosine_similarity"}
"""Keys of results whose figures may be below zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of input. `make` tries one; `prepare` leaves what all tries start from."""

    name: str
    make: Callable[[Random, Try], None]
    prepare: Callable[[Path], None] = lambda folder: None
    one_in: int = 1
    """Tries for so many of `COUNT`: more where each starts processes."""


@dataclass(slots=True)
class Try:
    """One try: where its files lie, and what was found."""

    folder: Path
    material: Path
    """What `prepare` left."""
    found: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    """Command and exit code of each command that was run."""

    def gcsim(self, *arguments: object) -> Finished | None:
        """Run a command in this process; None after a finding."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        before = len(self.found)
        started = time.process_time()
        done: Finished | None = None
        try:
            done = gcsim(
                *arguments,
                folder=self.folder,
                GCSIM_DEBUG="1",
                GCSIM_CACHE_DIR=str(self.material / "cache"),
                TMPDIR=str(temporary),
            )
        except BaseException as error:  # the fuzzer must survive what the product lets through
            if isinstance(error, KeyboardInterrupt):
                raise
            self.found.append(f"raw traceback: {_last(traceback.format_exc())}")
        else:
            self._judge(arguments[0], done)
        taken = time.process_time() - started
        if taken > SLOW:
            self.found.append(f"slow: more than {SLOW:g} s of processor time: {arguments[0]}")
        self.found += [f"left behind: {name}" for name in leftovers(temporary)]
        return done if len(self.found) == before else None

    def process(
        self, *arguments: object, cache: Path | None = None, seconds: float = PATIENCE / 2
    ) -> Finished | None:
        """The same in a process of its own."""
        given = [str(argument) for argument in arguments]
        environment = as_a_user(cache or self.material / "cache")
        environment |= {"GCSIM_DEBUG": "1", "TMPDIR": str(self.folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "gcsim", *given]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, timeout=seconds,
                check=False, text=True, errors="backslashreplace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            self.found.append(f"hang: more than {seconds:g} s: {given[0]}")
            return None
        before = len(self.found)
        self._judge(given[0], done)
        return done if len(self.found) == before else None

    def run(self, *arguments: object) -> Finished | None:
        """`gcsim run` into `out`, its figures looked at."""
        done = self.gcsim("run", *arguments, "-o", "out", "-q")
        if done is not None and done.returncode == 0:
            self.look_at(self.folder / "out")
        return done

    def look_at(self, output: Path) -> None:
        """Find what is no figure in the results, and what was not cleared."""
        document = json.loads((output / "results.json").read_text(encoding="utf-8"))
        self.found += [f"figure: {where}" for where in wrong_figures(document["rows"])]
        timeline = json.loads((output / "timeline.json").read_text(encoding="utf-8"))
        self.found += [
            f"timeline: {key} is {event[key]}"
            for event in timeline["traceEvents"]
            for key in ("ts", "dur")
            if key in event and not 0 <= event[key] < math.inf
        ][:1]
        self.found += [f"left behind: {name}" for name in leftovers(output)]

    def _judge(self, command: object, done: Finished) -> None:
        self.ends.append(f"{command} {done.returncode}")
        if done.returncode == 3 or "Traceback (most recent call last)" in done.stderr:
            self.found.append(f"exit {done.returncode}: {_last(done.stderr)}")
        elif done.returncode not in _ENDS:
            self.found.append(f"exit {done.returncode}")
        elif done.returncode == 2 and not ("error: " in done.stderr or _REPORT.search(done.stdout)):
            self.found.append("refused without a word")
        elif "error: error:" in done.stderr:
            self.found.append("error: error:")


def _last(text: str) -> str:
    """The exception of a traceback and the last line of gcsim's in it."""
    frames = re.findall(r'File "([^"]*)", line (\d+)', text)
    own = [(file, line) for file, line in frames if "/site-packages/" not in file]
    place = own or frames
    raised = re.findall(r"^[\w.]*(?:Error|Exception|Exit|Interrupt|Iteration)\b.*$", text, re.M)
    short = os.path.relpath(place[-1][0]) + ":" + place[-1][1] if place else "?"
    return f"{short}: {(raised or [text.strip()[-200:]])[-1][:200]}"


def wrong_figures(node: Any, key: str = "") -> Iterator[str]:
    """Where figures are NaN, infinite or negative."""
    if isinstance(node, dict):
        for name, below in node.items():
            yield from wrong_figures(below, name)
    elif isinstance(node, list):
        for below in node:
            yield from wrong_figures(below, key)
    elif isinstance(node, int | float) and not isinstance(node, bool):
        least = -math.inf if key in _SIGNED else 0
        if not math.isfinite(node) or node < least:
            yield f"{key} is {node}"


def leftovers(folder: Path) -> list[str]:
    """Temporary files and folders that a command has left."""
    if not folder.exists():
        return []
    return sorted(
        re.sub(r"(?<=[.-])\w{8}\b", "*", path.name)
        for path in folder.iterdir()
        if path.name.startswith((".", "gradients-", "gcsim-"))
    )


def tried(kind: Kind, seed: int, number: int, folder: Path, material: Path) -> Try:
    """One try, by its three coordinates."""
    one = Try(folder=folder, material=material)
    folder.mkdir(parents=True)
    kind.make(Random(f"{kind.name} {seed} {number}"), one)
    return one


def choose(rng: Random, share: float) -> bool:
    """Whether to do what only a share of the tries does."""
    return rng.random() < share


def write(path: Path, content: bytes | str) -> Path:
    """Write a file; text with lone surrogates, too."""
    path.write_bytes(
        content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    )
    return path
