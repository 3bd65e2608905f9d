"""gTop-k against a naive simulation of the tree over dictionaries, worker by worker."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.coding.indices.pairs import merged_pairs
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError
from tests.compressors.shared import Team, normal

Sparse = dict[int, np.float32]
Vector = NDArray[np.float32]


def top(sparse: Sparse, k: int) -> Sparse:
    """The k largest magnitudes; equal ones by the lowest index."""
    order = sorted(sparse, key=lambda i: (-abs(sparse[i]), i))[:k]
    return {i: sparse[i] for i in order}


def merge(a: Sparse, b: Sparse, k: int) -> Sparse:
    return top({i: a.get(i, np.float32(0)) + b.get(i, np.float32(0)) for i in {*a, *b}}, k)


def tree(held: list[Sparse], k: int) -> Sparse:
    """Rank r hands over to the rank without its lowest set bit: children first, nearest first."""

    def subtree(rank: int) -> Sparse:
        result, bit = held[rank], 1
        while bit < len(held) and not rank & bit:
            if rank + bit < len(held):
                result = merge(result, subtree(rank + bit), k)
            bit *= 2
        return result

    return subtree(0)


def oracle(residuals: list[Vector], given: list[Vector], k: int) -> Vector:
    """One step of all workers; the residuals are changed."""
    held = []
    for r, g in zip(residuals, given, strict=True):
        np.add(r, g, out=r)
        held.append(top(dict(enumerate(r)), k))
    result = tree(held, k)
    for r, mine in zip(residuals, held, strict=True):
        r[[i for i in mine if i in result]] = 0
    update = np.zeros_like(given[0])
    for i, value in result.items():
        update[i] = value * np.float32(1 / len(given))
    return update


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8])
def test_several_steps_equal_the_naive_tree(workers: int) -> None:
    n, k = 300, 9
    crew = Team("gtopk", [(n,)], workers=workers, ratio=k / n)
    residuals = [np.zeros(n, dtype=np.float32) for _ in range(workers)]
    for t in range(5):
        given = [normal(n, 10 * t + rank) for rank in range(workers)]
        expected = oracle(residuals, [g.numpy() for g in given], k)
        for update in crew.step(given, t):
            np.testing.assert_array_equal(update.numpy(), expected)


def test_every_message_holds_k_values_and_k_indices() -> None:
    # 64 bits an element and a header a tensor, up and down (Shi et al. 2019: 2 k words)
    crew = Team("gtopk", [(40, 25), (30,)], workers=4, ratio=0.01)
    crew.step([normal(1030, rank) for rank in range(4)])
    (record,) = crew.listener.collectives
    assert record.kind == "tree_merge"
    assert record.sent == (2 * HEADER_BYTES + 8 * (10 + 1),) * 4
    assert record.pulled == record.sent[0]


def test_merging_pairs_adds_sparse_vectors() -> None:
    # oracle: the dense sum
    dense = torch.zeros(2, 500)
    lists = []
    for row in range(2):
        indices = torch.randperm(500, generator=torch.Generator().manual_seed(row))[:60].sort()[0]
        values = normal(60, row)
        dense[row, indices] = values
        lists += [indices, values]
    first, added, second, more = lists
    indices, values, many = merged_pairs(
        first, added, second, more, Segments.behind([200, 300]), np.array([60, 60])
    )
    assert many.tolist() == [int((indices < 200).sum()), int((indices >= 200).sum())]
    assert bool((indices.diff() > 0).all())
    assert torch.equal(indices, torch.unique(torch.cat((lists[0], lists[2]))))
    assert torch.equal(dense.sum(0)[indices], values)


def test_a_message_with_another_number_of_elements_is_refused() -> None:
    crew = Team("gtopk", [(200,)], workers=2, ratio=0.05)
    crew.workers[1] = Team("gtopk", [(200,)], workers=2, ratio=0.1).workers[1]
    with pytest.raises(InputError, match="gTop-k: error: damaged payload: 20 elements, not 10"):
        crew.step([normal(200, rank) for rank in range(2)])
