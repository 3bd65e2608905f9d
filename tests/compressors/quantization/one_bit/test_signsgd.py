"""signSGD's update is the majority of the workers' signs."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.compressors.meter import Meter
from gcsim.compressors.quantization.one_bit import signsgd
from gcsim.errors import InputError
from tests.compressors.shared import exchange, layout_of, members, normal, step_of

SIZES = (37, 0, 5, 1)
N = sum(SIZES)


workers = partial(members, signsgd.SignSgd)


def majority(vectors: list[torch.Tensor]) -> torch.Tensor:
    """By counting: the sum of signs, zero being positive."""
    total = torch.stack([torch.where(v < 0, -1.0, 1.0) for v in vectors]).sum(0)
    return torch.where(total == 0, 1.0, total.sign())


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_update_is_the_majority_of_the_signs(count: int) -> None:
    layout, group = layout_of(*SIZES), workers(count)
    for step in range(3):
        gradients = [normal(N, 10 * step + rank) for rank in range(count)]
        gradients[0][3] = -0.0  # zero is positive
        for update in step_of(group, layout, gradients, step):
            assert torch.equal(update, majority(gradients))


def test_signum_votes_on_the_running_average() -> None:
    # Oracle in float64: m = beta m + (1 - beta) g on each worker, from zero.
    beta, count = 0.7, 3
    chosen = signsgd.SignumParameters(beta=beta)
    group = [
        signsgd.Signum(Worker(rank=rank, count=count, seed=7), chosen) for rank in range(count)
    ]
    layout = layout_of(*SIZES)
    m = np.zeros((count, N))
    for step in range(6):
        gradients = [normal(N, 10 * step + rank) for rank in range(count)]
        m = beta * m + (1 - beta) * np.stack([g.double().numpy() for g in gradients])
        expected = majority([torch.from_numpy(v) for v in m]).float()
        assert torch.equal(step_of(group, layout, gradients, step)[1], expected)
    assert signsgd.Signum.momentum(chosen) == (0.7, False)
    assert signsgd.SignSgd.momentum(workers(1)[0].parameters) == (0.0, False)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1001])
def test_one_bit_an_element_travels(n: int) -> None:
    expected = 2 * HEADER_BYTES + math.ceil(n / 8) + 1
    bucket = Bucket(layout=layout_of(n, 3), gradient=normal(n + 3))
    meter = Meter(3)
    exchange(workers(3), [bucket] * 3, 0, meter)
    assert meter.collectives == [
        CollectiveRecord(
            kind="push_pull",
            sent=(expected,) * 3,
            pulled=expected,
            without_server="alltoall_allgather",
        )
    ]


def test_damage_is_refused() -> None:
    layout, out = layout_of(20), torch.zeros(20)
    bits = torch.full((3,), 0xFF, dtype=torch.uint8)
    for damaged in (
        pack_frame(Codec.SIGN, bits, numel=20, nonzero=20),  # four bits of padding are set
        pack_frame(Codec.SIGN, bits[:2], numel=20, nonzero=20),
        pack_frame(Codec.SIGN, bits[:2], numel=16, nonzero=16),
        pack_frame(Codec.SIGN_BLOCK, bits & 15, numel=20, nonzero=20),
    ):
        with pytest.raises(InputError):
            signsgd.write_decoded(damaged, out, layout)
