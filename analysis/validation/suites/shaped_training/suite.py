"""Training steps of PyTorch DDP over Gloo on links shaped by tc: all ranks on one two-core machine.

What is sent: `shaped_training/runs.py`, `shaped_training/traffic.py`; the simulated step:
`shaped_training/steps.py`; what is fitted: `shaped_training/fit.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gcsim.analysis.validation.interval import ends
from gcsim.analysis.validation.suite import Bound, Factor, Findings, Point, Suite, given_step
from gcsim.analysis.validation.suites.shaped_training.fit import fit, serves_fit
from gcsim.analysis.validation.suites.shaped_training.runs import Run, runs
from gcsim.analysis.validation.suites.shaped_training.steps import (
    Machine,
    bare_interval,
    bare_step,
    fitted_step,
)

DENSE_SLOW = "dense and fp16, 100 Mbit/s"
DENSE_FAST = "dense and fp16, 1 Gbit/s"
COMPRESSED = "Top-k, signs, PowerSGD, both rates"
PHANTOM = "phantom compute, 1 Gbit/s"
_SOURCE = (
    "data/shaped_training.csv: PyTorch 2.13 DDP, Gloo, network name spaces and tc tbf; measured "
    "for this project, median of {run.repeats} steps, run {run.number}"
)
_RATE = {100: "100 Mbit/s", 1000: "1 Gbit/s"}
_HOOK = {
    "none": "dense",
    "fp16": "fp16",
    "topk": "Top-k 1 %",
    "signsgd": "signs",
    "powersgd": "PowerSGD rank 4",
}


def _model(run: Run) -> str:
    if run.phantom:
        return "sleeping phantom" if run.sleeps else "empty phantom"
    return run.model.upper()


def _setting(run: Run) -> str:
    return f"{_model(run)}, {run.ranks} ranks, {_RATE[run.rate_mbit]}, {run.bucket_mb}-MB buckets"


def _series(run: Run) -> str:
    if run.phantom:
        return PHANTOM
    if run.hook not in {"none", "fp16"}:
        return COMPRESSED
    return DENSE_SLOW if run.rate_mbit == 100 else DENSE_FAST


def points(measured: Sequence[Run], machine: Machine) -> Iterator[Point]:
    """One a run, in their order; a configuration that was run again counts again."""
    seen: dict[str, int] = {}
    for run in measured:
        name = f"{_HOOK[run.hook]}, {_setting(run)}"
        seen[name] = seen.get(name, 0) + 1
        again = seen[name] > 1
        yield Point(
            name=f"{name}, run again" if again else name,
            series=_series(run),
            unit="s",
            measured=run.step,
            predicted=fitted_step(run, machine).iteration,
            unfitted=bare_step(run).iteration,
            fitted=serves_fit(run),
            source=_SOURCE.format(run=run),
            workers=run.ranks,
            nbytes=run.payload / len(run.buckets),
            setting=_setting(run) + (", again" if again else ""),
            method=run.hook,
            panel=f"{_model(run)}, {_RATE[run.rate_mbit]}, {run.bucket_mb}-MB buckets",
            curve=_HOOK[run.hook],
            x=float(run.ranks),
            **ends(bare_interval(run)),
        )


def _factors(machine: Machine) -> Iterator[Factor]:
    own = [run for run in runs() if serves_fit(run)]
    real = [run for run in own if not run.phantom]
    yield Factor(
        "all", "variation of a rank's computation", machine.variation, "", len(real), catalogue=0.0
    )
    yield Factor(
        series="all",
        name="DDP after the last bucket, on a core",
        value=machine.finish,
        unit="s",
        points=len(real),
        catalogue=0.0,
    )
    for name, curve in machine.kernels.items():
        for nbytes, seconds in curve:
            yield given_step(
                "all", f"{name} of a bucket of {nbytes / 1e6:.1f} MB, on a core", seconds
            )


def _find() -> Findings:
    machine = fit(runs())
    return Findings(points=tuple(points(runs(), machine)), factors=tuple(_factors(machine)))


SUITE = Suite(
    name="shaped-training",
    title="DDP training steps on shaped links",
    about=(
        "Training steps of PyTorch 2.13's DistributedDataParallel over Gloo on CPUs, 2 and 4 ranks "
        "in network name spaces of one machine with two cores, links shaped to 100 Mbit/s and "
        "1 Gbit/s: an MLP (2.2 M parameters), a CNN (1.1 M) and a phantom of twelve layers that "
        "sleeps where others compute (2.4 M); dense, fp16, Top-k, signs and PowerSGD; each the "
        "median of 20 steps. Without fit: the catalogue's link, our own compressors on its "
        "cpu_2core, every rank with cores of its own, messages that cost no processor time."
    ),
    fitted_on=(
        "link and host: collectives alone, as the suite shaped-collectives; times of the hooks' "
        "stages (not of steps): two ranks at 100 Mbit/s, and for other sizes of buckets Top-k and "
        "signs of the CNN and of the empty phantom. Forward, backward and optimiser are given: the "
        "step without any exchange, the median over all runs of that model and number of ranks"
    ),
    missing=(
        "Other work on the machine: beside the MLP's runs with 25-MB buckets and the sleeping "
        "phantom's, other processes took 27 to 82 % of the two cores, beside the others 11 % at "
        "most; one stage of a hook took up to 37 % longer in one run than in another of as many "
        "ranks. On four ranks a collective after a long encoding (MLP, 25-MB buckets, Top-k and "
        "signs) is 13 to 23 ms longer than predicted: probably ranks wait for the last one longer "
        "than fair shares of the cores make them. Messages and hooks at the same time both need "
        "the cores, which the model lets each have alone: the empty phantom's fitted runs, which "
        "keep them busy for 92 % of the time, are predicted 40 % too fast. PowerSGD's time "
        "depends on the CNN's matrices, which are not known: it is the MLP's, in proportion to "
        "bytes."
    ),
    bounds=(
        Bound("dense and fp16 at 100 Mbit/s", (DENSE_SLOW,), limit=0.02),
        Bound("phantom compute", (PHANTOM,), limit=0.05),
        Bound("compressed, all rates", (COMPRESSED,), limit=0.12, target=0.10),
    ),
    find=_find,
    figure_x="ranks",
)
