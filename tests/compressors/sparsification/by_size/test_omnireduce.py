"""OmniReduce: blocks of zeros stay at home and nothing else is lost."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame
from gcsim.compressors.sparsification.by_size.omnireduce import add_blocks
from gcsim.errors import InputError
from tests.compressors.shared import Team, layout_of, normal

NAME = "omnireduce"


def sparse(n: int, seed: int, density: float) -> Tensor:
    """Gaussian, but zero in most of the blocks of 256."""
    draw = np.random.default_rng(seed)
    blocks = torch.from_numpy(draw.random(-(-n // 256)) < density)
    return normal(n, seed) * blocks.repeat_interleave(256)[:n]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_the_update_is_the_mean_that_dense_reduction_computes(workers: int) -> None:
    crew = Team(NAME, [(100, 64), (1000,), (3,), (0,)], workers=workers)
    n = 6400 + 1000 + 3
    for t in range(3):
        given = [sparse(n, 10 * t + rank, 0.3) for rank in range(workers)]
        total = torch.zeros(n)
        for gradient in given:
            total += gradient
        for update in crew.step(given, t):
            assert torch.equal(update, total / workers)


def test_bits_are_257_words_of_32_for_each_block() -> None:
    # 16 blocks, three of them not zero here, two there, one in common: four in the union
    gradients = [torch.zeros(4096), torch.zeros(4096)]
    for rank, elements in enumerate(((0, 300, 4095), (511, 1024))):
        for element in elements:
            gradients[rank][element] = 1.0 + element
    crew = Team(NAME, [(4096,)])
    crew.step(gradients)
    block = 4 * 256 + 4
    (record,) = crew.listener.collectives
    assert record.sent == (HEADER_BYTES + 3 * block, HEADER_BYTES + 2 * block)
    assert record.pulled == HEADER_BYTES + 4 * block


def test_zeros_of_either_sign_send_nothing() -> None:
    crew = Team(NAME, [(1000,)])
    tiny = torch.zeros(1000)
    tiny[999] = -1e-45  # the smallest number that is not zero
    crew.step([tiny, -torch.zeros(1000)])
    assert crew.sent == [(HEADER_BYTES + 4 * (1000 - 3 * 256) + 4, HEADER_BYTES)]


@pytest.mark.parametrize(
    ("numbers", "elements", "complaint"),
    [
        ([1, 0], 512, "ascend"),
        ([4], 256, "ascend"),
        ([-1], 256, "ascend"),
        ([0], 255, "elements in .1. blocks"),
        ([0, 1, 2, 3, 3], 1000, "blocks, the tensors have"),
    ],
)
def test_damaged_blocks_are_refused(numbers: list[int], elements: int, complaint: str) -> None:
    parts = torch.ones(elements), torch.tensor(numbers, dtype=torch.int32)
    body = torch.cat([part.view(torch.uint8) for part in parts])
    message = pack_frame(Codec.BLOCKS, body, numel=1000, nonzero=elements)
    with pytest.raises(InputError, match=complaint):
        # four blocks, the last of 232 elements
        add_blocks(message, torch.zeros(1000), layout_of(1000), 256)
