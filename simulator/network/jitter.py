"""Random delays of messages, each a function of its message alone.

The random numbers for message m of rank r in collective k depend only on (key of k, m, r)
(counter-based generator): not on the order of events, so that all engines draw the same numbers, in
arrays of any shape:

    u = fraction number m of the SplitMix64 sequence from key',
    key' = number 2^16 r + purpose of the sequence from the collective's key

with purpose 2 i or 2 i + 1 for the i-th source of delay of a link, losses last. A message's delay
(at most a day, so that sums fit the clock) is the sum over `Link.jitter`, each of which delays a
share of the messages (`probability`), by inversion with v = 1 - u in (0, 1]:

| distribution | delay                                                                            |
|--------------|----------------------------------------------------------------------------------|
| exponential  | -mean ln v                                                                       |
| uniform      | 2 mean u                                                                         |
| lognormal    | exp(ln mean - shape^2/2 + shape z), z the normal quantile of u (Wichura 1988)    |
| pareto       | mean (1 - 1/shape) v^(-1/shape), never less than mean (1 - 1/shape)              |

plus the repair of sampled losses (`loss_draws.py`). SplitMix64: `gcsim.compressors.random`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import PS_PER_SECOND, Times
from gcsim.simulator.network.jitter_draws import EXPONENTIAL, LOGNORMAL, PARETO, UNIFORM, draw
from gcsim.simulator.network.links import Jitter, Link
from gcsim.simulator.network.loss_draws import FAST_RETRANSMIT, NONE, RACK, TIMEOUT, add_losses

_CODES = {"exponential": EXPONENTIAL, "uniform": UNIFORM}
_RECOVERIES = {"rack": RACK, "fast_retransmit": FAST_RETRANSMIT, "timeout": TIMEOUT}
_JitterRow = tuple[int, float, float, float]
"""Code of a source of delay, and the parameters of `draw`."""
_LossRow = tuple[int, int, float, float, float, float, float, float]
"""Code and purpose of a link's losses, and the parameters of `add_losses`."""
_NO_LOSS: _LossRow = (NONE, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def collective_key(seed: int, iteration: int, bucket: int, index: int) -> int:
    """Return the key of collective `index` of a bucket in an iteration, below 2^64."""
    words = f"{seed}/{iteration}/{bucket}/{index}/delays"
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "little")


def draw_jitter(
    links: Sequence[Link],
    kinds: NDArray[np.int64],
    nbytes: NDArray[np.int64] | int,
    *,
    key: int,
    message: NDArray[np.int64] | int,
    rank: NDArray[np.int64] | int,
) -> Times:
    """Return extra latencies, int64 picoseconds >= 0, in the arguments' common shape.
    `links[kinds]`: links of the messages; `nbytes`: sizes; `rank`: senders; `message`: numbers of
    the sender's messages in this collective; `key`: the collective's. 0 on links that are exact."""
    return JitterDraws(links)(kinds, nbytes, key=key, message=message, rank=rank)


class JitterDraws:
    """`draw_jitter` on prepared links, for repeated draws."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.kinds = [link.random for link in links]
        self.any = any(self.kinds)
        if self.any:
            self._tables = _jitter_tables(tuple(links))
            self._losses = _loss_tables(tuple(links))

    def __call__(
        self,
        kinds: NDArray[np.int64] | int,
        nbytes: NDArray[np.int64] | int,
        *,
        key: int,
        message: NDArray[np.int64] | int,
        rank: NDArray[np.int64] | int,
    ) -> Times:
        """Draw as `draw_jitter`."""
        arrays = [np.asarray(values, dtype=np.int64) for values in (kinds, nbytes, message, rank)]
        shapes = {values.shape for values in arrays if values.ndim}
        if len(shapes) > 1:
            arrays = list(np.broadcast_arrays(*arrays))
        out = np.zeros(shapes.pop() if len(shapes) == 1 else arrays[0].shape, dtype=np.int64)
        if self.any and out.size:
            of_link, sizes, numbers, senders = [_plain(values) for values in arrays]
            flat, seed = out.reshape(-1), np.uint64(key)
            if not draw(seed, of_link, numbers, senders, *self._tables, flat):
                raise InternalError(f"link kinds {of_link} of {len(self.kinds)} links")
            if self._losses is not None:
                add_losses(seed, of_link, sizes, numbers, senders, *self._losses, flat)
        return out


def _plain(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a contiguous, writable array, so that the loop is compiled for a single type."""
    flags = values.flags
    if not (flags.c_contiguous and flags.writeable):
        values = np.array(values, order="C")
    return values.reshape(-1)


@lru_cache(maxsize=256)
def _jitter_tables(
    links: tuple[Link, ...],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the jitter rows of all links, and each link's first row, `[links + 1]`."""
    rows = [[_jitter_row(jitter) for jitter in _jitters(link)] for link in links]
    first = np.array([0, *accumulate(len(row) for row in rows)], dtype=np.int64)
    flat = [row for of_link in rows for row in of_link]
    codes = np.array([row[0] for row in flat], dtype=np.int64)
    return first, codes, np.array([row[1:] for row in flat], dtype=np.float64).reshape(-1, 3)


@lru_cache(maxsize=256)
def _loss_tables(links: tuple[Link, ...]) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Return a row for each link; None without losses."""
    rows = [_loss_row(link) for link in links]
    if all(row[0] == NONE for row in rows):
        return None
    codes = np.array([row[:2] for row in rows], dtype=np.int64)
    return codes, np.array([row[2:] for row in rows], dtype=np.float64)


def _jitters(link: Link) -> list[Jitter]:
    return [jitter for jitter in link.jitter if jitter.random]


def _jitter_row(jitter: Jitter) -> _JitterRow:
    mean, shape = jitter.mean * PS_PER_SECOND, jitter.shape or Fraction(0)
    chance = float(jitter.probability)
    if jitter.distribution == "lognormal":
        return LOGNORMAL, chance, _ln_exact(mean) - float(shape * shape / 2), float(shape)
    if jitter.distribution == "pareto":
        return PARETO, chance, float(mean * (1 - 1 / shape)), float(1 / shape)
    return _CODES[jitter.distribution], chance, float(mean), 0.0


def _loss_row(link: Link) -> _LossRow:
    loss = link.loss
    if loss is None or not loss.random or loss.recovery is None:
        return _NO_LOSS
    return (
        _RECOVERIES[loss.recovery],
        2 * len(_jitters(link)),
        float(loss.rate),
        -_ln_exact(1 - loss.rate),
        loss.segment,
        float(loss.timeout * PS_PER_SECOND),
        float(2 * link.latency * PS_PER_SECOND),
        float(loss.segment / link.rate * PS_PER_SECOND),
    )


def _ln_exact(value: Fraction) -> float:
    """Return the correctly rounded logarithm, which is equal on all machines."""
    with localcontext(prec=40):
        return float((Decimal(value.numerator) / Decimal(value.denominator)).ln())
