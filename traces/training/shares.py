"""The shares of the data that the workers of a training use.

Each worker goes through its share of the data in its own order, or, with clients, through the share
of another client in each round. iid: a keyed permutation of all samples is dealt out in turn, as in
`torch.utils.data.DistributedSampler`. Otherwise worker w draws its share of each class, q_w ~
Dirichlet(alpha * prior), from the samples left (T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the
effects of non-identical data distribution for federated visual classification", 2019,
arXiv:1909.06335, section 3): alpha = 100 is nearly iid, 0.1 leaves a worker with one or two
classes. All have the same number of samples. A worker repeats its share, each time in another
order, dropping an incomplete last batch: a function of (seed, worker, step).

With clients, the data are dealt to them likewise, and each round draws as many as there are workers
without replacement, one to a worker (federated averaging: H. B. McMahan et al., "Communication-
efficient learning of deep networks from decentralized data", AISTATS 2017, arXiv:1602.05629,
algorithm 1; equal shares weigh alike). The draw is a function of (seed, round), so all methods have
the same, and a batch one of (seed, client, step): a client's place in its share moves on with the
steps, drawn or not.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gcsim.compressors.random import stream
from gcsim.errors import InputError
from gcsim.traces.tasks.split import Indices, Samples
from gcsim.traces.training.plan import Partition


class Shares:
    """The shares of `samples` for `workers` workers, or for the clients that they train for."""

    def __init__(
        self, samples: Samples, *, workers: int, batch: int, seed: int, partition: Partition,
        accumulation: int = 1,
    ) -> None:  # fmt: skip
        """Deal out the data. `batch` is the number of samples in a micro-batch, `accumulation` the
        number of micro-batches per step. Raises `InputError` if a share fills no batch, or the
        samples have no classes to deal out by."""
        clients = partition.clients
        count = clients or workers
        each = len(samples) // count
        if each < batch:
            key = "train.partition.clients" if clients else "train.workers"
            raise InputError(
                f"{len(samples):,} samples for {count} {key.rpartition('.')[2]} are {each:,} each, "
                f"fewer than the {batch:,} of a batch",
                place=key,
                hint=f"lower {key} or batch_size, or take more data",
            )
        self._batch, self._seed, self._workers, self._clients = batch, seed, workers, clients
        self._batches, self._round = each // batch, partition.round * accumulation
        if partition.dirichlet is None:
            dealt = stream(seed, 0, 0, "shares").permutation(len(samples))
            self._shares = [dealt[share::count][:each] for share in range(count)]
        else:
            self._shares = _by_class(samples, count, each, seed, partition.dirichlet)
        self._epoch = lru_cache(maxsize=2 * workers)(self._in_order)
        self._drawn = lru_cache(maxsize=1)(self._draw)

    def indices(self, worker: int, number: int) -> Indices:
        """Return the sample indices of a worker's micro-batch `number`, from 0: int64 `[batch]`."""
        share = self._drawn(number // self._round)[worker] if self._clients else worker
        epoch, place = divmod(number, self._batches)
        return self._epoch(share, epoch)[place * self._batch : (place + 1) * self._batch]

    def _draw(self, number: int) -> list[int]:
        """Return the clients of a round, by worker."""
        drawn = stream(self._seed, number, 0, "clients")
        clients: list[int] = drawn.choice(len(self._shares), self._workers, replace=False).tolist()
        return clients

    def _in_order(self, share: int, epoch: int) -> Indices:
        order = stream(self._seed, epoch, 0, "epoch", share)
        return order.permutation(self._shares[share])


def _by_class(samples: Samples, count: int, each: int, seed: int, alpha: float) -> list[Indices]:
    labels = samples.labels
    if labels is None:
        message = "its samples have no classes by which shares could differ"
        hint = "leave dirichlet out, or choose a task with one label a sample"
        raise InputError(message, place="train.partition", hint=hint)
    drawn = stream(seed, 0, 0, "shares")
    classes, numbers = np.unique(labels, return_inverse=True)
    pools = [
        list(drawn.permutation(np.flatnonzero(numbers == number))) for number in range(len(classes))
    ]
    prior = np.array([len(pool) for pool in pools]) / len(labels)
    shares = []
    for _ in range(count):
        wanted = drawn.multinomial(each, drawn.dirichlet(alpha * prior))
        share: list[int] = []
        for pool, number in zip(pools, wanted, strict=True):
            share += pool[:number]
            del pool[:number]
        while len(share) < each:  # replace classes that ran out by the largest one left
            largest = max(pools, key=len)
            share.append(largest.pop())
        shares.append(np.array(share, dtype=np.int64))
    return shares
