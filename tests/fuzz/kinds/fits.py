"""Fits of gradients: JSON with other values."""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.command import gcsim
from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.mutation import as_json, damaged, tree
from tests.fuzz.small import recorded, written

_RUN = 0.1


def _make(rng: Random, one: Try) -> None:
    content = as_json(tree(rng, _fit(one.material / "fit.json")))
    write(one.folder / "fit.json", damaged(rng, content) if choose(rng, 0.1) else content)
    source = {"source": "synthetic", "workers": 2, "iterations": 1, "fit": "fit.json"}
    written(one.folder, gradients=source)
    done = one.gcsim("check", "s.yaml")
    if done is not None and done.returncode == 0 and choose(rng, _RUN):
        one.run("s.yaml", "--no-cache")


@cache
def _fit(path: Path) -> Any:
    return json.loads(path.read_text())


def _prepare(folder: Path) -> None:
    trace = recorded(folder)
    done = gcsim("fit", trace, "-o", "fit.json", folder=folder)
    assert done.returncode == 0, done.stderr


FITS = Kind(name="fits", make=_make, prepare=_prepare)
