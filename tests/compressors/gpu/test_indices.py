"""Positions of many tensors, coded together: the bodies of each alone, and damage that is seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.coding.indices.index_coding import Coder, decode_indices, encode_indices
from gcsim.compressors.gpu.indices.coded import coded_positions, positions_of
from gcsim.errors import InputError
from tests.compressors.gpu.conftest import kernels
from tests.compressors.gpu.examples import SEEDS, few


@pytest.mark.parametrize("coder", Coder)
@few
@given(
    seed=SEEDS,
    tensors=st.lists(
        st.tuples(st.sampled_from((1, 2, 9, 300, 5000)), st.sampled_from((0, 0.002, 0.3, 1))),
        min_size=1, max_size=5,
    ),
)  # fmt: skip
def test_many_tensors_together(coder: Coder, tensors: list[tuple[int, float]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    each = [torch.from_numpy(np.flatnonzero(rng.random(n) < share)) for n, share in tensors]
    elements, sent = [n for n, _ in tensors], [len(one) for one in each]
    bodies = [encode_indices(one, n, coder) for one, n in zip(each, elements, strict=True)]
    together, positions = torch.cat(bodies), torch.cat(each)
    with kernels():
        found, sizes = coded_positions(positions, sent, elements, coder)
        assert torch.equal(found, together)
        assert sizes == [len(body) for body in bodies]
        read = positions_of(together, sizes, sent, elements, coder)
    assert read is not None
    assert torch.equal(read, positions)


@pytest.mark.parametrize("coder", Coder)
@few
@given(seed=SEEDS, more=st.integers(-1, 1))
def test_damage_is_seen(coder: Coder, seed: int, more: int) -> None:
    """A bit is changed, or one more or less is announced: what one by one is refused, or is not in
    order, is not read together either; and what is read, is the same."""
    rng = np.random.default_rng(seed)
    elements = [50, 1, 300]
    each = [torch.from_numpy(np.flatnonzero(rng.random(n) < 0.2)) for n in elements]
    bodies = [encode_indices(one, n, coder) for one, n in zip(each, elements, strict=True)]
    sizes, together = [len(body) for body in bodies], torch.cat(bodies)
    bit = int(rng.integers(8 * len(together)))
    together[bit // 8] ^= 1 << bit % 8
    sent = [len(one) for one in each]
    sent[2] += more
    with kernels():
        found = positions_of(together, sizes, sent, elements, coder)
    parts = list(zip(torch.split(together, sizes), elements, sent, strict=True))
    if found is None:
        with pytest.raises(InputError):
            [decode_indices(body, n, k, coder) for body, n, k in parts]
        return
    for own, (body, n, k) in zip(torch.split(found, sent), parts, strict=True):
        ascends = bool((own.diff() > 0).all()) and (not k or int(own[-1]) < n)
        if ascends:
            assert torch.equal(own, decode_indices(body, n, k, coder))
        else:
            with pytest.raises(InputError):
                decode_indices(body, n, k, coder)
