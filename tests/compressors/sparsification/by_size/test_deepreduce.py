"""DeepReduce: receivers compute what the sender subtracts, and the filter's mistakes are true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.frames import HEADER_BYTES, read_frames
from gcsim.compressors.coding.selecting.subsets import distinct_positions
from gcsim.compressors.conformance import check
from gcsim.compressors.random import random_key, stream
from gcsim.compressors.sparsification.by_size.deepreduce import (
    DeepReduceParameters,
    bloom_filter,
    bloom_positives,
)
from gcsim.errors import InputError
from tests.compressors.shared import Draw

NAME = "deepreduce"
KEY = random_key(0, 0, 0, "filter")


@pytest.mark.parametrize("parameters", [{"policy": "p0"}, {"skip": 0}])
def test_it_conforms(parameters: dict[str, Any]) -> None:
    assert check(NAME, parameters)


@pytest.mark.parametrize("policy", ["random", "leftmost", "p0"])
def test_a_naive_sender_and_receiver_agree_over_several_steps(
    team: Any, normal: Draw, policy: str
) -> None:
    """Oracle: top-k by sorting; which positions travel is read off the residual's zeros."""
    n, k, workers = 3000, 30, 3
    crew = team(NAME, [(n,)], workers=workers, policy=policy)
    memory = [np.zeros(n) for _ in range(workers)]
    for t in range(5):
        given = [normal(n, 10 * t + rank) for rank in range(workers)]
        updates = crew.step(given, t)
        expected = np.zeros(n)
        for rank, worker in enumerate(crew.workers):
            sums = memory[rank] + given[rank].double().numpy()
            largest = set(np.argsort(-np.abs(sums), kind="stable")[:k].tolist())
            kept = worker.residual[0].double().numpy()
            sent = np.flatnonzero(kept == 0)  # a Gaussian sum is never zero by itself
            if policy == "p0":
                assert largest <= set(sent.tolist())
                assert sent.size <= 2 * k  # 3 mistakes on average
            else:
                assert sent.size == k
                assert len(largest & set(sent.tolist())) >= 0.6 * k
            if policy == "leftmost" and (missing := largest - set(sent.tolist())):
                # what pushes true positions out lies before them
                assert all(s < min(missing) for s in set(sent.tolist()) - largest)
            expected[sent] += sums[sent] / workers
            memory[rank] = np.where(kept == 0, 0.0, sums)
        for update in updates:
            np.testing.assert_allclose(update.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_payload_has_the_length_of_the_formula(team: Any, normal: Draw) -> None:
    # n = 1e6, k = 1e4: 14.378 bits an index and 32 a value; the small tensor 32 + 32
    crew = team(NAME, [(1_000_000,), (1000,)])
    crew.step([normal(1_001_000, rank) for rank in range(2)])
    assert crew.sent == [(2 * HEADER_BYTES + 40_000 + -(-143_776 // 8) + 10 * 8,) * 2]
    # p0: k + 99 expected mistakes of standard deviation 10 and as much again by the fill
    crew = team(NAME, [(100_000,)], policy="p0")
    crew.step([normal(100_000, rank) for rank in range(2)])
    for message, nbytes in zip(crew.listener.received[1], crew.sent[1], strict=True):
        (frame,) = read_frames(message)
        assert 1050 <= frame.nonzero <= 1160
        assert nbytes == HEADER_BYTES + 4 * frame.nonzero + -(-14_378 // 8)


def test_a_filter_holds_what_was_put_in_and_as_many_others_as_promised() -> None:
    # Binomial: 20 x 99 000 trials at f = 1e-3, standard error 2.3 %; the formula itself is right
    # to a few per cent (h is rounded up, the filter's fill varies).
    n, k, wrong = 100_000, 1000, 0
    size = DeepReduceParameters.model_validate({}).size(n)
    for seed in range(20):
        held = distinct_positions(torch.zeros(0), stream(seed, 0, 0, "test"), n, k)
        key = random_key(seed, 0, 0, "filter")
        found = bloom_positives(bloom_filter(held, *size, key), n, *size, key)
        assert bool(torch.isin(held, found).all())
        wrong += found.numel() - k
    assert wrong / 20 / (n - k) == pytest.approx(1e-3, rel=0.12)


def test_filters_of_another_length_or_with_padding_are_refused() -> None:
    filled = torch.zeros(5, dtype=torch.uint8)  # 33 bits
    padded = filled + torch.tensor([0, 0, 0, 0, 2], dtype=torch.uint8)
    for wrong in (filled[:-1], torch.cat((filled, filled[:1])), filled[:0], padded):
        with pytest.raises(InputError, match="damaged payload"):
            bloom_positives(wrong, 10, 33, 2, KEY)
