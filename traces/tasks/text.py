"""Which text do language models learn here? The sources of gcsim itself, as they once were.

They were frozen (`tests/benchmarks/frozen_text.py d17d639`) and are shipped as data, so that the
text is the same with every Python and does not change when gcsim does. It is written, not drawn,
and repeats itself at every range, as natural text does: keywords, indentation, names used again. It
is no benchmark corpus: a perplexity on it compares with nothing published.

The text is the Python files of the rooms, sorted by path, one after the other: 3,274,339
characters.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.random import stream
from gcsim.errors import InputError

FILE = Path(__file__).with_name("text.xz")
_SHA256 = "d208b34444814cbb12682203406535e80065cbeb8560183b56afbd4fd4f28991"
"""Of the file."""
SOURCE = f"gcsim's own sources, frozen (text.xz, SHA-256 {_SHA256[:8]})"
"""What the text is, for people."""


@lru_cache(maxsize=1)
def frozen_text() -> str:
    """The text. Raises `InputError` where the file is not the one that was shipped, or this Python
    cannot unpack it."""
    try:
        import lzma

        packed = FILE.read_bytes()
    except (ImportError, OSError) as error:
        raise _unreadable(f"cannot be read ({error})") from error
    if hashlib.sha256(packed).hexdigest() != _SHA256:
        raise _unreadable("is damaged")
    return lzma.decompress(packed).decode()


def _unreadable(why: str) -> InputError:
    return InputError(
        f"the text that language models learn, {FILE}, {why}",
        place="gradients.task",
        hint="install gcsim again, with a Python that has lzma",
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
