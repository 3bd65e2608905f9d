"""Predictions of GRACE's runs, with what its own code sends and computes, and their fit.

Given is each model's step of one worker (its own run). Fitted are, for all models and methods
together: seconds that every tensor costs beside passes, exchange and kernels, the host thread's
seconds a byte, and for each kind of kernel (`KINDS`) how many times as long as the catalogue's
prices they take.

    t(run) = t0(run) + n(run) per_tensor + a(run) per_byte + sum over kinds of k(run) slower

The coefficients are what the simulator answers when one of the factors changes a little: tangents,
laid anew where the solution is, because some kernels and messages hide behind others. All factors
are at least 0; they minimise the squares of the errors relative to t.

Fitted on, of each model: on 8 workers at 10 Gbit/s the smallest payload of each method (with error
feedback where both were run) and the largest of top-k; on 4 workers at 10 Gbit/s dense training and
QSGD. All with MPI. Which kinds there are, and that a tensor has a price and skew has none, was
chosen on these runs alone, each predicted by a fit without its method: a factor for each of the
nine classes is off by 16 % (median), one for all kernels by 18 %, these four by 15 %.

Source: C. Lawson and R. Hanson 1974, "Solving least squares problems", chapter 23 (NNLS).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from gcsim.analysis.validation.folder import suite_of
from gcsim.analysis.validation.interval import Interval, ends
from gcsim.analysis.validation.suite import DENSE, Factor, Findings, Point, given_step
from gcsim.analysis.validation.suites.grace.arithmetic import work
from gcsim.analysis.validation.suites.grace.models import networks
from gcsim.analysis.validation.suites.grace.payloads import Method, counted
from gcsim.analysis.validation.suites.grace.runs import Run, selection, sent_bytes
from gcsim.analysis.validation.suites.grace.steps import Place, Rates, Steps
from gcsim.compressors.kernels import KernelClass

VOLUMES = "bytes sent, all models"
COUNTED = "resnet20_v2_cifar10"
"""The model whose short tensors were found from the bytes counted of it."""
_SHOWN = frozenset({DENSE, "topk", "randomk", "qsgd", "terngrad", "signsgd", "powersgd"})
"""Compressors whose curves are drawn."""


def find() -> Findings:
    """All points, by one fit."""
    chosen = selection()
    models = dict.fromkeys(run.model for run in chosen.rates)
    steps = {model: Steps(model, networks()[model]) for model in models}
    found = fit(steps, chosen.rates)
    scaled = {(run.model, run.method) for run in chosen.rates if run.workers == 4}
    points = [_volume(run) for run in chosen.volumes]
    points += [
        _rate(steps[run.model], run, found, drawn=(run.model, run.method) in scaled)
        for run in chosen.rates
    ]
    return Findings(
        points=tuple(points), factors=tuple(_factors(steps, found)), excluded=chosen.excluded
    )


def _volume(run: Run) -> Point:
    return Point(
        name=f"{run.known.title}, {run.label}, bytes",
        series=VOLUMES,
        unit="bytes",
        measured=run.value,
        predicted=counted(run.method, run.model, run.known),
        unfitted=counted(run.method, run.model, run.known),
        fitted=run.model == COUNTED,
        source=run.source,
        workers=run.workers,
    )


def _rate(steps: Steps, run: Run, found: Fit, *, drawn: bool) -> Point:
    title = run.known.title
    network = f"{run.gbit or 10} Gbit/s" + (", NCCL" if run.library == "nccl" else "")
    drawn = (
        drawn
        and run.gbit == 10
        and run.workers > 1
        and run.library == "mpi"
        and run.method.compressor in _SHOWN
    )
    return Point(
        name=f"{title}, {run.label}, {run.workers} workers, {network}",
        series=title,
        unit="samples/s",
        measured=run.rate,
        predicted=predicted(steps, run, found),
        unfitted=predicted(steps, run, None),
        fitted=run.workers == 1 or run.row in found.served,
        source=run.source,
        workers=run.workers,
        nbytes=sent_bytes(run),
        setting=f"{title}, {network}, {run.workers} workers" if run.workers > 1 else "",
        method=(DENSE if run.method.compressor == DENSE else run.label) if run.workers > 1 else "",
        panel=f"{title}, {network}" if drawn else "",
        curve=run.label.removesuffix(", error feedback") if drawn else "",
        x=run.workers if drawn else None,
        **ends(_bare_interval(steps, run)),
    )


def _factors(steps: Mapping[str, Steps], found: Fit) -> Iterator[Factor]:
    for model, own in steps.items():
        yield given_step(
            own.network.title,
            "forward and backward pass",
            found.alone[model],
            own.catalogue().compute,
        )
    count = len(found.served)
    prices = (
        ("a tensor, beside passes, kernels and exchange", found.per_tensor),
        ("host's thread, of a byte", found.per_byte),
    )
    for name, price in prices:
        yield Factor("all models", name, price, "s", count, catalogue=0.0)
    for kind, factor in found.slower.items():
        yield Factor(
            series="all models",
            name=f"kernels: {kind}, times",
            value=factor,
            unit="x",
            points=len(found.rows[kind]),
            catalogue=1.0,
        )


SUITE = suite_of(Path(__file__).parent, "grace", find)


_TENSOR = 1e-4
"""Seconds: the unit in which a tensor's time is solved for."""
_BYTE = 1e-9
"""Seconds: the unit in which the host's time a byte is solved for."""
KINDS: dict[str, tuple[KernelClass, ...]] = {
    "memory": ("streaming", "reduction", "random", "matmul", "factorization"),
    "scattered memory": ("gather_scatter", "sort"),
    "selection": ("selection",),
    "waits of the host": ("host_sync",),
}
"""Classes of kernels that share a factor."""
_PASSES = 2
"""In which the lines become tangents at the solution."""
_LEAST = 0.05
"""Of a factor, or of `_BYTE`: below it tangents are not laid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fit of the whole cluster."""

    alone: Mapping[str, float]
    """By model: seconds of one worker's step, as measured."""
    per_tensor: float = 0.0
    per_byte: float = 0.0
    slower: Mapping[str, float] = field(default_factory=dict)
    """By kind of kernel: how many times as long as the catalogue's."""
    rows: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Runs that served, by factor: "all", or a kind of kernel."""

    def rates(self, model: str) -> Rates:
        """Of one of the models."""
        return Rates(
            compute=self.alone[model],
            beside=self.per_tensor * len(networks()[model].tensors),
            per_byte=self.per_byte,
        )

    @property
    def served(self) -> frozenset[str]:
        """All runs that it is fitted on."""
        return self.rows.get("all", frozenset())


def chosen(runs: Sequence[Run]) -> list[Run]:
    """Runs of a model that serve, the one of one worker first, which is given."""
    eight = [run for run in runs if (run.workers, run.gbit, run.library) == (8, 10, "mpi")]
    found = [run for run in runs if run.workers == 1]
    for compressor in dict.fromkeys(run.method.compressor for run in eight):
        own = sorted((run for run in eight if run.method.compressor == compressor), key=_order)
        found += own[:1] + (own[-1:] if compressor == "topk" else [])
    four = [run for run in runs if (run.workers, run.gbit, run.library) == (4, 10, "mpi")]
    return found + [run for run in four if run.method.compressor in {DENSE, "qsgd"}]


def _order(run: Run) -> tuple[int, bool, float]:
    return sent_bytes(run), not run.method.memory, run.method.parameter


def _place(run: Run) -> Place:
    """The cluster that a run was made on."""
    return Place(workers=run.workers, gbit=run.gbit or 10, library=run.library)


@cache
def _kinds(method: Method, model: str) -> tuple[str, ...]:
    """Classes of the kernels that a method runs."""
    works = (work(method, tensor) for tensor in networks()[model].tensors)
    found = {cost.kind for one in works for cost in (*one.encode, *one.per_payload, *one.decode)}
    return tuple(kind for kind, classes in KINDS.items() if found & set(classes))


def by_class(slower: Mapping[str, float]) -> dict[str, float]:
    """Factors of kinds as those of their classes."""
    return {one: factor for kind, factor in slower.items() for one in KINDS[kind]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A run's seconds as a line in the factors, in their units."""

    constant: float
    slopes: Mapping[str, float]


def fit(steps: Mapping[str, Steps], runs: Sequence[Run]) -> Fit:
    """The factors, from those of the runs that `chosen` names; no other is looked at.

    `steps` are the models'.
    """
    alone, rest = {}, []
    for model in dict.fromkeys(run.model for run in runs):
        first, *others = chosen([run for run in runs if run.model == model])
        alone[model] = first.seconds
        rest += others
    names = ("tensor", "byte", *KINDS)
    solution = dict.fromkeys(names, 1.0) | {"byte": 0.5}
    for _ in range(_PASSES):
        lines = [_line(steps[run.model], run, alone[run.model], solution) for run in rest]
        solution = dict(zip(names, _solve(rest, lines, names), strict=True))
    return Fit(
        alone=alone,
        per_tensor=solution["tensor"] * _TENSOR,
        per_byte=solution["byte"] * _BYTE,
        slower={kind: solution[kind] for kind in KINDS},
        rows={"all": frozenset(run.row for run in rest)}
        | {
            kind: frozenset(run.row for run in rest if kind in _kinds(run.method, run.model))
            for kind in KINDS
        },
    )


def _solve(runs: Sequence[Run], lines: Sequence[_Line], names: Sequence[str]) -> list[float]:
    from scipy.optimize import nnls  # takes as long as all of the suite's start

    seconds = np.array([run.seconds for run in runs])
    slopes = np.array([[line.slopes.get(name, 0.0) for name in names] for line in lines])
    target = 1 - np.array([line.constant for line in lines]) / seconds
    solution, _ = nnls(slopes / seconds[:, None], target)
    return [float(value) for value in solution]


def _line(steps: Steps, run: Run, alone: float, near: Mapping[str, float]) -> _Line:
    """The line through what the simulator says near these factors."""
    slower = {kind: max(near[kind], _LEAST) for kind in _kinds(run.method, run.model)}
    bare = Rates(compute=alone, per_byte=max(near["byte"], _LEAST) * _BYTE)
    at = _place(run)
    here = steps.seconds(at, run.method, bare, by_class(slower))
    slopes = {"tensor": _TENSOR * len(steps.network.tensors)}

    def nudged(rates: Rates, factors: Mapping[str, float]) -> float:
        return steps.seconds(at, run.method, rates, by_class(factors)) - here

    more = nudged(Rates(compute=alone, per_byte=1.1 * bare.per_byte), slower)
    slopes["byte"] = 10 * more * _BYTE / bare.per_byte
    constant = here - 10 * more
    for kind, factor in slower.items():
        more = nudged(bare, {**slower, kind: 1.1 * factor})
        slopes[kind] = 10 * more / factor
        constant -= 10 * more
    return _Line(constant=constant, slopes=slopes)


def predicted(steps: Steps, run: Run, found: Fit | None) -> float:
    """Samples a second of a run; without a fit as the catalogue has it."""
    if found is None:
        seconds = steps.unfitted(_place(run), run.method)
    else:
        slower = {kind: max(1e-6, factor) for kind, factor in by_class(found.slower).items()}
        seconds = steps.seconds(_place(run), run.method, found.rates(run.model), slower)
    return run.workers * run.known.samples / seconds


def _bare_interval(steps: Steps, run: Run) -> Interval | None:
    """Of its samples a second without a fit."""
    samples = run.workers * run.known.samples
    return steps.interval(_place(run), run.method, lambda seconds: samples / seconds)
