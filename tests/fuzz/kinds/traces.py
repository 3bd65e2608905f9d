"""Tensor files of traces: damaged; or made up, with a manifest that fits them."""

import hashlib
import json
import struct
from pathlib import Path
from random import Random

from gcsim.traces.storage.manifest import _checksum
from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.mutation import as_json, damaged, tree
from tests.fuzz.small import recorded, written

_RUN, _FIT = 0.3, 0.1
_FLOATS = (float("nan"), float("inf"), float("-inf"), 3.4e38, -3.4e38, 1e-45, 0.0, 1e20)


def _make(rng: Random, one: Try) -> None:
    trace = one.folder / "trace"
    trace.mkdir()
    original = one.material / "trace"
    files = sorted(original.glob("*.safetensors"))
    chosen = rng.choice(files)
    for file in files:
        if file != chosen:
            (trace / file.name).symlink_to(file)
    content = _changed(rng, chosen.read_bytes())
    write(trace / chosen.name, content)
    manifest = json.loads((original / "trace.json").read_text())
    if choose(rng, 0.8):
        digest = hashlib.sha256(content).hexdigest()
        manifest["files"][chosen.name] = {"nbytes": len(content), "sha256": digest}
        del manifest["sha256"]
        manifest["sha256"] = _checksum(manifest)
    write(trace / "trace.json", as_json(manifest))
    written(one.folder, gradients={"source": "recorded", "trace": "trace"})
    done = one.gcsim("check", "s.yaml")
    if done is not None and done.returncode == 0 and choose(rng, _RUN):
        one.run("s.yaml", "--no-cache")
    if choose(rng, _FIT):
        one.gcsim("fit", "trace", "-o", "fit.json")


def _changed(rng: Random, content: bytes) -> bytes:
    length = struct.unpack("<Q", content[:8])[0]
    header, data = content[8 : 8 + length], bytearray(content[8 + length :])
    act = rng.randrange(4)
    if act == 0:
        return damaged(rng, content)
    if act == 1:
        header = as_json(tree(rng, json.loads(header)))
    elif act == 2:
        return damaged(rng, content[: 8 + length]) + bytes(data)
    else:
        for _ in range(rng.choice((1, 10, 1000))):
            at = 4 * rng.randrange(len(data) // 4)
            data[at : at + 4] = struct.pack("<f", rng.choice(_FLOATS))
    return struct.pack("<Q", len(header)) + header + bytes(data)


def _prepare(folder: Path) -> None:
    recorded(folder)


TRACES = Kind(name="traces", make=_make, prepare=_prepare)
