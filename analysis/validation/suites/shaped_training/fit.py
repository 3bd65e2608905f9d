"""What must be known of the machine to predict training steps on its shaped links?

What a user would measure before the training that is asked about:

- Links and host: with collectives alone. They are those that the suite of shaped collectives fits
  on its own subset (the same machine, the same shaper); no training step has a part in them. All
  collectives here are rings, whose data share the NICs with the acknowledgements of others'.
- Hooks: seconds of encoding and decoding at a bucket's size, on a core of its own, at which the
  simulated run spends as long on the stage as was measured (`ROUNDS` rounds of measured over
  simulated). On two ranks at 100 Mbit/s, where each rank has a core to itself; and for sizes of
  buckets that are not met there, on Top-k's and the signs' runs of the CNN and of the phantom that
  does not sleep. Other sizes are on the line between.
- Variation of the ranks' computation, and what DDP does after the last bucket: the medians over
  those of these runs that compute.

Steps' times have no part in the fit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import get_args

from gcsim.analysis.validation.suites.shaped_collectives import fit as shaped_collectives_fit
from gcsim.analysis.validation.suites.shaped_training.runs import GATHERS, Run
from gcsim.analysis.validation.suites.shaped_training.steps import LINKS, Machine, fitted_step
from gcsim.analysis.validation.suites.shaped_training.traffic import Stage, kernel, launches
from gcsim.simulator.devices.device import Curve

ROUNDS = 2


def serves_fit(run: Run) -> bool:
    """Whether the machine is fitted on the run; a rule that knows configurations only."""
    if run.ranks == 2 and run.rate_mbit == 100:
        return True
    return run.hook in GATHERS and (run.model == "cnn" or (run.phantom and not run.sleeps))


def fit(runs: Sequence[Run]) -> Machine:
    """On those of the runs that serve it."""
    own = [run for run in runs if serves_fit(run)]
    real = [run for run in own if not run.phantom]
    alone = shaped_collectives_fit.fitted()
    cores = alone.host.cores
    found = Machine(
        links={
            rate: replace(
                alone.conditions.link,
                bandwidth=Fraction(rate * 125_000),
                efficiency=alone.conditions.link.efficiency
                / (1 + alone.conditions.acknowledged(rate)),
            )
            for rate in LINKS
        },
        host=alone.host,
        finish=statistics.median(run.finish * core(run, cores) for run in real),
        variation=statistics.median(run.entry_variation for run in real),
        kernels=_curves(own, lambda run, stage: measured(run, stage) * core(run, cores)),
    )
    for _ in range(ROUNDS):
        found = replace(found, kernels=_rescaled(own, found))
    return found


def core(run: Run, cores: int) -> float:
    """Share of a core that each rank has while all compute."""
    return min(1.0, cores / run.ranks)


def measured(run: Run, stage: Stage) -> float:
    """Seconds of a stage in the run's step."""
    return run.encode if stage == "encode" else run.decode


def size(run: Run) -> int:
    """Bytes of its buckets, which are about equal; their mean."""
    return sum(run.buckets) // len(run.buckets)


def _curves(own: Sequence[Run], seconds: Callable[[Run, Stage], float]) -> dict[str, Curve]:
    """By stage: bytes of a bucket and seconds a launch, the mean where a size is met again."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in own:
        for stage in get_args(Stage):
            by_size = found.setdefault(kernel(run.hook, stage), {})
            by_size.setdefault(size(run), []).append(seconds(run, stage) / launches(run, stage))
    return {
        name: tuple((nbytes, statistics.mean(by_size[nbytes])) for nbytes in sorted(by_size))
        for name, by_size in found.items()
    }


def _rescaled(own: Sequence[Run], found: Machine) -> dict[str, Curve]:
    """Each run's stages times measured over simulated."""
    simulated = {run: fitted_step(run, found) for run in own}

    def seconds(run: Run, stage: Stage) -> float:
        known = dict(found.kernels[kernel(run.hook, stage)])
        now = simulated[run].encode if stage == "encode" else simulated[run].decode
        return known[size(run)] * launches(run, stage) * measured(run, stage) / now

    return _curves(own, seconds)
