"""Megabytes in the CE-SGD paper: its 5G example, its model sizes, its Tables I and II.

The paper's "MB" are 10^6 bytes in one place and 2^20 in others, and its 10 seconds confuse
megabytes with megabits: 244 MB are 1,952 Mbit, 39 s in one direction and 78 s in both.

Source: Z. Tao, Q. Xia, Q. Li, S. Cheng, "CE-SGD: communication-efficient distributed machine
learning", IEEE Globecom 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from gcsim.analysis.validation.suite import Statement
from gcsim.analysis.validation.suites.papers.ring import FLOAT32, hop, ideal_link, parameters_of
from gcsim.scenarios.load import load_scenario
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.collectives.servers.parameter_server import PushPull
from gcsim.simulator.network.links import Uplink
from gcsim.units import parse, parse_bytes

_PAPER = "Tao, Xia, Li and Cheng, CE-SGD"
_INTRODUCTION = f"{_PAPER}, sec. I"
_ELEMENTS = 61 * 10**6  # parameters of AlexNet, as the paper counts them
_RATE = "50 Mbit/s"
_BITS_PER_SECOND = 50 * 10**6
_NODES = 4
_FEATURES, _CLASSES = 2048, 100  # inputs of Inception V3's classifier; classes of CIFAR-100
_SIZES = (("AlexNet", "alexnet", 233), ("GoogLeNet (Inception V3)", "inception_v3_aux", 104))
""""Actual model size" in sec. IV-A, MB; the second with its inner classifier."""


def statements() -> list[Statement]:
    """Return sizes and times of the example, sizes of the models, and the tables' megabytes."""
    return [*_example(), *_sizes(), *_tables()]


def _example() -> Iterator[Statement]:
    nbytes = parse_bytes(f"{32 * _ELEMENTS} bit")
    yield Statement(
        name="61 million values of 32 bits",
        source=_INTRODUCTION,
        unit="MB",
        stated=244,
        digit=1,
        computed=nbytes / 1e6,
        formula=_ELEMENTS * 4 / 1e6,
    )
    there_and_back = parse(f"{2 * nbytes} B", "size") / parse("1 Mbit", "size")
    yield Statement(
        name="a round of one worker, eq. (1)",
        source=_INTRODUCTION,
        unit="Mbit",
        stated=500,
        digit=100,
        computed=float(there_and_back),
        formula=2 * 32 * _ELEMENTS / 1e6,
        wrong=True,
        note="500 are megabytes: 2 x 244 MB",
    )
    yield Statement(
        name="a round at 50 Mbit/s, one way",
        source=_INTRODUCTION,
        unit="s",
        stated=10,
        digit=1,
        computed=float(hop(nbytes, ideal_link(_RATE))),
        formula=float(Fraction(32 * _ELEMENTS, _BITS_PER_SECOND)),
        wrong=True,
    )
    yield Statement(
        name="a round at 50 Mbit/s, both ways",
        source=_INTRODUCTION,
        unit="s",
        stated=10,
        digit=1,
        computed=float(_round(nbytes)),
        formula=float(Fraction(2 * 32 * _ELEMENTS, _BITS_PER_SECOND)),
        wrong=True,
        note=f"push and pull of {_NODES} workers, each with its own {_RATE} up and down, through a "
        "server that is no bottleneck; 10 s are the 500 megabytes taken for megabits",
    )


def _round(nbytes: int) -> Fraction:
    """Return the seconds of push and pull on the cluster of `alexnet_5g`, without latencies."""
    cluster = load_scenario("alexnet_5g").cluster_at(_NODES)
    link = ideal_link(_RATE)
    both = replace(link, up=Uplink(bandwidth=link.bandwidth, latency=Fraction(0)))
    through = PushPull(
        pushed=[nbytes] * _NODES, pulled=nbytes, cluster=replace(cluster, network=both)
    )
    finishes = through(np.zeros(_NODES, dtype=np.int64))
    return Fraction(int(finishes.max()), PS_PER_SECOND)


def _sizes() -> Iterator[Statement]:
    for name, model, stated in _SIZES:
        elements = parameters_of(model)
        mebibytes = parse(f"{FLOAT32 * elements} B", "size") / parse("1 MiB", "size")
        yield Statement(
            name=f"size of {name}",
            source=f"{_PAPER}, sec. IV-A",
            unit="MiB",
            stated=stated,
            digit=1,
            computed=float(mebibytes),
            formula=elements / 2**18,
            note=f"printed as MB, of which they are {FLOAT32 * elements / 1e6:.1f}",
        )


def _tables() -> Iterator[Statement]:
    """Yield ratios of the tables' megabytes per round, with those that the text states."""
    rows = (
        ("GradientDrop's drop ratio, Table I", "sec. IV-B and Table I", "66", "36.2", 45, 1),
        ("less on VGG11, Table II", "sec. IV-B and Table II", "89", "44", 50, 10),
        ("less on WideResNet, Table II", "sec. IV-B and Table II", "62", "27", 60, 10),
    )
    for name, where, before, after, stated, digit in rows:
        left = parse(f"{after} MB", "size") / parse(f"{before} MB", "size")
        yield Statement(
            name=name,
            source=f"{_PAPER}, {where}",
            unit="%",
            stated=stated,
            digit=digit,
            computed=float(100 * (1 - left)),
            formula=float(100 * (1 - Fraction(after) / Fraction(before))),
            note=f"{after} of {before} MB",
        )
    levels = 8
    bits = (levels - 1).bit_length()
    yield _only_the_classifier(bits)
    yield Statement(
        name="QSGD, 32 bits for log2 8",
        source=f"{_PAPER}, sec. IV-B",
        unit="x",
        stated=10.3,
        digit=0.1,
        computed=float(parse("32 bit", "size") / parse(f"{bits} bit", "size")),
        formula=32 / math.log2(levels),
        wrong=True,
        note="its own Table I has 66 / 24.6 = 2.7 in practice",
    )


def _only_the_classifier(bits: int) -> Statement:
    """Apply eq. (8), which quantizes only fully connected layers: Inception V3 has one."""
    classifier = (_FEATURES + 1) * _CLASSES
    elements = parameters_of("inception_v3") - (_FEATURES + 1) * 1000 + classifier
    share = Fraction(classifier, elements)
    baseline = parse("66 MB", "size")
    left = baseline * (1 - share) + baseline * share * parse(f"{bits} bit", "size") / FLOAT32
    needed = (1 - Fraction("24.6") / 66) / (1 - Fraction(bits, 32))
    return Statement(
        name="QSGD's round by eq. (8), Table I",
        source=f"{_PAPER}, sec. III-B, IV-B and Table I",
        unit="MB",
        stated=24.6,
        digit=0.1,
        computed=float(left / parse("1 MB", "size")),
        formula=66 * (32 * (elements - classifier) + bits * classifier) / (32 * elements),
        wrong=True,
        note=f"of Inception V3 with {_CLASSES} classes {float(100 * share):.1f} % are in fully "
        f"connected layers, and the table needs {float(100 * needed):.0f} %; its gradient has "
        f"{FLOAT32 * elements / 1e6:.1f} MB, not the table's 66",
    )
