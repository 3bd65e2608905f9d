"""Estimation of the distribution of recorded gradients, tensor by tensor.

Preserved, as compressors depend on it: scales of tensors, rows and columns; exact zeros; the share
of a few rank-one terms, of one worker and of the mean; the workers' common share, and how it turns
from iteration to iteration; scatter of lengths between workers; tails of the entries. Lost: which
row is large (a permutation), correlation between tensors beyond their lengths and between
neighbouring rows, and anything about the loss: synthetic gradients train nothing.

Estimates of what persists (directions, families) are judged on held-out samples. The energies of
the rank-one terms are then calibrated, as terms of the common and the own part mix: gradients are
drawn, and the spectrum is sharpened until a worker's leading term has its recorded share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.lazy_torch import Tensor
from gcsim.errors import InputError, InternalError, Problem
from gcsim.traces.storage.store import Trace
from gcsim.traces.synthetic.fit_file import ModelFit, TensorFit, VectorFit, Wave, matrix_shape
from gcsim.traces.synthetic.fit_mapping import depths, kinds
from gcsim.traces.synthetic.statistics import (
    Floats,
    SideStatistics,
    Statistics,
    best_family,
    coherence,
    offset,
    persistent,
    quantiles,
    statistics,
)
from gcsim.traces.synthetic.tensor import SyntheticTensor, kernel_places

FREQUENCIES = 33
"""Number of frequencies from 0 to pi from which the waves of the common part are chosen."""
WAVES = 3
_SIMPLER = 0.05
"""Error of the correlation that is accepted for 1 less in the share of waves."""
_KEPT_BYTES = 512 << 20
"""Limit up to which a tensor's samples stay in memory; others are read again."""
_CALIBRATED = 256
"""Maximum rows and columns of the matrices drawn in calibration."""
_DRAWN = 6
_SOURCE = ("model", "data", "seed", "warmup_steps", "learning_rate", "momentum")


def fit_trace(trace: Trace, progress: Callable[[str], None] = lambda name: None) -> ModelFit:
    """Fit all tensors of a trace; `progress` gets the name of each finished tensor. Raises
    `InputError` for less than two workers or iterations, which cannot separate common part and
    noise, and if squares of elements overflow."""
    short = [
        Problem(
            place=str(trace.folder),
            message=f"holds gradients of 1 {what}; a fit needs two or more",
            hint=f"record more: gcsim record SCENARIO -o FOLDER --{what}s 4",
        )
        for what, count in (("worker", trace.workers), ("iteration", trace.iterations))
        if count < 2
    ]
    if short:
        raise InputError(short)
    found = []
    for number, (name, shape) in enumerate(trace.parameters):
        found.append(_tensor_statistics(trace, number, name, shape))
        progress(name)
    logarithms = np.stack([_logarithms(each) for each in found])
    together = logarithms.mean(0)
    levels, scatter = _levels(together)
    waves = _waves(_pooled([each.products for each in found]))
    model = ModelFit(
        model=trace.facts.name,
        samples_per_worker=trace.facts.samples_per_worker,
        workers=trace.workers,
        iterations=trace.iterations,
        recording={key: trace.source[key] for key in _SOURCE if key in trace.source},
        scatter=scatter,
        levels=levels,
        waves=waves,
        tensors=[
            _tensor(name, shape, kind, depth, each, logarithm - together)
            for (name, shape), kind, depth, each, logarithm in zip(
                trace.parameters,
                kinds(trace.parameters),
                depths(trace.parameters),
                found,
                logarithms,
                strict=True,
            )
        ],
    )
    return model.model_copy(
        update={"tensors": [_calibrated(tensor, model) for tensor in model.tensors]}
    )


def _tensor_statistics(trace: Trace, number: int, name: str, shape: tuple[int, ...]) -> Statistics:
    layout = BucketLayout.behind(0, [(name, number, shape)])
    kept: dict[tuple[int, int], Tensor] = {}
    keeps = 4 * layout.numel * trace.workers * trace.iterations <= _KEPT_BYTES

    def samples(t: int, w: int) -> Tensor:
        if (t, w) in kept:
            return kept[t, w]
        matrix = trace.bucket(layout, t, w).gradient.view(matrix_shape(shape))
        if not bool(matrix.square().sum().isfinite()):
            raise InputError(
                f"the squares of tensor {name!r} are beyond float32 in iteration {t}, worker {w}: "
                f"its largest element is {float(matrix.abs().max()):.3g}",
                place=str(trace.folder),
                hint="record where training is stable: a lower learning rate",
            )
        if keeps:
            kept[t, w] = matrix
        return matrix

    return statistics(samples, trace.iterations, trace.workers, number)


def _logarithms(found: Statistics) -> Floats:
    """Return the log of the length minus its mean `[iterations, workers]`; 0 for gradients of 0."""
    squares = found.squares
    if not (squares > 0).all():
        return np.zeros(squares.shape)
    logarithms = np.log(squares) / 2
    result: Floats = logarithms - logarithms.mean()
    return result


def _levels(together: Floats) -> tuple[list[float], float]:
    """Return the level of each iteration, shrunk by the part that workers alone explain, and the
    scatter of workers around it."""
    iterations, workers = together.shape
    means = together.mean(1)
    within = float(((together - means[:, None]) ** 2).sum() / (iterations * (workers - 1)))
    between = float(means.var(ddof=1))
    real = max(0.0, between - within / workers)
    shrunk = means * (real / between if between > 0 else 0.0)
    scatter = math.sqrt(within)
    if np.abs(shrunk).max() < 0.02:
        return [], scatter
    return [float(level) for level in shrunk], scatter


def _pooled(products: Sequence[Floats]) -> Floats:
    """Return the autocorrelation of the common part, by lag in iterations."""
    total = np.sum(products, 0)
    if total[0] <= 0:
        none: Floats = np.eye(1, len(total))[0]
        return none
    result: Floats = np.clip(total / total[0], -1, 1)
    return result


def _waves(correlation: Floats) -> list[Wave]:
    """Return a few waves whose cosines add up to the correlation; the rest to 1 is new each time.
    Over few iterations many waves look like noise: among explanations that are about as good, the
    one with the smallest share of waves wins."""
    lags = np.arange(len(correlation))
    frequencies = np.linspace(0, math.pi, FREQUENCIES)
    weight = np.sqrt((len(correlation) - lags) / len(correlation))  # by the pairs of iterations
    table = np.cos(np.outer(lags, frequencies)) * weight[:, None]
    best: tuple[float, list[Wave]] = (math.inf, [])
    for share in np.linspace(0, 1, 41):
        wanted = np.where(lags == 0, share, correlation) * weight
        chosen, shares, error = _few_waves(table, wanted)
        total = float(shares.sum())
        cost = error + _SIMPLER * share
        if cost < best[0] - 1e-12:
            scale = min(1.0, share / total) if total > 0 else 0.0
            waves = [
                Wave(frequency=float(frequencies[n]), share=float(scale * value))
                for n, value in zip(chosen, shares, strict=True)
                if scale * value > 0.02
            ]
            best = cost, waves
    return best[1]


def _few_waves(table: Floats, wanted: Floats) -> tuple[list[int], Floats, float]:
    """Return at most `WAVES` columns, their non-negative shares, and the RMS of the rest."""
    from scipy.optimize import nnls

    shares = nnls(table, wanted)[0]
    chosen = sorted(sorted(range(len(shares)), key=lambda n: -shares[n])[:WAVES])
    few, error = nnls(table[:, chosen], wanted)
    return chosen, few, float(error) / math.sqrt(len(wanted))


def _tensor(  # noqa: PLR0917 - what a tensor's fit is made of
    name: str, shape: tuple[int, ...], kind: str, depth: float, found: Statistics, own: Floats
) -> TensorFit:
    rows, columns = matrix_shape(shape)
    mean = float(found.squares.mean()) / (rows * columns)
    spectrum = np.clip(found.spectrum[: max(1, min(rows, columns))], 0, 1)
    if not mean:
        spectrum = np.ones(1)
    kept = spectrum[spectrum > 1e-4] if (spectrum > 1e-4).any() else spectrum[:1]
    return TensorFit.model_validate(
        {
            "name": name,
            "shape": list(shape),
            "kind": kind,
            "depth": depth,
            "rms": math.sqrt(mean),
            "common": float(np.clip(found.products[0], 0, 0.999)),
            "scatter": float(own.std()),
            "spectrum": [float(v) for v in kept],
            "aligned": 0.0,
            "rows": _side(found.rows, 1),
            "columns": _side(found.columns, kernel_places(shape)),
        }
    )


def _side(found: SideStatistics, places: int) -> VectorFit:
    size = len(found.scale)
    if not found.scale.any():
        found.scale = np.ones(size)
    shares = persistent(found.held_out, size)
    family, shape = best_family(found.vectors, found.scale)
    scale, silent = quantiles(found.scale, found.silent)
    return VectorFit(
        scale=scale,
        silent=silent,
        population=[float(v) for v in shares],
        family=family,
        shape=shape,
        coherence=coherence(found.vectors, places),
        offset=offset(found.vectors, found.scale, shares),
    )


def _calibrated(tensor: TensorFit, model: ModelFit) -> TensorFit:
    """Return the tensor with which a drawn gradient's leading term has its recorded share. Terms of
    the common and the own part spread the energy; if too much, own terms are aligned with common
    ones, and if that is not enough the spectrum is sharpened."""
    rows, columns = matrix_shape(tensor.shape)
    if min(rows, columns) == 1 or len(tensor.spectrum) == 1:
        return tensor
    wanted = tensor.spectrum[0]

    def found(aligned: float, exponent: float) -> TensorFit:
        return _sharpened(tensor.model_copy(update={"aligned": aligned}), exponent)

    def holds(aligned: float, exponent: float) -> float:
        return _leading_share(found(aligned, exponent), model)

    if holds(0.0, 1.0) >= wanted:
        exponent = _bisected(lambda value: holds(0.0, value), wanted, 0.25, 1.0)
        return found(0.0, exponent)
    if holds(1.0, 1.0) >= wanted:
        return found(_bisected(lambda value: holds(value, 1.0), wanted, 0.0, 1.0), 1.0)
    return found(1.0, _bisected(lambda value: holds(1.0, value), wanted, 1.0, 3.0))


def _bisected(share: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Return where an increasing share is `wanted`, to a hundredth of the interval."""
    for _ in range(7):
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) < wanted else (low, middle)
    return (low + high) / 2


def _sharpened(tensor: TensorFit, exponent: float) -> TensorFit:
    energies = np.asarray(tensor.spectrum)
    sharp = energies**exponent
    sharp *= energies.sum() / sharp.sum()
    kept = sharp[sharp > 1e-4]
    return tensor.model_copy(update={"spectrum": [float(v) for v in kept]})


def _leading_share(tensor: TensorFit, model: ModelFit) -> float:
    """Return the mean energy of the leading term of drawn gradients, of limited matrix size."""
    shape = list(tensor.shape)
    places = kernel_places(shape)
    shape[0] = min(shape[0], _CALIBRATED)
    shape[1] = min(shape[1], max(1, _CALIBRATED // places))
    drawn = SyntheticTensor(tensor, model, shape, index=0, seed=0)
    shares = []
    for number in range(_DRAWN):
        matrix = drawn.draw(number, number).astype(np.float64)
        small = matrix @ matrix.T if len(matrix) < matrix.shape[1] else matrix.T @ matrix
        total = np.trace(small)
        if not total > 0:
            raise InternalError(f"{tensor.name}: a drawn gradient is zero throughout")
        shares.append(float(np.linalg.eigvalsh(small)[-1] / total))
    return float(np.mean(shares))
