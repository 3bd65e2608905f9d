"""Logs of measured collectives and hosts, of all layouts, and the links that come of them.

They arrive with prefixes, colours and packed (`corpus.py`). A JSON file is changed as text or as a
tree. Some tries bring two files.
"""

import gzip
import json
from random import Random
from typing import Any

from gcsim.analysis.calibration.measurements.formats import FORMATS
from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.corpus import ARRIVALS, layouts
from tests.fuzz.mutation import as_json, damaged, pick, tree
from tests.fuzz.small import written

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


def _changed(rng: Random) -> bytes:
    content = rng.choice([_SHORT, *(layout.content for layout in layouts().values())])
    if isinstance(content, bytes):
        return damaged(rng, content) if choose(rng, 0.9) else content
    if content[:1] in {"[", "{"} and choose(rng, 0.5):
        body = _loaded(content)
        for _ in range(rng.choice((1, 3, 10))):
            body = tree(rng, body, 1)
        changed = as_json(body)
    else:
        if choose(rng, 0.5):
            content = ARRIVALS[rng.choice(list(ARRIVALS))](content)
        changed = pick(rng, [content]) if choose(rng, 0.8) else content.encode()
    if choose(rng, 0.2):
        packed = gzip.compress(changed, 1, mtime=0)
        return damaged(rng, packed) if choose(rng, 0.3) else packed
    return changed


def _loaded(content: str) -> Any:
    try:
        return json.loads(content)
    except ValueError:  # a layout that is cut off
        return {"traceEvents": [content]}


LOGS = Kind(name="logs", make=_make)
