"""Task of handwritten digits: 1,797 real images from scikit-learn.

The test set of "Optical recognition of handwritten digits" (E. Alpaydin, C. Kaynak, UCI machine
learning repository, 1998), 8 x 8 in 17 grey levels, as in scikit-learn; normalised to mean 0
and variance 1 over the set, resized bilinearly to the model's height and width, and repeated over
its channels. For gradients, samples are drawn with replacement from all images; `split` holds out a
fifth of them.
"""

from __future__ import annotations

import math

import numpy as np

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.random import stream
from gcsim.errors import InputError, Problem
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.tasks.split import Split, TensorSamples

CLASSES = 10
_SIDE = 8
_COUNT = 1797
"""Number of images."""


class Digits:
    """Task for one image format: float32 samples of `[channels, height, width]`,
    `[height, width]` or unscaled `[64]`; labels below 10."""

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        from sklearn import __version__
        from sklearn.datasets import load_digits

        found = load_digits()
        self.source = (
            f"handwritten digits of scikit-learn {__version__} (UCI, {len(found.target):,} images)"
        )
        images = torch.from_numpy(found.images).float()[:, None]  # [1797, 1, 8, 8]
        self._images = (images - images.mean()) / images.std()
        self._labels = torch.from_numpy(found.target).long()
        self._format = (1, _SIDE, _SIDE) if len(shape) == 1 else (1, *shape)[-3:]
        self._shape = shape
        self._seed = seed

    def batch(self, size: int, *, worker: int, step: int) -> tuple[Tensor, Tensor]:
        """Draw images float32 `[size, *shape]` and labels int64 `[size]` of a worker's step."""
        drawn = [
            stream(self._seed, step, position, "digits", worker).integers(len(self._labels))
            for position in range(size)
        ]
        chosen = torch.from_numpy(np.array(drawn))
        return self._sized(self._images[chosen]), self._labels[chosen]

    def split(self) -> Split:
        """Split the images: a random fifth, by the seed, is held out."""
        order = torch.from_numpy(stream(self._seed, 0, 0, "digits split").permutation(_COUNT))
        held, learned = order[: _COUNT // 5], order[_COUNT // 5 :]
        train, test = (
            TensorSamples(self._sized(self._images[part]), self._labels[part])
            for part in (learned, held)
        )
        return Split(train=train, test=test, source=self.source)

    def _sized(self, images: Tensor) -> Tensor:
        """Resize `[n, 1, 8, 8]` to the model's shape."""
        channels, height, width = self._format
        sized = torch.nn.functional.interpolate(
            images, size=(height, width), mode="bilinear", align_corners=False
        ).repeat(1, channels, 1, 1)
        return sized.view(len(images), *self._shape)


def digits(entry: ModelEntry, seed: int) -> Digits:
    """Return the task for a model's input shape and classes. Raises `InputError` with all of these
    faults: a shape that is not an image, fewer than 10 classes, no scikit-learn."""
    problems = []
    shape = entry.input_shape
    if not 1 <= len(shape) <= 3 or (len(shape) == 1 and math.prod(shape) != _SIDE**2):
        problems.append(
            Problem(
                message=f"the task 'digits' has images, {entry.name} takes {list(shape)}",
                place="gradients.task",
                hint="an input_shape of [channels, height, width], [height, width] or [64] fits",
            )
        )
    if entry.classes < CLASSES:
        problems.append(
            Problem(
                message=f"the task 'digits' has {CLASSES} classes, {entry.name} only "
                f"{entry.classes}",
                place="gradients.task",
                hint="choose the task 'textures', or a model with more classes",
            )
        )
    try:
        import sklearn  # noqa: F401 - whether it is there
    except ImportError:
        problems.append(
            Problem(
                message="the task 'digits' needs scikit-learn, which is not installed",
                place="gradients.task",
                hint="pip install 'gcsim[digits]', or choose the task 'textures'",
            )
        )
    if problems:
        raise InputError(problems)
    return Digits(shape, seed)
