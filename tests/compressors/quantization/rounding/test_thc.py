"""THC: loops over elements are the oracle; the transform is tested where it is written."""

import itertools

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame, read_frames
from gcsim.compressors.coding.integers.packing import unpack_bits
from gcsim.compressors.coding.rounding.rotation import rotate
from gcsim.compressors.quantization.rounding import thc
from gcsim.compressors.segments import Segments, keys_of
from gcsim.errors import InputError
from tests.compressors.shared import Team, layout_of, normal


def test_every_step_follows_the_definition() -> None:
    # Two tensors, three workers, five steps, with the codes as they were sent.
    crew = Team("thc", [(70,), (33,)], workers=3)
    segments, errors = Segments.of(crew.layout), [torch.zeros(103)] * 3
    for step in range(5):
        given = [normal(103, 10 * step + rank) * (1 + rank) for rank in range(3)]
        updates = crew.step(given, step)
        held = [gradient + error for gradient, error in zip(given, errors, strict=True)]
        norms = [(float(each[:70].norm()), float(each[70:].norm())) for each in held]
        most = thc.HALF_RANGE * np.max(norms, axis=0) / np.sqrt([70, 33])
        keys, decoded = keys_of(crew.layout, 7, step, "thc signs", None), []
        for payload, each in zip(crew.listener.received[0], held, strict=True):
            parts = [unpack_bits(frame.body, frame.numel, 4) for frame in read_frames(payload)]
            codes, rotated = torch.cat(parts).numpy().astype(int), each.clone()
            rotate(rotated, segments, keys, 15 / most)
            place = (rotated + 15).clamp(0, 30).numpy()  # on the grid 0 ... 30
            below, above = (thc.TABLE[(codes + way).clip(0, 15)] for way in (-1, 1))
            # one of the two neighbours in the table
            assert ((place > below - 1e-3) & (place < above + 1e-3)).all()
            decoded.append(torch.from_numpy(thc.TABLE[codes] / 15 - 1))
            rotate(decoded[-1], segments, keys, most, back=True)
        for update in updates:
            torch.testing.assert_close(update, sum(decoded) / 3, rtol=2e-4, atol=2e-4)
        errors = [each - sent for each, sent in zip(held, decoded, strict=True)]
    for worker, error in zip(crew.workers, errors, strict=True):
        torch.testing.assert_close(worker.residual[0], error, rtol=1e-3, atol=1e-3)


def test_no_other_table_has_a_smaller_error() -> None:
    # The error is a sum over neighbours: the best table of 16 integers is a shortest path of 15.
    (y, points), costs = (np.linspace(-1, 1, n) * thc.HALF_RANGE for n in (6001, 31)), {}
    for i, j in itertools.combinations(range(thc.GRID + 1), 2):
        inside = y[(y >= points[i]) & (y < points[j])]
        costs[i, j] = ((inside - points[i]) * (points[j] - inside) * np.exp(-(inside**2) / 2)).sum()
    best = {0: 0.0}
    for _ in range(15):
        ends = range(1 + min(best), 31)
        best = {j: min(best[i] + costs[i, j] for i in best if i < j) for j in ends}
    ours = itertools.pairwise(thc.TABLE.astype(int).tolist())
    assert sum(costs[pair] for pair in ours) == pytest.approx(best[thc.GRID], rel=1e-6)


def test_four_bits_go_up_and_eight_come_down() -> None:
    crew = Team("thc", [(1001,), (10, 7)], workers=2)
    crew.step([normal(1071, rank) for rank in range(2)])
    # a float32 for each tensor, then codes
    assert crew.sent == [(8, 8), (2 * HEADER_BYTES + 501 + 35,) * 2]
    assert crew.listener.collectives[1].pulled == 2 * HEADER_BYTES + 1071
    # 9 workers at 30 each do not fit a byte
    assert [thc.sum_dtype(n).itemsize for n in (1, 8, 9, 1092, 1093)] == [1, 1, 2, 2, 4]


@pytest.mark.parametrize(("wrong", "count"), [(31, 1), (-1, 9)])
def test_sums_that_workers_cannot_have_sent_are_refused(wrong: int, count: int) -> None:
    sums = torch.tensor([0, 1, wrong]).to(thc.sum_dtype(count))
    answer = pack_frame(Codec.THC, sums.view(torch.uint8), numel=3)
    given = torch.zeros(3), layout_of(3), count, np.ones(1), np.zeros(1, dtype=np.uint64)
    with pytest.raises(InputError, match="damaged payload: a sum outside"):
        thc.write_update(answer, *given)
