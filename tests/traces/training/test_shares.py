"""The shares of the data that workers see, of their own or of clients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from gcsim.compressors.random import stream
from gcsim.errors import InputError
from gcsim.traces.tasks.split import TensorSamples
from gcsim.traces.training.plan import Partition
from gcsim.traces.training.shares import Shares
from tests.traces.training.world import method, team


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


def test_without_clients_worker_w_has_every_nth_sample_of_one_permutation() -> None:
    """As `DistributedSampler` deals, and its epochs are permutations by (seed, epoch, worker)."""
    shares = Shares(samples(43), workers=4, batch=3, seed=7, partition=Partition())
    dealt = stream(7, 0, 0, "shares").permutation(43)
    for worker in range(4):
        for epoch in range(3):
            order = stream(7, epoch, 0, "epoch", worker).permutation(dealt[worker::4][:10])
            for place in range(3):
                found = shares.indices(worker, 3 * epoch + place)
                assert found.tolist() == order[3 * place : 3 * place + 3].tolist()


# --- clients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [None, 0.3])
def test_where_all_clients_take_part_in_one_round_shares_are_the_workers(
    alpha: float | None,
) -> None:
    """In another order: which client is whose is drawn."""
    steps = 12
    plain, drawn = (
        Shares(samples(103), workers=5, batch=4, seed=2, partition=partition)
        for partition in (
            Partition(dirichlet=alpha),
            Partition(dirichlet=alpha, clients=5, round=steps),
        )
    )
    for step in range(steps):
        both = [{tuple(of.indices(w, step).tolist()) for w in range(5)} for of in (plain, drawn)]
        assert both[0] == both[1]


def test_workers_of_a_round_train_on_different_clients_data_for_its_steps() -> None:
    """`round` counts steps, of two micro-batches each. A client is whoever owns these samples when
    all workers are clients."""
    clients, rounds = 12, 40
    owners = Shares(samples(240), workers=clients, batch=5, seed=1, partition=Partition())
    of = {int(n): c for c in range(clients) for b in range(4) for n in owners.indices(c, b)}
    shares = Shares(
        samples(240), workers=3, batch=5, seed=1, partition=Partition(clients=clients, round=3),
        accumulation=2,
    )  # fmt: skip
    drawn = []
    for number in range(6 * rounds):
        owned = [{of[int(n)] for n in shares.indices(worker, number)} for worker in range(3)]
        assert [len(one) for one in owned] == [1, 1, 1]
        assert len(set.union(*owned)) == 3
        drawn.append(tuple(one.pop() for one in owned))
    assert all(len(set(drawn[6 * r : 6 * r + 6])) == 1 for r in range(rounds))
    assert len(set(drawn)) > rounds / 2


def test_every_client_is_drawn_equally_often_and_by_every_worker() -> None:
    """Rounds are independent, so a worker has a client binomially often, with probability 1 /
    clients, and all workers together with workers / clients. By the union bound, any of the counts
    leaves these quantiles with a chance of 1e-6."""
    clients, workers, rounds = 20, 5, 4000
    shares = Shares(
        samples(200), workers=workers, batch=10, seed=4, partition=Partition(clients=clients)
    )
    counts = np.zeros((workers, clients), dtype=np.int64)
    for number in range(rounds):
        drawn = shares._drawn(number)
        assert len(set(drawn)) == workers
        counts[range(workers), drawn] += 1
    outside = 1e-6 / 2 / counts.size
    low, high = binom.ppf([outside, 1 - outside], rounds, 1 / clients)
    assert low <= counts.min() <= counts.max() <= high
    low, high = binom.ppf([outside, 1 - outside], rounds, workers / clients)
    assert low <= counts.sum(0).min() <= counts.sum(0).max() <= high


def test_all_methods_have_the_same_clients() -> None:
    partition = Partition(clients=30, round=2, dirichlet=0.3)
    teams = [team(method(kind), partition=partition) for kind in ("none", "topk", "local_sgd")]
    for number in range(7):
        first, *others = [of._taken(range(2), number) for of in teams]
        for one in others:
            assert all(torch.equal(a, b) for a, b in zip(first, one, strict=True))


def test_fewer_clients_of_unlike_classes_train_worse() -> None:
    """Federated averaging, 20 rounds of 10 local steps: unlike clients train worse than like ones
    (Hsu et al., arXiv:1909.06335, figure 2), and the less the more take part in a round (McMahan
    et al., arXiv:1602.05629, table 1)."""

    def lost(workers: int, alpha: float | None) -> float:
        chosen = method("local_sgd", interval=10, momentum=0.0)
        partition = Partition(clients=50, round=10, dirichlet=alpha)
        of = team(chosen, workers=workers, partition=partition)
        for number in range(200):
            of.step(number, 0.1)
        return of.evaluate()[0]

    alike, many, few = lost(2, None), lost(10, 0.05), lost(2, 0.05)
    assert 1.3 * alike < many
    assert 1.1 * many < few


def test_too_many_clients_are_refused() -> None:
    with pytest.raises(InputError, match=r"30 samples for 4 clients are 7 each.*lower train\.part"):
        Shares(samples(30), workers=2, batch=8, seed=0, partition=Partition(clients=4))
