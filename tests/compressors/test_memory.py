"""Memory that an exchange takes beyond the compressor's state is bounded."""

import json
import sys

import pytest

from gcsim.compressors.registry import REGISTRY
from tests.process import ROOT, printed

STATED: dict[str, float] = {
    # the threshold of the first step lets nearly half of the elements pass at the third, since
    # the same gradient comes again and again: 16 bytes for each pair, here and on its way
    "ok_topk": 10.0,
    # nothing is zero: the whole vector travels, and comes back
    "omnireduce": 7.0,
}
"""Floats an element beyond the state, of methods whose documentation states more than 6."""


@pytest.fixture(scope="module")
def peaks() -> dict[str, float]:
    """Peaks by method, of a process of its own: what other tests left in memory is none of its."""
    command = ("-m", "tests.compressors.peak_memory", json.dumps(STATED))
    found: dict[str, float] = json.loads(printed(*command, folder=ROOT))
    return found


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("name", REGISTRY)
def test_an_exchange_peaks_at_six_floats_an_element(name: str, peaks: dict[str, float]) -> None:
    assert peaks[name] <= STATED.get(name, 6.0)
