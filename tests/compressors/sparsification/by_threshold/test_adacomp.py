"""AdaComp: bins decide by themselves; one magnitude, words of one or two bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame, read_frames
from gcsim.compressors.sparsification.by_threshold.adacomp import add_decoded
from gcsim.errors import InputError
from tests.compressors.shared import Draw, LayoutOf


def naive_step(r: Tensor, g: Tensor, size: int) -> tuple[Tensor, int]:
    """(what is sent of one tensor, its words); r is changed."""
    total, maxima, sent, words = r + g, [], torch.zeros_like(r), 0
    for first in range(0, r.numel(), size):
        part = total[first : first + size]
        maxima.append(float(part.abs().max()))
        soft = part + g[first : first + size]
        chosen = (soft.abs() >= maxima[-1]) & (part != 0)
        sent[first : first + size] = chosen * part.sign()
        words += max(1, int(chosen.sum()))
    sent *= float(np.float32(np.mean(maxima)))
    r.copy_(total - sent)
    return sent, words


@pytest.mark.parametrize(("conv", "fc"), [(50, 500), (7, 63), (64, 1)])
def test_several_steps_are_those_of_the_definition(
    team: Any, normal: Draw, conv: int, fc: int
) -> None:
    n, pieces = 1521, [(slice(0, 1300), fc), (slice(1300, 1516), conv), (slice(1516, 1521), fc)]
    workers = team("adacomp", [(13, 100), (8, 3, 3, 3), (5,)], bin_conv=conv, bin_fc=fc)
    residuals = [torch.zeros(n), torch.zeros(n)]
    for t in range(5):
        gradients = [normal(n, 9 * t + rank) for rank in range(2)]
        gradients[0][100:230] = -residuals[0][100:230]  # G = 0 over more than a bin
        expected, lengths = torch.zeros(n), []
        for residual, gradient in zip(residuals, gradients, strict=True):
            lengths.append(3 * HEADER_BYTES)
            for part, size in pieces:
                sent, words = naive_step(residual[part], gradient[part], size)
                expected[part] += sent / 2
                # 8 or 16 bits an element or empty bin, 32 for the value
                lengths[-1] += 4 + words * (1 if size < 64 else 2)
        for update in workers.step(gradients, t):
            torch.testing.assert_close(update, expected, rtol=1e-6, atol=1e-6)
        assert workers.sent[-1] == tuple(lengths)
        for rank, worker in enumerate(workers.workers):
            found = worker.residual[0].clone()
            torch.testing.assert_close(found, residuals[rank], rtol=1e-6, atol=1e-6)
            residuals[rank] = found


def test_hand_calculated_words(team: Any) -> None:
    # r = 0, so H = 2 g. Bin 1: maximum 4, |H| >= 4 at 0 (4) and 2 (-2); bin 2 is zero; bin 3:
    # maximum 2, at 0. The value is (4 + 0 + 2) / 3 = 2.
    crew = team("adacomp", [(7,)], workers=1, bin_fc=3)
    gradient = torch.tensor([4.0, 1.0, -2.0, 0.0, 0.0, 0.0, 2.0])
    assert crew.step([gradient])[0].tolist() == [2.0, 0, -2.0, 0, 0, 0, 2.0]
    assert crew.workers[0].residual[0].tolist() == [2.0, 1.0, 0, 0, 0, 0, 0]
    (frame,) = read_frames(crew.listener.received[-1][0])
    assert (frame.nonzero, frame.params) == (3, 3)
    assert frame.body[:4].clone().view(torch.float32).tolist() == [2.0]
    # position; 0x40: last of its bin; 0x80: negative; 0x7f: an empty bin
    assert frame.body[4:].tolist() == [0x00, 0x80 | 0x40 | 2, 0x40 | 63, 0x40]


@pytest.mark.parametrize(
    ("words", "sent", "size"),
    [
        ([0x40 | 1], 1, 3),  # the second bin is missing
        ([0x02, 0x41, 0x40], 3, 3),  # positions fall
        ([0x40, 0x42], 2, 3),  # beyond the tensor's end
        ([0x3F, 0x40], 1, 3),  # empty, but not the last of its bin
        ([0x00, 0x7F, 0x40], 2, 3),  # empty after an element
        ([0x40, 0x00], 2, 3),  # the last bin does not end
        ([0x40, 0x7F], 2, 3),  # fewer elements than announced
        ([0x40, 0x40, 0, 0, 0], 2, 3),
    ],
)
def test_words_that_do_not_fill_the_bins_are_refused(
    layout_of: LayoutOf, words: list[int], sent: int, size: int
) -> None:
    body = torch.tensor([0, 0, 0x80, 0x3F, *words], dtype=torch.uint8)  # the value is 1
    message = pack_frame(Codec.ADACOMP, body, numel=5, nonzero=sent, params=size)
    with pytest.raises(InputError, match="damaged payload"):
        add_decoded(message, layout_of(5), torch.zeros(5), 1.0)
