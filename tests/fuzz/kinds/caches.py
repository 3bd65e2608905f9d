"""Kept profiles and points of a sweep: damaged ones are made again, and results are the same."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

from tests.command import gcsim
from tests.fuzz.case import Kind, Try, write
from tests.fuzz.mutation import damaged
from tests.fuzz.small import written

_RUN = ("run", "s.yaml", "-o", "out", "-q")
_SWEEP = ("sweep", "s.yaml", "--grid", "cluster.nodes=[2,3]", "-o", "swept", "-q", "--jobs", "1")


def _make(rng: Random, one: Try) -> None:
    swept = rng.random() < 0.3
    folder = "swept" if swept else "cache"
    shutil.copytree(one.material / folder, one.folder / folder, symlinks=True)
    written(one.folder)
    kept = sorted(path for path in (one.folder / folder).rglob("*") if path.is_file())
    for path in rng.sample(kept, rng.choice((1, min(2, len(kept))))):
        act = rng.randrange(8)
        if act == 0:
            path.unlink()
            path.mkdir()
        elif act == 1:
            path.unlink()
            path.symlink_to("nowhere")
        else:
            write(path, damaged(rng, path.read_bytes()))
    original, one.material = one.material, one.folder  # the cache is the damaged one
    done = one.gcsim(*(_SWEEP if swept else _RUN))
    if done is None:
        return
    if done.returncode != 0:
        if not swept:
            one.found.append(f"a damaged cache is refused: {done.stderr.splitlines()[:1]}")
        return
    out = "swept" if swept else "out"
    if _figures(one.folder / out) != _figures(original / out):
        one.found.append(f"other results from a damaged {folder}")


def _figures(folder: Path) -> Any:
    document = json.loads((folder / "results.json").read_text())
    points = document.get("points", [document])
    return [point["rows"] for point in points]


def _prepare(folder: Path) -> None:
    written(folder)
    for arguments in (_RUN, _SWEEP):
        done = gcsim(*arguments, folder=folder, GCSIM_CACHE_DIR=str(folder / "cache"))
        assert done.returncode == 0, done.stderr


CACHES = Kind(name="caches", make=_make, prepare=_prepare, one_in=10)
