"""One worker's synthetic gradient of one parameter tensor.

The gradient of a multiplying layer is a sum over samples of outer products (error at the output x
input), of nearly low rank in recordings; here it is such a sum. A tensor is a matrix [rows = first
axis, columns = the rest]:

    g = rms level e^a [ sqrt(common) M(t) + sqrt(1 - common) E(t, w) ]
    M, E = sum_k sqrt(spectrum_k) x_k y_k^T + sqrt(rest) noise
    x_k = scale * (persistent directions, mixed at random + entries drawn afresh)

E, the worker's own noise, is drawn anew for each iteration and worker. M is the workers' common
part: its y stay, its x are waves that turn between two vectors with the iterations plus a part that
is new each time: a stationary process with the fitted correlation. Both take their vectors from the
same persistent directions, E's y lie partly along M's, and rows and columns keep their scales. The
common part of the noise is new in each iteration. a is the scatter of lengths between workers and
iterations: one number for all tensors of a worker, and one of the tensor's own.

A pure function of (seed, iteration, worker, tensor), by keyed streams, without state. float32
throughout; memory is a few times the tensor at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.random import stream
from gcsim.traces.synthetic.fit_file import POINTS, ModelFit, TensorFit, VectorFit, matrix_shape

Array = NDArray[np.float32]

ALL_TENSORS = -1
"""Tensor index in the keys of values common to all tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The rows or columns of one tensor: the part that stays for the whole training."""

    scale: Array
    """`[n]`, with mean square 1 over the entries; 0 for those that are never used."""
    silent: Array | None
    """`[n]`: how often an entry is exactly zero."""
    directions: Array
    """`[n, r]`: persistent directions, each times the square root of its share."""
    fresh: float
    """Square root of the share that is drawn afresh."""


def kernel_places(shape: Sequence[int]) -> int:
    """Places of a convolution's kernel: neighbouring columns that see one input channel."""
    return math.prod(shape[2:])


class SyntheticTensor:
    """Gradients of one parameter."""

    def __init__(
        self,
        fit: TensorFit,
        model: ModelFit,
        shape: Sequence[int],
        *,
        index: int,
        seed: int,
        rms: float | None = None,
        common: float | None = None,
    ) -> None:
        """Generator for a tensor of this shape and number, distributed as `fit`, or with its own
        `rms` and `common`."""
        self._fit, self._model = fit, model
        self._index, self._seed = index, seed
        self._rms = fit.rms if rms is None else rms
        self._common = fit.common if common is None else common
        rows, columns = matrix_shape(shape)
        self._rows, self._columns = (
            _make_side(side, size, places, stream(seed, 0, index, f"synthetic {word}"))
            for side, size, places, word in (
                (fit.rows, rows, 1, "rows"),
                (fit.columns, columns, kernel_places(shape), "columns"),
            )
        )
        self._terms = min(len(fit.spectrum), rows, columns)
        energies = np.asarray(fit.spectrum, dtype=np.float64)
        # a matrix with fewer rows has fewer terms: the last one takes what they had
        kept = energies[: self._terms].copy()
        kept[-1] += energies[self._terms :].sum()
        rest = max(0.0, 1 - energies.sum())
        if min(rows, columns) == 1:  # no rank beyond one
            kept[-1] += rest
            rest = 0.0
        self._energies, self._rest = np.sqrt(kept).astype(np.float32), math.sqrt(rest)
        if rest < 1e-4:
            self._rest = 0.0

    def draw(self, iteration: int, worker: int) -> Array:
        """Return float32 `[rows, columns]`."""
        own, common = math.sqrt(1 - self._common), math.sqrt(self._common)
        left, right = self._own_factors(iteration, worker)
        gradient: Array
        if common:
            shared_left, shared_right = self._common_factors(iteration)
            left = np.concatenate([left * np.float32(own), shared_left * np.float32(common)], 1)
            right = np.concatenate([right, shared_right], 1)
            left *= np.tile(self._energies, 2)
        else:
            left *= self._energies
        gradient = left @ right.T
        if self._rest:
            self._add_noise(gradient, [(own, f"own {worker}"), (common, "common")], iteration)
        gradient *= np.float32(self._rms * self._length(iteration, worker))
        for side, axis in ((self._rows, 0), (self._columns, 1)):
            self._silence(gradient, side, axis, iteration, worker)
        return gradient

    def _common_factors(self, iteration: int) -> tuple[Array, Array]:
        """Return factors of the common part: one side's vectors turn with the iterations."""
        turning, staying = self._turning
        vectors = np.zeros((len(self._side(turning).scale), self._terms), np.float32)
        for weight, step, name in self._patterns(iteration):
            vectors += np.float32(weight) * self._vectors(turning, step, name)
        found = {turning: _to_unit(vectors), staying: self._vectors(staying, 0, "common")}
        return found[0], found[1]

    def _patterns(self, iteration: int) -> list[tuple[float, int, str]]:
        """Patterns of the turning vectors: weight, step and purpose of each."""
        found: list[tuple[float, int, str]] = []
        for number, wave in enumerate(self._model.waves):
            weight, angle = math.sqrt(wave.share), wave.frequency * iteration
            found.append((weight * math.cos(angle), 0, f"wave {number} cosine"))
            found.append((weight * math.sin(angle), 0, f"wave {number} sine"))
        new = max(0.0, 1 - sum(wave.share for wave in self._model.waves))
        found.append((math.sqrt(new), iteration, "new"))
        return [pattern for pattern in found if abs(pattern[0]) > 1e-3]

    def _own_factors(self, iteration: int, worker: int) -> tuple[Array, Array]:
        """Return factors of a worker's own noise: inputs resemble other workers', errors do not."""
        name = f"own {worker}"
        found = [self._vectors(0, iteration, name), self._vectors(1, iteration, name)]
        if self._fit.aligned:
            staying = self._turning[1]
            along = np.float32(math.sqrt(self._fit.aligned)) * self._vectors(staying, 0, "common")
            apart = np.float32(math.sqrt(1 - self._fit.aligned))
            found[staying] = _to_unit(along + apart * found[staying])
        return found[0], found[1]

    @property
    def _turning(self) -> tuple[int, int]:
        """Return the side whose common vectors turn with the iterations, and the other one."""
        return (1, 0) if len(self._rows.scale) == 1 else (0, 1)

    def _vectors(self, axis: int, step: int, name: str) -> Array:
        """Draw float32 `[n, terms]` of one side, with entries of mean square 1."""
        side, fit = self._side(axis), (self._fit.rows, self._fit.columns)[axis]
        word = ("rows", "columns")[axis]
        numbers = stream(self._seed, step, self._index, f"synthetic {name} {word}")
        size = len(side.scale)
        if size == 1:
            return 1 - 2 * numbers.integers(0, 2, (1, self._terms)).astype(np.float32)
        mixed = numbers.standard_normal((side.directions.shape[1], self._terms), np.float32)
        vectors = side.directions @ mixed
        if side.fresh:
            vectors += np.float32(side.fresh) * unit_draws(numbers, fit, (size, self._terms))
        vectors *= side.scale[:, None]
        return _to_unit(vectors)

    def _side(self, axis: int) -> Side:
        return self._columns if axis else self._rows

    def _add_noise(
        self, gradient: Array, parts: Sequence[tuple[float, str]], iteration: int
    ) -> None:
        """Add noise, structured only by row and column scales, a few rows at a time."""
        block = max(1, (1 << 20) // gradient.shape[1])
        streams = [
            (weight, stream(self._seed, iteration, self._index, f"synthetic {name} noise"))
            for weight, name in parts
            if weight
        ]
        for first in range(0, len(gradient), block):
            part = gradient[first : first + block]
            noise = np.zeros_like(part)
            for weight, numbers in streams:
                noise += np.float32(weight) * numbers.standard_normal(part.shape, np.float32)
            noise *= self._rows.scale[first : first + block, None] * np.float32(self._rest)
            noise *= self._columns.scale
            part += noise

    def _length(self, iteration: int, worker: int) -> float:
        """Return the factor of level and scatter; its mean square over workers is the level's."""
        levels = self._model.levels
        level = levels[iteration % len(levels)] if levels else 0.0
        logarithm = 0.0
        for scatter, tensor in (
            (self._model.scatter, ALL_TENSORS),
            (self._fit.scatter, self._index),
        ):
            drawn = stream(self._seed, iteration, tensor, "synthetic length", worker)
            logarithm += scatter * drawn.standard_normal() - scatter**2
        return math.exp(level + logarithm)

    def _silence(self, gradient: Array, side: Side, axis: int, iteration: int, worker: int) -> None:
        """Zero the rows or columns that got nothing from this mini-batch."""
        if side.silent is None:
            return
        numbers = stream(self._seed, iteration, self._index, f"synthetic silent {axis}", worker)
        silent = numbers.random(len(side.silent), np.float32) < side.silent
        if axis == 0:
            gradient[silent] = 0
        else:
            gradient[:, silent] = 0


def _to_unit(vectors: Array) -> Array:
    """Scale each column to mean square 1, in place; a column of zeros stays."""
    squares = np.einsum("ij,ij->j", vectors, vectors, dtype=np.float64)
    vectors *= np.sqrt(len(vectors) / np.maximum(squares, 1e-30)).astype(np.float32)
    return vectors


def _make_side(fit: VectorFit, size: int, places: int, numbers: np.random.Generator) -> Side:
    """The scales and directions of `size` entries; `places` neighbours see one input channel."""
    channels = size // places
    # evenly spaced quantiles in random order: the distribution is met as well as `size` allows
    where = np.repeat((numbers.permutation(channels) + 0.5) / channels, places)
    scale = np.interp(where, POINTS, fit.scale).astype(np.float32)
    mean = float(np.mean(np.square(scale, dtype=np.float64)))
    scale = scale / np.float32(math.sqrt(mean)) if mean else np.ones_like(scale)
    silent = np.interp(where, POINTS, fit.silent).astype(np.float32) if fit.silent else None
    rank = min(len(fit.population), size)
    shares = np.asarray(fit.population[:rank], dtype=np.float64)
    directions = unit_draws(numbers, fit, (size, rank))
    if places > 1 and fit.coherence > 0:
        alike = np.repeat(unit_draws(numbers, fit, (channels, rank)), places, 0)
        directions = (
            np.float32(math.sqrt(fit.coherence)) * alike
            + np.float32(math.sqrt(1 - fit.coherence)) * directions
        )
    if fit.offset:
        # all directions but the first are about 0 in the mean
        keep = math.sqrt(max(0.0, 1 - fit.offset**2))
        directions[:, :1] = np.float32(fit.offset) + np.float32(keep) * directions[:, :1]
    directions *= np.sqrt(shares).astype(np.float32)
    fresh = math.sqrt(max(0.0, 1 - shares.sum()))
    return Side(
        scale=scale,
        silent=silent,
        directions=np.ascontiguousarray(directions),
        fresh=0.0 if fresh < 1e-3 else fresh,
    )


def unit_draws(numbers: np.random.Generator, fit: VectorFit, shape: tuple[int, int]) -> Array:
    """Draw from the fitted family, with mean 0 and mean square 1."""
    if fit.family == "normal":
        return numbers.standard_normal(shape, np.float32)
    if fit.family == "laplace":
        drawn = numbers.standard_exponential(shape, np.float32) / np.float32(math.sqrt(2))
    elif fit.family == "generalized_normal":
        # |x|^beta is gamma distributed with shape 1/beta; E x^2 = Gamma(3/beta) / Gamma(1/beta)
        power = 1 / fit.shape
        spread = math.exp((math.lgamma(power) - math.lgamma(3 * power)) / 2)
        drawn = numbers.standard_gamma(power, shape, np.float32) ** np.float32(power)
        drawn *= np.float32(spread)
    else:
        normal = numbers.standard_normal(shape, np.float32)
        chi = numbers.standard_gamma(fit.shape / 2, shape, np.float32) * np.float32(2)
        scaled = normal / np.sqrt(chi / np.float32(fit.shape))
        unit: Array = (scaled * np.float32(math.sqrt(1 - 2 / fit.shape))).astype(np.float32)
        return unit
    signs = numbers.integers(0, 2, shape, dtype=np.int8)
    signed: Array = drawn * (1 - 2 * signs).astype(np.float32)
    return signed
