"""Levels of many tensors, coded together: the bodies of each alone, and damage that is seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.rounding.level_words import WordCoding, coded_levels, decoded_levels
from gcsim.compressors.gpu.rounding.level_words import levels_of
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError
from tests.compressors.gpu.conftest import kernels
from tests.compressors.gpu.examples import SEEDS, few
from tests.compressors.shared import code_alone, decode_alone

CODINGS = pytest.mark.parametrize(("coding", "steps"), [("elias_dense", 3), ("elias_sparse", 3)])


def drawn(elements: list[int], steps: int, seed: int) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    return [
        torch.from_numpy(np.clip(rng.normal(steps, steps, n), 0, 2 * steps).astype(np.uint8))
        for n in elements
    ]


@CODINGS
@few
@given(
    seed=SEEDS,
    elements=st.lists(st.sampled_from((0, 1, 7, 130)), min_size=1, max_size=4),
)  # fmt: skip
def test_many_tensors_together(
    coding: WordCoding, steps: int, elements: list[int], seed: int
) -> None:
    each = drawn(elements, steps, seed)
    bodies, sent = zip(*(code_alone(codes, steps, coding) for codes in each), strict=True)
    together, codes = torch.cat(bodies), torch.cat(each)
    with kernels():
        segments = Segments.behind(elements)
        found, sizes, travelling = coded_levels(codes, segments, steps, coding)
        back = decoded_levels(together, sizes, segments, travelling, steps, coding)
    assert torch.equal(found, together)
    assert sizes.tolist() == [len(body) for body in bodies]
    assert travelling.tolist() == list(sent)
    assert torch.equal(back, codes)


@CODINGS
@few
@given(seed=SEEDS, more=st.integers(-1, 1))
def test_damage_is_seen(coding: WordCoding, steps: int, seed: int, more: int) -> None:
    """A bit is changed, or one more or less is announced: read as one by one, or not at all."""
    elements = [30, 1, 50]
    bodies, announced = zip(
        *(code_alone(codes, steps, coding) for codes in drawn(elements, steps, seed)), strict=True
    )
    sizes, together, sent = [len(body) for body in bodies], torch.cat(bodies), list(announced)
    bit = seed % (8 * len(together))
    together[bit // 8] ^= 1 << bit % 8
    sent[0] += more
    with kernels():
        found = levels_of(together, sizes, elements, sent, steps, coding)
    parts = zip(torch.split(together, sizes), elements, sent, strict=True)
    if found is None:
        with pytest.raises(InputError):
            [decode_alone(body, n, k, steps, coding) for body, n, k in parts]
    else:
        alone_ = [decode_alone(body, n, k, steps, coding) for body, n, k in parts]
        assert torch.equal(found, torch.cat(alone_))
