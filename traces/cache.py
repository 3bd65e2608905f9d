"""Traffic profiles on disk, under a hash of everything that they depend on.

A profile depends on the compressor and its parameters, the gradients, the bucket layout, the
number of virtual workers, the seed, and the code that made it. Where the cluster alone changes,
the profile is found here and no tensor is touched. A damaged entry is as good as none.

The folder is the user's cache folder, or `GCSIM_CACHE_DIR`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import platformdirs
from pydantic import TypeAdapter, ValidationError

from gcsim.files import write_text
from gcsim.traces.profile import TrafficProfile

_PROFILE = TypeAdapter(TrafficProfile)


def folder() -> Path:
    """Where the profiles lie."""
    chosen = os.environ.get("GCSIM_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("gcsim", False))


def key(facts: Mapping[str, object], code: Iterable[str] = ()) -> str:
    """A content hash of plain facts, gcsim's own code, and the user's modules in `code`."""
    document = {
        "facts": facts,
        "code": _own_code(),
        "user": {name: _file_hash(Path(origin)) for name in code if (origin := _origin(name))},
        "torch": metadata.version("torch"),
        "numpy": metadata.version("numpy"),
    }
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def load(name: str) -> TrafficProfile | None:
    """The profile stored under `name`, or None when there is none that is whole."""
    try:
        text = (folder() / f"{name}.json").read_text(encoding="utf-8")
        checksum, _, body = text.partition("\n")
        if hashlib.sha256(body.encode()).hexdigest() != checksum:
            return None
        return _PROFILE.validate_json(body)
    except (OSError, UnicodeDecodeError, ValidationError):
        return None


def save(name: str, profile: TrafficProfile) -> None:
    """Store a profile; raises `InputError` when the disk is full or read-only."""
    body = _PROFILE.dump_json(profile).decode()
    checksum = hashlib.sha256(body.encode()).hexdigest()
    write_text(folder() / f"{name}.json", f"{checksum}\n{body}")


@cache
def _own_code() -> str:
    """A hash over the files that decide what is sent: compressors and traces."""
    rooms = [Path(__file__).parent, Path(_origin("gcsim.compressors") or "").parent]
    digest = hashlib.sha256()
    for room in rooms:
        for path in sorted(room.glob("*.py")):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _origin(module: str) -> str | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec else None
