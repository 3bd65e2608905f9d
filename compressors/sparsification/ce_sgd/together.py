"""How do all tensors of a bucket go through CE-SGD without calls for each? In loops over them.

They do what `selection.py`, `messages.py` and the server in `ce_sgd.py` do tensor by tensor, to the
same bits, where tensors are short and nobody counts kernels (`frame.together`). The memories of a
bucket's tensors lie behind each other in one array of each kind; a `Selection` is a view of its
part, so that a step may go either way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frame import (
    HEADER_BYTES,
    Codec,
    find_frames,
    put_words,
    words_at,
    write_frame,
)
from gcsim.compressors.coding.indices.bitmap import BLOCK, add_bits, starts_of, take_bits
from gcsim.compressors.coding.indices.index_coding import ascends_below, set_bits
from gcsim.compressors.coding.scans import greatest_magnitude
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, loop
from gcsim.compressors.sparsification.ce_sgd.selection import DRAW, Found, Selection, choose_blocks
from gcsim.compressors.sparsification.ce_sgd.speculation import AGED, find_blocks


class Cut:
    """Where the parts of a bucket's tensors lie in arrays of elements, of bitmaps and of blocks."""

    def __init__(self, layout: BucketLayout) -> None:
        self.layout = layout
        sizes = -(-layout.table[:, 1:] // np.array((8, BLOCK)))
        self.cuts = np.concatenate((layout.table, sizes.cumsum(axis=0) - sizes), axis=1)
        """Of each tensor: offset, elements, first byte of its bitmap, first of its blocks of
        `BLOCK`: int64 `[tensors, 4]`."""
        self.nbytes, self.blocks = sizes.sum(axis=0).tolist()
        """Of all bitmaps; blocks of all tensors."""

    def bitmaps(self, bits: Tensor) -> dict[int, Tensor]:
        """Each tensor's part of an array of bitmaps, sharing its memory."""
        parts = torch.split(bits, (-(-self.layout.table[:, 1] // 8)).tolist())
        return {piece.index: part for piece, part in zip(self.layout.slices, parts, strict=True)}


_MADE: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
"""By compressor: what is made again from its state where it is not there, and is none itself."""


class Memories(Cut):
    """What a worker remembers of a bucket's tensors."""

    @classmethod
    def of(
        cls, owner: object, layout: BucketLayout, known: dict[int, Selection], unsent_limit: int
    ) -> Memories:
        """Those of a compressor, from step to step."""
        kept = _MADE.setdefault(owner, {})
        found: Memories | None = kept.get((cls, layout.index))
        now = [known.get(piece.index) for piece in layout.slices]
        if found is None or found.layout != layout or not all(map(is_, found.selections, now)):
            found = kept[cls, layout.index] = cls(layout, known, unsent_limit)
        return found

    def __init__(
        self, layout: BucketLayout, known: dict[int, Selection], unsent_limit: int
    ) -> None:
        """Selections that are `known` already, by tensor, go on from what they are; all of the
        bucket's become views."""
        super().__init__(layout)
        self._limit, n, nbytes = unsent_limit, layout.numel, self.nbytes
        flat = [torch.zeros(nbytes, dtype=torch.uint8), torch.zeros(n, dtype=torch.int32)]
        flat += [torch.zeros(n, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8)]
        self._starts = np.zeros(self.blocks + len(self.cuts), dtype=np.int64)
        self.selections = []
        for t, piece in enumerate(layout.slices):
            offset, numel, byte, block = self.cuts[t].tolist()
            elements, bits = slice(offset, offset + numel), slice(byte, byte - (-numel // 8))
            one = Selection(flat[1][elements], unsent_limit)
            one.starts = self._starts[block + t : block + t + len(one.starts)]
            before = known.get(piece.index)
            places = {"chosen": bits, "rewards": elements, "age": elements, "near": bits}
            for (name, place), memory in zip(places.items(), flat, strict=True):
                part = memory[place]
                if before is not None:
                    part.copy_(getattr(before, name))
                setattr(one, name, part)
            one.begun = before is not None and before.begun
            known[piece.index] = one
            self.selections.append(one)
        bitmap, rewards, ages, nears = (array(each) for each in flat)
        self._flat = bitmap, rewards, ages, nears

    def encode(
        self, values: Tensor, improved: bool | None, wanted: list[int], keys: NDArray[np.uint64],
        draws: Callable[[int], np.random.Generator], codec: int,
    ) -> Tensor:  # fmt: skip
        """`CeSgd.encode` of float32 `[n]`: select, and write all frames.

        By tensor: how many elements are `wanted` as speculative ones, keys; `draws` makes the
        generator of the tensor of that number.
        """
        begun = [one.begin(improved) for one in self.selections]
        modes = np.array([mode for _, mode in begun])
        new = np.array([first for first, _ in begun])
        cuts, given = self.cuts, (array(values), *self._flat)
        counts = np.zeros((5, self.blocks), dtype=np.int64)
        plans = np.zeros((3, self.blocks), dtype=np.int64)
        ways = np.zeros((2, len(cuts)), dtype=np.int64)
        choose(*given, cuts, modes, keys, self._limit, np.array(wanted), new, counts, plans, ways)
        for t in np.flatnonzero(ways[0] == UNKNOWN).tolist():
            part = slice(cuts[t, 3], cuts[t, 3] - (-cuts[t, 1] // BLOCK))
            found = Found(*counts[:, part])
            self.selections[t].starts[1:] = found.chosen.cumsum()
            plan = self.selections[t].plan(found, wanted[t], partial(draws, t))
            plans[0, part], plans[1, part], plans[2, part] = plan.below, plan.ties, plan.drawn
            ways[:, t] = plan.level, plan.marked
        held = counts[0], self._starts
        message = write(*given, cuts, keys, self._limit, new, *held, plans, ways, codec)
        return torch.from_numpy(message)


UNKNOWN = AGED - 1
"""The level of a plan that takes more than one block's numbers."""


class Rows(Cut):
    """What a server knows of each worker's selections."""

    def __init__(self, layout: BucketLayout, known: dict[tuple[int, int], Tensor]) -> None:
        """`known`, by tensor and rank, is brought on: with views."""
        super().__init__(layout)
        self._known = known
        self._rows: dict[int, tuple[Tensor, dict[tuple[int, int], Tensor | None]]] = {}
        """By rank: bitmaps of all tensors; of each its part, None if it was never sent."""

    @classmethod
    def of(cls, owner: object, layout: BucketLayout, known: dict[tuple[int, int], Tensor]) -> Rows:
        """Those of a compressor, from step to step."""
        kept = _MADE.setdefault(owner, {})
        found: Rows | None = kept.get((cls, layout.index))
        if found is None or found.layout != layout:
            found = kept[cls, layout.index] = cls(layout, known)
        return found

    def receive(
        self, rank: int, payload: Tensor, total: NDArray[np.float32], unions: NDArray[np.uint8],
        weight: float,
    ) -> bool:  # fmt: skip
        """See `receive`; False also for frames that are no CE-SGD's."""
        data, found = array(payload), np.empty((len(self.cuts), 5), dtype=np.int64)
        if not find_frames(data, self.layout.table, int(Codec.CE_SGD), -1, found):
            return False
        bits, parts = self._row(rank)
        before = [part is not None for part in parts.values()]
        sent = np.array(before)
        given = self.cuts, array(bits), sent, total, unions, np.float32(weight)
        if not receive(data, found, *given):
            return False
        if not all(before):
            for part, place, was in zip(self.bitmaps(bits).values(), parts, sent, strict=True):
                if was and parts[place] is None:
                    self._known[place] = parts[place] = part
        return True

    def _row(self, rank: int) -> tuple[Tensor, dict[tuple[int, int], Tensor | None]]:
        """A worker's, as long as they are what is known; else made again."""
        row = self._rows.get(rank)
        if row is None or not all(self._known.get(place) is part for place, part in row[1].items()):
            bits = torch.zeros(self.nbytes, dtype=torch.uint8)
            row = self._rows[rank] = bits, {}
            for index, part in self.bitmaps(bits).items():
                place = index, rank
                row[1][place] = None
                if place in self._known:
                    self._known[place] = row[1][place] = part.copy_(self._known[place])
        return row


# --- sender -----------------------------------------------------------------------------------


@loop
def choose(
    values: Any, bits: Any, rewards: Any, ages: Any, nears: Any, cuts: Any, modes: Any, keys: Any,
    limit: int, wanted: Any, new: Any, counts: Any, plans: Any, ways: Any,
) -> None:  # fmt: skip
    """`choose_blocks` of all tensors, and of those of one block a `Plan`: see `Selection.plan`.

    `new` becomes whether V travels; `counts` are `Found`'s, `plans` the plan's below, ties and
    drawn, `ways` its level, or `UNKNOWN`, and whether ties are marked.
    """
    for t in range(cuts.shape[0]):
        first, n, byte, block = cuts[t]
        blocks = (n + BLOCK - 1) // BLOCK
        if not n:
            continue
        part = values[first : first + n]
        highest = np.float64(0)
        if modes[t] == DRAW:
            highest = np.float64(np.uint32(greatest_magnitude(part)).view(np.float32))
        own = np.zeros((5, blocks), dtype=np.int64)
        choose_blocks(
            0, n, modes[t], bits[byte : byte + (n + 7) // 8], rewards[first : first + n],
            ages[first : first + n], nears[byte : byte + (n + 7) // 8], part, keys[t], highest,
            np.uint8(limit), own,
        )  # fmt: skip
        for b in range(blocks):
            for i in range(5):
                counts[i, block + b] = own[i, b]
            new[t] |= own[4, b] != 0
        held, aged, lowest, ties = own[0, 0], own[1, 0], own[2, 0], own[3, 0]
        missing = min(wanted[t], n - held)
        if blocks == 1 and aged >= missing:
            ways[0, t] = AGED
            plans[1, block], plans[2, block] = aged, missing
        elif blocks == 1 and aged + ties >= missing:
            ways[0, t], ways[1, t] = lowest, 1
            plans[0, block], plans[1, block], plans[2, block] = aged, ties, missing - aged
        else:
            ways[0, t] = UNKNOWN


@loop
def write(
    values: Any, bits: Any, rewards: Any, ages: Any, nears: Any, cuts: Any, keys: Any, limit: int,
    new: Any, held: Any, firsts: Any, plans: Any, ways: Any, codec: int,
) -> Any:  # fmt: skip
    """The frames of all tensors, as `pack_parts` makes them; who is speculative has age 0 then.

    `held` are the elements of V by block, `firsts` become what `Selection.starts` says.
    """
    total = (HEADER_BYTES + 1) * cuts.shape[0] + bits.size
    for b in range(held.size):
        total += 4 * held[b] + 8 * (plans[0, b] + plans[2, b])
    message = np.empty(total, dtype=np.uint8)
    at = 0
    for t in range(cuts.shape[0]):
        first, n, byte, block = cuts[t]
        last = block + (n + BLOCK - 1) // BLOCK
        part, own = values[first : first + n], bits[byte : byte + (n + 7) // 8]
        starts, begins = firsts[block + t : last + t + 1], np.empty(last - block, dtype=np.int64)
        wanted = 0
        for b in range(block, last):
            starts[b - block + 1] = starts[b - block] + held[b]
            begins[b - block] = wanted
            wanted += plans[0, b] + plans[2, b]
        indices = np.empty(wanted, dtype=np.int32)
        find_blocks(
            0, n, rewards[first : first + n], ages[first : first + n],
            nears[byte : byte + (n + 7) // 8], ways[1, t] != 0, ways[0, t], np.uint8(limit),
            plans[0, block:last], plans[1, block:last], plans[2, block:last], begins,
            ~keys[t], indices,
        )  # fmt: skip
        selected = np.empty(starts[-1], dtype=np.float32)
        take_bits(0, n, part, own, starts, selected)
        frame = message[at:]
        frame[HEADER_BYTES] = new[t]
        end = HEADER_BYTES + 1
        if new[t]:
            end = put_words(frame, end, own)
        end = put_words(frame, put_words(frame, end, selected), indices)
        others = np.empty(wanted, dtype=np.float32)
        for i in range(wanted):
            others[i] = part[indices[i]]
        end = put_words(frame, end, others)
        write_frame(frame[:end], codec, 0, 0, n, selected.size + indices.size)
        at += end
    return message[:at].copy()


# --- server -----------------------------------------------------------------------------------


@loop
def receive(
    data: Any, found: Any, cuts: Any, known: Any, sent: Any, total: Any, unions: Any, weight: Any
) -> bool:
    """Add a worker's frames to `total`, and what they brought to `unions`, one bit an element.

    `known` are its selections, which may become new ones; `sent` whether it ever sent one. False,
    and nothing done, where a frame is damaged.
    """
    selected = np.empty(found.shape[0], dtype=np.int64)
    for t in range(found.shape[0]):
        n, body = cuts[t, 1], data[found[t, 3] : found[t, 4]]
        size = (n + 7) // 8
        own = known[cuts[t, 2] : cuts[t, 2] + size]
        if not body.size or body[0] > 1 or not (body[0] or sent[t]):
            return False
        at = 1
        if body[0]:
            at += size
            if body.size < at or (n % 8 and body[at - 1] >> np.uint8(n % 8)):
                return False
            own = body[1:at]
        selected[t] = starts_of(own, n)[-1]
        extra = found[t, 2] - selected[t]
        if extra < 0 or body.size != at + 4 * selected[t] + 8 * extra:
            return False
        places = words_at(body, at + 4 * selected[t], extra).view(np.int32)
        if places.size and not ascends_below(places, n):
            return False
    for t in range(found.shape[0]):
        first, n, byte = cuts[t, 0], cuts[t, 1], cuts[t, 2]
        body, size, at = data[found[t, 3] : found[t, 4]], (n + 7) // 8, 1
        own, union, out = known[byte : byte + size], unions[byte : byte + size], total[first:]
        if body[0]:
            for b in range(size):
                own[b] = body[1 + b]
            sent[t] = 1
            at += size
        extra = found[t, 2] - selected[t]
        chosen = words_at(body, at, selected[t]).view(np.float32)
        places = words_at(body, at + 4 * selected[t], extra).view(np.int32)
        others = words_at(body, at + 4 * (selected[t] + extra), extra).view(np.float32)
        add_bits(0, n, out[:n], own, starts_of(own, n), chosen, weight)
        for i in range(extra):
            out[places[i]] += others[i] * weight
        for b in range(size):
            union[b] |= own[b]
        set_bits(places, union)
    return True


@loop
def answer(mean: Any, unions: Any, cuts: Any, codec: int) -> Any:
    """The frames of `pack_answer` of all tensors: uint8."""
    message = np.empty(HEADER_BYTES * cuts.shape[0] + unions.size + 4 * mean.size, dtype=np.uint8)
    at = 0
    for t in range(cuts.shape[0]):
        first, n, byte = cuts[t, 0], cuts[t, 1], cuts[t, 2]
        union, frame = unions[byte : byte + (n + 7) // 8], message[at:]
        starts = starts_of(union, n)
        values = np.empty(starts[-1], dtype=np.float32)
        take_bits(0, n, mean[first : first + n], union, starts, values)
        end = put_words(frame, put_words(frame, HEADER_BYTES, union), values)
        write_frame(frame[:end], codec, 0, 0, n, values.size)
        at += end
    return message[:at].copy()
