"""Text for language models, by characters and by words: older sources of gcsim.

The Python files of the top-level folders, sorted by path and concatenated, 3,274,339 characters,
were frozen (`tests/benchmarks/frozen_text.py d17d639`) and are shipped as data: the same for every
Python and every version of gcsim. Like natural text, it is written, not drawn, and repeats itself
at every range: keywords, indentation, names. It is not a benchmark corpus, so perplexities on it
cannot be compared with published ones.

**characters**: predict the next of 97 characters. The newline is 0, printable ASCII (codes 32 to
126) is 1 to 95, anything else 96. A model with more classes uses the first 97; its other outputs
learn that they never occur. Two bounds (`tests/traces/tasks/test_registry.py`): the text's unigram
entropy (3.32 nats) is the least loss of a model that ignores its input, and the bigram entropy
(2.60) that of a model that uses only the last character.

**words**: for models with a vocabulary of thousands. A word is a name or a number, one punctuation
mark, or the end of a line; other white space is left out. Its token is its hash, so any number of
classes works without a table; rare words may share a token, and ids have no other meaning. Of
900,000 words 12,400 are different; the commonest, the end of a line, occurs 79,000 times, half of
them three times or less: an embedding's gradient is as sparse and uneven as with other text (Zipf's
law).
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.random import stream
from gcsim.errors import InputError
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.tasks.split import Indices, Split

FILE = Path(__file__).with_name("text.xz")
_SHA256 = "d208b34444814cbb12682203406535e80065cbeb8560183b56afbd4fd4f28991"
"""SHA-256 of the file."""
SOURCE = f"gcsim's own sources, frozen (text.xz, SHA-256 {_SHA256[:8]})"
"""Description of the text."""


@lru_cache(maxsize=1)
def frozen_text() -> str:
    """Return the text. Raises `InputError` if the file is not as shipped, or this Python cannot
    unpack it."""
    try:
        import lzma

        packed = FILE.read_bytes()
    except (ImportError, OSError) as error:
        raise _unreadable(f"cannot be read ({error})") from error
    if hashlib.sha256(packed).hexdigest() != _SHA256:
        raise _unreadable("is damaged")
    return lzma.decompress(packed).decode()


def _unreadable(why: str) -> InputError:
    message = f"the text that language models learn, {FILE}, {why}"
    hint = "install gcsim again, with a Python that has lzma"
    return InputError(message, place="gradients.task", hint=hint)


_JUDGED = 512


class TokenSequences:
    """Sections of a text as tokens, and the next token for each."""

    def __init__(self, tokens: NDArray[np.int32], *, length: int, seed: int, source: str) -> None:
        """`tokens` is the whole text. Raises `InputError` if a sample does not fit into it."""
        if length >= len(tokens):
            raise InputError(
                f"the text has {len(tokens):,} tokens, fewer than a sample of "
                f"{length:,} and the one after it",
                place="input_shape",
                hint="choose a shorter length",
            )
        self.source = source
        self._tokens = tokens
        self._length = length
        self._seed = seed

    def batch(self, size: int, *, worker: int, step: int) -> tuple[Tensor, Tensor]:
        """Return tokens and their next tokens, int64 `[size, length]` each, from uniform positions
        in the text by (seed, worker, step, position in the batch)."""
        places = len(self._tokens) - self._length
        starts = [
            stream(self._seed, step, position, "text samples", worker).integers(places)
            for position in range(size)
        ]
        return _sequences(self._tokens, np.array(starts), self._length)

    def split(self) -> Split:
        """Hold out the last tenth of the text, at `_JUDGED` evenly spaced positions. Training
        samples begin at every position of the rest."""
        border = len(self._tokens) * 9 // 10
        learned = len(self._tokens[:border]) - self._length
        held_out = len(self._tokens) - border - self._length
        if min(learned, held_out) < 1:
            raise InputError(
                f"the text has {len(self._tokens):,} tokens: a tenth of them, which is held out, "
                f"is shorter than a sample of {self._length:,}",
                place="input_shape",
                hint="choose a shorter length",
            )
        places = np.linspace(border, border + held_out - 1, min(held_out, _JUDGED)).astype(np.int64)
        return Split(
            train=_Places(self._tokens, np.arange(learned), self._length),
            test=_Places(self._tokens, places, self._length),
            source=self.source,
        )


class _Places:
    """Samples that begin at given positions of a text."""

    labels = None
    """Return None: a sample has a label for each token."""

    def __init__(self, tokens: NDArray[np.int32], places: Indices, length: int) -> None:
        self._tokens, self._places, self._length = tokens, places, length

    def __len__(self) -> int:
        return len(self._places)

    def taken(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return the samples at these indices (`Samples.taken`)."""
        return _sequences(self._tokens, self._places[indices], self._length)


def _sequences(tokens: NDArray[np.int32], starts: Indices, length: int) -> tuple[Tensor, Tensor]:
    """Return the tokens from some positions on, and their next tokens, int64 `[n, length]` each."""
    rows = np.stack([tokens[start : start + length + 1] for start in starts])
    taken = torch.from_numpy(rows.astype(np.int64))  # [n, length + 1]
    return taken[:, :-1].contiguous(), taken[:, 1:].contiguous()


CHARACTERS = 97


def characters(entry: ModelEntry, seed: int) -> TokenSequences:
    """Return the task for a model's length and classes. Raises `InputError` for fewer than 97
    classes, or if the text cannot be read."""
    if entry.classes < CHARACTERS:
        raise InputError(
            f"the task 'characters' needs {CHARACTERS} classes, {entry.name} has {entry.classes}",
            place="gradients.task",
            hint="choose the task 'words', which fits any number, or a model with more classes",
        )
    codes = np.frombuffer(frozen_text().encode("utf-32-le"), dtype="<u4").astype(np.int32)
    printable = (codes >= 32) & (codes < 127)
    tokens = np.where(printable, codes - 31, np.where(codes == ord("\n"), 0, CHARACTERS - 1))
    return TokenSequences(
        tokens.astype(np.int32), length=entry.input_shape[0], seed=seed, source=SOURCE
    )


_WORD = re.compile(r"\w+|\n|[^\w\s]")


def words(entry: ModelEntry, seed: int) -> TokenSequences:
    """Return the task for a model's length and classes. Raises `InputError` if the text cannot be
    read, or is shorter than a sample."""
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
