"""The Elias omega code on a GPU, for levels (`coding/rounding/level_words.py`).

Writing takes two passes: lengths are summed to find where words begin, then words are written. A
reader does not know where words begin, so it decodes a word and its end at every bit, and then
follows the steps from the first bit, twice as many in each round. That takes about 50 bytes per
bit, so bodies of more than `LONGEST` bits are read on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl

from gcsim.compressors.gpu.integers.packing import put_field, room
from gcsim.compressors.gpu.parts import spread
from gcsim.compressors.gpu.parts import starts as starts_of
from gcsim.compressors.gpu.words import BLOCK, blocks, launch, there
from gcsim.compressors.lazy_torch import Tensor, torch

LONGEST = 1 << 27


def sparse_words(gaps: Tensor, codes: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return sparse words of codes that are not s, and their lengths: int64 `[k]` each."""
    levels = codes.long() - steps
    words, lengths = words_of(gaps)
    sizes, longer = words_of(levels.abs())
    words |= ((levels < 0).long() | (sizes << 1)) << lengths  # 43 + 1 + 13 bits at most
    return words, lengths + 1 + longer


def read_sparse(body: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return gap and code of the sparse word that would begin at each bit, and the bit after it."""
    limit = 8 * body.numel()
    gaps, signs = read_words(body)  # the sign follows the gap, the level follows both
    second = (signs + 1).clamp(max=max(0, limit - 1))
    levels, ends = gaps[second], signs[second]
    ends = torch.where((signs + 1 >= limit) | (levels > steps), limit + 1, ends)
    signed = torch.where(_bits_at(body, signs), -levels, levels)
    return gaps, (signed + steps).to(torch.uint8), ends


# --- writing --------------------------------------------------------------------------------------


def words_of(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return (omega words, first bit lowest; their lengths) of int64 `[k]`: int64 `[k]` each."""
    k = values.numel()
    words, lengths = torch.empty_like(values), torch.empty_like(values)
    launch(_words, blocks(k), values, words, lengths, k, BLOCK=BLOCK)
    return words, lengths


def sections(lengths: Tensor, owner: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return (the bit at which each word begins, in sections of whole bytes; bytes of each
    section). `owner`: each word's section, int64 `[k]`, ascending."""
    bits = lengths.new_zeros(count).index_add_(0, owner, lengths)
    sizes = (bits + 7) // 8
    # padding of earlier sections
    moved = 8 * (sizes.cumsum(0) - sizes) - (bits.cumsum(0) - bits)
    return lengths.cumsum(0) - lengths + moved[owner], sizes


def gathered(words: Tensor, begins: Tensor, size: int) -> Tensor:
    """Write words at their bits, with zeros elsewhere: uint8 `[size]`."""
    out = room(words, size)
    launch(_put_all, blocks(words.numel()), words, begins, out, words.numel(), BLOCK=BLOCK)
    return out.view(torch.uint8)[:size]


# --- reading --------------------------------------------------------------------------------------


def read_words(body: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value of the word from each bit on, and the bit after it (past the end if there is
    none): int64 `[bits]`."""
    limit = 8 * body.numel()
    values, ends = (body.new_empty(limit, dtype=torch.int64) for _ in range(2))
    launch(
        _get, blocks(limit), body.contiguous(), values, ends, limit, body.numel(),
        BLOCK=BLOCK,
    )  # fmt: skip
    return values, ends


def _bits_at(body: Tensor, places: Tensor) -> Tensor:
    """Return the bits at these places, bool; past the end, the last bit."""
    at = places.clamp(max=max(0, 8 * body.numel() - 1))
    return (body[at >> 3] >> (at & 7)) & 1 != 0


def followed(ends: Tensor, sizes: Sequence[int], counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return (where `counts` words begin in each section of `sizes` bytes; the bit after the last
    of each, past the end if words do not fit): int64 `[sum of counts]`, `[sections]`. `ends` is the
    end of the word at each bit. The host waits for the number found."""
    limit = ends.numel()
    first = there(starts_of(sizes), ends.device) * 8
    last = first + there(sizes, ends.device) * 8
    wanted = there(counts, ends.device)
    after = ends
    if len(sizes) > 1:  # no word may reach into the next section
        own = torch.searchsorted(last, torch.arange(limit, device=ends.device), right=True)
        after = torch.where(ends > last[own], limit, ends)
    after = torch.cat((after.clamp(max=limit), ends.new_full((1,), limit)))
    # place `limit` is a sink: words that do not fit lead there, and it leads to itself
    begun = torch.zeros_like(after, dtype=torch.bool)
    begun[first] = True
    for _ in range(max(0, max(counts, default=0) - 1).bit_length()):
        # in round i, `after` skips 2^i words, and the number of known words doubles
        begun[torch.where(begun, after, limit)] = True
        after = after[after]
    found = begun[:limit].nonzero().view(-1)
    before = torch.searchsorted(found, first)
    enough = torch.searchsorted(found, last) - before >= wanted
    numbers = torch.arange(sum(counts), device=ends.device)
    numbers += spread(before - (wanted.cumsum(0) - wanted), counts)
    places = torch.cat((found, ends.new_zeros(1)))[numbers.clamp(max=len(found))]
    behind = torch.cat((ends, ends.new_zeros(1)))[torch.cat((places, ends.new_zeros(1)))]
    behind = torch.where(wanted > 0, behind[wanted.cumsum(0) - 1], first)
    return places, torch.where(enough & (behind <= last), behind, limit + 1)


def ended(body: Tensor, after: Tensor, sizes: Sequence[int]) -> Tensor:
    """Whether words up to bit `after` fill their zero-padded section: bool `[sections]`."""
    ends = there(sizes, body.device).cumsum(0)
    last = torch.cat((body, body.new_zeros(1)))[(after >> 3).clamp(max=body.numel())].long()
    padded = (after & 7 == 0) | (last >> (after & 7) == 0)
    return padded & ((after + 7) // 8 == ends)


@triton.jit
def _bit_length(values):
    """Return the bits of positive numbers below 2^53, from a float64's exponent."""
    return (values.to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1022


@triton.jit
def _reversed(values, length):
    """Reverse the `length` bits, 1 to 32, of `values`: uint64."""
    x = values.to(tl.uint32)
    # swap neighbours of 1, 2, 4, 8 and 16 bits
    x = ((x >> 1) & 0x55555555) | ((x & 0x55555555) << 1)
    x = ((x >> 2) & 0x33333333) | ((x & 0x33333333) << 2)
    x = ((x >> 4) & 0x0F0F0F0F) | ((x & 0x0F0F0F0F) << 4)
    x = ((x >> 8) & 0x00FF00FF) | ((x & 0x00FF00FF) << 8)
    x = (x >> 16) | (x << 16)
    return (x >> (32 - length).to(tl.uint32)).to(tl.uint64)


@triton.jit
def omega_word(group):
    """Return (word, bits): groups from the last to the first, each coded by the one before it."""
    length = group * 0 + 1
    word = (group * 0).to(tl.uint64)
    for _ in tl.static_range(4):  # 32 bits, 5, 3, 2
        size = _bit_length(group)
        # the earlier group is written first: in the lowest bits
        longer = (word << size.to(tl.uint64)) | _reversed(group, size)
        word = tl.where(group > 1, longer, word)
        length += tl.where(group > 1, size, 0)
        group = tl.where(group > 1, size - 1, 1)
    return word, length


@triton.jit
def _words(values, words, lengths, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word, length = omega_word(tl.load(values + at, mask=at < n, other=1))
    tl.store(words + at, word.to(tl.int64, bitcast=True), mask=at < n)
    tl.store(lengths + at, length, mask=at < n)


@triton.jit
def _put_all(words, begins, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    begin = tl.load(begins + at, mask=at < n, other=0)
    word = tl.load(words + at, mask=at < n, other=0).to(tl.uint64, bitcast=True)
    put_field(out, begin, word, at < n)


@triton.jit
def _get(packed, values, ends, limit, nbytes, BLOCK: tl.constexpr):
    bit = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    byte = bit >> 3
    window = tl.zeros([BLOCK], dtype=tl.uint64)
    for j in tl.static_range(8):
        next_byte = tl.load(packed + byte + j, mask=byte + j < nbytes, other=0).to(tl.uint64)
        window |= next_byte << (8 * j)
    ninth = tl.load(packed + byte + 8, mask=byte + 8 < nbytes, other=0).to(tl.uint64)
    within = (bit & 7).to(tl.uint64)
    # two shifts, since a single one by 64 (for within = 0) is undefined
    window = (window >> within) | ((ninth << 1) << (63 - within))
    value = tl.full([BLOCK], 1, dtype=tl.int64)
    length = tl.zeros([BLOCK], dtype=tl.int64)
    going = bit < limit
    good = going
    for _ in tl.static_range(5):  # at most four groups, then the final zero
        rest = window >> length.to(tl.uint64)
        one = going & ((rest & 1) != 0)
        good = good & ((one & (value > 31)) == 0)
        size = tl.minimum(value, 31) + 1
        group = _reversed(rest & ((1 << size) - 1).to(tl.uint64), size).to(tl.int64)
        length += tl.where(going, tl.where(one, size, 1), 0)
        value = tl.where(one, group, value)
        going = one & good
    good = good & (going == 0)
    end = bit + length
    good = good & (end <= limit)
    tl.store(values + bit, tl.where(good, value, 0), mask=bit < limit)
    tl.store(ends + bit, tl.where(good, end, limit + 1), mask=bit < limit)
