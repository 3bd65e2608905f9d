"""DeepReduce: receivers compute what the sender subtracts, and the filter's mistakes are true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES, read_frames
from gcsim.compressors.coding.indices.curve import fit_curve, piece_lengths, read_curve
from gcsim.compressors.conformance import check
from gcsim.errors import InputError
from tests.compressors.shared import Draw

NAME = "deepreduce"
POLICIES = pytest.mark.parametrize("policy", ["random", "leftmost", "p0"])


# --- the method ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        {"policy": "p0", "values": "polynomial"},
        pytest.param({"skip": 0}, marks=pytest.mark.long),
        pytest.param({"indices": "rice"}, marks=pytest.mark.long),
    ],
)
def test_it_conforms(parameters: dict[str, Any]) -> None:
    assert check(NAME, parameters)


@POLICIES
def test_a_naive_sender_and_receiver_agree_over_several_steps(
    team: Any, normal: Draw, policy: str
) -> None:
    """Oracle: top-k by sorting; which positions travel is read off the update's support."""
    n, k, workers = 3000, 30, 3
    crew = team(NAME, [(n,)], workers=workers, policy=policy)
    memory = [np.zeros(n) for _ in range(workers)]
    for t in range(5):
        given = [normal(n, 10 * t + rank) for rank in range(workers)]
        updates = crew.step(given, t)
        expected = np.zeros(n)
        for rank, worker in enumerate(crew.workers):
            sums = memory[rank] + given[rank].double().numpy()
            largest = np.sort(np.argsort(-np.abs(sums), kind="stable")[:k])
            kept = worker.residual_of(bucket_like(crew, given[rank])).double().numpy()
            sent = np.flatnonzero(kept == 0)  # a Gaussian sum is never zero by itself
            if policy == "p0":
                assert set(largest) <= set(sent)
                assert sent.size <= 2 * k  # 3 mistakes on average
            else:
                assert sent.size == k
                assert len(set(largest) & set(sent)) >= 0.6 * k
            if policy == "leftmost" and not np.array_equal(sent, largest):
                # what pushes true positions out lies before them
                missing = sorted(set(largest) - set(sent))
                assert all(s < missing[0] for s in set(sent) - set(largest))
            expected[sent] += sums[sent] / workers
            sums[sent] = 0.0
            memory[rank] = sums
        for update in updates:
            np.testing.assert_allclose(update.numpy(), expected, rtol=1e-5, atol=1e-6)


def bucket_like(crew: Any, gradient: Tensor) -> Any:
    from gcsim.compressors.bucket import Bucket

    return Bucket(layout=crew.layout, gradient=gradient)


@POLICIES
@pytest.mark.parametrize("values", ["raw", "polynomial"])
@pytest.mark.parametrize("indices", ["bloom", "packed", "gamma"])
def test_what_was_sent_and_what_is_kept_add_up(
    team: Any, normal: Draw, policy: str, values: str, indices: str
) -> None:
    crew = team(NAME, [(60, 40), (30,)], policy=policy, values=values, indices=indices, skip=500)
    given, sent = torch.zeros(2430), torch.zeros(2430)
    for t in range(6):
        pair = [normal(2430, 10 * t + rank) for rank in range(2)]
        given += (pair[0] + pair[1]) / 2
        sent += crew.step(pair, t)[0]
    kept = sum(w.residual_of(bucket_like(crew, pair[0])) for w in crew.workers) / 2
    torch.testing.assert_close(sent + kept, given, rtol=1e-5, atol=1e-5)


def test_payload_of_filter_and_values_has_the_length_of_the_formula(
    team: Any, normal: Draw
) -> None:
    # n = 1e6, k = 1e4: 14.378 bits an index and 32 a value; the small tensor 32 + 32
    n, k = 1_000_000, 10_000
    crew = team(NAME, [(n,), (1000,)])
    crew.step([normal(n + 1000, rank) for rank in range(2)])
    large = HEADER_BYTES + 4 * k + -(-143_776 // 8)
    small = HEADER_BYTES + 10 * (4 + 4)
    assert crew.sent == [(large + small,) * 2]
    assert 8 * (large - HEADER_BYTES) / k == pytest.approx(32 + 14.4, abs=0.03)


def test_p0_sends_all_positives_and_lengths_first(team: Any, normal: Draw) -> None:
    n, k = 100_000, 1000
    crew = team(NAME, [(n,)], policy="p0")
    crew.step([normal(n, rank) for rank in range(2)])
    assert crew.sent[0] == (8, 8)
    for message, nbytes in zip(crew.listener.received[1], crew.sent[1], strict=True):
        (frame,) = read_frames(message)
        # k + 99 expected mistakes of standard deviation 10 and as much again by the fill
        assert 1050 <= frame.nonzero <= 1160
        assert nbytes == HEADER_BYTES + 4 * frame.nonzero + -(-14_378 // 8)
    assert k == 1000


def test_payload_of_curves_has_the_length_of_the_formula(team: Any, normal: Draw) -> None:
    n, k = 100_000, 1000
    crew = team(NAME, [(n,)], workers=1, values="polynomial", indices="packed")
    gradient = normal(n)
    crew.step([gradient])
    largest = gradient[gradient.abs().topk(k).indices]
    positive = int((largest > 0).sum())
    # k = 1000, half positive: 1/5, 1/10 of about 500 exceed 30: three pieces of each sign
    pieces = piece_lengths(k, positive)
    assert len(pieces) == 6
    coefficients = 6 * 6
    expected = HEADER_BYTES + 4 + 8 * coefficients + 1000 * 10 // 8 + 1000 * 17 // 8
    assert crew.sent[-1] == (expected,)
    # 32 bits a value became 10 of rank and 2.3 of coefficients
    assert 8 * (4 + 8 * coefficients + 1250) / k < 12.4


def test_curves_of_sorted_values_are_close(team: Any, normal: Draw) -> None:
    # The k largest of a Gaussian: the fit's error is far below the error of top-k itself.
    gradient = normal(200_000)
    top = gradient[gradient.abs().topk(2000).indices.sort().values]
    decoded = fit_curve(top, 5)[1]
    assert float((decoded - top).square().sum() / top.square().sum()) < 1e-5


def test_without_error_feedback_nothing_is_remembered(team: Any, normal: Draw) -> None:
    crew = team(NAME, [(2000,)], workers=1, error_feedback=False)
    first = crew.step([normal(2000)])[0]
    assert torch.equal(crew.step([normal(2000)], 0)[0], first)
    assert crew.workers[0].residual_of(bucket_like(crew, normal(2000))) is None


def test_a_mistake_of_the_filter_carries_a_true_value(team: Any, normal: Draw) -> None:
    gradient = normal(50_000)
    crew = team(NAME, [(50_000,)], workers=1, policy="p0", false_positives=1.0)
    update = crew.step([gradient])[0]
    sent = update.nonzero().view(-1)
    assert sent.numel() > 700  # 500 and as many mistakes
    assert torch.equal(update[sent], gradient[sent])


def test_mistakes_differ_from_step_to_step(team: Any) -> None:
    # The same gradient, without memory: the support changes with the hash functions.
    gradient = torch.linspace(1, 2, 20_000)
    crew = team(NAME, [(20_000,)], workers=1, policy="p0", error_feedback=False)
    supports = [set(crew.step([gradient], t)[0].nonzero().view(-1).tolist()) for t in range(3)]
    assert len(set.intersection(*supports)) <= 203  # the 200 largest
    assert all(len(support) > 205 for support in supports)


def test_messages_of_another_kind_are_refused(team: Any, normal: Draw) -> None:
    sender = team(NAME, [(2000,)], workers=1, indices="raw")
    sender.step([normal(2000)])
    message = sender.listener.received[0][0]
    receiver = team(NAME, [(2000,)], workers=1)
    bucket = bucket_like(receiver, normal(2000))
    exchange = receiver.workers[0].exchange(bucket, 0)
    next(exchange)
    with pytest.raises(InputError, match="coded by way 0, expected 15"):
        exchange.send([message])


# --- curves -------------------------------------------------------------------------------------


def test_pieces_by_hand() -> None:
    # 1000 positive of 1600: 200, 100, 33 from the middle outwards, 10 is too short; 600: 120, 60
    assert piece_lengths(1600, 1000) == [33, 100, 200, 667, 420, 120, 60]
    assert piece_lengths(5, 5) == [5]
    assert piece_lengths(5, 2) == [2, 3]
    assert piece_lengths(0, 0) == []
    for count in (1, 31, 151, 10_000, 123_457):
        for positive in (0, 1, count // 3, count):
            assert sum(piece_lengths(count, positive)) == count


@pytest.mark.parametrize("k", [0, 1, 2, 5, 6, 7, 31, 200, 5000])
@pytest.mark.parametrize("degree", [0, 1, 5, 9])
def test_receivers_read_what_the_sender_knows_they_read(k: int, degree: int, normal: Draw) -> None:
    values = normal(k, k) ** 3
    code, decoded = fit_curve(values, degree)
    read, used = read_curve(torch.cat((code, torch.zeros(3, dtype=torch.uint8))), k, degree)
    assert torch.equal(read, decoded)
    assert used == code.numel()


def test_curves_are_the_least_squares_fit() -> None:
    # Oracle: numpy's polyfit of each piece of the sorted values.
    values = torch.from_numpy(np.random.default_rng(3).standard_t(3, 700).astype(np.float32))
    decoded = fit_curve(values, 5)[1].numpy()
    order = np.argsort(-values.numpy(), kind="stable")
    ordered, start = values.numpy()[order].astype(np.float64), 0
    for length in piece_lengths(700, int((values > 0).sum())):
        x = np.linspace(-1, 1, length)
        y = ordered[start : start + length]
        expected = np.polyval(np.polyfit(x, y, 5), x)
        found = decoded[order[start : start + length]]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        start += length


def test_six_values_or_fewer_of_a_sign_are_exact() -> None:
    values = torch.tensor([3.0, -1e-30, 100.0, -7.5, 1e-3, -2.0, 5.0, 0.25, -1.0])
    torch.testing.assert_close(fit_curve(values, 5)[1], values, rtol=1e-6, atol=1e-12)


def test_the_smallest_and_largest_floats_survive() -> None:
    assert bool((fit_curve(torch.zeros(100), 5)[1] == 0).all())
    huge = torch.full((100,), 3.4e38)
    assert bool(fit_curve(huge, 5)[1].isfinite().all())
    tiny = torch.full((100,), 1e-44)
    torch.testing.assert_close(fit_curve(tiny, 5)[1], tiny, rtol=0, atol=2e-45)


def test_damaged_curves_are_refused(normal: Draw) -> None:
    code = fit_curve(normal(40), 5)[0]
    with pytest.raises(InputError, match="number of positive values"):
        read_curve(code[:3], 40, 5)
    with pytest.raises(InputError, match="bytes where 40 fitted values take"):
        read_curve(code[:-1], 40, 5)
    wrong = code.clone()
    wrong[0] = 41
    with pytest.raises(InputError, match="41 of 40 values"):
        read_curve(wrong, 40, 5)
    wrong = code.clone()
    wrong[4:12] = 255
    with pytest.raises(InputError, match="not finite"):
        read_curve(wrong, 40, 5)
    wrong = code.clone()
    wrong[-1] ^= 0x80  # one rank of six bits
    with pytest.raises(InputError, match="permutation"):
        read_curve(wrong, 40, 5)
