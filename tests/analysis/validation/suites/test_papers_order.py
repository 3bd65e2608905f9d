"""Does the shipped scenario of the CVPR 2021 cluster say of its methods what the paper says?

What does not come out is in here too, so that it is noticed when it changes.
"""

from pathlib import Path

import pytest

from gcsim.analysis.validation.suites.papers.order import (
    AHEAD,
    DENSE,
    DGC,
    EB,
    GSB,
    MEASURED,
    METHODS,
    QL,
    orderings,
    point,
    rows,
)
from tests.benchmarks.alexnet_traffic import traffic


def test_the_order_is_the_papers_but_for_those_near_dense_training() -> None:
    order, ahead = orderings()
    assert len(order.pairs) == 14
    # DGC and 1-bit SGD come out about as fast as dense training, not ahead of it and behind it.
    assert set(order.wrong) <= {(DGC, EB), (DENSE, EB), (DGC, DENSE)}
    either = rows()[EB].speedup_low
    assert either is not None
    assert either < 1  # the draws do not exclude what the paper says of it
    assert not ahead.wrong  # "outperforms other methods by more than 76%"


def test_the_interval_of_gradient_sampling_holds_what_was_measured() -> None:
    row = rows()[GSB]
    assert row.speedup_low is not None
    assert row.speedup_high is not None
    assert row.speedup_low <= point().measured <= row.speedup_high


def test_256_images_a_second_a_machine_make_the_papers_speedup() -> None:
    """64 images in 250 ms, everything else as stated; 2.5 and more than 1.76 in the paper."""
    loaded = rows(**{"training.input.batch": "250 ms", "uncertainty.draws": "0"})
    speedup = {kind: row.speedup_vs_dense or 0.0 for kind, row in loaded.items()}
    assert speedup[GSB] == pytest.approx(MEASURED, rel=0.05)
    assert speedup[GSB] > AHEAD * max(speedup[kind] for kind in (QL, DGC, DENSE, EB))


@pytest.mark.long
def test_the_traffic_in_the_data_is_what_the_methods_send(
    main_job: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes, where it is not in the cache. Gradients differ in their last bits between
    processors: what depends on their values, such as how much quantised runs pack, within 2 %."""
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(main_job[1]))
    fresh = {profile.compressor: profile for profile in traffic()}
    assert set(fresh) == set(METHODS)
    for kind, row in rows().items():
        assert fresh[kind].wire_bytes(64) == pytest.approx(row.wire_bytes_per_worker, rel=0.02)
