"""Break-even and changes: are they what the engine of a run says at those settings?

Expected numbers are those of runs of the same scenario with the printed settings, as `gcsim run
--set` has them.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gcsim.scenarios.advice.break_even import break_even, no_break_even
from gcsim.scenarios.advice.changes import candidates, changes, limits
from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.advice.question import Question, Words, ask
from gcsim.scenarios.advice.slowest_link import links_between, slowest_link
from gcsim.scenarios.findings import FASTEST, SLOWEST
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.result import Row
from gcsim.scenarios.run import simulated_run
from gcsim.traces.profile import TrafficProfile
from gcsim.units import parse

LABELS = ("fp16", "PowerSGD rank 4", "Top-k 1 %")


pytestmark = pytest.mark.usefixtures("own_cache")


def question(**words: object) -> Question:
    alike = {"device": "v100", "nodes": 4, "network": "1 Gbit/s"}
    given = {"model": "lenet", **({} if "group" in words else alike), **words}
    return ask(None, Words(**given), ["uncertainty.draws=16"])  # type: ignore[arg-type]


def at_rate(engine: Engine, rate: float) -> tuple[str, ...]:
    """Settings of a line rate of the slowest link."""
    link = slowest_link(engine.question)
    assert link is not None
    return link.at(rate)


def run_with(engine: Engine, overrides: Sequence[str], *labels: str) -> dict[str, Row]:
    """Rows of dense training and these methods of a run with these settings, and the profiles that
    the engine has."""
    scenario = engine.question.changed(overrides)
    assert scenario is not None
    chosen = [one for one in scenario.compressors if one.label in ("dense", *labels)]
    scenario = replace(scenario, compressors=tuple(chosen))
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
    itself the printed speedup is 1. Of 64 worlds a percentile is a mean of several, and the
    gain a line between two rates."""
    words = Words(model="resnet50", device="v100", gpus=4, nodes=8, network="25 Gbit/s")
    engine = Engine(ask(None, words))
    (found,) = break_even(engine, ["fp16"], ["fp16"], lambda: None)
    for rate, share in ((found.low, 0.9), (found.rate, None), (found.high, 0.1)):
        assert rate is not None
        if not SLOWEST < rate < FASTEST:
            continue
        rows = engine.rows(at_rate(engine, rate), draws=True)
        assert rows is not None
        dense, half = rows["dense"], rows["fp16"]
        if share is None:
            assert half.speedup_vs_dense == pytest.approx(1, rel=0.01)
        else:
            faster = np.less(half.iteration_draws_s, dense.iteration_draws_s)
            assert np.mean(faster) == pytest.approx(share, abs=0.08)


def test_worlds_that_change_places_alone_have_a_break_even() -> None:
    """As stated half precision is faster at every rate here; in the medians of the worlds it is
    not at the fastest. The printed iterations are equal at the rate found."""
    words = Words(model="gpt2", device="a100", gpus=8, nodes=2, network="200 Gbit/s")
    engine = Engine(ask(None, words, ["uncertainty.draws=16"]))
    (found,) = break_even(engine, ["fp16"], [], lambda: None)
    assert found.rate is not None
    rows = engine.rows(at_rate(engine, found.rate), draws=True)
    assert rows is not None
    assert rows["fp16"].iteration_s == pytest.approx(rows["dense"].iteration_s, rel=0.01)


def test_a_method_that_pays_on_fast_links_alone_has_its_least_rate() -> None:
    """Gathered to 16 workers, QSGD's payloads are longer than the dense exchange; Gloo's work on
    the host, which sets the time of fast links, is less."""
    words = Words(model="resnet50", device="v100", gpus=4, nodes=4, network="10gbe")
    gloo = "cluster.collectives.transport=gloo"
    engine = Engine(ask(None, words, ["uncertainty.draws=16", gloo]))
    (found,) = break_even(engine, ["QSGD 4 bit"], [], lambda: None)
    assert found.above
    assert found.rate is not None
    link = slowest_link(engine.question)
    assert link is not None
    for factor, pays in ((0.5, False), (2, True)):
        rows = engine.rows(link.at(factor * found.rate), ["QSGD 4 bit"], draws=True)
        assert rows is not None
        assert (rows["QSGD 4 bit"].iteration_s < rows["dense"].iteration_s) is pays


def test_a_range_beyond_the_rates_tried_is_open() -> None:
    """In more than a tenth of the worlds fp16 pays at the fastest rate too: no rate is the 90th
    percentile, though a smoothed one of the places that lines reach would be."""
    words = Words(model="lenet", device="v100", nodes=2, network="1gbe", batch_size=8)
    engine = Engine(ask(None, words))
    (found,) = break_even(engine, ["fp16"], ["fp16"], lambda: None)
    rows = engine.rows(at_rate(engine, FASTEST), ["fp16"], draws=True)
    assert rows is not None
    faster = np.less(rows["fp16"].iteration_draws_s, rows["dense"].iteration_draws_s)
    assert np.mean(faster) > 0.1
    assert (found.high, found.high_open, found.low_open) == (FASTEST, True, False)


def test_a_break_even_beyond_the_rates_tried_is_none() -> None:
    """In half of the worlds TernGrad pays at the fastest rate too."""
    words = Words(model="gpt3_1.3b", device="a100_pcie_40gb", gpus=8, nodes=2, batch_size=4,
                  network="200 Gbit/s", precision="bf16")  # fmt: skip
    engine = Engine(ask(None, words, ["uncertainty.draws=16"]))
    (found,) = break_even(engine, ["TernGrad"], ["TernGrad"], lambda: None)
    assert (found.rate, found.pays, found.high) == (None, True, FASTEST)
    rows = engine.rows(at_rate(engine, FASTEST), ["TernGrad"], draws=True)
    assert rows is not None
    faster = np.less(rows["TernGrad"].iteration_draws_s, rows["dense"].iteration_draws_s)
    assert np.mean(faster) >= 0.5


def test_rates_of_too_long_messages_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run refuses them, as 8 billion parameters over 1 Mbit/s: the break-even above is the same,
    and a method that pays at all others pays."""
    found = []
    for slowest in (0.0, 1e8):
        engine = Engine(question())

        def rows(
            overrides: list[str], *labels: object, rows: Any = engine.rows,
            slowest: float = slowest, **draws: bool,
        ) -> Any:  # fmt: skip
            rate = 8 * parse(overrides[0].partition("=")[2], "bandwidth")
            return None if rate < slowest else rows(overrides, *labels, **draws)

        monkeypatch.setattr(engine, "rows", rows)
        found.append(break_even(engine, ["fp16"], [], lambda: None))
    assert found[0] == found[1]
    assert found[0][0].rate is not None


@pytest.mark.long
def test_at_the_rate_both_take_the_same_time_and_beyond_it_their_order_flips() -> None:
    engine = Engine(question())
    found = break_even(engine, LABELS, LABELS, lambda: None)
    assert [one.label for one in found] == list(LABELS)
    ends = [one for one in found if one.rate is not None]
    assert ends
    for one in ends:
        assert one.rate is not None

        def gain(rate: float, label: str = one.label) -> float:
            rows = run_with(engine, at_rate(engine, rate), label)
            return math.log(rows["dense"].iteration_s / rows[label].iteration_s)

        # the median over the worlds, each a line between two rates; here a ratio of medians
        assert abs(gain(one.rate)) < 0.1
        assert gain(one.rate / 2) > gain(one.rate * 2)  # at a flat end medians nearly tie
        assert one.low is not None
        assert one.high is not None
        assert one.low <= one.rate <= one.high


def test_a_method_without_a_rate_is_faster_everywhere_or_nowhere() -> None:
    engine = Engine(question(network="100 Gbit/s"))
    some = [choice.label for choice in engine.scenario.compressors[1::3]]
    for one in break_even(engine, some, (), lambda: None):
        if one.rate is not None:
            continue
        for rate in (1e6, 1e9, 1e11):
            rows = run_with(engine, at_rate(engine, rate), one.label)
            faster = rows[one.label].iteration_s < rows["dense"].iteration_s
            assert faster == one.pays, (one.label, rate)


ALIKE = ("2 x 2 v100 @ 1gbe", "2 x 2 t4 @ 1gbe")
UNLIKE = ("2 x 2 v100 @ 10gbe", "2 x 2 t4 @ 1gbe")


@pytest.mark.parametrize(
    ("words", "setting", "said"),
    [
        ({"gpus": 2}, "cluster.collectives.transport=nccl", "the bandwidth"),
        ({"gpus": 2}, "cluster.collectives.transport=gloo", "the bandwidth"),
        (
            {"gpus": 2},
            "cluster.racks={nodes: 2, uplink: 100mbit_ethernet}",
            "the bandwidth of the racks' uplinks",
        ),
        ({"group": ALIKE[:1]}, "seed=1", "the bandwidth"),
        ({"group": UNLIKE}, "seed=1", "the bandwidth of the t4 nodes' links"),
    ],
)
def test_a_change_saves_what_a_run_with_it_saves(
    words: dict[str, object], setting: str, said: str
) -> None:
    base = question(**words)
    engine = Engine(replace(base, overrides=(*base.overrides, setting)))
    now = run_with(engine, [], "fp16")
    found = changes(engine, ["fp16"])
    words = {one.words: one for one in found}
    assert f"twice {said}" in words
    assert ("NCCL" in words) <= ("gloo" in setting)
    assert "local SGD, 4 steps" in words
    local = "post-local SGD, 4 steps"
    for one in found:
        then = run_with(engine, list(one.overrides), "fp16", local)
        for label, saved in one.saves_s.items():
            row = then[local if one.overrides[0].startswith("compressors") else label]
            # as many samples: of four micro-batches a quarter of the iteration
            samples = row.throughput_samples_per_s * row.iteration_s
            usual = now[label].throughput_samples_per_s * now[label].iteration_s
            expected = now[label].iteration_s - row.iteration_s * usual / samples
            assert saved == pytest.approx(expected, rel=1e-9), one.words


def test_the_slowest_link_breaks_even() -> None:
    """At the rate of the uplinks the printed iterations are equal; the NICs' rate is no matter."""
    base = question(gpus=2, network="25 Gbit/s")
    racks = "cluster.racks={nodes: 2, uplink: {like: 1gbe, latency: 1 ms}}"
    engine = Engine(replace(base, overrides=(*base.overrides, racks)))
    (found,) = break_even(engine, ["fp16"], [], lambda: None)
    assert found.rate is not None
    rows = run_with(engine, [f"cluster.racks.uplink.bandwidth={found.rate} bit/s"], "fp16")
    assert rows["fp16"].iteration_s == pytest.approx(rows["dense"].iteration_s, rel=0.05)


@pytest.mark.parametrize(
    ("groups", "moved"),
    [
        (("2 x v100 @ 100gbe", "2 x t4 @ 10gbe"), [2, 3]),
        (("2 x v100 @ 10gbe", "2 x t4 @ 100gbe"), [0, 1]),
        (("2 x v100 @ 10gbe", "2 x t4 @ 10gbe"), [0, 1, 2, 3]),
    ],
)
def test_in_unlike_groups_the_slowest_links_break_even(
    groups: Sequence[str], moved: Sequence[int]
) -> None:
    """In runs, PowerSGD is faster than dense training at half the rate, and slower at twice the
    rate. Nodes with faster links keep theirs."""
    label = "PowerSGD rank 4"
    engine = Engine(question(model="resnet50", group=groups))
    assert not no_break_even(engine)
    (found,) = break_even(engine, [label], [label], lambda: None)
    assert found.rate is not None
    nodes = range(4)
    for factor, pays in ((0.5, True), (2, False)):
        overrides = at_rate(engine, factor * found.rate)
        changed = engine.question.changed(overrides)
        assert changed is not None
        links = [one.cluster.nic(node) for one in (changed, engine.scenario) for node in nodes]
        assert [node for node in nodes if links[node] != links[4 + node]] == moved
        speedup = run_with(engine, overrides, label)[label].speedup_vs_dense
        assert speedup is not None
        assert (speedup > 1) is pays


def test_links_of_other_groups_limit_what_faster_ones_save() -> None:
    """Beyond the other nodes' 10 Gbit/s, theirs are the slowest links: the speedup at ten and at a
    thousand times that rate is the same, and PowerSGD pays at any rate of the t4 nodes."""
    label = "PowerSGD rank 4"
    engine = Engine(question(model="vgg16", group=UNLIKE))
    (found,) = break_even(engine, [label], [], lambda: None)
    assert (found.rate, found.pays) == (None, True)
    speedups = []
    for rate in (SLOWEST, 1e9, 1e11, FASTEST):
        rows = engine.rows(at_rate(engine, rate), [label], draws=True)
        assert rows is not None
        speedups.append(rows[label].speedup_vs_dense or 0)
    assert speedups[0] > speedups[1] > speedups[2] > 1
    assert speedups[2] == pytest.approx(speedups[3], rel=1e-3)


def test_groups_with_equal_links_are_one_link() -> None:
    """Where a group names no network, the cluster's is changed."""
    named = question(group=ALIKE)
    unnamed = replace(named, document=deepcopy(named.document))
    cluster = unnamed.document.data["cluster"]
    cluster["network"] = cluster["groups"][1].pop("network")
    lone = replace(named, document=deepcopy(named.document))
    lone.document.data["cluster"]["groups"].pop()
    for posed, holders in (
        (named, ("cluster.groups.0.network", "cluster.groups.1.network")),
        (unnamed, ("cluster.groups.0.network", "cluster.network")),
        (lone, ("cluster.groups.0.network",)),
    ):
        (link,) = links_between(posed)
        assert (link.name, link.holders) == ("", holders)
        faster = posed.changed(link.faster(2))
        assert faster is not None
        nics = {faster.cluster.nic(node).bandwidth for node in range(4)}
        assert nics == {2 * posed.scenario.cluster.nic(0).bandwidth}


def test_local_steps_are_no_change_where_there_are_some() -> None:
    base = question()
    engine = Engine(replace(base, overrides=(*base.overrides, "training.local_steps=4")))
    assert "local SGD, 4 steps" not in {one.words for one in changes(engine, [])}


def test_rates_are_those_of_all_nics_of_a_node_together() -> None:
    """Eight NICs carry as much as one of eight times the rate, of whose catalogue entry they differ
    by a few percent of latency: both break even at about the same rate, and twice the bandwidth is
    twice that of each NIC."""
    ends = []
    for nics, rate in ((8, "1 Gbit/s"), (1, "8 Gbit/s")):
        engine = Engine(question(gpus=2, nics=nics, network=rate))
        (found,) = break_even(engine, ["fp16"], [], lambda: None)
        ends.append(found.rate)
        saved = {one.words: one.overrides for one in changes(engine, ["fp16"])}
        (twice,) = saved["twice the bandwidth"]
        assert parse(twice.split("=")[1], "bandwidth") == 2 * parse(rate, "bandwidth")
    assert ends[0] == pytest.approx(ends[1], rel=0.2)


def test_what_is_proposed_can_be_set() -> None:
    racks = "cluster.racks={nodes: 2, uplink: 10gbe}"
    for words in ({}, {"nodes": 1, "gpus": 4}, {"device": "cpu_2core"}):
        base = question(**words)
        engine = Engine(replace(base, overrides=(*base.overrides, racks)))
        proposed = [*candidates(engine.question)]
        uplinks = "twice the bandwidth of the racks' uplinks" in {named for named, _, _ in proposed}
        assert uplinks == (engine.scenario.cluster.nodes > 1)
        for _, overrides, _ in proposed:
            assert engine.question.changed(overrides) is not None, overrides


def test_parts_of_the_time_are_those_of_the_row() -> None:
    engine = Engine(question())
    rows = run_with(engine, [], "fp16")
    for label, one in limits(engine, ["fp16"]).items():
        row = rows[label]
        whole = one.compute_s + one.encode_s + one.decode_s + one.waits_s
        assert whole == pytest.approx(row.iteration_as_stated_s or row.iteration_s, rel=1e-9)
        assert 0 <= one.bytes_s <= one.waits_s
        assert 0 <= one.latency_s <= one.waits_s


def test_one_worker_has_nothing_to_gain_from_the_network() -> None:
    engine = Engine(question(nodes=1))
    assert slowest_link(engine.question) is None
    assert not changes(engine, ["fp16"])
    assert not break_even(engine, LABELS, (), lambda: None)
