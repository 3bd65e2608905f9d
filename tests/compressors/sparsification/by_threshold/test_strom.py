"""Strom: signs of what exceeds a threshold."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame, read_frames
from gcsim.compressors.coding.indices.words import add_signed, signed_message
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError
from tests.compressors.shared import Team, layout_of, normal


@pytest.mark.parametrize("shapes", [[(300,)], [(7, 11), (), (222,)], [(9000,)]])
def test_several_steps_are_those_of_the_definition(shapes: list[tuple[int, ...]]) -> None:
    crew, tau = 3, float(np.float32(0.7))
    workers = Team("strom", shapes, workers=crew, threshold=0.7)
    n = workers.layout.numel
    residuals = [torch.zeros(n) for _ in range(crew)]
    for t in range(5):
        gradients = [normal(n, 9 * t + rank) for rank in range(crew)]
        gradients[0][0] = tau - residuals[0][0]  # meets the threshold exactly, up to rounding
        expected = torch.zeros(n)
        for rank in range(crew):
            r = residuals[rank] + gradients[rank]
            sent = torch.where(r.abs() > tau, tau * r.sign(), 0.0)
            expected += sent / crew
            residuals[rank] = r - sent
        for update in workers.step(gradients, t):
            torch.testing.assert_close(update, expected, rtol=1e-6, atol=1e-7)
        for rank, worker in enumerate(workers.workers):
            residual_of = worker.residual_of(
                Bucket(layout=workers.layout, gradient=gradients[rank])
            )
            assert torch.equal(residual_of, residuals[rank])


def test_words_hold_index_and_sign() -> None:
    # |r| > 1 at 1 (+), 3 (-), 5 (-): index in 31 bits, bit 31 = negative; 32 bits each
    crew = Team("strom", [(6,)], workers=1, threshold=1.0)
    update = crew.step([torch.tensor([1.0, 1.5, 0.0, -9.0, -1.0, -1.01])])[0]
    assert update.tolist() == [0.0, 1.0, 0.0, -1.0, 0.0, -1.0]
    (frame,) = read_frames(crew.listener.received[-1][0])
    assert crew.sent[-1] == (HEADER_BYTES + 12,)
    words = frame.body.clone().view(torch.int32).tolist()
    assert words == [1, 3 - 2**31, 5 - 2**31]


def test_the_threshold_is_a_tenth_unless_given() -> None:
    update = Team("strom", [(2,)], workers=1).step([torch.tensor([0.099, 0.101])])[0]
    assert update.tolist() == pytest.approx([0.0, 0.1])


def test_damaged_words_are_refused() -> None:
    layout = layout_of(10)

    def message_of(words: list[int], levels: Tensor | None = None) -> Tensor:
        k = np.array([len(words)])
        return signed_message(
            torch.tensor(words, dtype=torch.int32), Segments.of(layout), k, levels
        )

    for words in ([3, 3], [4, 2], [5, 10], [9, 1 - 2**31]):
        message = message_of(words)
        with pytest.raises(InputError, match="do not ascend"):
            add_signed(message, layout, torch.zeros(10), 1.0, levels=(1.0, -1.0))
    message = message_of([1], torch.tensor([[1.0, -1.0]]))
    with pytest.raises(InputError, match="flags"):
        add_signed(message, layout, torch.zeros(10), 1.0, levels=(1.0, -1.0))
    short = pack_frame(Codec.SIGNED_INDEX, torch.zeros(4, dtype=torch.uint8), numel=10, nonzero=2)
    with pytest.raises(InputError, match="asks for"):
        add_signed(short, layout, torch.zeros(10), 1.0, levels=(1.0, -1.0))
