"""`gcsim` without a process of its own: a test that asks nothing of the process saves its start."""

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gcsim.cli.app import _command, _main, app

Finished = subprocess.CompletedProcess[str]
_SHOWS = ("GCSIM_DEBUG", "COLUMNS")


def gcsim(*arguments: object, folder: Path, **variables: str) -> Finished:
    """As `advised`, but that a run seeks no advice."""
    with pytest.MonkeyPatch.context() as patch:
        if arguments[:1] == ("run",):
            advise_nothing(patch)
        return advised(*arguments, folder=folder, **variables)


def advised(*arguments: object, folder: Path, **variables: str) -> Finished:
    """What `gcsim ARGUMENTS` leaves behind in `folder`, where a run draws no figures; the user's
    modules are read afresh."""
    given = [str(argument) for argument in arguments]
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    loaded = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setattr("tempfile.tempdir", None)  # so that TMPDIR counts
        patch.setattr(sys, "dont_write_bytecode", True)  # a change within a second must be seen
        for name in _SHOWS:
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        for name, stream in zip(("stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        draw_none(patch)
        code = _main(given)
    for name in set(sys.modules) - loaded:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(folder):
            del sys.modules[name]
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return subprocess.CompletedProcess(given, code, out, err)


def invoked(arguments: Sequence[str], *, pictures: bool = False, **options: Any) -> Result:
    """What typer's `CliRunner` makes of the arguments; it would build all commands each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", lambda _: _command())
        if not pictures:
            draw_none(patch)
        return CliRunner().invoke(app, list(arguments), **options)


def draw_none(patch: pytest.MonkeyPatch) -> None:
    """Let runs draw no figures, which take a second each; the main job's are drawn."""
    patch.setattr("gcsim.analysis.write.FIGURES", {})


def advise_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let runs seek no break-evens, changes and limits, and keep none: that takes seconds."""
    patch.setattr("gcsim.analysis.advice.advice._findings", lambda *_: None)
    patch.setattr("gcsim.scenarios.running.result_cache.findings", lambda *_: None)


def as_a_user(cache: Path) -> dict[str, str]:
    """The environment of a process with a cache of its own, and all cores (see `conftest.py`)."""
    own = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", *_SHOWS)}
    return {**own, "GCSIM_CACHE_DIR": str(cache)}
