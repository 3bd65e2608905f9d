"""Manifests of traces with a correct checksum: what somebody made up, not what was damaged."""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from gcsim.traces.storage.manifest import _checksum
from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.mutation import as_json, damaged, tree
from tests.fuzz.small import recorded, written

_RUN, _FIT = 0.2, 0.1


def _make(rng: Random, one: Try) -> None:
    trace = one.folder / "trace"
    trace.mkdir()
    original = one.material / "trace"
    for file in original.glob("*.safetensors"):
        (trace / file.name).symlink_to(file)
    body = tree(rng, _manifest(original))
    if isinstance(body, dict):
        body.pop("sha256", None)
        body["sha256"] = _checksum(body)
    content = as_json(body)
    write(trace / "trace.json", damaged(rng, content) if choose(rng, 0.1) else content)
    replayed = {"source": "recorded", "trace": "trace"}
    sections: dict[str, Any] = {"compute": {"recorded": True}} if choose(rng, 0.5) else {}
    if choose(rng, 0.3):
        sections["model"] = "recorded"
    if choose(rng, 0.2):
        sections["compressors"] = ["none", "variance_hybrid"]
    written(one.folder, gradients=replayed, **sections)
    done = one.gcsim("check", "s.yaml")
    if done is not None and done.returncode == 0 and choose(rng, _RUN):
        one.run("s.yaml", "--no-cache")
    if choose(rng, _FIT):
        one.gcsim("fit", "trace", "-o", "fit.json")


@cache
def _manifest(trace: Path) -> Any:
    return json.loads((trace / "trace.json").read_text())


def _prepare(folder: Path) -> None:
    recorded(folder)


MANIFESTS = Kind(name="manifests", make=_make, prepare=_prepare)
