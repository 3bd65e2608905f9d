"""Times of a transfer and of a ring over ideal links, by gcsim and in closed form.

The papers use bare rates, without framing or latency. Each computation with gcsim's units, link and
collectives also has a closed form with rationals; both give whole picoseconds if the rate has a
whole number of them per byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.collectives.rings.allreduce import ring_allreduce
from gcsim.simulator.collectives.rings.pipelined_allgatherv import PreparedPipeline
from gcsim.simulator.network.links import Link
from gcsim.traces.models.registry import shipped_model
from gcsim.units import parse

FLOAT32 = 4  # bytes per element


def parameters_of(model: str) -> int:
    """Return the number of trained parameters of a shipped model; `InputError` if it is unknown."""
    return shipped_model(model).parameters or 0


def ideal_link(rate: str) -> Link:
    """Return a link with this rate ("10 Gbit/s"), without framing and latency."""
    return Link(name=f"{rate}, ideal", bandwidth=parse(rate, "bandwidth"), latency=Fraction(0))


def hop(nbytes: int, link: Link) -> Fraction:
    """Return the seconds of one message, by the link's own clock."""
    return Fraction(link.serialization(nbytes) + link.latency_ps, PS_PER_SECOND)


def ring(elements: int, workers: int, link: Link) -> Fraction:
    """Return the seconds of a simulated ring all-reduce of float32 elements, entered together."""
    finishes = ring_allreduce(FLOAT32 * elements, (link,) * workers, element=FLOAT32)(
        np.zeros(workers, dtype=np.int64)
    )
    return Fraction(int(finishes.max()), PS_PER_SECOND)


def ring_in_closed_form(elements: int, workers: int, bits_per_second: Fraction) -> Fraction:
    """Return the same in closed form: the largest of p chunks passes 2 (p - 1) hops in turn."""
    chunk = -(-elements // workers)
    return 2 * (workers - 1) * chunk * 32 / Fraction(bits_per_second)


def gather(sizes: Sequence[int], link: Link, piece: int) -> Fraction:
    """Return the seconds of a simulated pipelined ring all-gatherv, entered together."""
    ranks = len(sizes)
    finishes = PreparedPipeline(sizes, (link,) * ranks, piece)(np.zeros(ranks, dtype=np.int64))
    return Fraction(int(finishes.max()), PS_PER_SECOND)
