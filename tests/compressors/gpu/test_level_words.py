"""Levels of many tensors, coded together: the bodies of each alone, and damage that is seen."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.rounding.level_words import coded_levels, decoded_levels
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError
from tests.compressors.gpu.conftest import kernels
from tests.compressors.gpu.examples import SEEDS, few
from tests.compressors.shared import code_alone, decode_alone

STEPS = 3


def drawn(elements: list[int], seed: int) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    return [
        torch.from_numpy(np.clip(rng.normal(STEPS, STEPS, n), 0, 2 * STEPS).astype(np.uint8))
        for n in elements
    ]


@few
@given(
    seed=SEEDS,
    elements=st.lists(st.sampled_from((0, 1, 7, 130)), min_size=1, max_size=4),
)  # fmt: skip
def test_many_tensors_together(elements: list[int], seed: int) -> None:
    each = drawn(elements, seed)
    bodies, sent = zip(*(code_alone(codes, STEPS) for codes in each), strict=True)
    together, codes = torch.cat(bodies), torch.cat(each)
    with kernels():
        segments = Segments.behind(elements)
        found, sizes, travelling = coded_levels(codes, segments, STEPS)
        back = decoded_levels(together, sizes, segments, travelling, STEPS)
    assert torch.equal(found, together)
    assert sizes.tolist() == [len(body) for body in bodies]
    assert travelling.tolist() == list(sent)
    assert torch.equal(back, codes)


@few
@given(seed=SEEDS, more=st.integers(-1, 1))
def test_damage_is_seen(seed: int, more: int) -> None:
    """A bit is changed, or one more or less is announced: read as one by one, or not at all."""
    elements = [30, 1, 50]
    bodies, announced = zip(
        *(code_alone(codes, STEPS) for codes in drawn(elements, seed)), strict=True
    )
    sizes, together, sent = [len(body) for body in bodies], torch.cat(bodies), np.array(announced)
    bit = seed % (8 * len(together))
    together[bit // 8] ^= 1 << bit % 8
    sent[0] += more

    def together_read() -> Tensor:
        with kernels():
            return decoded_levels(together, np.array(sizes), Segments.behind(elements), sent, STEPS)

    parts = zip(torch.split(together, sizes), elements, sent.tolist(), strict=True)
    try:
        alone = torch.cat([decode_alone(body, n, k, STEPS) for body, n, k in parts])
    except InputError:
        with pytest.raises(InputError):
            together_read()
    else:
        assert torch.equal(together_read(), alone)
