"""Does sampling by the last whole gradient find large elements, and does the prior explore?

(a) phi: of the elements that a step samples, the share that is among the largest 1 % of the mean
gradient of that step. (b) tau: the share of the elements that were sampled at least once so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import numpy as np

from gcsim.compressors.coding.selecting.selection import count_kept
from gcsim.scenarios.papers.judge import monotone, near, order
from gcsim.scenarios.papers.preset import Outcome, Panel, Preset, Study, cells
from gcsim.scenarios.papers.trained import line
from gcsim.scenarios.papers.updates import updates

LARGEST, VISITED = "phi [%]", "tau [%]"
_RATIO = 0.01
_SEEDS = 3
_PLACES = (0.25, 0.5, 0.75, 1.0)
"""Of the steps, at which the two curves of (b) are compared."""


def _obtain(study: Study, printed: Mapping[tuple[str, str], float]) -> Outcome:
    scenario = study.scenario("sampling_gradients")
    labels = [choice.label for choice in scenario.compressors]
    largest: dict[str, list[list[float]]] = {name: [[] for _ in range(_SEEDS)] for name in labels}
    visited: dict[str, list[list[float]]] = {name: [[] for _ in range(_SEEDS)] for name in labels}
    ever: dict[tuple[str, int], np.ndarray] = {}
    for seen in updates(scenario, tensors=1, seeds=_SEEDS, progress=study.progress):
        if not seen.step:  # the whole gradient, by those that ask for it
            continue
        dense = seen.dense.abs().numpy()
        k = count_kept(dense.size, _RATIO)
        top = np.zeros(dense.size, dtype=bool)
        top[np.argpartition(-dense, k)[:k]] = True
        for name in labels:
            for seed, update in enumerate(seen.updates[name]):
                chosen = update.numpy() != 0
                been = ever.setdefault((name, seed), np.zeros(dense.size, dtype=bool))
                been |= chosen
                largest[name][seed].append(100 * float(top[chosen].mean()))
                visited[name][seed].append(100 * float(been.mean()))
    steps = range(1, 1 + len(largest["RS"][0]))
    phi = {name: [fmean(values) for values in largest[name]] for name in labels}
    gap = {
        f"step {at}": [
            b[at - 1] - a[at - 1] for a, b in zip(visited["RS"], visited["RSB"], strict=True)
        ]
        for at in (round(share * len(steps)) for share in _PLACES)
    }
    table = {name: {LARGEST: phi[name], VISITED: [v[-1] for v in visited[name]]} for name in labels}
    times = fmean(phi["GS"]) / fmean(phi["RS"])
    return Outcome(
        cells=cells(table, printed),
        verdicts=(
            near("phi of random sampling [%]", "sec. 4.1", fmean(phi["RS"]),
                 printed["RS", LARGEST], 1.25),
            near("phi of GS over that of RS", "Fig. 3a", times,
                 printed["GS", LARGEST] / printed["RS", LARGEST], 2),
            order("visited after the last step", "Fig. 3b",
                  {name: [v[-1] for v in visited[name]] for name in labels}, (("RSB",), ("RS",))),
            monotone("what RSB has visited more than RS", "Fig. 3b", gap),
        ),
        panels=(
            Panel(title="Largest elements among the sampled", x="step", y="phi [%]",
                  lines=tuple(line(name, steps, largest[name]) for name in labels)),
            Panel(title="Visited at least once", x="step", y="tau [%]",
                  lines=tuple(line(name, steps, visited[name]) for name in labels)),
        ),
    )  # fmt: skip


PRESET = Preset(
    name="sampling_fig3",
    title="What gradient sampling finds, and what the Bayes prior explores",
    source="Song et al., CVPR 2021, Figure 3",
    obtain=_obtain,
    quick={
        "sampling_gradients": {
            "gradients.iterations": "21", "gradients.warmup_steps": "10", "gradients.workers": "2",
            "batch_size": "8",
        }
    },
)  # fmt: skip
