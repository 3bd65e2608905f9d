"""Traffic profiles on disk, under a hash of everything that they depend on.

A profile depends on the compressor and its parameters, the gradients, the bucket layout, the
number of virtual workers, the seed, and the code that made it. Where the cluster alone changes,
the profile is found here and no tensor is touched. A damaged entry is as good as none.

The folder is the user's cache folder, or `GCSIM_CACHE_DIR`.
"""

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

version = cache(metadata.version)
"""Version of an installed library, looked up in its files, for a millisecond."""


def key(
    facts: Mapping[str, object],
    own: Mapping[str, object] | None = None,
    *,
    compressor: str | None = None,
) -> str:
    """A content hash of plain facts, gcsim's own code, and the user's (`own_code.own_code`) by the
    name of the function.

    `compressor` is its module and class, as in the registry, where its code alone counts; None:
    that of all.
    """
    document = {
        "facts": facts,
        "code": code_hash(compressor),
        "user": own or {},
        **{name: version(name) for name in ("torch", "numpy", "numba")},
    }
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def holds_any() -> bool:
    """Whether a profile was ever stored here: to name one, all code is parsed once."""
    return any(cache_folder().glob("*.json"))


def load(name: str) -> TrafficProfile | None:
    """The profile stored under `name`, or None when there is none that is whole."""
    try:
        body = unsealed((cache_folder() / f"{name}.json").read_bytes())
        profile = None if body is None else _PROFILE.validate_json(body)
        return profile if profile is not None and holds_together(profile) else None
    except (OSError, ValidationError):
        return None


def load_all(names: Iterable[str]) -> dict[str, TrafficProfile]:
    """The profiles that are stored under some names, by name."""
    found = ((name, load(name)) for name in dict.fromkeys(names))
    return {name: profile for name, profile in found if profile is not None}


def save(name: str, profile: TrafficProfile) -> None:
    """Store a profile. Where that fails (a full disk) the run goes on, and a warning says why."""
    try:
        write_text(cache_folder() / f"{name}.json", sealed(_PROFILE.dump_json(profile)).decode())
    except InputError as error:
        reason = error.problems[0].message
        warnings.warn(
            f"{cache_folder()}: this profile is not cached: {reason}; "
            "set GCSIM_CACHE_DIR to a folder with space",
            stacklevel=2,
        )
