"""Is a ring with a few short blocks followed rightly where only ranks around these are computed?"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from gcsim.simulator.collectives.rings.announced import AnnouncedRing, _odd_run
from gcsim.simulator.collectives.rings.gloo_allreduce import LARGEST_SEGMENT, program
from tests.simulator.world import NETWORK


@pytest.mark.parametrize("gamma", [Fraction(0), Fraction(25, 10**12)])
@pytest.mark.parametrize(("ranks", "nbytes"), [(40, 70_004), (101, 7904), (150, 3_000_004)])
@pytest.mark.parametrize("spread", [0, 10**6, 10**9])
def test_ranks_that_keep_the_pace_need_not_be_computed(
    ranks: int, nbytes: int, gamma: Fraction, spread: int
) -> None:
    """Against the same ring with all ranks computed, which the oracles of Gloo's rings check."""
    backwards = program(nbytes, ranks, 4, LARGEST_SEGMENT)
    entry = np.random.default_rng(ranks).integers(0, spread + 1, ranks)
    ring, whole = (AnnouncedRing(backwards, [NETWORK] * ranks, gamma=gamma) for _ in range(2))
    assert ring._odd is not None
    whole._odd = None
    assert ring(entry).tolist() == whole(entry).tolist()


def test_the_odd_blocks_are_those_unlike_the_commonest() -> None:
    kinds = np.zeros(32, dtype=np.int64)
    assert _odd_run(kinds) is None
    kinds[[31, 0, 2]] = 1, 2, 1  # from 31 over the end to 2
    assert _odd_run(kinds) == (31, 4)
    kinds[16] = 1
    assert _odd_run(kinds) is None
