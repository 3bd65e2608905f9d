"""Learnable images, generated from a seed: no download, any size, channels and classes.

A class is a tint and a pair of oriented gratings, each with its own direction, wavelength and
colour. A sample shows the first grating over the whole image and the second one through a
Gaussian window, with random phases, contrast, position and scale, next to a distracting patch
unrelated to the class, under the class's tint with a random shift, and in white noise. The tint is
learned first, as average colours are in photographs; phases are random, so the rest takes
direction, frequency and colour of edges, as in the first layers of a convolutional network.

Gradients of random labels or pure noise differ in spectrum and large elements from those of a
network that learns. The images are not ImageNet either: a trace of your own data replays with
`gradients: {source: recorded}`. Labels are uniform over the first `CLASSES` outputs at most: a
network with a thousand outputs keeps them all (softmax suppresses the others), but sees few enough
classes to show progress within about twenty steps of 32 images.

A sample depends only on (seed, worker, step, position in the batch); batches of another size begin
with the same samples. A grating under a Gaussian window is the difference of two products of
a function of the row and one of the column (cosine of a sum), so a sample is one small matrix
product: a batch of 32 x 3 x 224 x 224 takes about 20 ms on two cores.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.random import stream
from gcsim.errors import InputError
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.tasks.split import Split, TensorSamples

CLASSES = 10
"""Maximum number of outputs used as labels."""
_SHORTEST, _LONGEST = 4.0, 24.0
"""Wavelengths in pixels that convolutions of 3 to 11 pixels can distinguish."""
_SCALE = 0.75
"""Factor that brings the images' standard deviation to about 1."""
_NOISE = 1.0
"""Half the width of the uniform noise before scaling; gratings have contrasts of 0.5 to 1."""
_TAU = 2 * math.pi
_LEARNED, _HELD_OUT = 8192, 2048
"""Number of images of a split, fewer if they would take more than `_ROOM`."""
_SPLIT = 1 << 40
"""Step number of a split's images, which no training reaches."""
_ROOM = 1 << 29
"""Maximum bytes of a split."""


class Textures:
    """Task for one image format: float32 samples of `shape`, `[channels, height, width]`,
    `[height, width]` or `[length]` (`InputError` for others), labels below `classes`."""

    def __init__(self, shape: tuple[int, ...], classes: int, seed: int) -> None:
        if not 1 <= len(shape) <= 3:
            message = f"cannot make samples of shape {list(shape)}"
            hint = "write [channels, height, width], [height, width] or [length]"
            raise InputError(message, place="input_shape", hint=hint)
        self.shape = shape
        self.classes = min(classes, CLASSES)
        self._seed = seed
        channels, height, width = (1, 1, 1, *shape)[-3:]
        self._size = (channels, height, width)
        drawn = stream(seed, 0, 0, "texture classes")
        strata = np.stack([drawn.permutation(self.classes) for _ in range(4 + channels)], 1)
        place = (strata + 0.5) / self.classes  # no two classes are near in any column
        longest = max(_SHORTEST, min(_LONGEST, max(height, width) / 4))
        self._angle = math.pi * place[:, :2]
        self._wavelength = _SHORTEST * (longest / _SHORTEST) ** place[:, 2:4]
        self._colour = _unit(drawn.normal(size=(self.classes, 2, channels)))
        self._tint = math.sqrt(3) * (2 * place[:, 4:] - 1)  # [classes, channels], variance 1

    def batch(self, size: int, *, worker: int, step: int) -> tuple[Tensor, Tensor]:
        """Draw images float32 `[size, *shape]` and labels int64 `[size]` of a worker's step."""
        channels, height, width = self._size
        pixels = channels * height * width
        labels = np.empty(size, dtype=np.int64)
        uniform = np.empty((size, 16))
        normal = np.empty((size, 2, channels))
        noise = np.empty((size, (pixels + 7) // 8), dtype=np.uint64)
        for position in range(size):
            drawn = stream(self._seed, step, position, "texture samples", worker)
            labels[position] = drawn.integers(self.classes)
            uniform[position] = drawn.random(16)
            normal[position] = drawn.normal(size=(2, channels))
            noise[position] = drawn.bit_generator.random_raw(noise.shape[1])
        rows, columns = self._factors(labels, uniform, normal)
        images = torch.from_numpy(rows) @ torch.from_numpy(
            columns
        )  # [size, channels*height, width]
        levels = torch.from_numpy(noise.view(np.uint8)[:, :pixels]).view(images.shape)
        images.add_(levels, alpha=_SCALE * 2 * _NOISE / 255).sub_(_SCALE * _NOISE)
        return images.view(size, *self.shape), torch.from_numpy(labels)

    def split(self) -> Split:
        """Generate all images once; four fifths are for training."""
        fitting = _ROOM / (4 * math.prod(self.shape) * (_LEARNED + _HELD_OUT))
        sizes = [int(count * min(1.0, fitting)) for count in (_LEARNED, _HELD_OUT)]
        train, test = (
            TensorSamples(*self.batch(size, worker=part, step=_SPLIT))
            for part, size in enumerate(sizes)
        )
        return Split(train=train, test=test, source=f"textures made here, seed {self._seed}")

    def _factors(
        self, labels: NDArray[np.int64], uniform: NDArray[np.float64], normal: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return row factors `[size, channels*height, 7]` and column factors `[size, 7, width]`:
        two for each of the three gratings (background, patch, distractor), one for the tint."""
        channels, height, width = self._size
        size = len(labels)
        turn, wave = uniform[:, 0:1], uniform[:, 1:2]  # the distractor's
        angle = np.concatenate((self._angle[labels], math.pi * turn), 1)  # [size, 3]
        longest = max(_SHORTEST, min(_LONGEST, max(height, width) / 4))
        other = _SHORTEST * (longest / _SHORTEST) ** wave
        frequency = _TAU / np.concatenate((self._wavelength[labels], other), 1)
        phase = _TAU * uniform[:, 2:5]
        contrast = (0.5 + 0.5 * uniform[:, 5:8]) * [0.8, 1.4, 1.0]
        colour = np.concatenate((self._colour[labels], _unit(normal[:, :1])), 1)  # [size, 3, c]
        colour *= contrast[:, :, None]

        extent = max(height, width) * (0.15 + 0.2 * uniform[:, 8:10])  # of the two patches
        row_window = _window(height, uniform[:, 10:12], extent)  # [size, 3, height]
        column_window = _window(width, uniform[:, 12:14], extent)
        down = (frequency * np.sin(angle))[:, :, None] * np.arange(height) + phase[:, :, None]
        along = (frequency * np.cos(angle))[:, :, None] * np.arange(width)
        # cos(down + along) = cos(down) cos(along) - sin(down) sin(along)
        down_pair = np.concatenate((np.cos(down) * row_window, -np.sin(down) * row_window), 1)
        along_pair = np.concatenate((np.cos(along), np.sin(along)), 1)
        columns = np.ones((size, 7, width), dtype=np.float32)
        columns[:, :6] = along_pair * np.concatenate((column_window, column_window), 1)
        rows = np.empty((size, channels, height, 7), dtype=np.float32)
        rows[..., :6] = np.einsum("zgc,zgh->zchg", np.concatenate((colour, colour), 1), down_pair)
        rows[..., 6] = (self._tint[labels] + 0.3 * normal[:, 1])[:, :, None]
        rows *= _SCALE
        return rows.reshape(size, channels * height, 7), columns


def _window(
    length: int, place: NDArray[np.float64], extent: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return 1 for the background and Gaussians for the two patches, `[size, 3, length]`."""
    centre = length * (0.2 + 0.6 * place)
    distance = (np.arange(length) - centre[:, :, None]) / extent[:, :, None]
    patches = np.exp(-0.5 * distance**2)
    return np.concatenate((np.ones((len(place), 1, length)), patches), 1)


def _unit(colour: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale vectors to mean square 1 over the last axis (at least one channel stands out)."""
    power = np.sqrt(np.mean(colour**2, axis=-1, keepdims=True))
    unit: NDArray[np.float64] = colour / np.maximum(power, 1e-12)
    return unit


def textures(entry: ModelEntry, seed: int) -> Textures:
    """Return the task for a model's input shape and classes; see `Textures`."""
    return Textures(entry.input_shape, entry.classes, seed)
