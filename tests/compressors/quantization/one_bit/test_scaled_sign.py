"""Scaled sign has exactly the error of its formula; EF-signSGD makes up for what it loses;
dist-EF-blockSGDM codes both directions so."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, as_bytes, pack_frame
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.compressors.meter import Meter
from gcsim.compressors.quantization.one_bit.scaled_sign import (
    EfBlockSgdm,
    EfSignSgd,
    ScaledSign,
    add_decoded,
)
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError
from tests.compressors.shared import exchange, fold, layout_of, members, normal, step_of

Vector = np.ndarray[Any, Any]
SIZES = (37, 0, 5, 1)
N = sum(SIZES)
BLOCKS = [slice(0, 37), slice(37, 42), slice(42, 43)]


blocked = partial(members, EfBlockSgdm)


def coded(vector: Vector, blocks: list[slice] = BLOCKS) -> Vector:
    """Reference coder: mean magnitude times sign (of zero: +), block by block."""
    out = np.empty_like(vector)
    for block in blocks:
        out[block] = np.abs(vector[block]).mean() * np.where(vector[block] < 0, -1.0, 1.0)
    return out


def owing(worker: ScaledSign, bucket: Bucket) -> torch.Tensor:
    residual_of = worker.residual_of(bucket)
    assert residual_of is not None
    return residual_of


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("cls", [ScaledSign, EfSignSgd])
def test_updates_follow_the_algorithm_step_by_step(cls: type[ScaledSign], count: int) -> None:
    # Independent float64 loop: p = g + e, e = p - Q(p).
    layout, group = layout_of(*SIZES), members(cls, count)
    remember = cls is EfSignSgd
    errors = np.zeros((count, N))
    for step in range(5):
        gradients = [normal(N, 10 * step + rank) for rank in range(count)]
        mean = np.zeros(N)
        for rank, gradient in enumerate(gradients):
            p = gradient.double().numpy() + errors[rank]
            mean += coded(p) / count
            errors[rank] = (p - coded(p)) * remember
        updates = step_of(group, layout, gradients, step)
        np.testing.assert_allclose(updates[0].numpy(), mean, rtol=2e-4, atol=1e-5)
        assert all(torch.equal(update, updates[0]) for update in updates)


def test_a_worker_that_has_not_begun_owes_nothing() -> None:
    bucket = Bucket(layout=layout_of(*SIZES), gradient=torch.ones(N))
    assert torch.equal(owing(members(EfSignSgd, 2)[0], bucket), torch.zeros(N))
    assert members(ScaledSign, 2)[0].residual_of(bucket) is None


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000, 1001])
@pytest.mark.parametrize("cls", [ScaledSign, EfSignSgd])
def test_a_tensor_takes_one_scale_and_one_bit_an_element(cls: type[ScaledSign], n: int) -> None:
    bucket = Bucket(layout=layout_of(n, 3), gradient=normal(n + 3))
    expected = HEADER_BYTES + (4 if n else 0) + math.ceil(n / 8) + HEADER_BYTES + 4 + 1
    meter = Meter(1)
    exchange(members(cls, 1), [bucket], 0, meter)
    assert meter.collectives == [CollectiveRecord(kind="all_gather", sent=(expected,))]


# --- dist-EF-blockSGDM ----------------------------------------------------------------------------


def test_updates_follow_the_published_algorithm_step_by_step() -> None:
    # Independent float64 loop over Algorithm 2 of Zheng et al. (rho = 1), three workers.
    m, count = 0.9, 3
    layout, group = layout_of(37, 5, 1), blocked(count)
    u, e = np.zeros((count, 43)), np.zeros((count, 43))
    server = np.zeros(43)
    for step in range(6):
        gradients = [normal(43, 10 * step + rank) for rank in range(count)]
        total = np.zeros(43)
        for rank, gradient in enumerate(gradients):
            g = gradient.double().numpy()
            u[rank] = m * u[rank] + g
            p = g + m * u[rank] + e[rank]
            e[rank] = p - coded(p)
            total += coded(p)
        q = total / count + server
        server = q - coded(q)
        updates = step_of(group, layout, gradients, step)
        for update in updates:
            np.testing.assert_allclose(update.numpy(), coded(q), rtol=2e-4, atol=1e-5)
        assert torch.equal(updates[0], updates[2])


@pytest.mark.parametrize("most", [None, 1, 64, 100, 4096])
@pytest.mark.parametrize("n", [1, 7, 8, 1000, 1001])
def test_both_directions_take_one_bit_and_one_scale_a_block(n: int, most: int | None) -> None:
    layout = layout_of(n, 3)
    meter = Meter(1)
    (worker,) = blocked(1, block_elements=most)
    bucket = Bucket(layout=layout, gradient=normal(n + 3))
    exchange([worker], [bucket], 0, meter)
    expected = 0
    for size in (n, 3):
        blocks = 1 if most is None else math.ceil(size / most)
        expected += HEADER_BYTES + 4 * blocks + math.ceil(size / 8)
    assert meter.collectives == [
        CollectiveRecord(
            kind="push_pull", sent=(expected,), pulled=expected, without_server="alltoall_allgather"
        )
    ]


@given(n=st.integers(1, 10**8), most=st.none() | st.integers(1, 10**6))
def test_a_receiver_knows_the_block_length_from_the_number_of_blocks(
    n: int, most: int | None
) -> None:
    cells = Segments.alone(n).even_cells(most)
    (length,), (blocks,) = cells.size, cells.count
    assert length <= (n if most is None else most)
    assert -(-n // blocks) == length
    assert blocks == (1 if most is None else -(-n // length))


def test_the_scale_of_a_long_tensor_is_exact_to_float32() -> None:
    values = normal(1 << 20).repeat(16)
    exact = float(values.double().abs().mean())
    assert float(fold(values, values.numel())[1]) == pytest.approx(exact, rel=1e-6)


def test_a_body_that_nobody_wrote_is_refused() -> None:
    layout = layout_of(20)
    out = torch.zeros(20)
    # A whole frame of a body that nobody wrote: 20 signs leave four bits of padding.
    scale, bits = as_bytes(torch.ones(1)), torch.full((3,), 0xFF, dtype=torch.uint8)
    for body, words in (
        (torch.cat((scale, bits)), "padding"),
        (torch.cat((as_bytes(-torch.ones(1)), bits & 0x0F)), "scale"),
        (torch.cat((as_bytes(torch.tensor([torch.inf])), bits & 0x0F)), "scale"),
        (bits & 0x0F, "blocks"),
        (
            torch.cat((as_bytes(torch.ones(11)), bits & 0x0F)),
            r"\[11\] blocks",
        ),  # 2 each: 10 would do
    ):
        with pytest.raises(InputError, match=words):
            add_decoded(pack_frame(Codec.SIGN_BLOCK, body, numel=20, nonzero=20), layout, out, 1.0)


def test_the_error_of_the_first_step_is_what_the_laws_say() -> None:
    # Without memory p = (1 + m) g: the update is 1.9 Q(g), compared with g.
    group = blocked(1, block_elements=64)
    gradient = normal(1000)
    (update,) = step_of(group, layout_of(1000), [gradient], 0)
    law = EfBlockSgdm.properties(group[0].parameters)
    assert law.error_bound is not None
    error = float((update - gradient).double().square().sum())
    assert error == pytest.approx(law.error_bound(gradient), rel=1e-4)
    decoded = np.concatenate(
        [
            coded(part, [slice(None)])
            for part in np.split(gradient.double().numpy(), range(63, 1000, 63))
        ]
    )
    assert error == pytest.approx(float(((1.9 * decoded - gradient.numpy()) ** 2).sum()), rel=1e-4)
    assert law.error_is_exact
    assert law.conserves
