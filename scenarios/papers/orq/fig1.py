"""How does a quantised gradient look: are all levels used, and is the shape kept?

The gradient of one step in buckets of 2048, through nine levels and two. *Levels used*: entropy of
the levels that a bucket's elements are at, of log2 9 = 3.17 bits at most. *Error*: of the quantised
gradient, as a share of the gradient's energy. *Away from zero*: elements at levels that are farther
from zero than half of the bucket's standard deviation, as a share of those of the gradient itself.
*Range*: mean magnitude of the levels, of two their distance from zero, in standard deviations.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.papers.judge import order
from gcsim.scenarios.papers.preset import Line, Outcome, Panel, Preset, Study, cells
from gcsim.scenarios.papers.updates import updates

USED, AWAY, RANGE, ERROR = "levels [bits]", "away [%]", "range [sd]", "error [%]"
FULL = "FP"
_BUCKET = 2048
_SEEDS = 3
_TENSORS = 3
_BINS, _REACH = 101, 2.5
"""Of a histogram, and its ends in standard deviations, as in the figure."""

Values = NDArray[np.float32]


def _obtain(study: Study, printed: Mapping[tuple[str, str], float]) -> Outcome:
    scenario = study.scenario("orq_gradients")
    labels = [choice.label for choice in scenario.compressors]
    found: dict[str, dict[str, list[list[float]]]] = {
        name: {key: [[] for _ in range(_SEEDS)] for key in (USED, AWAY, RANGE, ERROR)}
        for name in labels
    }
    panels: tuple[Panel, ...] = ()
    for seen in updates(scenario, tensors=_TENSORS, seeds=_SEEDS, progress=study.progress):
        dense = seen.dense.numpy()
        for name in labels:
            for seed, update in enumerate(seen.updates[name]):
                values = update.numpy()
                lost = float(((values - dense) ** 2).sum() / (dense**2).sum())
                found[name][ERROR][seed].append(100 * lost)
                found[name][USED][seed].append(_entropy(values))
                found[name][AWAY][seed].append(100 * _away(values, dense) / _away(dense, dense))
                found[name][RANGE][seed].append(float(np.abs(values).mean() / dense.std()))
        if not panels:
            quantised = {name: seen.updates[name][0].numpy() for name in labels}
            panels = _histograms({FULL: dense, **quantised}, float(dense.std()))
    table = {
        name: {key: [fmean(values) for values in seeds] for key, seeds in of_name.items()}
        for name, of_name in found.items()
    }
    used, away, reach, error = (
        {name: table[name][key] for name in labels} for key in (USED, AWAY, RANGE, ERROR)
    )
    return Outcome(
        cells=cells(table, printed),
        verdicts=(
            order("levels are used more by ORQ than by QSGD", "sec. 5.1.2", used,
                  (("ORQ-9",), ("QSGD-9",))),
            order("of QSGD the fewest elements are at levels away from zero", "sec. 5.1.2", away,
                  (("ORQ-9",), ("QSGD-9",))),
            order("ORQ keeps the shape, QSGD and Linear do not: error", "sec. 5.1.2", error,
                  (("ORQ-9",), ("QSGD-9", "Linear-9")), least=True),
            order("BinGrad-b has a smaller error than BinGrad-pb", "sec. 5.1.2",
                  error, (("BinGrad-b",), ("BinGrad-pb",)), least=True),
            order("BinGrad-pb has the wider range", "sec. 5.1.2", reach,
                  (("BinGrad-pb",), ("BinGrad-b",))),
        ),
        panels=panels,
    )  # fmt: skip


def _entropy(values: Values) -> float:
    """Bits, mean over buckets."""
    bits = []
    for start in range(0, values.size, _BUCKET):
        share = np.unique(values[start : start + _BUCKET], return_counts=True)[1]
        share = share / share.sum()
        bits.append(float(-(share * np.log2(share)).sum()))
    return fmean(bits)


def _away(values: Values, dense: Values) -> float:
    """Share of the elements beyond half of the standard deviation of their bucket."""
    beyond = 0
    for start in range(0, values.size, _BUCKET):
        part = slice(start, start + _BUCKET)
        beyond += int((np.abs(values[part]) > dense[part].std() / 2).sum())
    return beyond / values.size


def _histograms(gradients: Mapping[str, Values], deviation: float) -> tuple[Panel, ...]:
    """Frequencies over the highest one, as in the figure; a panel a method."""
    found = []
    for name, values in gradients.items():
        clipped = np.clip(values / deviation, -_REACH, _REACH)
        counts, edges = np.histogram(clipped, bins=_BINS, range=(-_REACH, _REACH))
        x = tuple(map(float, (edges[:-1] + edges[1:]) / 2))
        y = tuple(map(float, counts / counts.max()))
        found.append(
            Panel(title=name, x="gradient [standard deviations]", y="frequency / highest",
                  lines=(Line(label=name, x=x, y=y),))
        )  # fmt: skip
    return tuple(found)


PRESET = Preset(
    name="orq_fig1",
    title="A quantised gradient: levels that are used, shape that is kept",
    source="Xu, Huo and Huang, arXiv:2002.11082, Figure 1",
    obtain=_obtain,
    quick={
        "orq_gradients": {
            "gradients.warmup_steps": "5", "gradients.iterations": "1", "batch_size": "8",
        }
    },
)  # fmt: skip
