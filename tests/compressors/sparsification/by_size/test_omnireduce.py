"""OmniReduce: blocks of zeros stay at home and nothing else is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame
from gcsim.compressors.conformance import check
from gcsim.errors import InputError
from tests.compressors.shared import Draw

NAME = "omnireduce"


@pytest.mark.parametrize(
    "parameters",
    [
        {"keep": "top", "block": 7},
        pytest.param({"keep": "threshold", "threshold": 0.1}, marks=pytest.mark.long),
    ],
)
def test_it_conforms(parameters: dict[str, Any]) -> None:
    assert check(NAME, parameters)


def sparse(normal: Draw, n: int, seed: int, density: float) -> Tensor:
    """Gaussian, but zero in most of the blocks of 256."""
    draw = np.random.default_rng(seed)
    blocks = torch.from_numpy(draw.random(-(-n // 256)) < density)
    return normal(n, seed) * blocks.repeat_interleave(256)[:n]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_the_update_is_the_mean_that_dense_reduction_computes(
    team: Any, normal: Draw, workers: int
) -> None:
    crew = team(NAME, [(100, 64), (1000,), (3,), (0,)], workers=workers)
    n = 6400 + 1000 + 3
    for t in range(3):
        given = [sparse(normal, n, 10 * t + rank, 0.3) for rank in range(workers)]
        total = torch.zeros(n)
        for gradient in given:
            total += gradient
        for update in crew.step(given, t):
            assert torch.equal(update, total / workers)


def test_bits_are_257_words_of_32_for_each_block(team: Any) -> None:
    # 16 blocks, three of them not zero here, two there, one in common: four in the union
    gradients = [torch.zeros(4096), torch.zeros(4096)]
    for rank, elements in enumerate(((0, 300, 4095), (511, 1024))):
        for element in elements:
            gradients[rank][element] = 1.0 + element
    crew = team(NAME, [(4096,)])
    crew.step(gradients)
    block = 4 * 256 + 4
    (record,) = crew.listener.collectives
    assert record.sent == (HEADER_BYTES + 3 * block, HEADER_BYTES + 2 * block)
    assert record.pulled == HEADER_BYTES + 4 * block


def test_the_last_block_of_a_tensor_is_shorter(team: Any, normal: Draw) -> None:
    crew = team(NAME, [(300,), (5,)], workers=1)
    gradient = normal(305)
    assert torch.equal(crew.step([gradient])[0], gradient)
    assert crew.sent == [(2 * HEADER_BYTES + 4 * (256 + 44) + 2 * 4 + 4 * 5 + 4,)]


def test_zeros_of_either_sign_send_nothing(team: Any) -> None:
    crew = team(NAME, [(1000,)])
    updates = crew.step([torch.zeros(1000), -torch.zeros(1000)])
    assert crew.sent == [(HEADER_BYTES,) * 2]
    assert crew.listener.collectives[0].pulled == HEADER_BYTES
    assert bool((updates[0] == 0).all())
    tiny = torch.zeros(1000)
    tiny[999] = -1e-45  # the smallest number that is not zero
    crew.step([tiny, torch.zeros(1000)], 1)
    assert crew.sent[0][0] == HEADER_BYTES + 4 * (1000 - 3 * 256) + 4


@pytest.mark.parametrize("keep", ["top", "threshold"])
def test_a_naive_sparsifier_with_memory_agrees_over_several_steps(
    team: Any, normal: Draw, keep: str
) -> None:
    n, size, workers = 1000, 64, 3
    crew = team(NAME, [(n,)], workers=workers, keep=keep, block=size, ratio=0.25, threshold=9.0)
    memory = [np.zeros(n, dtype=np.float32) for _ in range(workers)]
    for t in range(6):
        given = [normal(n, 10 * t + rank) for rank in range(workers)]
        expected = np.zeros(n)
        for rank in range(workers):
            sums = memory[rank] + given[rank].numpy()
            blocks = [slice(at, min(at + size, n)) for at in range(0, n, size)]
            norms = [np.linalg.norm(sums[b].astype(np.float64)) for b in blocks]
            if keep == "top":  # 16 blocks
                chosen = np.argsort(norms)[::-1][:4].tolist()
            else:
                chosen = [number for number, norm in enumerate(norms) if norm >= 9.0]
            for number in chosen:
                expected[blocks[number]] += sums[blocks[number]]
                sums[blocks[number]] = 0
            memory[rank] = sums
        for update in crew.step(given, t):
            np.testing.assert_allclose(update.numpy(), expected / workers, rtol=1e-5, atol=1e-6)
        for worker, kept in zip(crew.workers, memory, strict=True):
            residual_of = worker.residual_of(Bucket(layout=crew.layout, gradient=given[0]))
            np.testing.assert_array_equal(residual_of.numpy(), kept)


def test_top_never_sends_more_than_its_share(team: Any, normal: Draw) -> None:
    crew = team(NAME, [(256 * 100,)], keep="top", ratio=0.1)
    crew.step([normal(25_600, rank) for rank in range(2)])
    assert crew.sent == [(HEADER_BYTES + 10 * (1024 + 4),) * 2]


def test_top_of_zeros_sends_nothing(team: Any) -> None:
    crew = team(NAME, [(2560,)], keep="top")
    crew.step([torch.zeros(2560)] * 2)
    assert crew.sent == [(HEADER_BYTES,) * 2]


def test_without_error_feedback_nothing_is_remembered(team: Any, normal: Draw) -> None:
    crew = team(NAME, [(2560,)], workers=1, keep="top", error_feedback=False)
    gradient = normal(2560)
    first = crew.step([gradient])[0]
    assert torch.equal(crew.step([gradient], 1)[0], first)
    assert crew.workers[0].residual_of(Bucket(layout=crew.layout, gradient=gradient)) is None


def test_equal_blocks_have_exactly_the_error_of_the_bound(team: Any) -> None:
    # All blocks of the same norm: (1 - 2/20) of the energy is left behind.
    gradient = torch.ones(20 * 256)
    crew = team(NAME, [(20 * 256,)], workers=1, keep="top", ratio=0.1)
    update = crew.step([gradient])[0]
    error = float((update - gradient).square().sum())
    assert error == pytest.approx(0.9 * 20 * 256)
    law = crew.workers[0].properties(crew.workers[0].parameters)
    assert law.error_bound(gradient) == pytest.approx(error)


@pytest.mark.parametrize(
    ("numbers", "elements", "complaint"),
    [
        ([1, 1], 512, "ascend"),
        ([1, 0], 512, "ascend"),
        ([4], 256, "ascend"),
        ([-1], 256, "ascend"),
        ([0], 255, "elements in 1 blocks"),
        ([3], 256, "elements in 1 blocks"),
        ([0, 1, 2, 3, 3], 1000, "5 blocks, the tensor has 4"),
    ],
)
def test_damaged_blocks_are_refused(
    team: Any, numbers: list[int], elements: int, complaint: str
) -> None:
    crew = team(NAME, [(1000,)], workers=1)  # four blocks, the last of 232 elements
    body = torch.cat(
        (
            torch.ones(elements).view(torch.uint8),
            torch.tensor(numbers, dtype=torch.int32).view(torch.uint8),
        )
    )
    message = pack_frame(Codec.BLOCKS, body, numel=1000, nonzero=elements)
    with pytest.raises(InputError, match=complaint):
        crew.workers[0].aggregate([message], crew.layout, torch.zeros(1000))
