"""Results of runs and sweeps, and a hook's measurement, changed as JSON or as bytes."""

import json
from functools import cache
from pathlib import Path
from random import Random

from gcsim.compressors.ddp.measured import Measured, MeasuredBucket
from tests.command import gcsim
from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.mutation import as_json, damaged, tree
from tests.fuzz.small import written

_RUNS = ("out", "other")


def _compare(rng: Random, one: Try) -> None:
    for name in _RUNS:
        _changed(rng, one, name, share=0.5)
    names = list(_RUNS)
    if choose(rng, 0.4):
        text = (one.material / "hook.json").read_bytes()
        changed = as_json(tree(rng, json.loads(text))) if choose(rng, 0.7) else damaged(rng, text)
        write(one.folder / "hook.json", changed if choose(rng, 0.7) else text)
        names = [*rng.sample(names, rng.choice((1, 2))), "hook.json"]
    one.gcsim("compare", *names)


def _plot(rng: Random, one: Try) -> None:
    name = rng.choice(("out", "swept"))
    _changed(rng, one, name, share=0.9)
    one.gcsim("plot", name, "--format", rng.choice(("svg", "svg", "png", "pdf")), "-q", "-o", "p")


def _changed(rng: Random, one: Try, name: str, share: float) -> None:
    """The results of a run or a sweep, changed in a `share` of cases."""
    text = _text(one.material / name / "results.json")
    if choose(rng, share):
        body = tree(rng, json.loads(text))
        content = as_json(body) if choose(rng, 0.8) else damaged(rng, text.encode())
    else:
        content = text.encode()
    (one.folder / name).mkdir()
    write(one.folder / name / "results.json", content)


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _prepare(folder: Path) -> None:
    written(folder)
    for arguments in (
        ("run", "s.yaml", "-o", "out", "-q"),
        ("run", "s.yaml", "-o", "other", "-q", "--set", "cluster.network=10gbe"),
        ("sweep", "s.yaml", "--grid", "cluster.nodes=[2,3]", "-o", "swept", "-q", "--jobs", "1"),
    ):
        done = gcsim(*arguments, folder=folder, GCSIM_CACHE_DIR=str(folder / "cache"))
        assert done.returncode == 0, done.stderr
    bucket = MeasuredBucket(elements=61706, sent_bytes=5000.0, computed_s=1e-3, exchanged_s=2e-3)
    Measured(
        compressor="topk", parameters={"ratio": 0.01}, other_buckets={}, workers=2, rank=0, steps=8,
        iteration_s=0.02, buckets=[bucket],
    ).write(folder / "hook.json")  # fmt: skip


COMPARE = Kind(name="compare", make=_compare, prepare=_prepare)
PLOT = Kind(name="plot", make=_plot, prepare=_prepare)
