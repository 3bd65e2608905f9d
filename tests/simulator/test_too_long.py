"""Are times that the clock cannot hold refused with what they are, before 64 bits overflow?"""

import re

import numpy as np
import pytest

from gcsim.errors import InputError
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.predict import predict
from tests.simulator.one_bucket import one_bucket
from tests.simulator.world import cluster, link, reduce

NBYTES = 10**6
TRANSPORTS = ("textbook", "gloo", "nccl", "mpich")


@pytest.mark.parametrize("transport", [*TRANSPORTS, "copies"])
@pytest.mark.parametrize("slowness", [10**7, 10**13, 10**30])
def test_a_collective_says_how_long_it_would_take(transport: str, slowness: int) -> None:
    """At least what one of its messages takes, an eighth of the vector; at most 16 vectors.

    Copies to the host: found by the fuzzer, a bus of a fraction of a bit a second overflowed.
    """
    slow = link(NBYTES / slowness)
    where = (
        cluster(2, 2, transport="gloo", intra_node=slow)
        if transport == "copies"
        else cluster(4, 1, transport=transport, network=slow)
    )
    with pytest.raises(InputError, match="would take some") as caught:
        execute(reduce(NBYTES), np.zeros(4, dtype=np.int64), where)
    [told] = re.findall(r"some (\S+) s", str(caught.value))
    assert 0.9 * slowness / 8 < float(told) < 16 * slowness


@pytest.mark.parametrize("seconds", [10**7, 10**13, 10**30])
def test_an_iteration_says_how_long_it_would_take(seconds: int) -> None:
    time = seconds * 10**12
    times = ComputeTimes(forward=time, backward=time, parts=(time,), provenance="test")
    where = cluster(4, 1)
    with pytest.raises(InputError, match="iteration 0 would end after") as caught:
        predict(one_bucket(reduce(NBYTES)), where, times)
    [told] = re.findall(r"after (\S+) s", str(caught.value))
    assert float(told) == pytest.approx(2 * seconds, rel=0.01)
