"""A method with options keeps what the method promises, but for what rounded sums break."""

from __future__ import annotations

from typing import Any

import pytest

from gcsim.compressors import check
from gcsim.compressors.conformance import CHECKS
from gcsim.compressors.options.method import method_of
from gcsim.errors import InputError

OPTIONS: dict[str, Any] = {
    "dense_steps": 3,
    "dense_tensors": {"below": 100},
    "payload": "bf16",  # float16 cannot hold the hardest values, and that is refused
}
KINDS = ("topk", "powersgd", "randomk", "ef_block_sgdm", "gtopk", "onebit_adam")
"""One of each request; test_options.py compares all methods with themselves without options."""


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_method_with_an_option_passes_every_check(kind: str, option: str) -> None:
    given = {option: OPTIONS[option]}
    try:
        method_of(kind, given)
    except InputError:
        return
    assert check(kind, given) == tuple(CHECKS)
