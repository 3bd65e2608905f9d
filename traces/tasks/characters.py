"""Text that a network can learn, character by character: predict the one that follows.

97 characters: the newline is 0, printable ASCII (codes 32 to 126) is 1 to 95, anything else 96.
A model with more classes uses the first 97 of them; its other outputs learn that they never occur.

Two bounds tell what a model has learned: the text's unigram entropy (3.32 nats) is the least loss
of a model that does not look at its input, and the bigram one (2.60) that of a model that looks at
the last character alone (`tests/traces/tasks/test_registry.py` counts them).
"""

from __future__ import annotations

import numpy as np

from gcsim.errors import InputError
from gcsim.traces.models.entry import ModelEntry
from gcsim.traces.tasks.text import SOURCE, TokenSequences, frozen_text

CHARACTERS = 97


def characters(entry: ModelEntry, seed: int) -> TokenSequences:
    """The task for a model's length and classes.

    Raises `InputError` for fewer than 97 classes, and where the text cannot be read.
    """
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
