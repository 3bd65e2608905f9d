"""1-bit SGD is its published algorithm: column means, stripes with owners, and no lost mass."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame, read_frames
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.compressors.quantization.one_bit.onebit_sgd import (
    OneBitSgd,
    add_decoded,
    encoded,
    matrices_of,
)
from gcsim.compressors.registry import check_parameters
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError
from tests.compressors.shared import Team, layout_of_shapes, normal

Array = NDArray[np.float64]

SHAPES = [(16, 7), (5,), (4, 3, 2), (), (3, 1), (0, 4)]
MATRICES = [(16, 7), (5, 1), (4, 6), (1, 1), (3, 1), (0, 4)]
N = 16 * 7 + 5 + 24 + 1 + 3


def coded(matrix: Array) -> Array:
    """What each column decodes to, column by column."""
    out = np.zeros_like(matrix)
    for j in range(matrix.shape[1] if matrix.size else 0):
        column = matrix[:, j]
        over = column >= 0
        high = column[over].mean() if over.any() else 0.0
        low = column[~over].mean() if (~over).any() else 0.0
        out[:, j] = np.where(over, high, low)
    return out


def matrices_in(flat: Tensor) -> list[Array]:
    found, at = [], 0
    for rows, columns in MATRICES:
        part = flat[at : at + rows * columns].double().numpy()
        found.append(part.reshape(rows, columns))
        at += rows * columns
    return found


def flat_of(matrices: list[Array]) -> Tensor:
    return torch.from_numpy(np.concatenate([matrix.reshape(-1) for matrix in matrices]))


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_updates_follow_the_published_algorithm_step_by_step(count: int, feedback: bool) -> None:
    # Naive float64 loop. A column's levels do not depend on who owns it: the owner's step is the
    # Naive float64 loop. A column's levels do not depend on who owns it: the owner's step is the
    # same coder on the mean, with an error of its own.
    crew = Team("onebit_sgd", SHAPES, workers=count, error_feedback=feedback)
    errors = [[np.zeros(shape) for shape in MATRICES] for _ in range(count)]
    owned = [np.zeros(shape) for shape in MATRICES]
    for step in range(4):
        gradients = [0.1 + normal(N, 10 * step + rank) for rank in range(count)]
        total = [np.zeros(shape) for shape in MATRICES]
        for rank, gradient in enumerate(gradients):
            for t, part in enumerate(matrices_in(gradient)):
                a = part + errors[rank][t]
                q = coded(a)
                errors[rank][t] = a - q if feedback else 0 * a
                total[t] += q / count
        for t, mean in enumerate(total):
            a = mean + owned[t]
            total[t] = coded(a)
            owned[t] = a - total[t] if feedback else 0 * a
        updates = crew.step(gradients, step)
        assert all(torch.equal(update, updates[0]) for update in updates)
        torch.testing.assert_close(updates[0].double(), flat_of(total), rtol=1e-4, atol=1e-5)


def test_the_error_of_one_column_is_that_of_the_law() -> None:
    chosen: Any = check_parameters("onebit_sgd", {})
    bound = OneBitSgd.properties(chosen).error_bound
    assert bound is not None
    for seed in range(5):
        values = normal(200, seed) + 0.3
        (update,) = Team("onebit_sgd", [(200,)], workers=1).step([values])
        error = float((update - values).double().square().sum())
        assert error == pytest.approx(bound(values), rel=1e-5)


def test_stripes_travel_as_bits_and_two_levels_a_column_both_ways() -> None:
    # 3 workers: stripes of ceil(7 / 3) = 3 columns of 16 rows, then 1 of 5, 2 of 4, 1 of 1,
    # 1 of 3, and ceil(4 / 3) = 2 of none.
    crew = Team("onebit_sgd", SHAPES, workers=3)
    crew.step([normal(N, rank) for rank in range(3)])
    stripes = [(16, 3), (5, 1), (4, 2), (1, 1), (3, 1), (0, 0)]
    part = sum(HEADER_BYTES + 8 * w + -(-r * w // 8) for r, w in stripes)
    assert crew.listener.collectives == [
        CollectiveRecord(kind="all_to_all", sent=(3 * part,) * 3),
        CollectiveRecord(kind="all_gather", sent=(part,) * 3, part=True),
    ]


@pytest.mark.parametrize("shape", [(20, 20_000), (200_000, 2), (400_000,)])
def test_wide_and_long_matrices_on_any_number_of_threads(
    shape: tuple[int, ...], same_on_any_threads: Any
) -> None:
    def run() -> Any:
        crew = Team("onebit_sgd", [shape], workers=2)
        return crew.step([normal(400_000, rank) for rank in range(2)])[:1]

    found = same_on_any_threads(run)
    matrix = (shape[0], 400_000 // shape[0])
    values = [normal(400_000, rank).double().view(matrix).numpy() for rank in range(2)]
    expected = coded((coded(values[0]) + coded(values[1])) / 2)
    np.testing.assert_allclose(found[0].view(matrix).numpy(), expected, rtol=1e-4)


def test_damage_is_refused() -> None:
    layout = layout_of_shapes([(5, 4)])
    (payload,) = encoded(normal(20), matrices_of(layout, 1), Segments.of(layout), keep_error=False)

    def decode(message: Tensor, count: int = 1) -> None:
        stripes = matrices_of(layout, count).stripes_of(0)
        add_decoded(message, layout, torch.zeros(20), 1.0, stripes=stripes)

    decode(payload)
    with pytest.raises(InputError, match="damaged payload"):
        decode(payload, 2)  # a stripe of 2 columns is expected
    (frame,) = read_frames(payload)
    padded = torch.cat((frame.body[:-1], frame.body[-1:] | 0xF0))  # 20 bits: 4 of padding
    for body, flags in ((padded, 0), (frame.body, 1), (frame.body[:-1], 0)):
        message = pack_frame(Codec.BINARY, body, numel=20, nonzero=20, flags=flags)
        with pytest.raises(InputError, match="damaged payload"):
            decode(message)
