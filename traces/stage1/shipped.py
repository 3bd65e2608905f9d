"""Traffic profiles that are shipped with gcsim: a packed file per shipped model.

`traces/profiles/MODEL.json.xz` has two lines per profile: its name, and the code and machine that
made it; then the profile as in the cache. The name is a hash of the run without the kind of
processor, the code is a hash of what the run reaches, without comments (`code.py`); profiles of
other code are ignored. `tests/benchmarks/shipped_profiles.py` makes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gcsim.files import replacing
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.profile import TrafficProfile, holds_together
from gcsim.traces.stage1.code import code_hash

FOLDER = Path(__file__).parent.parent / "profiles"
_MADE_BY = (
    "gcsim.traces.buckets",
    "gcsim.traces.models.table",
    "gcsim.traces.stage1.measure",
    "gcsim.traces.synthetic.gradients",
)
_DIGITS = 6
"""Digits of an error that are kept; more would depend on the processor."""
_PROFILE = TypeAdapter(TrafficProfile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """A profile as it is stored in its file."""

    name: str
    """Name of the profile (`name_of`)."""
    code: str
    """Hash of its code (`code_of`)."""
    made: str
    """Kind of processor and libraries that made it, as text."""
    body: bytes
    """The profile, as JSON."""

    def profile(self) -> TrafficProfile | None:
        """Return the profile; None if it is damaged."""
        try:
            found = _PROFILE.validate_json(self.body)
        except ValidationError:
            return None
        return found if holds_together(found) else None


def name_of(facts: Mapping[str, object]) -> str:
    """Return the name of a profile; `facts` describe everything that was run."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def code_of(model: ModelEntry, compressor: str | None) -> str:
    """Return a hash of the code that measures a compressor, named as in the registry, on one of
    gcsim's models; "" if some of it is not gcsim's."""
    build = model.build or ""
    if compressor is None or not build.startswith("gcsim."):
        return ""
    return code_hash(compressor, (*_MADE_BY, build.partition(":")[0]))


@lru_cache(maxsize=8)
def read(path: Path) -> Mapping[str, Shipped]:
    """Return a file's contents, by name; empty if missing or if this Python cannot unpack it."""
    try:
        import lzma
    except ImportError:
        return {}
    try:
        lines = lzma.decompress(path.read_bytes()).splitlines()
        found = [
            Shipped(**json.loads(head), body=body)
            for head, body in zip(lines[::2], lines[1::2], strict=True)
        ]
    except (OSError, EOFError, lzma.LZMAError, ValueError, TypeError):
        return {}
    return {one.name: one for one in found}


def packed(profile: TrafficProfile) -> bytes:
    """Return a profile as it is stored in its file."""
    quality = profile.quality
    return _PROFILE.dump_json(
        replace(
            profile,
            quality=replace(
                quality,
                nmse=_shown(quality.nmse),
                cosine_similarity=_shown(quality.cosine_similarity),
            ),
        )
    )


def write(path: Path, found: Iterable[Shipped]) -> None:
    """Pack a file, with the same bytes for the same profiles."""
    import lzma

    lines = []
    for one in sorted(found, key=lambda one: one.name):
        head = {key: value for key, value in asdict(one).items() if key != "body"}
        lines += [json.dumps(head).encode(), one.body]
    with replacing(path) as temporary:
        temporary.write_bytes(lzma.compress(b"\n".join(lines), preset=9 | lzma.PRESET_EXTREME))
    read.cache_clear()


def _shown(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
