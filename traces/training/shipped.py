"""Trajectories that are shipped with gcsim: a packed file per method of a shipped scenario.

`traces/trajectories/METHOD-NAME.json.xz`: NAME is a hash of the training without the kind of
processor and without learning rate and seed, of which a file has several. A file contains a hash of
the code that training with the method reaches, without comments (`code.py`); files of other code
are ignored. `tests/benchmarks/shipped_trajectories.py` makes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter

from gcsim.files import replacing
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.profile import AS_WRITTEN
from gcsim.traces.stage1.code import code_hash
from gcsim.traces.tasks.registry import TASKS
from gcsim.traces.training.trajectory import Trajectory

FOLDER = Path(__file__).parent.parent / "trajectories"
_LOOP = "gcsim.traces.training.loop"
_DIGITS = 3
"""Digits of a training loss that are kept; it is used for nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """Trajectories of one method."""

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    code: str
    """Hash of the code (`code_of`)."""
    made: str
    """Kind of processor and libraries that made it, as text."""
    trajectories: tuple[Trajectory, ...]
    """Trajectories by learning rate and seed, as far as a comparison of rates needs them."""

    def one(self, rate: float, seed: int) -> Trajectory | None:
        """Return the trajectory for a learning rate and a seed."""
        found = (t for t in self.trajectories if (t.learning_rate, t.seed) == (rate, seed))
        return next(found, None)


_SHIPPED = TypeAdapter(Shipped)


def path_of(facts: Mapping[str, object], folder: Path | None = None) -> Path:
    """Return the file of a method; `facts` name it as "compressor", and describe the training."""
    text = json.dumps(facts, sort_keys=True, default=str)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    return (folder or FOLDER) / f"{facts['compressor']}-{name}.json.xz"


def code_of(entry: ModelEntry, compressor: str | None) -> str:
    """Return a hash of the code that trains one of gcsim's models on its task with a compressor,
    named as in the registry; "" if some of it is not gcsim's."""
    build = entry.build or ""
    own = compressor is None or entry.task not in TASKS or not build.startswith("gcsim.")
    if own or entry.loss:
        return ""
    modules = (name.partition(":")[0] for name in (build, TASKS[entry.task].make))
    return code_hash(compressor, (_LOOP, *modules))


@cache
def read(path: Path) -> Shipped | None:
    """Return the contents of a file; None if it is missing or this Python cannot unpack it."""
    try:
        import lzma
    except ImportError:
        return None
    try:
        return _SHIPPED.validate_json(lzma.decompress(path.read_bytes()))
    except (OSError, EOFError, lzma.LZMAError, ValueError):
        return None


def shown(loss: float) -> float:
    """Return the loss as it is stored."""
    return float(f"{loss:.{_DIGITS}g}")


def write(path: Path, found: Shipped) -> None:
    """Pack a file, with the same bytes for the same trajectories."""
    import lzma

    short = [
        replace(one, losses=tuple(map(shown, one.losses)))
        for one in sorted(found.trajectories, key=lambda one: (one.learning_rate, one.seed))
    ]
    body = _SHIPPED.dump_json(replace(found, trajectories=tuple(short)))
    _SHIPPED.validate_json(body)
    with replacing(path) as temporary:
        temporary.write_bytes(lzma.compress(body, preset=9 | lzma.PRESET_EXTREME))
    read.cache_clear()
