"""Top-k: the largest travel, the rest is remembered, and nothing is lost."""

import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, as_bytes, pack_frame
from gcsim.compressors.coding.indices.index_coding import Coder
from gcsim.compressors.coding.sparse import add_message
from gcsim.errors import InputError
from tests.compressors.shared import Team, layout_of, normal


def test_relative_error_of_one_percent_of_a_normal_vector() -> None:
    # 1 - energy share of |x| > q, q = 2.5758 (two-sided 1 %): the share is
    # 2 (q phi(q) + 1 - Phi(q)) = 2 (2.5758 * 0.014460 + 0.005) = 0.0845: error .9155 (.9157 in
    # one sample of an independent program)
    n = 1_000_000
    gradient = normal(n)
    update = Team("topk", [(n,)], workers=1, ratio=0.01).step([gradient])[0]
    error = (update - gradient).square().sum() / gradient.square().sum()
    assert float(error) == pytest.approx(0.9157, abs=0.001)


@pytest.mark.parametrize(
    ("indices", "values", "bits"),
    # value and index bits in each of the two tensors: ceil(log2 5000) = 13, ceil(log2 100) = 7
    [
        ("raw", "fp32", (32 + 32, 32 + 32)),
        ("raw", "fp16", (16 + 32, 16 + 32)),
        ("packed", "fp32", (32 + 13, 32 + 7)),
        ("bitmap", "fp32", (32 + 5000 / 50, 32 + 100)),  # one bit an element
    ],
)
def test_payload_is_k_values_and_indices_and_a_header_per_tensor(
    indices: str, values: str, bits: tuple[float, float]
) -> None:
    workers = Team("topk", [(5000, 1), (100,)], ratio=0.01, indices=indices, values=values)
    workers.step([normal(5100, seed) for seed in range(2)])
    expected = (HEADER_BYTES + -(-50 * bits[0] // 8)) + (HEADER_BYTES + -(-1 * bits[1] // 8))
    assert workers.sent == [(expected,) * 2]


def test_rice_indices_exchange_lengths_first() -> None:
    workers = Team("topk", [(10_000,)], ratio=0.01, indices="rice")
    workers.step([normal(10_000, seed) for seed in range(2)])
    assert workers.sent[0] == (8, 8)
    expected = HEADER_BYTES + 100 * (32 + 8.11) / 8  # bits per index at density .01
    assert all(length == pytest.approx(expected, rel=0.02) for length in workers.sent[1])


def test_without_error_feedback_nothing_is_remembered() -> None:
    workers = Team("topk", [(4,)], workers=1, ratio=0.25, error_feedback=False)
    workers.step([torch.tensor([4.0, 3, 0, 0])])
    assert workers.step([torch.tensor([0.0, 1, 0, 0])], 1)[0].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert workers.workers[0].residual == {}


def test_values_beyond_float16_saturate_and_the_rest_is_fed_back() -> None:
    workers = Team("topk", [(2,)], workers=1, ratio=0.5, values="fp16")
    assert workers.step([torch.tensor([100_000.0, 0])])[0].tolist() == [65504.0, 0.0]
    assert workers.step([torch.zeros(2)], 1)[0].tolist() == [34496.0, 0.0]


@pytest.mark.parametrize("values", ["fp32", "fp16"])
def test_several_steps_are_those_of_the_definition(values: str) -> None:
    # sorting by falling magnitude and rising index, in plain Python
    n, k, crew = 200, 10, 3
    workers = Team("topk", [(n,)], workers=crew, ratio=k / n, values=values)
    errors = [torch.zeros(n) for _ in range(crew)]
    for t in range(6):
        gradients = [(4 * normal(n, 9 * t + rank)).round() / 4 for rank in range(crew)]  # ties
        expected = torch.zeros(n)
        for error, gradient in zip(errors, gradients, strict=True):
            error.add_(gradient)
            magnitudes = error.abs().tolist()
            for i in sorted(range(n), key=lambda i: (-magnitudes[i], i))[:k]:
                sent = error[i].half().float() if values == "fp16" else error[i].clone()
                expected[i] += sent / crew
                error[i] -= sent
        for update in workers.step(gradients, t):
            torch.testing.assert_close(update, expected, rtol=1e-6, atol=1e-7)
        for worker, error in zip(workers.workers, errors, strict=True):
            assert torch.equal(worker.residual[0], error)


@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0])
def test_the_error_bound_is_met_with_equality_by_equal_magnitudes(ratio: float) -> None:
    # k of n equal elements leave (1 - k / n) of the energy: Definition 2.1 of Stich et al. is tight
    gradient = torch.ones(1000) * torch.tensor([1.0, -1.0]).repeat(500)
    crew = Team("topk", [(1000,)], workers=1, ratio=ratio)
    update = crew.step([gradient])[0]
    parameters = crew.workers[0].parameters
    bound = type(crew.workers[0]).properties(parameters).error_bound
    assert float((update - gradient).square().sum()) == pytest.approx(bound(gradient), abs=1e-9)


def message_of(k: int, coded: Tensor, coder: Coder) -> Tensor:
    """k ones of ten elements, at coded positions."""
    body = torch.cat((as_bytes(torch.ones(k)), as_bytes(coded)))
    return pack_frame(Codec.SPARSE, body, numel=10, nonzero=k, flags=int(coder))


@pytest.mark.parametrize("positions", [[0, 3, 3], [5, 4, 6], [0, 1, 10]])
def test_positions_that_do_not_ascend_below_n_are_refused(positions: list[int]) -> None:
    message = message_of(3, torch.tensor(positions, dtype=torch.int32), Coder.RAW)
    with pytest.raises(InputError, match="do not ascend"):
        add_message(message, layout_of(10), torch.zeros(10), 1.0)


@pytest.mark.parametrize(("bits", "k"), [([0b101, 0], 1), ([0b101, 0], 3), ([1, 0b1000], 2)])
def test_a_bitmap_of_another_number_of_bits_is_refused(bits: list[int], k: int) -> None:
    # 10 elements: bit 3 of the second byte is the twelfth
    coded = torch.tensor(bits, dtype=torch.uint8)
    message = message_of(k, coded, Coder.BITMAP)
    with pytest.raises(InputError, match="bitmap"):
        add_message(message, layout_of(10), torch.zeros(10), 1.0)
