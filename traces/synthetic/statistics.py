"""Statistics of a tensor's recorded gradients that a fit keeps, one tensor at a time.

Samples are the gradients of each iteration and worker as matrices [rows, columns], read in turn; a
large matrix is only multiplied by thin random ones, never decomposed in full (N. Halko, P. G.
Martinsson, J. A. Tropp, "Finding structure with randomness", SIAM Review 53(2), 2011, algorithms
4.3 and 4.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.random import stream
from gcsim.traces.synthetic.fit_file import POINTS, Family

Samples = Callable[[int, int], "Tensor"]
"""The gradient of an iteration and a worker, float32 `[rows, columns]`."""
Floats = NDArray[np.float64]

TERMS = 16
"""Maximum number of rank-one terms of a tensor."""
DIRECTIONS = 12
"""Maximum number of persistent directions of a side."""
ELEMENTS = 1 << 18
"""Number of a tensor's elements on which workers and iterations are compared."""
_DECOMPOSED = 16
"""Number of samples whose singular values are computed."""
_SMALL = 128
"""Size in rows or columns up to which a matrix is decomposed in full."""


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Statistics of one tensor."""

    squares: Floats
    """`[iterations, workers]`: squared length."""
    products: Floats
    """`[iterations]`: mean product of two workers' unit-length gradients, by lag in iterations."""
    rows: SideStatistics
    columns: SideStatistics
    spectrum: Floats
    """Mean energies of a sample's leading rank-one terms; at most 1 in total."""


@dataclass(slots=True, kw_only=True)
class SideStatistics:
    """Statistics of the rows or the columns."""

    scale: Floats
    """`[n]`: root mean square, for samples scaled to length sqrt(elements)."""
    silent: Floats
    """`[n]`: share of the samples in which the whole row or column is zero."""
    held_out: Floats
    """Shares of one half's energy along the leading directions of the other half, whitened."""
    vectors: list[Floats]
    """Leading singular vectors of the samples, each of mean square 1."""


def statistics(samples: Samples, iterations: int, workers: int, index: int) -> Statistics:
    """Compute all of one tensor; `index` keys the random choices. Not for an all-zero gradient."""
    numbers = [(t, w) for t in range(iterations) for w in range(workers)]
    first = samples(0, 0)
    rows, columns = first.shape
    squares = np.zeros((iterations, workers))
    energy = [np.zeros(rows), np.zeros(columns)]
    silent = [np.zeros(rows), np.zeros(columns)]
    chosen = _chosen(rows * columns, index)
    parts = np.zeros((iterations, workers, len(chosen)), np.float32)
    for t, w in numbers:
        gradient = samples(t, w)
        square = float(gradient.square().sum(dtype=torch.float64))
        squares[t, w] = square
        if not square:
            continue
        for axis in (0, 1):
            of_axis = gradient.square().sum(1 - axis).double().numpy()
            energy[axis] += of_axis / square
            silent[axis] += of_axis == 0
        part = gradient.reshape(-1)[torch.from_numpy(chosen)].numpy()
        parts[t, w] = part / max(float(np.linalg.norm(part)), 1e-30)
    used = max(1, int((squares > 0).sum()))
    scales = [np.sqrt(e / used * len(e)) for e in energy]
    held_out = _held_out(samples, squares, scales, index)
    spectrum, vectors = _decomposed(samples, squares, index)
    sides = [
        SideStatistics(
            scale=scales[axis],
            silent=silent[axis] / used,
            held_out=held_out[axis],
            vectors=vectors[axis],
        )
        for axis in (0, 1)
    ]
    return Statistics(
        squares=squares,
        products=_products(parts),
        rows=sides[0],
        columns=sides[1],
        spectrum=spectrum,
    )


def _chosen(elements: int, index: int) -> NDArray[np.int64]:
    if elements <= ELEMENTS:
        return np.arange(elements)
    return np.sort(stream(0, 0, index, "fitted elements").integers(0, elements, ELEMENTS))


def _products(parts: NDArray[np.float32]) -> Floats:
    """Use only products of different workers: a worker's own noise is not common."""
    iterations, workers = parts.shape[:2]
    total = parts.sum(1, dtype=np.float64)
    pairs = workers * (workers - 1)
    found = np.zeros(iterations)
    for lag in range(iterations):
        together = 0.0
        for t in range(iterations - lag):
            same = sum(float(np.dot(parts[t, w], parts[t + lag, w])) for w in range(workers))
            together += float(total[t] @ total[t + lag]) - same
        found[lag] = together / pairs / (iterations - lag)
    return found


def _held_out(
    samples: Samples, squares: Floats, scales: Sequence[Floats], index: int
) -> tuple[Floats, Floats]:
    """Return, for rows and columns, the energy along one half's directions in the other half."""
    iterations, workers = squares.shape
    whitening = [torch.from_numpy(_inverse(scale)).float() for scale in scales]
    ranks = [max(1, min(DIRECTIONS, len(scale) // 2)) for scale in scales]
    halves = (range(iterations // 2), range(iterations // 2, iterations))
    found = [np.zeros(rank) for rank in ranks]

    def white(t: int, w: int) -> Tensor:
        gradient = samples(t, w) * whitening[0][:, None] * whitening[1]
        unit: Tensor = gradient / gradient.norm().clamp_min(1e-30)
        return unit

    for learned, tested in (halves, halves[::-1]):
        sketches: list[list[Tensor]] = [[], []]
        for t, w in _spread(learned, workers):
            gradient = white(t, w)
            for axis, matrix in ((0, gradient), (1, gradient.T)):
                thin = _gaussian(matrix.shape[1], min(8, matrix.shape[1]), index)
                sketches[axis].append(matrix @ thin)
        bases = [
            torch.linalg.svd(torch.cat(sketch, 1), full_matrices=False)[0][:, :rank]
            for sketch, rank in zip(sketches, ranks, strict=True)
        ]
        pairs = _spread(tested, workers)
        for t, w in pairs:
            gradient = white(t, w)
            for axis, matrix in ((0, gradient), (1, gradient.T)):
                held = (bases[axis].T @ matrix).square().sum(1).double().numpy()
                found[axis][: len(held)] += held / (2 * len(pairs))
    return found[0], found[1]


def _spread(iterations: Sequence[int], workers: int) -> list[tuple[int, int]]:
    """Choose at most `_DECOMPOSED` samples, from all iterations."""
    pairs = [(t, w) for t in iterations for w in range(workers)]
    step = max(1, math.ceil(len(pairs) / _DECOMPOSED))
    return pairs[::step]


def _inverse(scale: Floats) -> Floats:
    """Return 1 / scale, less for almost empty entries: noise must not be amplified."""
    squares = scale**2 + 0.01 * np.mean(scale**2)
    return np.where(scale > 0, 1 / np.sqrt(np.maximum(squares, 1e-60)), 0.0)


def _gaussian(rows: int, columns: int, index: int) -> Tensor:
    drawn = stream(0, 0, index, "fitted sketch").standard_normal((rows, columns), np.float32)
    return torch.from_numpy(drawn)


def _decomposed(
    samples: Samples, squares: Floats, index: int
) -> tuple[Floats, tuple[list[Floats], list[Floats]]]:
    iterations, workers = squares.shape
    pairs = [(t, w) for t, w in _spread(range(iterations), workers) if squares[t, w] > 0]
    energies: list[Floats] = []
    vectors: tuple[list[Floats], list[Floats]] = ([], [])
    for t, w in pairs:
        left, values, right = leading(samples(t, w), TERMS, index)
        share = np.square(values) / squares[t, w]
        energies.append(np.pad(share, (0, TERMS - len(share))))
        for side, vector in zip(vectors, (left, right), strict=True):
            side.append(vector * math.sqrt(len(vector)))
    if not energies:  # zeros throughout
        return np.eye(1, TERMS)[0], vectors
    return np.mean(energies, 0), vectors


def leading(matrix: Tensor, terms: int, index: int) -> tuple[Floats, Floats, Floats]:
    """Return leading left vector, `terms` singular values (or all), leading right vector."""
    if min(matrix.shape) <= _SMALL:
        basis = None
        small = matrix.double()
    else:
        basis = matrix @ _gaussian(matrix.shape[1], terms + 8, index)
        for _ in range(2):
            basis = torch.linalg.qr(basis)[0]
            basis = matrix @ torch.linalg.qr(matrix.T @ basis)[0]
        basis = torch.linalg.qr(basis)[0]
        small = (basis.T @ matrix).double()
    left, values, right = torch.linalg.svd(small, full_matrices=False)
    vector = left[:, 0] if basis is None else basis.double() @ left[:, 0]
    return vector.numpy(), values[:terms].numpy(), right[0].numpy()


# --- distributions of entries --------------------------------------------------------------------


def best_family(vectors: Sequence[Floats], scale: Floats) -> tuple[Family, float]:
    """The family of entries over their scales, chosen by likelihood: normal, Laplace, generalised
    normal, Student's t, each scaled to mean square 1; parameters are fitted on the vectors with
    even numbers, the likelihood is that of the odd ones."""
    alive = scale > 0.05 * math.sqrt(float(np.mean(scale**2)))
    if alive.sum() < 8:
        return "normal", 1.0
    white = []
    for vector in vectors:
        entries = vector[alive] / scale[alive]
        size = math.sqrt(float(np.mean(entries**2)))
        if size > 0:
            white.append(entries / size)
    fitted, held_out = white[::2], white[1::2] or white[::2]
    if not fitted:
        return "normal", 1.0
    known, new = (np.abs(_thinned(np.concatenate(part))) for part in (fitted, held_out))
    candidates: dict[tuple[Family, float], float] = {
        ("normal", 1.0): _likelihood(new, "normal", 1.0),
        ("laplace", 1.0): _likelihood(new, "laplace", 1.0),
    }
    families: tuple[tuple[Family, Sequence[float]], ...] = (
        ("generalized_normal", (0.5, 0.6, 0.7, 0.8, 0.9, 1.2, 1.5, 3.0)),
        ("student_t", (2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0)),
    )
    for family, shapes in families:
        shape = max(shapes, key=lambda s, f=family: _likelihood(known, f, s))  # type: ignore[misc]
        candidates[family, shape] = _likelihood(new, family, shape)
    return max(candidates, key=lambda key: candidates[key])


def _thinned(values: Floats) -> Floats:
    return values[:: max(1, len(values) // 20_000)]


def _likelihood(sizes: Floats, family: Family, shape: float) -> float:
    """Return the mean log density of |x| (but for log 2) in the family with mean square 1."""
    if family == "normal":
        return float(np.mean(-0.5 * math.log(2 * math.pi) - sizes**2 / 2))
    if family == "student_t":
        spread2 = (shape - 2) / shape
        constant = (
            math.lgamma((shape + 1) / 2)
            - math.lgamma(shape / 2)
            - 0.5 * math.log(shape * math.pi * spread2)
        )
        return float(np.mean(constant - (shape + 1) / 2 * np.log1p(sizes**2 / spread2 / shape)))
    power = 1.0 if family == "laplace" else shape
    spread = math.exp((math.lgamma(1 / power) - math.lgamma(3 / power)) / 2)
    constant = math.log(power / (2 * spread)) - math.lgamma(1 / power)
    return float(np.mean(constant - (sizes / spread) ** power))


def coherence(vectors: Sequence[Floats], places: int) -> float:
    """Return the share of energy that neighbouring places have in common, beyond chance."""
    if places == 1:
        return 0.0
    shares = [
        places * float(np.sum(v.reshape(-1, places).mean(1) ** 2)) / float(np.sum(v**2))
        for v in vectors
    ]
    chance = 1 / places
    return float(np.clip((np.mean(shares) - chance) / (1 - chance), 0, 1))


def offset(vectors: Sequence[Floats], scale: Floats, population: Floats) -> float:
    """Return mean over root mean square of the leading direction, beyond chance."""
    alive = scale > 0
    count = int(alive.sum())
    if count < 8 or not len(population) or population[0] <= 0:
        return 0.0
    squares = []
    for vector in vectors:
        entries = vector[alive] / scale[alive]
        squares.append(float(np.mean(entries) ** 2 / max(float(np.mean(entries**2)), 1e-30)))
    share = (float(np.mean(squares)) - 1 / count) / (1 - 1 / count)
    return float(math.sqrt(min(1.0, max(0.0, share / population[0]))))


def persistent(held_out: Floats, size: int) -> Floats:
    """Shares of the population's directions: measured less chance. With shares p_q and a fresh rest
    f = 1 - sum p, a direction holds p_q + f / size of a sample."""
    if size == 1:
        return np.zeros(0)
    fresh = min(1.0, max(0.0, (1 - held_out.sum()) / (1 - len(held_out) / size)))
    shares = np.sort(np.clip(held_out - fresh / size, 0, 1))[::-1]
    total = shares.sum()
    if total > 1 - fresh and total > 0:
        shares = shares * (1 - fresh) / total
    return shares[shares > 0.005]


def quantiles(scale: Floats, silent: Floats) -> tuple[list[float], list[float]]:
    """Quantiles of the scales of used rows, and the share of silent entries at each."""
    order = np.argsort(scale, kind="stable")
    ordered = scale[order]
    points = np.asarray(POINTS) * (len(ordered) - 1)
    at = np.arange(len(ordered))
    values = np.interp(points, at, ordered)
    quiet = np.interp(points, at, np.where(ordered > 0, silent[order], 0.0))
    return [float(v) for v in values], [float(v) for v in quiet] if quiet.any() else []
