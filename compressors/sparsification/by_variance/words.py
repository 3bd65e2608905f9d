"""What do the words of variance-based compression look like? A sign, a power of two and an index.

A message has, for each tensor, the exponent e of the largest magnitude (int8) and a word of 32 bits
for each element that is sent: sign (bit 31), d (30-28) and index (27-0), of value sign * 2^(e - d).

A magnitude becomes a power of two by bit operations: half of the mantissa's range is added, the
mantissa is cleared, and the result is capped at 2^e. What is more than 2^7 below 2^e has no d.

See `variance.py` for the method and its source.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.frame import Codec, Frame, from_bytes, of_bucket, words_at
from gcsim.compressors.coding.messages import decoder, split_body
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import (
    array,
    in_parallel,
    inlined,
    loop,
    total_of,
    written_back,
)
from gcsim.compressors.meter import kernel, unpriced
from gcsim.compressors.on_device import on_device
from gcsim.errors import InputError

INDEX_LIMIT = 1 << 28
"""Elements that a 28-bit index can tell apart."""
BLOCK = 4096
"""Elements whose clear ones are listed together; threads split between blocks."""

_MAGNITUDE = np.int32(0x7FFFFFFF)
_EXPONENT = np.int32(0x7F800000)
_HALF = np.int32(0x00400000)
_SIGN = np.int32(-(1 << 31))
_INDEX = np.int32(INDEX_LIMIT - 1)
_LARGEST = np.int32(0x7F000000)
"""Bits of 2^127, the largest power of two that is finite."""
BIAS, MANTISSA_BITS = 127, 23
"""Of float32."""
DEEPEST, DEPTH_BITS = 7, 28


# --- sender -----------------------------------------------------------------------------------


def largest_power(magnitude: float) -> int:
    """The bits of 2^floor(log2 magnitude) as float32; those of 1 when nothing is to be sent."""
    bits = int(np.float32(magnitude if magnitude else 1).view(np.int32))
    return min(bits, int(_LARGEST)) & int(_EXPONENT)


@inlined
def encode_word(bits: Any, index: Any, cap: Any) -> tuple[Any, Any]:
    """Inside a loop, of int32: the word of a float32's bits, and whether its d fits, d <= 7.

    Rounded to a power of two, half up, at most `cap` (bits of a power of two).
    """
    rounded = min(((bits & _MAGNITUDE) + _HALF) & _EXPONENT, cap)
    depth = (cap - rounded) >> np.int32(MANTISSA_BITS)
    word = index | (depth << np.int32(DEPTH_BITS)) | (bits & _SIGN)
    return word, depth <= np.int32(DEEPEST)


@kernel("gather_scatter", by_results=True, name="variance_words.take_out")
@on_device("methods.variance")
def take_out(
    r: Tensor, v: Tensor, found: NDArray[np.int32], counts: NDArray[np.int64], *, cap: Any,
    drop: bool,
) -> Tensor:  # fmt: skip
    """The clear elements' words, int32, in order; r and v become zero where they are sent.

    What does not fit its word is not sent; with `drop` it becomes zero all the same.
    """
    with written_back(r) as delayed, written_back(v) as moment:
        in_parallel(
            _take_words, found.size, found, counts, delayed.view(np.int32),
            moment.view(np.int32), np.int32(cap), np.int32(drop), grain=BLOCK,
        )  # fmt: skip
    return joined(found, counts, r)


@loop
def _take_words(
    start: int, stop: int, found: Any, counts: Any, delayed: Any, moment: Any, cap: Any,
    drop: Any,
) -> None:  # fmt: skip
    """Replace each block's indices by their words, as far as these fit; r and v as int32."""
    for first in range(start, stop, BLOCK):
        block = first // BLOCK
        at = first
        for i in range(first, first + counts[block]):
            index = found[i]
            word, fits = encode_word(delayed[index], index, cap)
            found[at] = word
            at += fits
            stays = ~(-(np.int32(fits) | drop))  # all bits or none: no branch
            delayed[index] &= stays
            moment[index] &= stays
        counts[block] = at - first


def joined(words: NDArray[np.int32], counts: NDArray[np.int64], like: Tensor) -> Tensor:
    """Each block's first `counts[block]` words, without the gaps: int32."""
    out = torch.empty(int(total_of(counts)), dtype=torch.int32)
    in_parallel(_join, words.size, words, counts, array(out), grain=BLOCK)
    return out.to(like.device)


@loop
def _join(start: int, stop: int, words: Any, counts: Any, out: Any) -> None:
    at = counts[: start // BLOCK].sum()
    for first in range(start, stop, BLOCK):
        source = words[first : first + counts[first // BLOCK]]
        target = out[at : at + source.size]
        at += source.size
        for i in range(source.size):
            target[i] = source[i]


# --- receiver ---------------------------------------------------------------------------------


def _add_short(data: Any, found: Any, table: Any, out: Any, weight: float) -> bool:
    """`add_decoded` of all tensors."""
    return bool(_add_found(data, found, table, out, weight))


@of_bucket("add_powers", "messages.words")
@decoder(Codec.VARIANCE, _add_short)
def add_decoded(frame: Frame, part: Tensor, weight: float) -> None:
    """Add the powers of two of a frame's words."""
    head, tail = split_body(frame, 1, 4 * frame.nonzero)
    exponent = int(from_bytes(head, torch.int8, 1))
    words = from_bytes(tail, torch.int32, frame.nonzero)
    _check_words(words, exponent, frame.numel)
    _add_words(words, exponent, part, weight)


@unpriced
@on_device("methods.variance")
def _check_words(words: Tensor, exponent: int, n: int) -> None:
    data = array(words)
    if not data.size:
        return
    if not ascending(data, np.int32(_INDEX), n):
        raise InputError(f"damaged payload: indices do not ascend below {n}")
    deepest = int(_depth(data))
    if exponent - deepest + BIAS < 1:
        raise InputError(f"damaged payload: 2^({exponent} - {deepest}) is no normal float32")


def ascending(words: NDArray[np.int32], mask: np.int32, n: int) -> bool:
    """Whether the masked words ascend strictly and stay below n."""
    return bool(_ascends(words, mask)) and (not words.size or int(words[-1] & mask) < n)


@loop
def _ascends(words: Any, mask: Any) -> bool:
    left, right = words[: words.size - 1], words[1:]
    wrong = 0
    for i in range(left.size):
        wrong += (left[i] & mask) >= (right[i] & mask)
    return wrong == 0


@loop
def _depth(words: Any) -> Any:
    """The largest of the words' depths."""
    deepest = np.int32(0)
    for i in range(words.size):
        deepest = max(deepest, (words[i] >> np.int32(DEPTH_BITS)) & DEEPEST)
    return deepest


@kernel("gather_scatter", resident=("out",), name="variance_words._add_words")
@on_device("methods.variance")
def _add_words(words: Tensor, exponent: int, out: Tensor, weight: float) -> None:
    """out += weight * decoded words; the meter counts what is touched, not all of `out`."""
    data = array(words)
    weighted = levels(exponent) * np.float32(weight)
    with written_back(out) as target:
        in_parallel(_scatter_words, data.size, data, weighted, target)


@loop
def _scatter_words(start: int, stop: int, words: Any, levels: Any, out: Any) -> None:
    words = words[start:stop]
    for i in range(words.size):
        out[words[i] & _INDEX] += levels[(words[i] >> np.int32(DEPTH_BITS)) & np.int32(15)]


@functools.lru_cache
def levels(exponent: int) -> NDArray[np.float32]:
    """The values of a word's highest four bits: 2^e, 2^(e - 1), ... 2^(e - 7), then minus these."""
    powers = np.ldexp(np.float32(1), exponent - np.arange(DEEPEST + 1))
    return np.concatenate((powers, -powers)).astype(np.float32)


@loop
def _add_found(data: Any, found: Any, table: Any, out: Any, weight: float) -> bool:
    """The words of all frames; False, and nothing done, where one is damaged."""
    for t in range(found.shape[0]):
        k, start = found[t, 2], found[t, 3]
        if found[t, 4] - start != 1 + 4 * k:
            return False
        words = words_at(data, start + 1, k).view(np.int32)
        exponent = np.int64(np.int8(data[start]))
        if k and (not _ascends(words, _INDEX) or (words[k - 1] & _INDEX) >= table[t, 1]):
            return False
        if k and exponent - _depth(words) + BIAS < 1:
            return False
    values = np.zeros(2 * DEEPEST + 2, dtype=np.float32)
    for t in range(found.shape[0]):
        k, start, first = found[t, 2], found[t, 3], table[t, 0]
        words = words_at(data, start + 1, k).view(np.int32)
        highest = np.int64(np.int8(data[start])) + BIAS
        for depth in range(DEEPEST + 1):
            if depth >= highest:  # it is not normal, and none has it
                break
            power = np.uint32((highest - depth) << MANTISSA_BITS).view(np.float32)
            values[depth] = power * np.float32(weight)
            values[DEEPEST + 1 + depth] = -power * np.float32(weight)
        _scatter_words(0, k, words, values, out[first : first + table[t, 1]])
    return True
