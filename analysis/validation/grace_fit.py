"""What is fitted on which of a model's runs, and how?

Shared by all methods of a model: the step of one worker (its own run), seconds beside passes and
exchange, the host thread's seconds a byte, and how many times as long as the catalogue's prices
kernels usually take. For each method: how many times as long its own take.

    t(run) = t0(run) + beside + a(run) per_byte + k(run) slower(method)

The coefficients are what the simulator answers when one of the factors changes a little: tangents,
laid anew where the solution is, because some kernels and messages hide behind others. All factors
are at least 0; they minimise the squares of the errors relative to t and, weighted by `PRIOR`
squared, those of (slower - usual) k / t: a method's own factor explains what the shared ones leave.
Dense training has the usual one.

Fitted on, of each model: one worker alone; on 8 workers at 10 Gbit/s the smallest payload of each
method (with error feedback where both were run) and the largest of top-k; on 4 workers at 10 Gbit/s
dense training and QSGD. All with MPI.

Source: C. Lawson and R. Hanson 1974, "Solving least squares problems", chapter 23 (NNLS).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gcsim.analysis.validation.grace_payloads import Method
from gcsim.analysis.validation.grace_runs import Run, sent_bytes
from gcsim.analysis.validation.grace_steps import Place, Rates, Steps
from gcsim.analysis.validation.suite import DENSE

PRIOR = 0.1
"""What an error of t counts in comparison with one as large of a method's own time."""
_BYTE = 1e-9
"""Seconds: the unit in which the host's time a byte is solved for."""
_PASSES = 3
"""In which the lines become tangents at the solution."""
_LEAST = 0.05
"""Of a factor, or of `_BYTE`: below it tangents are not laid."""
_SHARED = 3

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Of one model."""

    rates: Rates
    usual: float
    """How many times as long as the catalogue's kernels take, usually."""
    slower: dict[str, float]
    """The same by compressor."""
    rows: frozenset[str]
    """Runs that served it."""


def chosen(runs: Sequence[Run]) -> list[Run]:
    """Those of a model's runs that it is fitted on, the one of one worker first."""
    eight = [run for run in runs if (run.workers, run.gbit, run.library) == (8, 10, "mpi")]
    found = [run for run in runs if run.workers == 1]
    for compressor in dict.fromkeys(run.method.compressor for run in eight):
        own = sorted((run for run in eight if run.method.compressor == compressor), key=_order)
        found += own[:1] + (own[-1:] if compressor == "topk" else [])
    four = [run for run in runs if (run.workers, run.gbit, run.library) == (4, 10, "mpi")]
    return found + [run for run in four if run.method.compressor in {DENSE, "qsgd"}]


def _order(run: Run) -> tuple[int, bool, float]:
    return sent_bytes(run), not run.method.memory, run.method.parameter


def place(run: Run) -> Place:
    """The cluster that a run was made on."""
    return Place(workers=run.workers, gbit=run.gbit or 10, library=run.library)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A run's seconds as a line in the factors."""

    constant: float
    byte: float
    """Of a host that needs `_BYTE` a byte."""
    kernels: float


def fit(steps: Steps, runs: Sequence[Run]) -> Fit:
    """A model's factors, from those of its runs that `chosen` names; no other is looked at."""
    alone, *rest = chosen(runs)
    compressors = sorted({run.method.compressor for run in rest} - {DENSE})
    rates = Rates(compute=alone.seconds, per_byte=_BYTE / 2)
    slower = dict.fromkeys((DENSE, *compressors), 1.0)
    for _ in range(_PASSES):
        lines = [_line(steps, run, rates, slower[run.method.compressor]) for run in rest]
        solution = _solve(rest, lines, compressors)
        rates = replace(rates, beside=solution[0], per_byte=solution[1] * _BYTE)
        slower = dict(zip((DENSE, *compressors), solution[_SHARED - 1 :], strict=True))
    return Fit(
        rates=rates,
        usual=slower.pop(DENSE),
        slower=slower,
        rows=frozenset(run.row for run in (alone, *rest)),
    )


def _solve(runs: Sequence[Run], lines: Sequence[_Line], compressors: list[str]) -> list[float]:
    """Seconds beside, the host's time of a byte in `_BYTE`, the usual factor, those of methods."""
    matrix = np.zeros((len(runs) + len(compressors), _SHARED + len(compressors)))
    target = np.zeros(len(matrix))
    for row, (run, line) in enumerate(zip(runs, lines, strict=True)):
        matrix[row, 0] = 1 / run.seconds
        matrix[row, 1] = line.byte / run.seconds
        target[row] = 1 - line.constant / run.seconds
        if run.method.compressor == DENSE:
            matrix[row, 2] = line.kernels / run.seconds
            continue
        own = compressors.index(run.method.compressor)
        matrix[row, _SHARED + own] = line.kernels / run.seconds
        weight = PRIOR * line.kernels / run.seconds
        if weight > matrix[len(runs) + own, _SHARED + own]:
            matrix[len(runs) + own, 2] = -weight
            matrix[len(runs) + own, _SHARED + own] = weight
    return _non_negative(matrix, target)


def _line(steps: Steps, run: Run, near: Rates, slower: float) -> _Line:
    """The line through what the simulator says near these rates and this factor."""
    at = max(slower, _LEAST)
    bare = replace(near, beside=0.0, per_byte=max(near.per_byte, _LEAST * _BYTE))
    more = replace(bare, per_byte=1.1 * bare.per_byte)
    here = steps.seconds(place(run), run.method, bare, at)
    bytes_ = 10 * (steps.seconds(place(run), run.method, more, at) - here)
    kernels = 10 * (steps.seconds(place(run), run.method, bare, 1.1 * at) - here)
    return _Line(
        constant=here - kernels - bytes_,
        byte=bytes_ * _BYTE / bare.per_byte,
        kernels=kernels / at,
    )


def _non_negative(matrix: Matrix, target: Matrix) -> list[float]:
    from scipy.optimize import nnls  # takes as long as all of the suite's start

    solution, _ = nnls(matrix, target)
    return [float(value) for value in solution]


def predicted(steps: Steps, run: Run, found: Fit | None) -> float:
    """Samples a second of a run; without a fit as the catalogue has it."""
    rates = steps.catalogue() if found is None else found.rates
    slower = 1.0 if found is None else _slower(found, run.method)
    seconds = steps.seconds(place(run), run.method, rates, slower)
    return run.workers * run.known.samples / seconds


def _slower(found: Fit, method: Method) -> float:
    return max(1e-6, found.slower.get(method.compressor, found.usual))
