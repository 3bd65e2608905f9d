"""Random numbers by key, so that runs are reproducible and workers agree.

Generators are counter-based; their key is a hash of seed, step, tensor, purpose and (unless all
workers must draw the same numbers) rank. No state is kept between draws, and no global generator is
read or seeded.

`stream` is a numpy generator (Philox) for a few numbers of any distribution. A loop over elements
takes a `random_key` and calls `bits64(key, i)` for number i of SplitMix64's sequence, in any order
and on any thread; 64 bits serve four fractions of 16 bits if rounding needs no more.

Sources: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox); G.
Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014 (SplitMix64;
passes BigCrush).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined


def stream(
    seed: int, step: int, tensor: int, purpose: str, rank: int | None = None
) -> np.random.Generator:
    """Return the generator for one purpose, step and tensor.

    Equal arguments give equal numbers in every process; different arguments give independent
    streams. All workers share the stream of `rank=None`.
    """
    key = _digest(16, seed, step, tensor, purpose, rank)
    given: Any = _Key(np.frombuffer(key, dtype="<u8"))
    return np.random.Generator(np.random.Philox(given))


class _Key(ISeedSequence):
    """A key in place of a seed; `Philox(key=...)` would first ask the system for a random seed."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> NDArray[np.uint64]:
        return self._words


def random_key(
    seed: int, step: int, tensor: int, purpose: str, rank: int | None = None
) -> np.uint64:
    """Return the key of one purpose, step and tensor for `bits64`; arguments as in `stream`."""
    return np.uint64(random_keys(seed, step, [tensor], purpose, rank)[0])


def random_keys(
    seed: int, step: int, tensors: Iterable[int], purpose: str, rank: int | None
) -> NDArray[np.uint64]:
    """Return the `random_key` of each tensor: uint64 `[tensors]`."""
    keys = [_digest(8, seed, step, tensor, purpose, rank) for tensor in tensors]
    return np.frombuffer(bytearray().join(keys), dtype="<u8")


@inlined
def bits64(key: np.uint64, index: int) -> np.uint64:
    """Return 64 random bits inside a loop: number `index` (>= 0) in the sequence of `key`."""
    # SplitMix64's counter; the increment is odd: 2^64 / the golden ratio
    z = key + (np.uint64(index) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    # the mixing is one-to-one, so no two numbers of a key are equal
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def fraction64(key: np.uint64, index: int) -> float:
    """Return a float64 uniform on [0, 1) inside a loop: number `index` in the sequence of `key`."""
    return float(bits64(key, index) >> np.uint64(11)) * 2.0**-53  # 53 bits are exact in a float64


def _digest(size: int, seed: int, step: int, tensor: int, purpose: str, rank: int | None) -> bytes:
    who = "shared" if rank is None else rank
    return blake2b(f"{seed}/{step}/{tensor}/{who}/{purpose}".encode(), digest_size=size).digest()
