"""Levels as Elias words on kernels, and numbers that stay on a device."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.gpu.words import there
from tests.compressors.gpu.conftest import demand_same
from tests.compressors.gpu.examples import few
from tests.compressors.shared import decode_alone


@few
@given(body=st.binary(max_size=6), count=st.integers(0, 9), steps=st.sampled_from((1, 7)))
def test_damaged_levels_are_refused_alike(body: bytes, count: int, steps: int) -> None:
    packed = torch.tensor(list(body), dtype=torch.uint8)
    demand_same(decode_alone, packed, 9, count, steps)


def test_numbers_are_kept_on_a_device_once() -> None:
    device, numbers = torch.device("cpu"), [3, 1, 4]
    first = there(numbers, device)
    assert first.tolist() == numbers
    assert there(tuple(numbers), device) is first
    for other in (there([3, 1, 5], device), there(numbers, device, np.float64), there([], device)):
        assert other is not first
    assert there(np.zeros(1 << 16), device) is not there(np.zeros(1 << 16), device)  # too long
