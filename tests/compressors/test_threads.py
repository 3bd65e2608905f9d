"""Results do not depend on the number of threads: else runs could not be repeated."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors.registry import REGISTRY
from tests.compressors.shared import Team
from tests.compressors.test_segments import METHODS

MATRIX, VECTOR = (760, 531), (15_013,)
"""Over 3 * 2^17 elements in the first: three threads share its loops; an odd number in both."""
WORKERS, STEPS = 2, 2
MATRIX_PRODUCTS = {"powersgd", "torch_powersgd"}
"""Their last bits are torch's: it splits sums of products as it likes."""


Given = dict[str, Any]
CASES = [*((name, {}) for name in REGISTRY), *(case for case in METHODS if case[1])]


def _run(name: str, parameters: Given) -> tuple[list[list[Tensor]], list[Tensor]]:
    """All payloads and all updates of a few steps; gradients are the same at each call."""
    generator = torch.Generator().manual_seed(5)
    group = Team(name, [MATRIX, VECTOR, (0,), (65_537,)], workers=WORKERS, **parameters)
    n = group.layout.numel
    payloads, updates = [], []
    for step in range(STEPS):
        gradients = [torch.randn(n, generator=generator) for _ in range(WORKERS)]
        updates += [update.clone() for update in group.step(gradients, step)]
        payloads += group.listener.as_sent
    return payloads, updates


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_payloads_and_updates_are_equal_on_one_and_three_threads(
    name: str, parameters: Given, threads: Callable[[int], None]
) -> None:
    threads(1)
    payloads, updates = _run(name, parameters)
    threads(3)
    again, updates_again = _run(name, parameters)
    assert len(again) == len(payloads)
    for here, there in zip(payloads, again, strict=True):
        assert all(map(torch.equal, here, there))
    equal = torch.allclose if name in MATRIX_PRODUCTS else torch.equal
    assert all(map(equal, updates, updates_again))
