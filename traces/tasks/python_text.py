"""Which text do language models learn here? The sources of Python's own standard library.

It is on every machine that runs gcsim, is written by people, and repeats itself at every range, as
natural text does: keywords, indentation, names used again. It is no benchmark corpus: a perplexity
on it compares with nothing published.

The text is the top-level modules that Python lists as its own (`sys.stdlib_module_names`, so
nothing that a site or a distribution adds), sorted by name, one after the other: some four million
characters that depend on the version of Python alone. A distribution may have changed a file;
`source` therefore names a digest.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.random import stream
from gcsim.errors import InputError

_LEAST = 1_000_000
"""Characters; fewer means that the sources were not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonText:
    """The text, and what it is."""

    text: str
    source: str


@lru_cache(maxsize=1)
def python_text() -> PythonText:
    """The standard library's sources. Raises `InputError` where they are not installed."""
    folder = Path(sysconfig.get_path("stdlib"))
    names = sorted(name for name in sys.stdlib_module_names if not name.startswith("_"))
    paths = [path for name in names if (path := folder / f"{name}.py").is_file()]
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)
    if len(text) < _LEAST:
        raise InputError(
            "language models learn the standard library's source files here, and "
            f"{folder} has {len(text):,} characters of them",
            place="gradients.task",
            hint="use a Python that is installed with its sources",
        )
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    version = platform.python_version()
    return PythonText(
        text=text,
        source=f"source text of Python {version}'s standard library ({len(text):,} characters, "
        f"blake2b {digest})",
    )


class TokenSequences:
    """Stretches of a text as tokens, and for each token the one that follows it."""

    def __init__(self, tokens: NDArray[np.int32], *, length: int, seed: int, source: str) -> None:
        """`tokens` is the whole text. Raises `InputError` when a sample would not fit into it."""
        if length >= len(tokens):
            raise InputError(
                f"the text has {len(tokens):,} tokens, fewer than a sample of "
                f"{length:,} and the one behind it",
                place="input_shape",
                hint="choose a shorter length",
            )
        self.source = source
        self._tokens = tokens
        self._length = length
        self._seed = seed

    def batch(self, size: int, *, worker: int, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and the tokens that follow them, both int64 `[size, length]`.

        Where a sample starts in the text is uniform, a function of (seed, worker, step, position
        in the batch).
        """
        places = len(self._tokens) - self._length
        starts = [
            stream(self._seed, step, position, "text samples", worker).integers(places)
            for position in range(size)
        ]
        rows = [self._tokens[start : start + self._length + 1] for start in starts]
        taken = torch.from_numpy(np.stack(rows).astype(np.int64))  # [size, length + 1]
        return taken[:, :-1].contiguous(), taken[:, 1:].contiguous()
