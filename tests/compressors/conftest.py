"""Tests of compressors set torch's number of threads."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Set torch's number of threads; it is put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def same_on_any_threads(threads: Callable[[int], None]) -> Callable[..., tuple[Any, ...]]:
    """What `run()` returns, tensors or numbers, after a check that 1, 2 and 3 threads agree."""

    def check(run: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        found = []
        for count in (1, 2, 3):
            threads(count)
            found.append(run())
        for other in found[1:]:
            for one, two in zip(found[0], other, strict=True):
                assert torch.equal(one, two) if isinstance(one, Tensor) else one == two
        return found[0]

    return check
