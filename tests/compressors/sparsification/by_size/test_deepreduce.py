"""DeepReduce: receivers compute what the sender subtracts, and the filter's mistakes are true."""

from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame
from gcsim.compressors.coding.indices.bloom import bloom_filter, bloom_positives
from gcsim.compressors.conformance import check
from gcsim.compressors.segments import ZERO, Segments
from gcsim.compressors.sparsification.by_size.deepreduce import DeepReduceParameters, add_decoded
from gcsim.errors import InputError
from tests.compressors.shared import Team, layout_of, normal


def test_it_conforms_where_all_tensors_have_filters() -> None:
    assert check("deepreduce", {"skip": 0})


def test_a_naive_sender_and_receiver_agree_over_several_steps() -> None:
    """Oracle: top-k by sorting; which positions travel is read off the residual's zeros."""
    crew, n = Team("deepreduce", [(3000,)], workers=3), 3000
    memory = [np.zeros(n) for _ in range(3)]
    for t in range(5):
        given = [normal(n, 10 * t + rank) for rank in range(3)]
        updates = crew.step(given, t)
        expected = np.zeros(n)
        for rank, worker in enumerate(crew.workers):
            sums = memory[rank] + given[rank].double().numpy()
            kept = worker.residual[0].double().numpy()
            sent = np.flatnonzero(kept == 0)  # a Gaussian sum is never zero by itself
            assert np.isin(np.argsort(-np.abs(sums))[:30], sent).all()
            assert sent.size < 60  # 3 wrong positives are expected
            expected[sent] += sums[sent] / 3
            memory[rank] = np.where(kept == 0, 0.0, sums)
        for update in updates:
            np.testing.assert_allclose(update.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_payload_has_the_length_of_the_formula() -> None:
    # n = 1e6, k = 1e4: 14.378 bits an index, 17 972 bytes; the small tensor 32. 32 a value
    crew = Team("deepreduce", [(1_000_000,), (1000,)])
    crew.step([normal(1_001_000, rank) for rank in range(2)])
    sent = [int((worker.residual[0] == 0).sum()) for worker in crew.workers]
    assert crew.sent[1] == tuple(2 * HEADER_BYTES + 17_972 + 10 * 4 + 4 * many for many in sent)


def test_a_filter_holds_what_was_put_in_and_as_many_others_as_promised() -> None:
    # Binomial: 20 x 99 000 trials at f = 1e-3, standard error 2.3 %; the formula itself is right
    # to a few per cent (h is rounded up, the filter's fill varies).
    n, k, wrong, segments = 100_000, 1000, 0, Segments.alone(100_000)
    for seed in range(20):
        given: Any = segments, DeepReduceParameters.model_validate({}).sizes(segments.length), seed
        index = torch.from_numpy(np.random.default_rng(seed).choice(n, k, replace=False))
        found, _ = bloom_positives(bloom_filter(index, *given), ZERO, *given)
        assert bool(torch.isin(index, found).all())
        wrong += found.numel() - k
    assert wrong / 20 / (n - k) == pytest.approx(1e-3, rel=0.12)


@pytest.mark.parametrize("skip", [799, 800])
@pytest.mark.parametrize("wrong", ["length", "last bits", "count"])
def test_bodies_that_cannot_have_been_sent_are_refused(skip: int, wrong: str) -> None:
    # f = 1e-3: 8 log2(1000) / ln 2 = 115.02 bits, 4 are left; or 8 indices, the last 7 + 2^31
    segments = Segments.alone(800)
    sizes = DeepReduceParameters.model_validate({"skip": skip}).sizes(segments.length)
    known: Any = {"sizes": sizes, "key": np.uint64(0)}
    coded = bloom_filter(torch.arange(8), segments, **known)
    many = bloom_positives(coded, ZERO, segments, **known)[1].item() - (wrong == "count")
    coded[-1] |= 0x80 if wrong == "last bits" else 0
    body = torch.cat((torch.ones(many).view(torch.uint8), coded))
    body = body[:-1] if wrong == "length" else body
    message = pack_frame(Codec.BLOOM, body, numel=800, nonzero=many)
    with pytest.raises(InputError, match="damaged payload"):
        add_decoded(message, layout_of(800), torch.zeros(800), 1.0, **known)
