"""AdaComp: bins decide by themselves; one magnitude, words of one or two bytes."""

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame, read_frames
from gcsim.compressors.sparsification.by_threshold.adacomp import add_decoded
from gcsim.errors import InputError
from tests.compressors.shared import Team, layout_of, normal


def naive_step(r: torch.Tensor, g: torch.Tensor, size: int) -> tuple[torch.Tensor, int]:
    """(what is sent of one tensor, its words); r is changed."""
    total, maxima, sent, words = r + g, [], [], 0
    for part, more in zip(torch.split(total, size), torch.split(g, size), strict=True):
        maxima.append(float(part.abs().max()))
        sent.append(((part + more).abs() >= maxima[-1]) * part.sign())
        words += max(1, int(sent[-1].count_nonzero()))
    update = torch.cat(sent) * float(np.float32(np.mean(maxima)))
    r.copy_(total - update)
    return update, words


@pytest.mark.parametrize(("conv", "fc"), [(50, 500), (7, 63), (64, 1)])
def test_steps_are_those_of_the_definition(conv: int, fc: int) -> None:
    pieces = [(slice(0, 1300), fc), (slice(1300, 1516), conv), (slice(1516, 1521), fc)]
    workers = Team("adacomp", [(13, 100), (8, 3, 3, 3), (5,)], bin_conv=conv, bin_fc=fc)
    residuals = [torch.zeros(1521), torch.zeros(1521)]
    for t in range(5):
        gradients = [normal(1521, 9 * t + rank) for rank in range(2)]
        gradients[0][100:230] = -residuals[0][100:230]  # G = 0 over more than a bin
        expected, lengths = torch.zeros(1521), [3 * HEADER_BYTES] * 2
        for rank, (residual, gradient) in enumerate(zip(residuals, gradients, strict=True)):
            for part, size in pieces:
                sent, words = naive_step(residual[part], gradient[part], size)
                expected[part] += sent / 2
                # 8 or 16 bits an element or empty bin, 32 for the value
                lengths[rank] += 4 + words * (1 if size < 64 else 2)
        torch.testing.assert_close(workers.step(gradients, t), [expected] * 2, rtol=1e-6, atol=1e-6)
        assert workers.sent[-1] == tuple(lengths)
        residuals, naive = [worker.residual[0].clone() for worker in workers.workers], residuals
        torch.testing.assert_close(residuals, naive, rtol=1e-6, atol=1e-6)


def test_hand_calculated_words() -> None:
    # H = 2 g. Bin 1: |H| >= 4 at 0 (4) and 2 (-2); bin 2 is zero; bin 3: at 0. (4 + 0 + 2) / 3 = 2
    crew = Team("adacomp", [(7,)], workers=1, bin_fc=3)
    update = crew.step([torch.tensor([4.0, 1.0, -2.0, 0.0, 0.0, 0.0, 2.0])])[0]
    assert update.tolist() == [2.0, 0, -2.0, 0, 0, 0, 2.0]
    assert crew.workers[0].residual[0].tolist() == [2.0, 1.0, 0, 0, 0, 0, 0]
    (frame,) = read_frames(crew.listener.received[-1][0])
    assert (frame.nonzero, frame.params) == (3, 3)
    # 2.0; position; 0x40: last of its bin; 0x80: negative; 0x7f: an empty bin
    assert frame.body.tolist() == [0, 0, 0, 0x40, 0x00, 0x80 | 0x40 | 2, 0x40 | 63, 0x40]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (1, [0x40 | 1]),  # the second bin is missing
        (3, [0x02, 0x41, 0x40]),  # positions fall
        (2, [0x40, 0x42]),  # beyond the tensor's end
        (1, [0x3F, 0x40]),  # empty, but not the last of its bin
        (2, [0x00, 0x7F, 0x40]),  # empty after an element
        (2, [0x40, 0x00]),  # the last bin does not end
        (2, [0x40, 0x7F]),  # fewer elements than announced
        (2, [0x40, 0x40, 0, 0, 0]),
    ],
)
def test_words_that_do_not_fill_the_bins_are_refused(sent: int, words: list[int]) -> None:
    body = torch.tensor([0, 0, 0x80, 0x3F, *words], dtype=torch.uint8)  # the value is 1
    message = pack_frame(Codec.ADACOMP, body, numel=5, nonzero=sent, params=3)
    with pytest.raises(InputError, match="damaged payload"):
        add_decoded(message, layout_of(5), torch.zeros(5), 1.0)
