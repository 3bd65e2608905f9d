"""The cache of traffic profiles on disk. The key is a hash of everything that a profile depends on:
compressor and parameters, gradients, bucket layout, number of virtual workers, seed, and code; the
cluster is not part of it. Damaged entries are ignored. The folder is the user's cache folder, or
`GCSIM_CACHE_DIR`."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata

from pydantic import TypeAdapter, ValidationError

from gcsim.errors import InputError
from gcsim.files import cache_folder, sealed, unsealed, write_text
from gcsim.traces.profile import TrafficProfile, holds_together
from gcsim.traces.stage1.code import code_hash

_PROFILE = TypeAdapter(TrafficProfile)


@cache
def version(library: str) -> str:
    """Return a library's version from its files, in a millisecond; "" if it is not installed."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def key(
    facts: Mapping[str, object],
    own: Mapping[str, object] | None = None,
    *,
    compressor: str | None = None,
) -> str:
    """Return a hash of plain facts, gcsim's own code, and the user's code by function
    (`own_code.own_code`). `compressor`, module and class as in the registry, restricts gcsim's code
    to what it reaches."""
    document = {
        "facts": facts,
        "code": code_hash(compressor),
        "user": own or {},
        **{name: version(name) for name in ("torch", "numpy", "numba")},
    }
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def holds_any() -> bool:
    """Whether a profile was ever stored here; computing a key parses all code once."""
    return any(cache_folder().glob("*.json"))


def load(name: str) -> TrafficProfile | None:
    """Return the profile stored under `name`; None if there is no intact one."""
    try:
        body = unsealed((cache_folder() / f"{name}.json").read_bytes())
        profile = None if body is None else _PROFILE.validate_json(body)
        return profile if profile is not None and holds_together(profile) else None
    except (OSError, ValidationError):
        return None


def load_all(names: Iterable[str]) -> dict[str, TrafficProfile]:
    """Return the profiles that are stored under any of these names, by name."""
    found = ((name, load(name)) for name in dict.fromkeys(names))
    return {name: profile for name, profile in found if profile is not None}


def save(name: str, profile: TrafficProfile) -> None:
    """Store a profile; if that fails (a full disk), warn and continue."""
    try:
        write_text(cache_folder() / f"{name}.json", sealed(_PROFILE.dump_json(profile)).decode())
    except InputError as error:
        reason = error.problems[0].message
        warnings.warn(
            f"{cache_folder()}: this profile is not cached: {reason}; "
            "set GCSIM_CACHE_DIR to a folder with space",
            stacklevel=2,
        )
