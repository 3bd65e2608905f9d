"""Compiled messages of `rings/announced.py`: when they are posted, leave and arrive.

All ranks post one message at a time: the announcements of the successors' receives arrive
(`_hear`), then the data leave (`_message`); between two ranks, data and announcements (`_announce`)
queue on one connection. With `window` messages in flight a rank first waits for the oldest
(`wait`). Arrays have an entry for each of the q ranks that represent all p. Rank r sends to rank
r + 1; number b of a phase is block r + shift - b (mod p), piece after piece.

On a long ring of equal links only the ranks whose timing changes are computed (`_keep_paces`).
There times depend on the block that is sent, not on its sender: let x[i] be the times of the rank
that sends block i, after piece j. The next times follow from x[i - 1], x[i] and x[i + 1] by a map f
that is the same for every block number, with f(x + c) = f(x) + c. If these three are a constant c
later than one block earlier, so is the result, which then grows by c per block (its pace) without
computation. In a ring of full and empty segments only the ends of a few runs are computed.

`_keep_paces` assumes two messages in flight and p > 2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined, loop, usable
from gcsim.simulator.clock import Times
from gcsim.simulator.network.departures import departure, run_of

_POSTED, _LEFT, _STARTED, _DATA, _WORD, _SLOTS = range(6)  # rows of `State.times`


class State(NamedTuple):
    """Times of all ranks' last messages, and of those in flight, one slot each."""

    times: Times  # [5 + 2 window, q]: rows that `posted` to `leaves` are views of
    posted: Times  # [q]: when a rank posted its last message
    left: Times  # [q]: when it left
    started: Times  # [q]: when it could leave
    data: Times  # [q]: two ranks only, when a rank's last data arrive
    word: Times  # [q]: two ranks only, when its last announcement arrives
    arrives: Times  # [window, q]: when the message from the predecessor arrives
    leaves: Times  # [window, q]: when the rank's own message has left
    costs: Times  # [window, q]: time to add what has arrived
    queue: _Ints  # [2]: messages in flight; the slot of the oldest


class Prices(NamedTuple):
    """Times of messages; for many worlds at once the last four arrays have a row per world."""

    kinds: _Ints  # [q]: class of the link from a rank
    nbytes: _Ints  # [sizes]: bytes of a size class
    serialization: Times  # [sizes x links], flat: time on the link, by size and link class
    latency: Times  # [sizes x links], flat
    back: Times  # [q]: latency of an announcement, against the link from a rank
    reductions: Times  # [sizes]: time to add a message


class Rules(NamedTuple):
    """Properties of a ring's messages."""

    two: bool  # two ranks, on one connection
    sends_first: bool  # a rank posts a send before the corresponding receive
    skips_empty: bool  # empty pieces send no message
    steady: bool  # blocks are equal, and no message's time depends on its start


class Phases(NamedTuple):
    """Messages of a ring's phases, for the q ranks that represent all."""

    pieces: _Ints  # [s, 2 q]: size class of each piece of each block, twice over (`post`)
    rules: Rules
    gone: NDArray[np.bool_] | None  # `_keep_paces`'; None: compute all ranks
    reduces: NDArray[np.bool_]  # [phases]
    shifts: _Ints  # [phases]: the block that rank 0 sends first
    posts: int  # messages of a rank in a phase
    window: int  # messages in flight


@loop
def state_of(starts: Times, window: int) -> State:
    """Return the state of ranks that enter at `starts` `[q]`."""
    times = np.full((_SLOTS + 2 * window, starts.size), _NOTHING, dtype=np.int64)
    for row in range(_DATA):  # copying a row at once takes a second and a half to compile
        for r in range(starts.size):
            times[row, r] = starts[r]
    return State(
        times,
        times[_POSTED],
        times[_LEFT],
        times[_STARTED],
        times[_DATA],
        times[_WORD],
        times[_SLOTS : _SLOTS + window],
        times[_SLOTS + window :],
        np.zeros((window, starts.size), dtype=np.int64),
        np.zeros(2, dtype=np.int64),
    )


@loop
def post(  # noqa: PLR0917 - a compiled loop takes its arrays by position
    state: State,
    pieces: _Ints,
    prices: Prices,
    rules: Rules,
    gone: NDArray[np.bool_] | None,
    reduces: bool,
    jitter: Times,
    shift: int,
    first: int,
    last: int,
) -> None:
    """Post the messages of a phase from number `first` to before `last`.

    `pieces` `[s, 2 q]`: size class of each piece of each block, twice over, so that the blocks of q
    consecutive ranks are one slice. `gone`: see `_keep_paces`; None: compute all ranks (and do not
    compile that). `jitter` `[last - first, q]`: delays by sender, or `[0, q]`.

    A block's messages are a map f with f(state + c) = f(state) + c. Once one of equal blocks
    (`steady`) has shifted the state by a constant, the rest of the phase is computed at once.
    """
    q, per_block, window = state.posted.size, pieces.shape[0], state.arrives.shape[0]
    none = np.zeros(0, dtype=np.int64)
    before, compares, number = state.times, False, first
    if gone is not None:
        number = _keep_paces(
            state.posted,
            state.left,
            state.arrives,
            state.leaves,
            state.costs,
            pieces,
            gone,
            run_of(prices.serialization, 0, prices.latency.size),
            prices.latency,
            prices.back[0],
            prices.reductions if reduces else np.zeros_like(prices.reductions),
            shift,
            last,
        )
        state.queue[0], state.queue[1] = window, 0
    while number < last:
        block, piece = number // per_block, number % per_block
        turned = (shift - block) % q  # the block that rank 0 sends
        late_now = jitter[number - first] if jitter.shape[0] > 0 else none
        _message(state, pieces[piece, turned : turned + q], prices, rules, reduces, late_now)
        number += 1
        # as many messages are in flight as at the end of the previous block
        if rules.steady and piece == per_block - 1 and state.queue[0] == window:
            now = _in_order(state)
            if compares and _shifted(before, now):
                _advance(state.times, (last - number) // per_block * (now[0, 0] - before[0, 0]))
                number = last
            before, compares = now, True


def _message(  # noqa: PLR0917 - as a compiled loop
    state: State, size: _Ints, prices: Prices, rules: Rules, reduces: bool, jitter: Times
) -> None:
    """Post one message of each rank, of size class `size` `[q]`."""
    q, window = state.posted.size, state.arrives.shape[0]
    width = prices.latency.size // prices.nbytes.size  # link classes
    kinds, nbytes = prices.kinds, prices.nbytes
    serialization, latency = prices.serialization, prices.latency
    if state.queue[0] == window:
        wait(state)
    slot = (state.queue[1] + state.queue[0]) % window  # the first free one
    state.queue[0] += 1
    posted, left, started = state.posted, state.left, state.started
    arrivals, departures, costs = state.arrives[slot], state.leaves[slot], state.costs[slot]
    if not rules.two:
        for r in range(q):
            to = r + 1 if r + 1 < q else 0
            if rules.skips_empty and nbytes[size[r]] == 0:
                # no message: only earlier messages have to leave
                arrivals[to], costs[to], departures[r] = _NOTHING, 0, left[r]
                continue
            at = size[r] * width + kinds[r]
            started[r] = max(posted[r], posted[to] + prices.back[r])
            left[r] = departures[r] = departure(serialization, at, max(left[r], started[r]))
            arrivals[to] = left[r] + latency[at] + (jitter[r] if jitter.size > 0 else 0)
            costs[to] = prices.reductions[size[r]] if reduces else 0
        return
    word, ahead, knows = _hear(state, prices.back, rules)
    for turn in range(2):  # first the ranks whose data precede their announcement
        for r in range(q):
            if knows[r] == turn:
                continue
            to = r + 1 if r + 1 < q else 0
            if rules.skips_empty and nbytes[size[r]] == 0:
                arrivals[to], costs[to], departures[r] = _NOTHING, 0, left[r]
                continue
            at = size[r] * width + kinds[r]
            started[r] = posted[r] if knows[r] else max(posted[r], word[r])
            left[r] = departures[r] = departure(serialization, at, max(left[r], started[r]))
            arrives = left[r] + latency[at] + (jitter[r] if jitter.size > 0 else 0)
            # after the announcement that is already on the connection
            arrivals[to] = state.data[r] = max(arrives, state.word[r])
            costs[to] = prices.reductions[size[r]] if reduces else 0
        if turn == 0:
            _announce(state, slot, prices.back, rules, nbytes, size, word, ahead, knows)


# called from compiled loops, and from Python if `serialization` is no array (`Messages.run`)
usable(_message)


@loop
def _hear(state: State, back: Times, rules: Rules) -> tuple[Times, _Ints, _Ints]:
    """Return, `[q]` each: when a rank learns that its successor has posted the receive; with two
    ranks, whose announcement queues behind data on the connection, and who knows of the receive
    before posting, so that its data precede its own announcement. (Only the last data matter: the
    receiver has waited for earlier ones before posting.)"""
    q, posted = state.posted.size, state.posted
    word, ahead = np.empty(q, dtype=np.int64), np.zeros(q, dtype=np.int64)
    knows = np.zeros(q, dtype=np.int64)
    for a in range(q):  # rank that announces to r
        r = (a - 1) % q
        ahead[a] = state.started[a] <= posted[a]
        goes, behind = posted[a], _NOTHING
        if ahead[a]:
            goes, behind = max(goes, state.left[a]), state.data[a]
        word[r] = max(goes + back[r], behind)
        if rules.sends_first:  # no message arrives at the instant when it is sent
            knows[r] = max(goes + max(back[r], 1), behind) <= posted[r]
    return word, ahead, knows


@loop
def _announce(  # noqa: PLR0917 - a compiled loop takes its arrays by position
    state: State,
    slot: int,
    back: Times,
    rules: Rules,
    nbytes: _Ints,
    size: _Ints,
    word: Times,
    ahead: _Ints,
    knows: _Ints,
) -> None:
    """Put the announcements of two ranks on their connection; `slot` is that of their data."""
    q = word.size
    for a in range(q):
        r = (a - 1) % q
        if rules.skips_empty and nbytes[size[r]] == 0:
            continue  # nothing to receive
        if knows[a]:  # its data precede the announcement
            word[r] = max(state.left[a] + back[r], state.data[a])
        elif not ahead[a]:  # its last data come after it
            state.data[a] = max(state.data[a], word[r])
            last = (slot - 1) % state.arrives.shape[0]
            state.arrives[last, (a + 1) % q] = state.data[a]
        state.word[a] = word[r]


@loop
def _in_order(state: State) -> Times:
    """Return a copy of the times with the oldest slot first, to compare blocks."""
    now, window = state.times.copy(), state.arrives.shape[0]
    for slot in range(window):
        at = (state.queue[1] + slot) % window
        for r in range(now.shape[1]):
            now[_SLOTS + slot, r] = state.arrives[at, r]
            now[_SLOTS + window + slot, r] = state.leaves[at, r]
    return now


@loop
def _shifted(before: Times, now: Times) -> bool:
    """Whether all times are later by one constant."""
    by = now[0, 0] - before[0, 0]
    for row in range(now.shape[0]):
        for r in range(now.shape[1]):
            if now[row, r] - before[row, r] != (0 if now[row, r] == _NOTHING else by):
                return False
    return True


@loop
def _advance(times: Times, by: int) -> None:
    for row in range(times.shape[0]):
        for r in range(times.shape[1]):
            if times[row, r] != _NOTHING:
                times[row, r] += by


@loop
def wait(state: State) -> None:
    """Wait for the oldest message in flight."""
    slot, posted = state.queue[1], state.posted
    arrives, leaves, costs = state.arrives[slot], state.leaves[slot], state.costs[slot]
    for r in range(posted.size):
        posted[r] = max(max(posted[r], arrives[r]) + costs[r], leaves[r])
    state.queue[0] -= 1
    state.queue[1] = (slot + 1) % state.arrives.shape[0]


@loop
def exits(starts: Times, phases: Phases, prices: Prices) -> Times:
    """Return when q ranks that enter at `starts` have finished all phases."""
    pieces, rules, gone, reduces, shifts, posts, window = phases
    none = np.zeros((0, starts.size), dtype=np.int64)
    at: Any = np.int64(0)  # not the literal, for which `post` would be compiled again
    state = state_of(starts, window)
    for phase in range(shifts.size):
        post(state, pieces, prices, rules, gone, reduces[phase], none, shifts[phase], at, posts)
        while state.queue[0]:
            wait(state)
    return state.posted


@loop
def last_exits(starts: Times, phases: Phases, prices: Prices, out: Times) -> None:
    """Write the last of `exits` into `out` `[worlds]`; `starts` `[worlds, q]` and the times in
    `prices` have a row per world."""
    for world in range(out.size):
        here = Prices(
            prices.kinds,
            prices.nbytes,
            prices.serialization[world],
            prices.latency[world],
            prices.back[world],
            prices.reductions[world],
        )
        done = exits(starts[world], phases, here)
        out[world] = done[0]
        for one in done:  # numpy's maximum takes a second to compile
            out[world] = max(out[world], one)


_Ints = NDArray[np.int64]
_NOTHING = -(2**62)  # arrival of a message that does not exist: earlier than any time
_NO_PACE = -(2**61)  # pace if times have not all shifted equally
_MANY = 8  # recompute all ranks, which is cheaper, if more than 1 / _MANY of them have no pace
_SETTLING = 4  # blocks before `_MANY` applies
_MINE_AT, _LEFT_AT, _ARRIVES, _LEAVES, _BLOCK, _PACE, _WIDTH = 0, 1, 2, 4, 6, 7, 8
"""Columns of a place after a piece: when its rank posted the message; when it left; arrivals and
departures of the two messages in flight, the older first; block number; pace (delay per block)."""


@loop
def _keep_paces(  # noqa: PLR0917 - a compiled loop takes its arrays by position
    posted: Times,
    left: Times,
    arrives: Times,
    leaves: Times,
    costs: Times,
    pieces: _Ints,
    gone: NDArray[np.bool_],
    serialization: Times,
    latency: Times,
    back: int,
    reductions: Times,
    shift: int,
    posts: int,
) -> int:
    """Post messages of a phase while most ranks keep their pace; return how many. The first five
    arguments are rows of `State`, with no messages in flight before and two after; `pieces` and
    `shift` as in `post`. `gone`, by size class: whether no message is sent."""
    per_block, q = pieces.shape[0], posted.size
    at = np.zeros((per_block, q, _WIDTH), dtype=np.int64)
    for piece in range(per_block):
        for i in range(q):
            at[piece, i, _BLOCK], at[piece, i, _PACE] = -2, _NO_PACE
    for r in range(q):
        of_rank = at[per_block - 1, (r + shift + 1) % q]
        of_rank[_MINE_AT], of_rank[_LEFT_AT], of_rank[_BLOCK] = posted[r], left[r], -1
        for row in range(_ARRIVES, _LEAVES + 2):
            of_rank[row] = _NOTHING
    active, coming = np.arange(q), np.empty(q, dtype=np.int64)
    changed, asked = np.empty(q, dtype=np.bool_), np.full(q, -1, dtype=np.int64)
    count, number = q, 0
    while number < posts and count:
        block, piece = number // per_block, number % per_block
        if piece == 0 and block > _SETTLING and count * _MANY > q:
            break
        _post(
            at[(piece - 1) % per_block],
            at[piece],
            active[:count],
            changed,
            pieces[piece],
            pieces[(piece - 2) % per_block],
            gone,
            serialization,
            latency,
            back,
            reductions,
            block,
            piece,
        )
        number += 1
        moved = int(number % per_block == 0)
        count = _ask(at[piece], active[:count], changed, moved, asked, number, coming)
        active, coming = coming, active
    done = number if count else posts
    block, piece = (done - 1) // per_block, (done - 1) % per_block
    newer, older, last = pieces[piece], pieces[(piece - 1) % per_block], at[piece]
    for i in range(q):
        r, received = (i + block - shift) % q, (i - 1) % q
        posted[r], left[r] = _at(last, i, _MINE_AT, block), _at(last, i, _LEFT_AT, block)
        for slot in range(2):
            arrives[slot, r] = _at(last, i, _ARRIVES + slot, block)
            leaves[slot, r] = _at(last, i, _LEAVES + slot, block)
        first = received + (piece == 0)
        costs[0, r] = 0 if arrives[0, r] == _NOTHING else reductions[older[first]]
        costs[1, r] = 0 if arrives[1, r] == _NOTHING else reductions[newer[received]]
    return done


@loop
def _post(  # noqa: PLR0917
    before: NDArray[np.int64],
    now: NDArray[np.int64],
    active: _Ints,
    changed: NDArray[np.bool_],
    size: _Ints,
    oldest: _Ints,
    gone: NDArray[np.bool_],
    serialization: Times,
    latency: Times,
    back: int,
    reductions: Times,
    block: int,
    piece: int,
) -> None:
    """Post a message at the active places: compute `now` from `before`, one message earlier.
    `size`, `oldest`: size classes of the message and of the older one in flight, by block.
    `changed`, by index in `active`: whether the pace differs from the previous block's."""
    q = now.shape[0]
    moved = int(piece == 0)  # the rank that sends block i has sent block i + 1 before
    then = block - moved
    for n in range(active.size):
        i = active[n]
        own = i + moved if i + moved < q else i + moved - q
        pred = own - 1 if own else q - 1
        succ = own + 1 if own + 1 < q else 0
        received = i - 1 if i else q - 1
        first = received + int(piece < 2)  # what arrived as the older one
        mine = _waited(before, own, then, oldest[first], reductions)
        earlier = _waited(before, pred, then, oldest[first - 1 + q], reductions)
        later = _waited(before, succ, then, oldest[first + 1], reductions)
        leaving, arriving = _at(before, own, _LEFT_AT, then), _NOTHING
        kind = size[i]
        if not gone[kind]:
            leaving = max(leaving, mine, later + back) + serialization[kind]
        kind = size[received]
        if not gone[kind]:
            start = max(_at(before, pred, _LEFT_AT, then), earlier, mine + back)
            arriving = start + serialization[kind] + latency[kind]
        arrives = _at(before, own, _ARRIVES + 1, then)
        leaves = _at(before, own, _LEAVES + 1, then)
        pace = _NO_PACE
        if now[i, _BLOCK] > -2:
            pace = mine - _at(now, i, _MINE_AT, block - 1)
        pace = _same(now, i, _LEFT_AT, block - 1, leaving, pace)
        pace = _same(now, i, _ARRIVES, block - 1, arrives, pace)
        pace = _same(now, i, _ARRIVES + 1, block - 1, arriving, pace)
        pace = _same(now, i, _LEAVES, block - 1, leaves, pace)
        pace = _same(now, i, _LEAVES + 1, block - 1, leaving, pace)
        changed[n] = pace == _NO_PACE or pace != now[i, _PACE]
        now[i, _MINE_AT], now[i, _LEFT_AT] = mine, leaving
        now[i, _ARRIVES], now[i, _ARRIVES + 1] = arrives, arriving
        now[i, _LEAVES], now[i, _LEAVES + 1] = leaves, leaving
        now[i, _BLOCK], now[i, _PACE] = block, pace


@loop
def _ask(  # noqa: PLR0917
    now: NDArray[np.int64],
    active: _Ints,
    changed: NDArray[np.bool_],
    moved: int,
    asked: _Ints,
    number: int,
    coming: _Ints,
) -> int:
    """Write into `coming` the places to compute for the next message: neighbours of a changed pace,
    or of unequal paces; return how many. `asked`: message for which a place was last listed."""
    q, found = now.shape[0], 0
    for n in range(active.size):
        i = active[n]
        lower = changed[n] or now[i - 1 if i else q - 1, _PACE] != now[i, _PACE]
        upper = changed[n] or now[i + 1 if i + 1 < q else 0, _PACE] != now[i, _PACE]
        if not (lower or upper):
            continue
        for by in range(-1 if lower else 0, 2 if upper else 1):
            place = i - moved + by
            place += q if place < 0 else 0
            place -= q if place >= q else 0
            if asked[place] != number:
                asked[place] = number
                coming[found] = place
                found += 1
    return found


@inlined
def _at(places: Times, i: int, row: int, block: int) -> Any:
    """Return a place's time in a block, extrapolated from its last computation."""
    time = places[i, row]
    return time if time == _NOTHING else time + places[i, _PACE] * (block - places[i, _BLOCK])


@inlined
def _waited(places: Times, i: int, block: int, kind: int, reductions: Times) -> Any:
    """Return the time until which a rank waits for the older message in flight."""
    arrives, time = _at(places, i, _ARRIVES, block), _at(places, i, _MINE_AT, block)
    if arrives != _NOTHING:
        time = max(time, arrives) + reductions[kind]
    return max(time, _at(places, i, _LEAVES, block))


@inlined
def _same(  # noqa: PLR0917
    places: Times, i: int, row: int, block: int, time: int, pace: int
) -> int:
    """Return `pace` if this time has also shifted by it, else `_NO_PACE`."""
    if pace == _NO_PACE or (places[i, row] == _NOTHING) != (time == _NOTHING):
        return _NO_PACE
    if time != _NOTHING and time - _at(places, i, row, block) != pace:
        return _NO_PACE
    return pace
