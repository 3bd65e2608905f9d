"""A method with options keeps what the method promises, but for what rounded sums break."""

from typing import Any

import pytest

from gcsim.compressors import check
from gcsim.compressors.conformance import CHECKS
from gcsim.compressors.options.method import method_of
from gcsim.errors import InputError

DENSE = {"dense_steps": 3, "dense_tensors": {"below": 100}}
PAYLOAD = {"payload": "bf16"}  # float16 cannot hold the hardest values, and that is refused
KINDS = ("topk", "powersgd", "randomk", "ef_block_sgdm", "gtopk", "onebit_adam")
"""One of each request; test_options.py compares all methods with themselves without options."""


@pytest.mark.parametrize("given", [DENSE, PAYLOAD], ids="+".join)
@pytest.mark.parametrize("kind", KINDS)
def test_a_method_with_options_passes_every_check(kind: str, given: dict[str, Any]) -> None:
    """Steps and tensors that stay dense together; rounded sums promise less, and stand alone."""
    try:
        method_of(kind, given)
    except InputError:
        return
    assert check(kind, given) == tuple(CHECKS)
