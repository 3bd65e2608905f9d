"""The messages of `rings/announced.py`, compiled: when they are posted, leave and arrive.

One message of every rank at a time: all ranks hear whether their successors have posted the
receive (`_hear`), then the data leave (`_message`), between two ranks behind or in front of the
announcements on their one connection (`_announce`). Before a rank posts a message with `window` in
flight it waits for the oldest (`wait`). Arrays, all int64, of the q ranks that stand for all p:

| array      | shape              | what                                                        |
|------------|--------------------|-------------------------------------------------------------|
| state      | [5 + 3 window, q]  | times, by rank; see `POSTED` and `_ARRIVES`                 |
| queue      | [2]                | messages in flight; the slot of the oldest                  |
| pieces     | [s, 2 q]           | size class of each piece of each block, twice over, so that |
|            |                    | the blocks of q ranks from any one on are one slice         |
| kinds      | [q]                | link class of the link that leaves a rank                   |
| nbytes     | [sizes]            | bytes of a size class                                       |
| busy       | [sizes x links]    | how long a message takes its link: by size class, then link |
|            |                    | class, flat                                                 |
| latency    | [sizes x links]    | from then to its arrival                                    |
| back       | [q]                | latency of an announcement against the link that leaves a   |
|            |                    | rank                                                        |
| reductions | [sizes]            | what it takes to add a message                              |
| late       | [messages, q]      | random delays by sender, or [0, q]                          |
| flags      | [7]                | see `TWO`                                                   |

Rank r sends to rank r + 1. In block number b of a phase it sends block r + shift - b (mod p), piece
after piece; so `shift` is the first block of rank 0.
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined, loop
from gcsim.simulator.clock import Times

Ints = NDArray[np.int64]
NOTHING = -(2**62)
"""When a message arrives that is none: earlier than any time."""
TWO, SENDS_FIRST, SKIPS, REDUCES, STEADY, FIRST_ODD, ODD_BLOCKS = range(7)
"""Flags: there are two ranks, on one connection; a send is posted before its receive; empty pieces
are no messages; what arrives is added; blocks are equal and links constant; where they are not
equal, the first of the few neighbouring blocks unlike all others, and how many they are (0: not
known, or not few)."""
POSTED, LEFT, STARTED, _DATA, _WORD, _IN_FLIGHT = range(6)
"""Rows of the state, of a rank's last message: when it was posted, has left, could leave; between
two ranks, when its last data and its last announcement arrive; then the first slot in flight."""
_ARRIVES, _LEAVES, _COSTS = range(3)
"""Rows of a slot: when the message from the predecessor arrives, when the rank's own has left, and
what it takes to add what has arrived."""


def state_of(entry: Times, window: int) -> tuple[Times, Ints]:
    """What `post` takes on: state and queue of ranks that enter, with nothing posted."""
    state = np.full((_IN_FLIGHT + 3 * window, len(entry)), NOTHING, dtype=np.int64)
    state[: STARTED + 1] = entry
    return state, np.zeros(2, dtype=np.int64)


@loop
def post(  # noqa: PLR0917 - a compiled loop takes its arrays by position
    state: Times,
    queue: Ints,
    pieces: Ints,
    kinds: Ints,
    nbytes: Ints,
    busy: Times,
    latency: Times,
    back: Times,
    reductions: Times,
    late: Times,
    flags: Ints,
    shift: int,
    first: int,
    last: int,
) -> None:
    """Post the messages of a phase from number `first` to before `last`, for q ranks; `late` are
    those messages' delays alone.

    With f what the messages of one block do to the state, f(state + c) = f(state) + c. So where
    blocks are equal (STEADY) and one of them has shifted the state by a constant, so does each of
    the rest of the phase, and the rest is done at once. Where all but a few neighbouring blocks
    are equal (ODD_BLOCKS: Gloo's last segments are short), most ranks keep that pace, and only
    those around the odd blocks are computed (`_around`).
    """
    q, per_block, window = state.shape[1], pieces.shape[0], (state.shape[0] - _IN_FLIGHT) // 3
    before, none = state, np.zeros(0, dtype=np.int64)
    number, compares = first, False
    # a whole block from one look at the state to the next, so that slots are in the same order
    looks_at = 2 * per_block if flags[ODD_BLOCKS] and per_block % window == 0 else last
    while number < last:
        if number == looks_at - per_block:
            before = state.copy()  # held against the state one block later
        if number == looks_at and queue[0] == window:
            odd = flags[FIRST_ODD] - shift + number // per_block  # who sends the first odd block
            low, high, by = _unsteady(before, state, odd, flags[ODD_BLOCKS], per_block)
            if high - low < q // 2:  # else there is little to save
                number = _around(
                    state,
                    queue,
                    pieces,
                    kinds,
                    nbytes,
                    busy,
                    latency,
                    back,
                    reductions,
                    flags,
                    shift,
                    number,
                    last,
                    low,
                    high,
                    by,
                )
            # again later, ever more seldom: a look costs as much as a few messages
            looks_at = number + per_block * (2 + number // per_block // 8)
            continue
        block, piece = number // per_block, number % per_block
        turned = (shift - block) % q
        late_now = late[number - first] if late.shape[0] > 0 else none
        size = pieces[piece, turned : turned + q]
        _message(
            state, queue, size, kinds, nbytes, busy, latency, back, reductions, flags, late_now
        )
        number += 1
        if flags[STEADY] and piece == per_block - 1 and queue[0] == window:
            now = _in_order(state, queue)  # oldest slot first: comparable from block to block
            if compares and _shifted(before, now):
                _advance(state, (last - number) // per_block * (now[0, 0] - before[0, 0]))
                number = last
            before, compares = now, True


def _message(  # noqa: PLR0917
    state: Times,
    queue: Ints,
    size: Ints,
    kinds: Ints,
    nbytes: Ints,
    busy: Times,
    latency: Times,
    back: Times,
    reductions: Times,
    flags: Ints,
    late: Times,
) -> None:
    """Post one message of each rank, of size class `size` `[q]`."""
    q, window = state.shape[1], (state.shape[0] - _IN_FLIGHT) // 3
    width = latency.size // nbytes.size  # link classes
    word, ahead = np.empty(q, dtype=np.int64), np.empty(q, dtype=np.int64)
    knows = np.zeros(q, dtype=np.int64)
    posted, left = state[POSTED], state[LEFT]
    if queue[0] == window:
        wait(state, queue)
    slot = _IN_FLIGHT + 3 * ((queue[1] + queue[0]) % window)  # the first free one
    _hear(state, back, flags, word, ahead, knows)
    # between two ranks, first those whose data go before their own announcement
    for turn in range(1 + flags[TWO]):
        for r in range(q):
            if flags[TWO] and knows[r] == turn:
                continue
            to = r + 1 if r + 1 < q else 0
            if flags[SKIPS] and nbytes[size[r]] == 0:
                # no message: nothing to wait for, but for what left before
                state[slot + _ARRIVES, to], state[slot + _COSTS, to] = NOTHING, 0
                state[slot + _LEAVES, r] = left[r]
                continue
            at = size[r] * width + kinds[r]
            start = posted[r] if knows[r] else max(posted[r], word[r])
            leaves = max(left[r], start) + busy[at]
            arrives = leaves + latency[at]
            if late.size > 0:
                arrives += late[r]
            if flags[TWO]:  # behind the announcement that is on the connection already
                arrives = max(arrives, state[_WORD, r])
                state[_DATA, r] = arrives
            state[STARTED, r], left[r] = start, leaves
            state[slot + _ARRIVES, to], state[slot + _LEAVES, r] = arrives, leaves
            state[slot + _COSTS, to] = reductions[size[r]] if flags[REDUCES] else 0
        if flags[TWO] and turn == 0:
            _announce(state, queue, back, flags, size, nbytes, word, ahead, knows)
    queue[0] += 1


# callable from compiled loops, and plain Python for `busy` that is no array (`Messages.run`)
register_jitable(error_model="numpy")(_message)


@loop
def _around(  # noqa: PLR0917
    state: Times,
    queue: Ints,
    pieces: Ints,
    kinds: Ints,
    nbytes: Ints,
    busy: Times,
    latency: Times,
    back: Times,
    reductions: Times,
    flags: Ints,
    shift: int,
    number: int,
    last: int,
    low: int,
    high: int,
    by: int,
) -> int:
    """Post messages, block by block, of the ranks from `low` to before `high` alone (mod q).

    A rank whose block is like the one before, and all of whose neighbours' times that matter to it
    have moved by `by` in a block, moves by `by`: these are brought up to date when they are needed.
    Until all is posted, or too many ranks differ; the number of the next message is returned.
    """
    q, per_block = state.shape[1], pieces.shape[0]
    # a message depends on the predecessor's and, by its announcement, on the successor's: so far
    # does an odd time spread in the messages of a block
    reach, none = per_block + 1, np.zeros(0, dtype=np.int64)
    known = np.full(q, number // per_block, dtype=np.int64)  # to the beginning of which block
    while number < last and high - low + 2 * reach < q // 2:
        # the ranks and `reach` more on either side, whose results at the edges are not used
        block, begin = number // per_block, low - reach
        width = high - low + 2 * reach
        strip = np.empty((state.shape[0], width), dtype=np.int64)
        for i in range(width):
            r = (begin + i) % q
            later = (block - known[r]) * by
            for row in range(state.shape[0]):
                strip[row, i] = _later(state[row, r], later, row)
        old = strip.copy()
        turned = (shift - block + begin) % q
        for piece in range(per_block):
            size = np.empty(width, dtype=np.int64)
            for i in range(width):
                size[i] = pieces[piece, (turned + i) % q]
            _message(
                strip,
                queue,
                size,
                kinds[:width],
                nbytes,
                busy,
                latency,
                back[:width],
                reductions,
                flags,
                none,
            )
        number += per_block
        # next time, whoever did not keep the pace, and who sends an odd block next: they move on by
        # one rank a block
        odd = flags[FIRST_ODD] - shift + block
        first, end = odd - 1, odd + flags[ODD_BLOCKS] + 2
        for i in range(reach, width - reach):
            r = (begin + i) % q
            known[r] = block + 1
            same = True
            for row in range(state.shape[0]):
                state[row, r] = strip[row, i]
                same = same and strip[row, i] == _later(old[row, i], by, row)
            if not same:
                first, end = min(first, begin + i), max(end, begin + i + 1)
        low, high = first - reach, end + reach
    for r in range(q):
        for row in range(state.shape[0]):
            state[row, r] = _later(state[row, r], (number // per_block - known[r]) * by, row)
    return number


@inlined
def _later(time: int, by: int, row: int) -> int:
    """An entry of the state when all times are later."""
    cost = row >= _IN_FLIGHT and (row - _IN_FLIGHT) % 3 == _COSTS
    return time if cost or time == NOTHING else time + by


@loop
def _unsteady(
    before: Times, now: Times, odd: int, count: int, per_block: int
) -> tuple[int, int, int]:
    """From which rank to before which (around `odd`, mod q) ranks do not keep the common pace.

    With those that they can touch; and that pace, per block.
    """
    q = now.shape[1]
    by = now[0, (odd - q // 2) % q] - before[0, (odd - q // 2) % q]
    first, end = odd - 1, odd + count + 2
    for rank in range(odd - q // 2, odd - q // 2 + q):
        r = rank % q
        for row in range(now.shape[0]):
            if now[row, r] != _later(before[row, r], by, row):
                first, end = min(first, rank), max(end, rank + 1)
    return first - per_block - 1, end + per_block + 1, by


@loop
def _hear(  # noqa: PLR0917
    state: Times, back: Times, flags: Ints, word: Times, ahead: Ints, knows: Ints
) -> None:
    """When ranks hear that their successors have posted the receive: into `word` `[q]`.

    Between two ranks a word waits for the data that are on the connection already, into `ahead`;
    into `knows`, whose successor's word has come before it posts. Its own word will go behind its
    data, if it posts these first. (Of what went before the last data, nobody need be told: the
    receiver has waited for it before it posts.)
    """
    q, posted, left = word.size, state[POSTED], state[LEFT]
    for r in range(q):
        word[r] = posted[(r + 1) % q] + back[r]
    if not flags[TWO]:
        return
    for a in range(q):  # who announces to r
        r = (a - 1) % q
        ahead[a] = state[STARTED, a] <= posted[a]
        goes, behind = posted[a], NOTHING
        if ahead[a]:
            goes, behind = max(goes, left[a]), state[_DATA, a]
        word[r] = max(goes + back[r], behind)
        if flags[SENDS_FIRST]:
            knows[r] = max(goes + max(back[r], 1), behind) <= posted[r]


@loop
def _announce(  # noqa: PLR0917
    state: Times,
    queue: Ints,
    back: Times,
    flags: Ints,
    size: Ints,
    nbytes: Ints,
    word: Times,
    ahead: Ints,
    knows: Ints,
) -> None:
    """Put the announcements of two ranks on their connection."""
    q, window = word.size, (state.shape[0] - _IN_FLIGHT) // 3
    latest = _IN_FLIGHT + 3 * ((queue[1] + queue[0] - 1) % window)
    for a in range(q):
        r = (a - 1) % q
        if flags[SKIPS] and nbytes[size[r]] == 0:
            continue  # nothing to receive
        if knows[a]:
            word[r] = max(state[LEFT, a] + back[r], state[_DATA, a])
        elif not ahead[a]:  # its last data follow
            state[_DATA, a] = max(state[_DATA, a], word[r])
            state[latest + _ARRIVES, (a + 1) % q] = state[_DATA, a]
        state[_WORD, a] = word[r]


@loop
def _in_order(state: Times, queue: Ints) -> Times:
    """The state, with the message posted first of those in flight in front of the others."""
    now, in_flight = np.empty(state.shape, dtype=np.int64), state.shape[0] - _IN_FLIGHT
    for row in range(state.shape[0]):
        place = row
        if row >= _IN_FLIGHT:
            place = _IN_FLIGHT + (row - _IN_FLIGHT + 3 * queue[1]) % in_flight
        for r in range(state.shape[1]):
            now[row, r] = state[place, r]
    return now


@loop
def _shifted(before: Times, now: Times) -> bool:
    """Whether all times are later by one constant."""
    by = now[0, 0] - before[0, 0]
    for row in range(now.shape[0]):
        if row >= _IN_FLIGHT and (row - _IN_FLIGHT) % 3 == _COSTS:
            continue  # equal blocks cost the same
        for r in range(now.shape[1]):
            if now[row, r] - before[row, r] != (0 if now[row, r] == NOTHING else by):
                return False
    return True


@loop
def _advance(state: Times, by: int) -> None:
    """Make all times later."""
    for row in range(state.shape[0]):
        if row >= _IN_FLIGHT and (row - _IN_FLIGHT) % 3 == _COSTS:
            continue
        for r in range(state.shape[1]):
            if state[row, r] != NOTHING:
                state[row, r] += by


@loop
def wait(state: Times, queue: Ints) -> None:
    """For the message posted first of those in flight."""
    window = (state.shape[0] - _IN_FLIGHT) // 3
    slot = _IN_FLIGHT + 3 * queue[1]
    for r in range(state.shape[1]):
        done = max(state[POSTED, r], state[slot + _ARRIVES, r]) + state[slot + _COSTS, r]
        state[POSTED, r] = max(done, state[slot + _LEAVES, r])
    queue[0] -= 1
    queue[1] = (queue[1] + 1) % window


@loop
def last_exits(  # noqa: PLR0917
    entry: Times,
    pieces: Ints,
    kinds: Ints,
    nbytes: Ints,
    busy: Times,
    latency: Times,
    back: Times,
    reductions: Times,
    flags: Ints,
    shifts: Ints,
    posts: int,
    window: int,
    out: Times,
) -> None:
    """Into `out` `[worlds]`: when the last of q ranks is done with all phases.

    As `post`, in each of many worlds: times have a row for each, flags and shifts one for each
    phase, of `posts` messages.
    """
    q = entry.shape[1]
    none = np.zeros((0, q), dtype=np.int64)
    for world in range(out.size):
        state = np.full((_IN_FLIGHT + 3 * window, q), NOTHING, dtype=np.int64)
        state[: STARTED + 1] = entry[world]
        queue = np.zeros(2, dtype=np.int64)
        for phase in range(shifts.size):
            post(
                state,
                queue,
                pieces,
                kinds,
                nbytes,
                busy[world],
                latency[world],
                back[world],
                reductions[world],
                none,
                flags[phase],
                shifts[phase],
                0,
                posts,
            )
            while queue[0]:
                wait(state, queue)
        out[world] = state[POSTED].max()
