"""Statements of the variance-based paper: on a ring, a pipelined all-gatherv, and 1000BASE-T.

With N elements of s bits on p workers, an averaged compression ratio c, beta seconds a bit and
pieces of m bits, the paper has

    T_r = 2 (p - 1) N s beta / p         T_v <= (N s p / c + (p - 1) m) beta

so that T_r / T_v >= 2 (p - 1) c / p^2 for small m, and expects a speedup if c > p / 2. This is the
break-even of equal contributions; the inequality itself guarantees a speedup only from c = p^2 / (2
(p - 1)), the break-even if a single worker has all data.

Source: Y. Tsuzuku, H. Imachi, T. Akiba, "Variance-based gradient compression for efficient
distributed deep learning", ICLR 2018 workshop, arXiv:1802.06058, sections 1, 2.1 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from gcsim.analysis.validation.suite import Statement
from gcsim.analysis.validation.suites.papers import ring as rings
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios.catalog import device
from gcsim.scenarios.load import load_scenario
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.devices.step_time import step_time
from gcsim.simulator.network.links import Link
from gcsim.traces.profile import ModelFacts

_PAPER = "Tsuzuku, Imachi and Akiba, arXiv:1802.06058"
_WORKERS, _BATCH = 16, 32
_PICOSECONDS_A_BYTE = 800  # at 10 Gbit/s
_ELEMENTS = 960_000  # divisible by every number of workers below and every ratio
_GROUPS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_RATIOS = (1, 2, 4, 8, 10, 50, 100, 1000)
_PIECE = 4096
_SMALL_PIECE = 64  # small enough for the paper's limit within the shown digits
_DEVICES = ("p100_sxm2", "v100", "k80")
"""Devices of that time (the paper names none) with a published ResNet-50 rate at its batch size."""
_SLOW = "k80"  # so slow that communication takes less than ten times as long
_ESTIMATE = "p100_pcie"
"""The scenario's device: the SXM2's step times the ratio of nominal rates; not in any verdict."""

Shape = Callable[[int], list[Fraction]]  # function from ranks to each rank's share of the whole

SHAPES: dict[str, Shape] = {
    "equal": lambda p: [Fraction(1, p)] * p,
    "linear": lambda p: [Fraction(2 * (i + 1), p * (p + 1)) for i in range(p)],
    "heavy-tailed": lambda p: [Fraction(2 ** (p - 1 - i), 2**p - 1) for i in range(p)],
    "one rank has all": lambda p: [Fraction(int(i == 0)) for i in range(p)],
}


def statements() -> list[Statement]:
    """Return the size of ResNet-50, the "ten times", and the three laws of section 5."""
    return [_size(), *_ten_times(), _bound(), *_break_even()]


def contributions(shape: Shape, ranks: int, total: int) -> list[int]:
    """Return whole bytes by rank that sum to `total`."""
    ends, passed = [], Fraction(0)
    for share in shape(ranks):
        passed += share
        ends.append(int(passed * total))
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _size() -> Statement:
    elements = rings.parameters_of("resnet50")
    return Statement(
        name="ResNet-50 is over 110 MB",
        source=f"{_PAPER}, sec. 2.1",
        unit="MB",
        stated=110,
        digit=10,
        computed=_resnet50().gradient_bytes / 1e6,
        formula=4 * elements / 1e6,
        at_least=True,
        wrong=True,
        note=f"{elements:,} parameters of 4 bytes, {4 * elements / 2**20:.1f} MiB",
    )


def _ten_times() -> Iterator[Statement]:
    """Yield the time of a ring of the whole gradient over the step's time, in possible readings."""
    cluster = load_scenario("resnet50_16node_1gbe").cluster_at(_WORKERS)
    elements, link = rings.parameters_of("resnet50"), cluster.network
    dense = CollectiveRecord(
        kind="all_reduce", sent=(rings.FLOAT32 * elements,), element=rings.FLOAT32
    )
    finishes = execute(dense, np.zeros(_WORKERS, dtype=np.int64), cluster)
    communication = Fraction(int(finishes.max()), PS_PER_SECOND)
    by_hand = _ring_of_rounded_hops(elements, link)
    remarks = {
        "p100_sxm2": f"; the PCIe board's {float(1000 * _step(_ESTIMATE)):.0f} ms, an estimate, "
        f"make it {float(communication / _step(_ESTIMATE)):.1f}",
        "k80": "; one of its two processors",
    }
    for name in _DEVICES:
        step = _step(name)
        yield Statement(
            name=f"at least ten times as long: {name}",
            source=f"{_PAPER}, sec. 1: ResNet-50 on 1000BASE-T",
            unit="x",
            stated=10,
            digit=1,
            computed=float(communication / step),
            formula=float(by_hand / step),
            at_least=True,
            wrong=name == _SLOW,
            note=f"{float(communication):.3f} s in a ring of {_WORKERS} over "
            f"{float(1000 * step):.0f} ms for {_BATCH} images{remarks.get(name, '')}",
        )


def _step(name: str) -> Fraction:
    """Return the seconds of forward and backward for the paper's batch, by the catalogue."""
    return Fraction(step_time(_resnet50(), device(name)).seconds)


def _resnet50() -> ModelFacts:
    """Return ResNet-50 without layers: its times at this batch are published ones."""
    return ModelFacts(
        name="resnet50",
        parameters=rings.parameters_of("resnet50"),
        layers=(),
        samples_per_worker=_BATCH,
    )


def _ring_of_rounded_hops(elements: int, link: Link) -> Fraction:
    """Return 2 (p - 1) hops of the largest chunk, each in whole picoseconds and with a latency."""
    chunk = rings.FLOAT32 * -(-elements // _WORKERS)
    rate = link.bandwidth * link.efficiency
    one = round(chunk / rate * PS_PER_SECOND) + round(link.latency * PS_PER_SECOND)
    return Fraction(2 * (_WORKERS - 1) * one, PS_PER_SECOND)


def _bound() -> Statement:
    """Return the least T_r / T_v over all cases, with the paper's guarantee."""
    link = rings.ideal_link("10 Gbit/s")
    promised, found = [], []
    for ranks in _GROUPS:
        dense = rings.ring(_ELEMENTS, ranks, link)
        for ratio in _RATIOS:
            total = rings.FLOAT32 * _ELEMENTS * ranks // ratio
            by_paper = _seconds(total + (ranks - 1) * _PIECE)
            for shape in SHAPES.values():
                sparse = rings.gather(contributions(shape, ranks, total), link, _PIECE)
                least = (
                    Fraction(2 * (ranks - 1), ranks)
                    * _seconds(rings.FLOAT32 * _ELEMENTS)
                    / by_paper
                )
                found.append(dense / sparse / least)
            # One rank has all data: all of it passes the first hop, a piece each of the others.
            last = _seconds(total + (ranks - 2) * min(total, _PIECE))
            promised.append(by_paper / last)
    return Statement(
        name="T_r / T_v over its lower bound, smallest",
        source=f"{_PAPER}, sec. 5",
        unit="x",
        stated=1,
        digit=0,
        computed=float(min(found)),
        formula=float(min(promised)),
        at_least=True,
        note=f"{len(found)} cases: {len(_GROUPS)} numbers of workers from {_GROUPS[0]} to "
        f"{_GROUPS[-1]}, {len(_RATIOS)} ratios from {_RATIOS[0]} to {_RATIOS[-1]}, "
        f"{len(SHAPES)} ways to divide the data ({', '.join(SHAPES)}), pieces of {_PIECE} bytes; "
        "the bound includes the term with m",
    )


def _break_even() -> Iterator[Statement]:
    """Yield the ratios at which the gather takes as long as the dense ring, with 16 workers."""
    p, link = _WORKERS, rings.ideal_link("10 Gbit/s")
    dense = rings.ring(_ELEMENTS, p, link)

    def ratio(shape: str, assumed: Fraction) -> Fraction:
        """Return c at break-even: T_v is proportional to 1 / c, except for the pieces."""
        total = rings.FLOAT32 * _ELEMENTS * p / assumed
        sizes = contributions(SHAPES[shape], p, int(total))
        return assumed * rings.gather(sizes, link, _SMALL_PIECE) / dense

    yield Statement(
        name=f"break-even c of equal sizes, p = {p}",
        source=f"{_PAPER}, sec. 5: c > p / 2",
        unit="x",
        stated=p / 2,
        digit=0.01,
        computed=float(ratio("equal", Fraction(p, 2))),
        formula=p / 2,
    )
    worst = Fraction(p * p, 2 * (p - 1))
    total = rings.FLOAT32 * _ELEMENTS * p / worst
    yield Statement(
        name=f"break-even c of one rank's data, p = {p}",
        source=f"{_PAPER}, sec. 5: T_r / T_v >= 2 (p - 1) c / p^2",
        unit="x",
        stated=8.53,
        digit=0.01,
        computed=float(ratio("one rank has all", worst)),
        formula=float(worst * (1 + (p - 2) * _SMALL_PIECE / total)),
        note="p^2 / (2 (p - 1)); between p / 2 and this, who gains depends on how unequal the "
        "contributions are",
    )


def _seconds(nbytes: int) -> Fraction:
    return Fraction(_PICOSECONDS_A_BYTE * nbytes, PS_PER_SECOND)
