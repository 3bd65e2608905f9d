"""DeepReduce: receivers compute what the sender subtracts, and the filter's mistakes are true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame
from gcsim.compressors.conformance import check
from gcsim.compressors.segments import ZERO
from gcsim.compressors.sparsification.by_size.deepreduce import (
    DeepReduceParameters,
    Filters,
    add_decoded,
    bloom_filter,
    bloom_positives,
)
from gcsim.errors import InputError
from tests.compressors.shared import Draw, layout_of

NAME = "deepreduce"


def test_it_conforms_where_all_tensors_have_filters() -> None:
    assert check(NAME, {"skip": 0})


def test_a_naive_sender_and_receiver_agree_over_several_steps(team: Any, normal: Draw) -> None:
    """Oracle: top-k by sorting; which positions travel is read off the residual's zeros."""
    n, k, workers = 3000, 30, 3
    crew = team(NAME, [(n,)], workers=workers)
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
            assert sent.size == k
            assert len(largest & set(sent.tolist())) >= 0.6 * k
            expected[sent] += sums[sent] / workers
            memory[rank] = np.where(kept == 0, 0.0, sums)
        for update in updates:
            np.testing.assert_allclose(update.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_payload_has_the_length_of_the_formula(team: Any, normal: Draw) -> None:
    # n = 1e6, k = 1e4: 14.378 bits an index and 32 a value; the small tensor 32 + 32
    crew = team(NAME, [(1_000_000,), (1000,)])
    crew.step([normal(1_001_000, rank) for rank in range(2)])
    assert crew.sent == [(2 * HEADER_BYTES + 40_000 + -(-143_776 // 8) + 10 * 8,) * 2]


def test_a_filter_holds_what_was_put_in_and_as_many_others_as_promised() -> None:
    # Binomial: 20 x 99 000 trials at f = 1e-3, standard error 2.3 %; the formula itself is right
    # to a few per cent (h is rounded up, the filter's fill varies).
    n, k, wrong = 100_000, 1000, 0
    for seed in range(20):
        filters = Filters(layout_of(n), DeepReduceParameters.model_validate({}), seed, 0)
        given = torch.from_numpy(np.random.default_rng(seed).choice(n, k, replace=False))
        found, _ = bloom_positives(bloom_filter(given, filters), ZERO, filters)
        assert bool(torch.isin(given, found).all())
        wrong += found.numel() - k
    assert wrong / 20 / (n - k) == pytest.approx(1e-3, rel=0.12)


@pytest.mark.parametrize("skip", [799, 800])
@pytest.mark.parametrize("wrong", ["length", "last bits", "flags", "count"])
def test_bodies_that_cannot_have_been_sent_are_refused(skip: int, wrong: str) -> None:
    # f = 1e-3: 8 log2(1000) / ln 2 = 115.02 bits, 4 are left; or 8 indices of 32, of which the
    # last is 7 and becomes 7 + 2^31
    filters = Filters(layout_of(800), DeepReduceParameters.model_validate({"skip": skip}), 0, 0)
    coded = bloom_filter(torch.arange(8), filters)

    def add(coded: Tensor, flags: int, sent: int) -> None:
        body = torch.cat((torch.ones(sent).view(torch.uint8), coded))
        message = pack_frame(Codec.BLOOM, body, numel=800, nonzero=sent, flags=flags)
        add_decoded(message, layout_of(800), torch.zeros(800), 1.0, filters=filters)

    flags = 15 if skip < 800 else 0
    add(coded, flags, 8)
    if wrong == "last bits":
        coded[-1] |= 0x80
    else:
        coded = coded[: -1 if wrong == "length" else None]
    with pytest.raises(InputError, match="damaged payload"):
        add(coded, flags ^ (wrong == "flags"), 8 - (wrong == "count"))
