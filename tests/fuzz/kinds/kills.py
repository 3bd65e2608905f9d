"""Runs that are killed at any moment: the next one gives the same results and clears the rest."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

from tests.command import as_a_user
from tests.fuzz.case import Kind, Try, leftovers
from tests.fuzz.small import written

_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_RUN = ("run", "s.yaml", "-q", "-o", "out")
_LATEST = 7.0
"""Seconds after the start."""


def _make(rng: Random, one: Try) -> None:
    cache = one.folder / "cache"
    shutil.copytree(one.material / "cache" / "loops", cache / "loops")
    _scenario(one.folder)
    for _ in range(rng.choice((1, 2))):
        _killed(one, cache, rng.choice(_SIGNALS), rng.uniform(0.1, _LATEST))
    done = one.process(*_RUN, cache=cache)
    if done is None:
        return
    if done.returncode != 0:
        one.found.append(f"after a kill: exit {done.returncode}: {done.stderr[:200]}")
        return
    one.look_at(one.folder / "out")
    if _rows(one.folder / "out") != _rows(one.material / "out"):
        one.found.append("other results after a kill")
    for place in (cache, one.folder):  # the folder is that of temporary files, too
        one.found += [f"left behind after the next run: {name}" for name in leftovers(place)]


def _killed(one: Try, cache: Path, number: signal.Signals, after: float) -> None:
    environment = as_a_user(cache) | {"TMPDIR": str(one.folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gcsim", *_RUN]
    with subprocess.Popen(
        command, cwd=one.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            process.communicate(timeout=after)
            return  # it was done before
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        try:
            _, said = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            one.found.append(f"hang: {number.name} does not end it")
            return
    if b"Traceback" in said:
        one.found.append(f"raw traceback after {number.name}: {said.decode()[-200:]}")
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) and process.returncode not in (
        130, 0, -number,
    ):  # fmt: skip
        one.found.append(f"{number.name}: exit {process.returncode}")


def _scenario(folder: Path) -> None:
    live = {"source": "live", "workers": 2, "iterations": 1, "warmup_steps": 1}
    written(folder, gradients=live)


def _rows(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())["rows"]


def _prepare(folder: Path) -> None:
    _scenario(folder)
    one = Try(folder=folder, material=folder)
    done = one.process(*_RUN, cache=folder / "cache")
    assert done is not None, one.found
    assert done.returncode == 0, done.stderr


KILLS = Kind(name="kills", make=_make, prepare=_prepare, one_in=100)
