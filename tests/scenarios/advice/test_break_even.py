"""Break-even and changes: are they what the engine of a run says at those settings?

Expected numbers are those of runs of the same scenario with the printed settings, as `gcsim run
--set` has them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gcsim.scenarios.advice.asked import Asked, Words, asked
from gcsim.scenarios.advice.break_even import at_rate, break_even, rate_key
from gcsim.scenarios.advice.changes import candidates, changes, limits
from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.findings import FASTEST, SLOWEST
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.result import Row
from gcsim.scenarios.run import simulated_run
from gcsim.traces.profile import TrafficProfile

LABELS = ("fp16", "PowerSGD rank 4", "Top-k 1 %")


pytestmark = pytest.mark.usefixtures("own_cache")


def question(**words: object) -> Asked:
    given = {"model": "lenet", "device": "v100", "nodes": 4, "network": "1 Gbit/s", **words}
    return asked(None, Words(**given), ["uncertainty.draws=16"])  # type: ignore[arg-type]


def run_with(engine: Engine, overrides: list[str]) -> dict[str, Row]:
    """Rows of a whole run with these settings, and the profiles that the engine has."""
    scenario = engine.asked.changed(overrides)
    assert scenario is not None
    profiles: list[TrafficProfile] = []
    for choice in scenario.compressors:
        known = engine.known(choice, scenario)
        assert known is not None
        profiles.append(known.profile)
    result = simulated_run(
        scenario, ["-"] * len(profiles), profiles, None, progress=SilentProgress(), timelines=False
    )
    return {row.label: row for row in result.rows}


def test_the_range_holds_the_worlds_break_evens() -> None:
    """At the lower end the method pays in nine worlds of ten, at the upper end in one; at the rate
    itself the printed iterations are equal. Of 64 worlds a percentile is a mean of several, and the
    gain a line between two rates."""
    words = Words(model="resnet50", device="v100", gpus=4, nodes=8, network="25 Gbit/s")
    engine = Engine(asked(None, words))
    (found,) = break_even(engine, ["fp16"], ["fp16"], lambda: None)
    for rate, share in ((found.low, 0.9), (found.rate, None), (found.high, 0.1)):
        assert rate is not None
        if not SLOWEST < rate < FASTEST:
            continue
        rows = engine.rows([at_rate("cluster.network.bandwidth", rate)], draws=True)
        assert rows is not None
        dense, half = rows["dense"], rows["fp16"]
        if share is None:
            assert half.iteration_s == pytest.approx(dense.iteration_s, rel=0.01)
        else:
            faster = np.less(half.iteration_draws_s, dense.iteration_draws_s)
            assert np.mean(faster) == pytest.approx(share, abs=0.08)


@pytest.mark.long
def test_at_the_rate_both_take_the_same_time_and_beyond_it_their_order_flips() -> None:
    engine = Engine(question())
    key = rate_key(engine.scenario)
    assert key == "cluster.network.bandwidth"
    found = break_even(engine, LABELS, LABELS, lambda: None)
    assert [one.label for one in found] == list(LABELS)
    ends = [one for one in found if one.rate is not None]
    assert ends
    for one in ends:
        assert one.rate is not None

        def gain(rate: float, label: str = one.label) -> float:
            rows = run_with(engine, [at_rate(key, rate)])
            return math.log(rows["dense"].iteration_s / rows[label].iteration_s)

        # the median over the worlds, each a line between two rates; here a ratio of medians
        assert abs(gain(one.rate)) < 0.1
        assert gain(one.rate / 2) > gain(one.rate * 2)  # at a flat end medians nearly tie
        assert one.low is not None
        assert one.high is not None
        assert one.low <= one.rate <= one.high


def test_a_method_without_a_rate_is_faster_everywhere_or_nowhere() -> None:
    engine = Engine(question(network="100 Gbit/s"))
    every = [choice.label for choice in engine.scenario.compressors[1:]]
    for one in break_even(engine, every, (), lambda: None):
        if one.rate is not None:
            continue
        for rate in (1e6, 1e9, 1e11):
            rows = run_with(engine, [at_rate("cluster.network.bandwidth", rate)])
            faster = rows[one.label].iteration_s < rows["dense"].iteration_s
            assert faster == one.pays, (one.label, rate)


@pytest.mark.parametrize("transport", ["nccl", "gloo"])
def test_a_change_saves_what_a_run_with_it_saves(transport: str) -> None:
    base = question(gpus=2)
    engine = Engine(replace(base, overrides=(
        *base.overrides, f"cluster.collectives.transport={transport}"
    )))  # fmt: skip
    now = run_with(engine, [])
    found = changes(engine, ["fp16"])
    words = {one.words for one in found}
    assert "twice the bandwidth" in words
    assert ("NCCL" in words) <= (transport == "gloo")
    for one in found:
        then = run_with(engine, list(one.overrides))
        for label, saved in one.saves_s.items():
            row = then[label] if label in then and not one.overrides[0].startswith(
                "compressors") else then["post-local SGD, 4 steps"]  # fmt: skip
            # as many samples: of four micro-batches a quarter of the iteration
            samples = row.throughput_samples_per_s * row.iteration_s
            usual = now[label].throughput_samples_per_s * now[label].iteration_s
            expected = now[label].iteration_s - row.iteration_s * usual / samples
            assert saved == pytest.approx(expected, rel=1e-9), one.words


def test_what_is_proposed_can_be_set() -> None:
    for words in ({}, {"nodes": 1, "gpus": 4}, {"device": "cpu_2core"}):
        engine = Engine(question(**words))
        for _, overrides, _ in candidates(engine.scenario):
            assert engine.asked.changed(overrides) is not None, overrides


def test_parts_of_the_time_are_those_of_the_row() -> None:
    engine = Engine(question())
    rows = run_with(engine, [])
    for label, one in limits(engine, ["fp16"]).items():
        row = rows[label]
        whole = one.compute_s + one.encode_s + one.decode_s + one.waits_s
        assert whole == pytest.approx(row.iteration_as_stated_s or row.iteration_s, rel=1e-9)
        assert 0 <= one.bytes_s <= one.waits_s
        assert 0 <= one.latency_s <= one.waits_s


def test_one_worker_has_nothing_to_gain_from_the_network() -> None:
    engine = Engine(question(nodes=1))
    assert rate_key(engine.scenario) is None
    assert not changes(engine, ["fp16"])
    assert not break_even(engine, LABELS, (), lambda: None)
