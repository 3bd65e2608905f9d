"""Logs of measured collectives and hosts, of all formats, and the links that come of them.

A JSON file is changed as text or as a tree. Some tries bring two files.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random

from gcsim.analysis.calibration.measurements.formats import FORMATS
from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.mutation import as_json, pick, tree
from tests.fuzz.small import written

_DATA = Path(__file__).parents[2] / "analysis" / "calibration" / "data"
_SHORT = """collective,ranks,bytes,seconds
all_reduce,4,1024,0.0004
all_reduce,4,1048576,0.0031
all_gather,4,16777216,0.045
"""


def _make(rng: Random, one: Try) -> None:
    files = ["log.txt", "other.txt"][: 1 + choose(rng, 0.2)]
    for file in files:
        write(one.folder / file, _changed(rng))
    options: list[object] = []
    if choose(rng, 0.2):
        options += rng.choice(
            (["--format", rng.choice(list(FORMATS))], ["--ranks", "2"],
             ["--devices-per-node", "2"], ["--collective", "all_gather"], ["--algorithm", "ring"],
             ["--line-rate", rng.choice(("10 Gbit/s", "0 bit/s", "1e308 Gbit/s"))])
        )  # fmt: skip
    done = one.gcsim("calibrate", "link", *files, "-o", "mine.yaml", *options)
    if done is not None and done.returncode == 0:
        written(one.folder, cluster={"network": "mine.yaml"})
        checked = one.gcsim("check", "s.yaml")
        if checked is not None and checked.returncode != 0:
            one.found.append(f"a fitted link is refused: {checked.stderr.splitlines()[0][:200]}")


def _changed(rng: Random) -> str | bytes:
    text = rng.choice(_texts())
    if text[:1] in "[{" and choose(rng, 0.5):
        body = json.loads(text)
        for _ in range(rng.choice((1, 3, 10))):
            body = tree(rng, body, 1)
        return as_json(body)
    return pick(rng, _texts())


@cache
def _texts() -> tuple[str, ...]:
    return (_SHORT, *(path.read_text(encoding="utf-8") for path in sorted(_DATA.iterdir())))


LOGS = Kind(name="logs", make=_make)
