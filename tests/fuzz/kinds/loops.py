"""Kept machine code: damaged files are compiled again, and results are the same."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.case import Kind, Try, write
from tests.fuzz.mutation import damaged
from tests.fuzz.small import written


def _make(rng: Random, one: Try) -> None:
    cache = one.folder / "cache"
    shutil.copytree(one.material / "cache", cache)
    kept = sorted(path for path in (cache / "loops").rglob("*") if path.is_file())
    for path in rng.sample(kept, rng.randrange(1, len(kept) + 1)):
        write(path, damaged(rng, path.read_bytes()))
    found = _run(one, cache)
    if found is not None and found != json.loads((one.material / "rows.json").read_text()):
        one.found.append("other results from damaged loops")


def _run(one: Try, cache: Path) -> Any:
    written(one.folder, compressors=["none", "qsgd", "topk"])
    done = one.process("run", "s.yaml", "--no-cache", "--json", "-q", cache=cache)
    if done is None:
        return None
    if done.returncode != 0:
        one.found.append(f"damaged loops are refused: {done.stderr.splitlines()[:1]}")
        return None
    return json.loads(done.stdout)["rows"]


def _prepare(folder: Path) -> None:
    one = Try(folder=folder, material=folder)
    rows = _run(one, folder / "cache")
    assert not one.found, one.found
    write(folder / "rows.json", json.dumps(rows))


LOOPS = Kind(name="loops", make=_make, prepare=_prepare, one_in=100)
