"""The shares of the data that workers see."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InputError
from gcsim.traces.tasks.split import TensorSamples
from gcsim.traces.training.plan import Partition
from gcsim.traces.training.shares import Shares


def samples(count: int, classes: int = 5) -> TensorSamples:
    return TensorSamples(torch.zeros(count, 1), torch.arange(count) % classes)


@given(
    workers=st.integers(1, 6),
    batch=st.integers(1, 7),
    extra=st.integers(0, 60),
    alpha=st.sampled_from([None, 0.1, 1.0, 100.0]),
)
def test_shares_are_disjoint_and_seen_once_an_epoch(
    workers: int, batch: int, extra: int, alpha: float | None
) -> None:
    count = workers * batch + extra
    shares = Shares(
        samples(count), workers=workers, batch=batch, seed=3, partition=Partition(dirichlet=alpha)
    )
    batches = count // workers // batch
    seen = []
    for worker in range(workers):
        epochs = [
            np.concatenate([shares.indices(worker, e * batches + b) for b in range(batches)])
            for e in range(2)
        ]
        assert all(len(np.unique(epoch)) == batches * batch for epoch in epochs)
        seen.append(np.union1d(*epochs))
    together = np.concatenate(seen)
    assert len(np.unique(together)) == len(together)  # no sample is two workers'
    assert together.min() >= 0
    assert together.max() < count


def test_a_batch_is_a_function_of_seed_worker_and_step() -> None:
    def drawn(seed: int) -> list[int]:
        shares = Shares(samples(100), workers=2, batch=5, seed=seed, partition=Partition())
        return [int(n) for step in (7, 3, 25) for n in shares.indices(1, step)]

    assert drawn(1) == drawn(1) != drawn(2)


def test_the_smaller_alpha_the_more_workers_differ() -> None:
    """Mean share of a worker's commonest class: 1 / classes where all are alike, 1 at the end."""

    def commonest(alpha: float | None) -> float:
        data = samples(5000)
        shares = Shares(data, workers=10, batch=500, seed=0, partition=Partition(dirichlet=alpha))
        labels = data.labels
        assert labels is not None
        counts = [np.bincount(labels[shares.indices(w, 0)], minlength=5) for w in range(10)]
        return float(np.mean([c.max() / c.sum() for c in counts]))

    values = [commonest(alpha) for alpha in (None, 100.0, 1.0, 0.05)]
    assert values == sorted(values)
    assert values[0] < 0.25
    assert values[-1] > 0.7  # the last workers take what is left of several classes


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(InputError, match=r"30 samples for 4 workers are 7 each, fewer than the 8"):
        Shares(samples(30), workers=4, batch=8, seed=0, partition=Partition())
