"""Text that a network can learn, word by word: for models with a vocabulary of thousands.

A word is a name or a number, one punctuation mark, or the end of a line; other white space is left
out. Its token is a hash of it, so any number of classes fits without a table of words. Of 900,000
words 12,400 are different; the commonest, the end of a line, occurs 79,000 times, half of them
three times or less. So an embedding's gradient is as sparse and uneven as with other text (Zipf's
law). Rare words may share a token.

It is not a published tokeniser: ids carry no meaning beyond being equal.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np

from gcsim.traces.models.entry import ModelEntry
from gcsim.traces.tasks.text import SOURCE, TokenSequences, frozen_text

_WORD = re.compile(r"\w+|\n|[^\w\s]")


def words(entry: ModelEntry, seed: int) -> TokenSequences:
    """The task for a model's length and classes. Raises `InputError` where the text cannot be read,
    or is shorter than a sample."""
    text = _WORD.findall(frozen_text())
    token = {word: _hashed(word, entry.classes) for word in set(text)}
    tokens = np.fromiter((token[word] for word in text), dtype=np.int32, count=len(text))
    return TokenSequences(
        tokens,
        length=entry.input_shape[0],
        seed=seed,
        source=f"words of {SOURCE}, hashed to {entry.classes:,} tokens",
    )


def _hashed(word: str, classes: int) -> int:
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % classes
