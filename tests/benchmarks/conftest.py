"""Fixtures of the benchmarks."""

from collections.abc import Iterator

import pytest
import torch

from gcsim.traces.timing.allocator import keep_freed_memory


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread of torch, which keeps the memory that it frees."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()
    yield
    torch.set_num_threads(before)
