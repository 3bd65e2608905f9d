"""The shares of the data that the workers of a training see.

Each worker sees its share of the data, in an order of its own. iid: one keyed permutation of all
samples is dealt out in turn, as `torch.utils.data.DistributedSampler` does. Otherwise worker w
draws its share of each class, q_w ~ Dirichlet(alpha * prior), from the samples left (T.-M. H. Hsu,
H. Qi, M. Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", 2019, arXiv:1909.06335, section 3): alpha = 100 is nearly iid, 0.1 leaves a worker
with one or two classes. All have equally many samples. A worker repeats its share, each time in
another order, without the rest of an epoch that fills no batch: a function of (seed, worker, step).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gcsim.compressors.random import stream
from gcsim.errors import InputError
from gcsim.traces.tasks.split import Indices, Samples
from gcsim.traces.training.plan import Partition


class Shares:
    """The shares of `workers` workers in `samples`."""

    def __init__(
        self, samples: Samples, *, workers: int, batch: int, seed: int, partition: Partition
    ) -> None:
        """Raises `InputError` where a share fills no batch, or the samples have no classes to deal
        out by."""
        each = len(samples) // workers
        if each < batch:
            raise InputError(
                f"{len(samples):,} samples for {workers} workers are {each:,} each, fewer than "
                f"the {batch:,} of a batch",
                place="train.workers",
                hint="lower train.workers or batch_size, or take more data",
            )
        self._batch, self._seed = batch, seed
        self._batches = each // batch
        if partition.dirichlet is None:
            dealt = stream(seed, 0, 0, "shares").permutation(len(samples))
            self._shares = [dealt[worker::workers][:each] for worker in range(workers)]
        else:
            self._shares = _by_class(samples, workers, each, seed, partition.dirichlet)
        self._epoch = lru_cache(maxsize=2 * workers)(self._in_order)

    def indices(self, worker: int, step: int) -> Indices:
        """Numbers of the samples of a worker's batch, int64 `[batch]`."""
        epoch, place = divmod(step, self._batches)
        return self._epoch(worker, epoch)[place * self._batch : (place + 1) * self._batch]

    def _in_order(self, worker: int, epoch: int) -> Indices:
        order = stream(self._seed, epoch, 0, "epoch", worker)
        return order.permutation(self._shares[worker])


def _by_class(samples: Samples, workers: int, each: int, seed: int, alpha: float) -> list[Indices]:
    labels = samples.labels
    if labels is None:
        raise InputError(
            "its samples have no classes by which workers' data could differ",
            place="train.partition",
            hint="write partition: iid, or choose a task with one label a sample",
        )
    drawn = stream(seed, 0, 0, "shares")
    classes, numbers = np.unique(labels, return_inverse=True)
    pools = [
        list(drawn.permutation(np.flatnonzero(numbers == number))) for number in range(len(classes))
    ]
    prior = np.array([len(pool) for pool in pools]) / len(labels)
    shares = []
    for _ in range(workers):
        wanted = drawn.multinomial(each, drawn.dirichlet(alpha * prior))
        share: list[int] = []
        for pool, number in zip(pools, wanted, strict=True):
            share += pool[:number]
            del pool[:number]
        while len(share) < each:  # of classes that ran out: what is left of the largest
            largest = max(pools, key=len)
            share.append(largest.pop())
        shares.append(np.array(share, dtype=np.int64))
    return shares
