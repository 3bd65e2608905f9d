"""AdaComp: bins decide by themselves; one magnitude, words of one or two bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame, read_frames
from gcsim.compressors.sparsification.by_threshold.adacomp import add_decoded
from gcsim.errors import InputError
from tests.compressors.shared import Draw


def naive_step(r: Tensor, g: Tensor, size: int, factor: float) -> tuple[Tensor, int]:
    """(what is sent of one tensor, its words); r is changed."""
    total = r + g
    maxima, chosen, words = [], [], 0
    for first in range(0, r.numel(), size):
        part = total[first : first + size]
        top = float(part.abs().max())
        maxima.append(top)
        soft = part + (factor - 1) * g[first : first + size]
        here = [
            first + i
            for i in range(part.numel())
            if top > 0 and float(part[i]) != 0 and abs(float(soft[i])) >= top
        ]
        chosen += here
        words += max(1, len(here))
    sent = torch.zeros_like(r)
    if maxima:
        sent[chosen] = float(np.float32(np.mean(maxima))) * total[chosen].sign()
    r.copy_(total - sent)
    return sent, words


@pytest.mark.parametrize(("conv", "fc"), [(50, 500), (7, 63), (64, 1)])
@pytest.mark.parametrize("factor", [2.0, 1.0, 3.0])
def test_several_steps_are_those_of_the_definition(
    team: Any, normal: Draw, conv: int, fc: int, factor: float
) -> None:
    crew, n = 2, 1300 + 216 + 5
    given = {"bin_conv": conv, "bin_fc": fc, "scale_factor": factor}
    workers = team("adacomp", [(13, 100), (8, 3, 3, 3), (5,)], workers=crew, **given)
    pieces = [(slice(0, 1300), fc), (slice(1300, 1516), conv), (slice(1516, n), fc)]
    residuals = [torch.zeros(n) for _ in range(crew)]
    for t in range(5):
        gradients = [normal(n, 9 * t + rank) for rank in range(crew)]
        gradients[0][100:230] = -residuals[0][100:230]  # G = 0 over more than a bin
        expected = torch.zeros(n)
        lengths = []
        for rank in range(crew):
            length = 0
            for part, size in pieces:
                sent, words = naive_step(residuals[rank][part], gradients[rank][part], size, factor)
                expected[part] += sent / crew
                # 8 or 16 bits an element or empty bin, 32 for the value
                length += HEADER_BYTES + 4 + words * (1 if size < 64 else 2)
            lengths.append(length)
        for update in workers.step(gradients, t):
            torch.testing.assert_close(update, expected, rtol=1e-6, atol=1e-6)
        assert workers.sent[-1] == tuple(lengths)
        for rank, worker in enumerate(workers.workers):
            residual_of = worker.residual_of(
                Bucket(layout=workers.layout, gradient=gradients[rank])
            )
            torch.testing.assert_close(residual_of, residuals[rank], rtol=1e-6, atol=1e-6)
            residuals[rank] = residual_of


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


def test_an_element_that_grows_is_sent_before_it_is_the_largest(team: Any) -> None:
    # G = (1, .6), H = (1, 1.2): the second is about to become the largest; the paper's point
    crew = team("adacomp", [(2,)], workers=1)
    crew.workers[0].residual[0] = torch.tensor([1.0, 0.0])
    assert crew.step([torch.tensor([0.0, 0.6])])[0].tolist() == [1.0, 1.0]
    assert crew.workers[0].residual[0].tolist() == pytest.approx([0.0, -0.4])


def test_convolutions_have_shorter_bins(team: Any, normal: Draw) -> None:
    crew = team("adacomp", [(10, 10, 3, 3), (900,), (30, 30)], workers=1)
    crew.step([normal(2700)])
    frames = list(read_frames(crew.listener.received[-1][0]))
    assert [frame.params for frame in frames] == [50, 500, 500]


def body(level: float, words: list[int]) -> Tensor:
    head = torch.tensor([level]).view(torch.uint8)
    return torch.cat((head, torch.tensor(words, dtype=torch.uint8)))


@pytest.mark.parametrize(
    ("words", "sent", "size"),
    [
        ([0x40 | 1], 1, 3),  # the second bin is missing
        ([0x40, 0x40, 0x40], 3, 3),  # a bin too many
        ([0x02, 0x41, 0x40], 3, 3),  # positions fall
        ([0x40, 0x42], 2, 3),  # beyond the tensor's end
        ([0x43, 0x40], 2, 3),  # beyond the bin
        ([0x3F, 0x40], 1, 3),  # empty, but not the last of its bin
        ([0x00, 0x7F, 0x40], 2, 3),  # empty after an element
        ([0x40, 0x00], 2, 3),  # the last bin does not end
        ([0x40, 0x7F], 2, 3),  # fewer elements than announced
        ([0x40, 0x40], 2, 0),
        ([0x40, 0x40, 0, 0, 0], 2, 3),
    ],
)
def test_words_that_do_not_fill_the_bins_are_refused(
    layout_of: Callable[..., Any], words: list[int], sent: int, size: int
) -> None:
    message = pack_frame(Codec.ADACOMP, body(1.0, words), numel=5, nonzero=sent, params=size)
    with pytest.raises(InputError, match="damaged payload"):
        add_decoded(message, layout_of(5), torch.zeros(5), 1.0)
