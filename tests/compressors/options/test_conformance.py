"""A method with options keeps what the method promises, but for what rounded sums break."""

from __future__ import annotations

from typing import Any

import pytest

from gcsim.compressors import check
from gcsim.compressors.conformance import CHECKS
from gcsim.compressors.options.method import method_of
from gcsim.compressors.registry import REGISTRY
from gcsim.errors import InputError

OPTIONS: dict[str, Any] = {
    "dense_steps": 3,
    "dense_tensors": {"below": 100},
    "payload": "bf16",  # float16 cannot hold the hardest values, and that is refused
}
QUICK = ("topk", "powersgd", "randomk", "ef_block_sgdm")
SLOW = {"alq", "amq"}
"""They fit their levels anew at each step."""


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.long] * (kind not in QUICK))
        for kind in REGISTRY
        if kind not in SLOW
    ],
)
def test_a_method_with_an_option_passes_every_check(kind: str, option: str) -> None:
    given = {option: OPTIONS[option]}
    try:
        method_of(kind, given)
    except InputError:
        return
    assert check(kind, given) == tuple(CHECKS)
