"""Split of samples into training and held-out samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor, torch

Indices = NDArray[np.int64]


class Samples(Protocol):
    """Finite set of samples, read in batches."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> Indices | None:
        """Class of each sample, `[n]`; None if samples have several labels, or unknown ones."""

    def taken(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of some samples, in that order, as `Task.batch` does."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Training and held-out samples."""

    train: Samples
    test: Samples
    source: str
    """Description of the data."""


class TensorSamples:
    """Samples in memory: inputs `[n, ...]`, which `prepare` turns into the model's as they are
    taken, and labels int64 `[n]`."""

    def __init__(
        self, inputs: Tensor, labels: Tensor, prepare: Callable[[Tensor], Tensor] = lambda x: x
    ) -> None:
        self._inputs, self._labels, self._prepare = inputs, labels, prepare

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def labels(self) -> Indices | None:
        """Class of each sample."""
        found: Indices = self._labels.numpy()
        return found

    def taken(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return the samples at these indices (`Samples.taken`)."""
        chosen = torch.from_numpy(indices)
        return self._prepare(self._inputs[chosen]), self._labels[chosen]


class DatasetSamples:
    """A map-style `torch.utils.data.Dataset` of pairs (input, label)."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def labels(self) -> Indices | None:
        """Labels from `dataset.targets`, as in torchvision; None without such a list."""
        targets = getattr(self._dataset, "targets", None)
        return None if targets is None else np.asarray(targets, dtype=np.int64)

    def taken(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return the samples at these indices (`Samples.taken`)."""
        pairs: Sequence[Any] = [self._dataset[int(index)] for index in indices]
        inputs = torch.stack([torch.as_tensor(given) for given, _ in pairs])
        labels = torch.stack([torch.as_tensor(label) for _, label in pairs])
        return inputs, labels.float() if labels.is_floating_point() else labels.long()
