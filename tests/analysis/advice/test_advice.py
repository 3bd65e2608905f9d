"""Advice says what a run says, in lines that fit a terminal and say the same at every width."""

import ast
import json
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import gcsim
from gcsim.analysis.advice.advice import Advice, advice, advised_run, lines
from gcsim.analysis.advice.setting import assumed, header, link_facts
from gcsim.analysis.report import sections
from gcsim.analysis.report.numbers import elapsed, significant
from gcsim.analysis.report.paste import paste, paste_plan
from gcsim.analysis.report.selection import expected_s, largest_verdict
from gcsim.compressors.options.method import method_of
from gcsim.compressors.registry import REGISTRY, check_parameters
from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.advice.open_questions import open_questions
from gcsim.scenarios.advice.per_bucket import Plan
from gcsim.scenarios.advice.question import Words, ask
from gcsim.scenarios.catalog import link
from gcsim.scenarios.findings import FASTEST, SLOWEST, BreakEven, Evidence, Findings, Limits
from gcsim.scenarios.run import run
from gcsim.scenarios.scenario import CompressorChoice
from gcsim.traces.storage.store import shipped_traces
from tests.command import gcsim as command

QUICK = ["uncertainty.draws=8"]
FEW = "compressors=[none, fp16, powersgd]"
BETWEEN = "training.between=nodes"


pytestmark = pytest.mark.usefixtures("own_cache")


@cache
def advised(*overrides: str, **words: Any) -> Advice:
    given = {"model": "lenet", "device": "v100", "nodes": 2, "network": "1 Gbit/s", **words}
    return advice(ask(None, Words(**given), [*overrides, *QUICK]))


@pytest.mark.long
@settings(
    max_examples=3,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(
    model=st.sampled_from(["lenet", "cnn_digits", "resnet20_cifar10", "transformer_small"]),
    device=st.sampled_from(["v100", "a100_sxm_80gb", "raspberry_pi_4b", "t4"]),
    gpus=st.sampled_from([1, 2, 8]),
    nodes=st.sampled_from([1, 3, 16]),
    network=st.sampled_from(["100 Mbit/s", "1gbe", "37 Gbit/s", "400gbe_roce", "lte"]),
    cost=st.sampled_from([None, 3.06, 12345.678]),
    transport=st.sampled_from(["gloo", "nccl"]),
    label=st.sampled_from(["x" * 60, "fp16"]),
)  # fmt: skip
def test_width_wraps_and_selects_nothing(
    model: str, device: str, gpus: int, nodes: int, network: str, cost: float | None,
    transport: str, label: str,
) -> None:  # fmt: skip
    words = Words(
        model=model, device=device, gpus=gpus, nodes=nodes, network=network, cost_per_hour=cost
    )
    overrides = [*QUICK, f"cluster.collectives.transport={transport}"]
    overrides += [f"compressors=[none, {{kind: fp16, label: '{label}'}}, powersgd, cser]"]
    try:
        question = ask(None, words, overrides)
        _ = question.scenario
    except gcsim.InputError:
        return  # NCCL over Wi-Fi, say
    found = advice(question)
    words_at = {width: " ".join(lines(found, width)).split() for width in (60, 80, 100, 200)}
    assert all(at == words_at[200] for at in words_at.values())
    for width in words_at:
        shown = lines(found, width)
        code = set(paste_of_use(found))
        prose = [
            one for one in shown if one.strip() not in code and not one.strip().startswith("#")
        ]
        assert all(len(line) <= min(width, 100) for line in prose)
        heads = [line.split()[0] for line in shown if not line.startswith(" ")]
        assert heads[1:3] in (["Use", "Try"], ["Use", "Safe"], ["Use", "Deploy"])
        assert "Deploy" in heads
    if found.use and found.use.compressor == "none":
        assert not any("hook(" in line for line in lines(found, 80))
    below = [line for line in lines(found, 80) if line.startswith("    ") and "hook" in line]
    assert any("# Safe:" in line for line in below) == (found.safe is not found.use)
    for one in found.findings.break_even:
        assert one.low is None or SLOWEST <= one.low <= (one.rate or 0)
        assert one.high is None or (one.rate or 0) <= one.high <= FASTEST
        assert (one.low_open, one.high_open) == (one.low == SLOWEST, one.high == FASTEST)


def with_findings(found: Advice, findings: Findings) -> Advice:
    return replace(found, result=replace(found.result, advice=findings))


def paste_of_use(found: Advice) -> list[str]:
    choices = {choice.label: choice for choice in found.scenario.compressors}
    if found.use is None or found.safe is None:
        return []
    # the line of the safe method is short: it is only kept apart from the wrapped text
    safe = [line for line in lines(found) if line.strip().startswith("# Safe:")]
    return [*paste(choices[found.use.label]), *(line.strip() for line in safe)]


@pytest.mark.parametrize(("factor", "told"), [(1.0, False), (1.3, True)])
def test_a_ratio_unlike_that_of_the_printed_times_says_what_it_is(
    factor: float, told: bool
) -> None:
    """Where few worlds are much slower, the median of the ratios is not the ratio of the medians:
    here by the factor."""
    found = advised(FEW, network="100 Mbit/s")
    use, dense = found.use, found.verdict.dense
    assert use is not None
    assert dense is not None
    assert use is not dense
    apart = factor * (use.speedup_vs_dense or 0.0)
    slower = replace(dense, iteration_s=apart * use.iteration_s)
    found = replace(found, verdict=replace(found.verdict, dense=slower))
    text = " ".join(found.summary().split())
    assert (f"the two median times differ by {significant(apart)}x" in text) is told


def test_memory_is_that_of_all_methods_of_the_device() -> None:
    found = advised()
    (shown,) = (line for line in found.summary().splitlines() if line.startswith("Memory"))
    low = min(row.device_memory_low_bytes or 0 for row in found.rows) / 2**30
    high = max(row.device_memory_high_bytes or 0 for row in found.rows) / 2**30
    assert shown == f"Memory        {low:.3g}-{high:.3g} of 16 GiB"
    one = ("compressors=[none]", "cluster.network=1gbe")
    unknown = advised(*one, device="cpu_2core").summary()
    assert "Memory        not checked: the device states none" in unknown


def test_an_end_of_the_search_is_a_bound() -> None:
    found = advised()
    one = BreakEven(label="x", rate=75e9, pays=True, low=0.29e9, high=FASTEST, high_open=True)
    below = replace(one, low=SLOWEST, high=80e9, low_open=True, high_open=False)
    neither = replace(one, low=SLOWEST, low_open=True)
    shapes = [(one, "290 Mbit/s or more"), (below, "80 Gbit/s or less")]
    for end, shown in [*shapes, (neither, "or any other rate")]:
        text = " ".join(with_findings(found, Findings(break_even=(end,))).summary().split())
        assert (
            f"faster than dense at this link's goodput (80 % range): x below 75 Gbit/s ({shown})"
            in text
        )
    always = BreakEven(label="x", rate=None, pays=True)
    tried = "at any rate tried, up to 6,400 Gbit/s"
    for end, shown in (
        (always, f": x {tried}"),
        (replace(always, low=FASTEST, high=FASTEST), f": x {tried}"),
        (replace(always, low=4e9, high=FASTEST), f" (80 % range): x {tried} (4 Gbit/s or more)"),
    ):
        text = " ".join(with_findings(found, Findings(break_even=(end,))).summary().split())
        assert f"faster than dense at this link's goodput{shown}" in text


def test_a_hook_is_not_for_another_loop_than_ddp() -> None:
    needs = "# gcsim's hook needs DistributedDataParallel, not the loop 'horovod':"
    assert needs not in advised().summary()
    for loop, said in (("ddp", False), ("horovod", True)):
        assert (needs in advised("compressors=[none, fp16]", loop=loop).summary()) is said


def test_what_is_assumed_names_rdma_and_the_draws_at_every_width() -> None:
    """Without it "100 Gbit/s" is read as TCP's 18 Gbit/s and nobody learns of the alternative."""
    found = advised("compressors=[none, fp16]", network="100 Gbit/s")
    texts = [" ".join(" ".join(lines(found, width)).split()) for width in (60, 80, 120)]
    assert all("RDMA: 100gbe_roce" in text for text in texts)
    assert all("80 % ranges over 8 draws of the uncertain inputs" in text for text in texts)


def test_rdma_is_assumed_of_two_nics_as_of_one() -> None:
    words = Words(model="lenet", device="v100", gpus=4, nodes=8, nics=2, network="25 Gbit/s")
    scenario = ask(None, words).scenario
    assert "RDMA: 25gbe_roce" in assumed(scenario, shipped=False)
    assert "NCCL over TCP" in header(scenario, None)


def test_uplinks_are_named_and_assumed_where_nodes_fill_more_than_a_rack() -> None:
    words = Words(model="lenet", device="v100", nodes=4, network="25gbe")
    for nodes, named in ((2, True), (4, False)):
        racks = f"cluster.racks={{nodes: {nodes}, uplink: 10gbe, uplinks: 2}}"
        scenario = ask(None, words, [racks]).scenario
        assert ("racks of 2 nodes joined by 20 Gbit/s" in header(scenario, None)) == named
        links = [one.partition(":")[0] for one in assumed(scenario, shipped=False)]
        assert ("2 x 10gbe" in links) == named


def test_the_links_of_all_groups_are_assumed() -> None:
    words = Words(model="lenet", group=["2 x 4 v100 @ 25gbe", "2 x 4 a100_sxm_80gb @ 100gbe"])
    told = assumed(ask(None, words).scenario, shipped=False)
    assert [one.partition(":")[0] for one in told[:2]] == ["25gbe", "100gbe"]
    assert "nvlink2 and nvlink3 in a node" in told


def test_goodput_above_the_stated_rate_is_a_rate() -> None:
    text = link_facts(link("5g_measured"))
    assert text.endswith("goodput 29.8 Mbit/s (14.9-166 Mbit/s)")  # 50 to 558 %
    assert link_facts(link("25gbe")).endswith("goodput 94\N{NO-BREAK SPACE}% (45-99)")
    faster = replace(link("1gbe"), name="1gbe, changed", bandwidth=Fraction(312_500_000))
    assert link_facts(faster).startswith("2.5 Gbit/s like 1gbe: latency ")


def test_what_to_use_is_the_fastest_to_the_goal_of_what_is_known_to_train() -> None:
    """On 1 Gbit/s PowerSGD sends 1/40 of half precision's bytes and is faster; a result on ImageNet
    is published of it, and none of gradient sampling, which is faster still."""
    few = "compressors=[none, fp16, powersgd, gradient_sampling]"
    found = advised(few, model="resnet18_cifar10", nodes=8)
    assert found.use is not None
    assert found.safe is not None
    assert found.to_try is not None
    assert found.use.compressor == "powersgd"
    assert found.safe.compressor == "fp16"
    assert found.to_try.label not in found.findings.known
    text = found.summary()
    assert "trained elsewhere: ResNet-18, CIFAR-10" in text
    safe, use = expected_s(found.safe), expected_s(found.use)
    assert safe > 1.3 * use
    means = f"mean {elapsed(safe)}, that of powersgd {elapsed(use)}"
    assert means in " ".join(text.split())
    assert '# Safe: gcsim.ddp_hook("fp16").register(model)' in text
    unknown = with_findings(found, Findings())
    assert unknown.use is unknown.safe
    assert "Safe" not in unknown.summary()


def test_a_method_that_missed_its_target_gives_way_to_another_faster_than_use() -> None:
    """On 100 Mbit/s gradient sampling is the fastest; with Adam it is inconclusive on the shipped
    task, and nothing is known of PowerSGD's rank 3."""
    words: dict[str, Any] = {"model": "transformer_small", "nodes": 8, "network": "100 Mbit/s"}
    inconclusive = "trained elsewhere: inconclusive in characters_8"
    fastest, others = "{kind: gradient_sampling, label: y}", "{kind: powersgd, rank: 3, label: x}"
    alone = advised(f"compressors=[none, fp16, {fastest}]", **words)
    assert alone.to_try is not None
    assert alone.to_try.label == "y"
    assert inconclusive in " ".join(alone.summary().split())
    found = advised(f"compressors=[none, fp16, {others}, {fastest}]", **words)
    assert found.verdict.best is not None
    assert found.to_try is not None
    assert (found.verdict.best.label, found.to_try.label) == ("y", "x")
    assert inconclusive not in found.summary()
    assert list(found.document()["missed"]) == ["y"]


def test_steps_of_a_method_to_try_are_told_where_known() -> None:
    """PowerSGD's rank 4 needs five thirds of dense training's steps on the shipped task with
    Adam."""
    two = "compressors=[none, fp16, powersgd]"
    found = advised(two, model="gpt2", device="a100", gpus=8, nodes=4, network="25 Gbit/s")
    assert found.to_try is not None
    assert found.to_try.label in found.findings.known
    (steps,) = (one.steps_vs_dense for one in found.findings.known.values())
    assert steps == pytest.approx(5 / 3)
    assert "in 1.67 times as many steps as dense" in " ".join(found.summary().split())


@pytest.mark.long
def test_an_open_question_is_answered_as_its_option_would_be() -> None:
    """As near as an estimate of the worlds is that knows fewer methods' messages; then nobody asks
    again."""
    words: dict[str, Any] = {"model": "resnet18_cifar10", "nodes": 4, "network": "10gbe"}
    found = advised(**words)
    assert found.findings.open
    for one in found.findings.open:
        assert one.answer.option in found.summary()
        then = advised(*one.answer.overrides, **words)
        assert then.verdict.dense is not None
        assert then.verdict.dense.iteration_s == pytest.approx(one.dense_s, rel=0.01)
        assert one.answer.option not in {other.answer.option for other in then.findings.open}
    said = advised(**words, loop="ddp", limited=False, precision="fp32")
    assert {one.answer.option for one in said.findings.open} <= {"--network 10gbe_roce"}


def test_an_open_answer_has_the_method_and_speedup_of_advice_with_its_option() -> None:
    """Medians over the inputs alone: factors on whole steps change no estimate."""
    words: dict[str, Any] = {"model": "resnet18_cifar10", "nodes": 4, "network": "10gbe"}
    found = advised("compressors=[none, fp16]", **words)
    assert found.findings.open
    for one in found.findings.open:
        then = advised("compressors=[none, fp16]", *one.answer.overrides, **words)
        assert then.use is not None
        assert then.use.label == one.use
        assert one.speedup == pytest.approx(then.use.speedup_vs_dense, rel=0.01)


@pytest.mark.parametrize(("bus", "gaining"), [("nvlink2", True), ("pcie3_x16", False)])
def test_compression_between_nodes_is_named_where_it_gains(bus: str, gaining: bool) -> None:
    """Where the GPUs of a node sum first, uncompressed gradients cross their bus."""
    words: dict[str, Any] = {"model": "resnet18_cifar10", "gpus": 4, "network": "10gbe"}
    here = ("compressors=[none, powersgd, terngrad]", f"cluster.intra_node={bus}")
    found = advised(*here, **words)
    then = Engine(ask(None, Words(device="v100", nodes=2, **words), [*here, BETWEEN, *QUICK]))
    assert found.use is not None
    least = min(row.iteration_s for row in then.result().rows)
    assert (least < found.use.iteration_s) is gaining
    assert any(BETWEEN in one.answer.overrides for one in found.findings.open) is gaining


@pytest.mark.parametrize(("ends", "arguments"), [("nodes", ""), ("racks", ", ranks_per_rack=4")])
def test_the_hook_to_deploy_has_the_ends_that_were_simulated(ends: str, arguments: str) -> None:
    racks = "cluster.racks={nodes: 2, uplink: 1gbe}"
    here = ("compressors=[none, terngrad, powersgd]", racks, f"training.between={ends}")
    found = advised(*here, model="resnet18_cifar10", gpus=2, nodes=4, network="10gbe")
    assert found.use is not None
    hook = f'gcsim.ddp_hook("{found.use.compressor}", between="{ends}"{arguments})'
    assert hook in found.summary()
    assert not found.findings.other_code
    assert "training.between" not in str(found.findings.open)


def test_local_steps_have_no_hook_to_deploy() -> None:
    """DDP's hook runs in every step."""
    found = advised("compressors=[none, fp16]", "training.local_steps=4", network="1 Gbit/s")
    assert found.use is not None
    assert found.use.compressor == "fp16"
    assert "not possible as a DDP hook: its workers take local steps" in found.summary()
    assert "register" not in found.summary()
    assert not found.findings.other_code


@pytest.mark.parametrize(
    ("device", "asked", "answer"),
    [("a40", "pcie4_peer", "pcie4_across"), ("rtx_4090", "pcie4_peer", "pcie4_host")],
)
def test_a_box_without_nvlink_is_asked_for_its_bus(device: str, asked: str, answer: str) -> None:
    """gpt2's 0.5 GB take 0.09 s on 12 GB/s, of an iteration of half a second."""
    words: dict[str, Any] = {"model": "gpt2", "device": device, "gpus": 8}
    few = [*QUICK, FEW]
    found = advice(ask(None, Words(**words), few))
    ways = [one.answer.option for one in found.findings.open if "intra_node" in one.answer.option]
    assert f"--set cluster.intra_node={asked}" in ways
    assert "for the bus" in found.summary()
    assert "the network" not in found.summary()
    assert "NCCL_DEBUG=INFO" in found.summary().splitlines()[1]  # the check that decides
    then = advice(ask(None, Words(**words), [*few, f"cluster.intra_node={answer}"]))
    assert not any("intra_node" in one.answer.option for one in then.findings.open)
    assert "NCCL_DEBUG" not in then.summary()


@pytest.mark.parametrize(
    ("model", "device", "precision", "expected"),
    [
        ("llama3_8b", "h100_sxm", None, "fp16"),
        ("llama3_8b", "h100_sxm", "fp32", "fp32"),
        ("llama3_8b", "p100_pcie", None, "fp32"),  # no times of 16-bit passes
        ("resnet50", "h100_sxm", None, "fp32"),
    ],
)
def test_passes_of_a_transformer_by_formula_are_in_16_bits(
    model: str, device: str, precision: str | None, expected: str
) -> None:
    few = ["compressors=[none]", "training.device_memory=9000 GiB"]
    words = Words(model=model, device=device, gpus=8, nodes=4, network="400gbe")
    question = ask(None, replace(words, precision=precision), few)
    assert question.scenario.training.precision == expected
    options = [one.option for one in open_questions(question)]
    assert ("--precision fp16" in options) is (expected == "fp32" and precision is None)


def test_the_bottleneck_is_the_share_of_the_rows_iteration() -> None:
    """Parts of a row are those of the iteration with the default inputs, and add up to it."""
    found = advised()
    dense = found.verdict.dense
    assert dense is not None
    assert dense.iteration_as_stated_s is not None
    share = round(100 * dense.exposed_communication_s / dense.iteration_as_stated_s)
    text = " ".join(found.summary().split())
    stated = elapsed(dense.iteration_as_stated_s)
    assert abs(dense.iteration_as_stated_s / dense.iteration_s - 1) > 0.1  # so the time is named
    said = f"Bottleneck with default inputs ({stated}), dense spends {share} % of its time waiting"
    assert said in text


@pytest.mark.parametrize(
    ("bytes_s", "latency_s", "said"),
    [
        (32.0, 21.0, "network (bandwidth 32 %, latency 21 %, Gloo's calls 44 %)"),
        (96.0, 0.1, "network's bandwidth"),
        (60.0, 40.0, "network (bandwidth alone 60 %, latency alone 40 %)"),
        (0.0, 0.0, "network"),  # unlike nodes, of which no one rate is changed
    ],
)
def test_a_wait_that_neither_rate_nor_latency_explains_has_another_cause(
    bytes_s: float, latency_s: float, said: str
) -> None:
    """Of 100 seconds, 97 are waits; both parts may overlap."""
    limits = Limits(
        compute_s=3.0, encode_s=0.0, decode_s=0.0, bytes_s=bytes_s, latency_s=latency_s,
        waits_s=97.0,
    )  # fmt: skip
    found = sections.bottleneck_text("dense", limits, "network", "", "Gloo's calls", sections.HOOKS)
    wanted = f"dense spends 97 % of its time waiting for the {said}"
    assert found.replace("\u00a0", " ") == wanted


def test_dense_training_has_hooks_and_copies_and_does_not_encode() -> None:
    """Code of 4 and 3 seconds in 100 before and after the exchanges."""
    limits = Limits(
        compute_s=93.0, encode_s=4.0, decode_s=3.0, bytes_s=0.0, latency_s=0.0, waits_s=0.0
    )
    for code, said in (
        (sections.HOOKS, "x spends 7 % of its time in gradient hooks and bucket copies"),
        (sections.COPIES, "x spends 7 % of its time copying weights and gradients"),
        (None, "x spends 4 % of its time encoding, 3 % decoding"),
    ):
        found = sections.bottleneck_text("x", limits, "network", "", "", code)
        assert found.replace("\u00a0", " ") == said


@pytest.mark.parametrize(
    ("words", "changes", "said"),
    [
        ({"device": "cpu_2core", "nodes": 2}, [], "Gloo's calls, copies and sums"),
        ({"device": "v100", "nodes": 2}, [], "NCCL's calls"),
        ({"device": "v100", "nodes": 2, "gpus": 4}, [], "NCCL's calls and the bus"),
        (
            {"device": "v100", "nodes": 2},
            ["training.slow_workers={1: 1.5}", "cluster.racks={nodes: 1, uplink: 10gbe}"],
            "NCCL's calls, the uplinks and the slowest rank",
        ),
        (
            {"device": "v100", "nodes": 2},
            ["cluster.collectives.servers=1"],
            "NCCL's calls and the servers",
        ),
    ],
)
def test_the_rest_of_a_wait_is_named_after_the_cluster(
    words: dict[str, Any], changes: list[str], said: str
) -> None:
    scenario = ask(None, Words(model="lenet", network="1gbe", **words), changes).scenario
    assert sections.other_causes(scenario.resolved, "network", "") == said


def test_the_slowest_group_is_named() -> None:
    words = Words(model="resnet50", group=["1 x v100", "2 x t4"], network="25gbe")
    few = (*QUICK, FEW)
    found = advice(ask(None, words, few))
    slow, fast = found.document()["groups"][1], found.document()["groups"][0]
    times = [one["forward_s"] + one["backward_s"] for one in (slow, fast)]
    (said,) = [one for one in found.summary().splitlines() if one.startswith("Groups")]
    assert f"t4 nodes compute {times[0] / times[1]:.3g}x as long as v100's, which wait" in said
    assert "Break-even    faster than dense at" in found.summary()
    by_speed = next(one for one in found.findings.changes if "speed" in one.words)
    even = advice(ask(None, words, (*few, *by_speed.overrides)))
    now, then = (
        next(r for r in one.result.rows if r.compressor == "none") for one in (found, even)
    )
    # of as many samples: the batches of all workers together are the same to a sample
    assert then.iteration_s == pytest.approx(now.iteration_s - by_speed.saves_s["dense"], rel=0.05)


def test_a_probability_is_no_surer_than_its_draws() -> None:
    """All of eight worlds are evidence for 9 in 10, by Laplace's rule; they are not certainty."""
    found = advised()
    assert "faster in 100 % of draws" not in found.summary()
    rows = found.document()["rows"]
    chances = [one["against_dense"]["probability"] for one in rows if "against_dense" in one]
    assert chances
    assert max(chances) <= 0.99


@pytest.mark.long
def test_what_is_advised_is_what_a_run_of_the_scenario_says() -> None:
    question = ask(None, Words(model="lenet", device="v100", nodes=4, network="100 Mbit/s"), QUICK)
    before = advice(question)
    result = advised_run(question.scenario)  # which measures the traffic here
    verdict = largest_verdict(result)
    assert (verdict.safe, verdict.to_try) != (None, None)
    for found in (before.verdict, advice(question).verdict):  # as shipped, and as the run kept it
        for name in ("safe", "to_try", "pays"):
            one, other = getattr(found, name), getattr(verdict, name)
            assert getattr(one, "label", one) == getattr(other, "label", other)
    assert advice(question).shipped == ()
    assert advice(question).result.rows == result.rows


def test_the_rows_of_what_comes_with_gcsim_are_those_of_a_run() -> None:
    """Of methods whose traffic does not go by values."""
    overrides = [*QUICK, "compressors=[none, fp16, topk, powersgd, cser, terngrad]"]
    question = ask(None, Words(model="cnn_digits", device="t4", nodes=3, network="1gbe"), overrides)
    found = advice(question, cache=False)
    assert len(found.shipped) == 6
    rows = {row.label: row.iteration_draws_s for row in found.result.rows}
    assert rows == {
        row.label: row.iteration_draws_s for row in run(question.scenario, cache=False).rows
    }


def test_the_same_question_has_the_same_answer_from_the_cache_and_without() -> None:
    words: dict[str, Any] = {"model": "vgg_narrow_cifar10", "device": "t4"}
    question = ask(None, Words(**words, nodes=2, network="1 Gbit/s"), [*QUICK, FEW])
    texts = {advice(question, cache=cached).to_json() for cached in (True, True, False)}
    assert len(texts) == 1
    document = json.loads(texts.pop())
    assert {"use", "to_try", "break_even_bit_per_s", "changes", "limits_s"} <= document.keys()
    assert document["use"]["label"] in {row["label"] for row in document["rows"]}


def test_money_is_the_share_that_is_saved_of_what_the_nodes_cost() -> None:
    found = advised(FEW, cost_per_hour=4.0)
    change, dense = found.findings.changes[0], found.verdict.dense
    assert dense is not None
    worth = 4.0 * 2 * change.saves_s["dense"] / dense.iteration_s
    dearest = found.summary().split("Change first")[1].splitlines()[1]
    assert f", {worth:.3g} per hour" in dearest
    assert "per hour" not in advised().summary()


def test_from_python_it_is_short_and_shows_itself() -> None:
    found = gcsim.advise(model="lenet", device="v100", nodes=2, network="1 Gbit/s", overrides=QUICK)
    assert repr(found).startswith("<gcsim.Advice lenet on 2 x 1 v100: use ")
    assert len(repr(found)) < 100
    assert found.to_json() == advised().to_json()
    with pytest.raises(gcsim.InputError) as caught:
        gcsim.advise(model="lenet", nodes=2, network="fast")
    assert [problem.place for problem in caught.value.problems] == ["device"]
    loaded = gcsim.load_scenario("lenet_2node", QUICK)
    again = gcsim.advise(loaded, network="10gbe")
    assert again.scenario.cluster.network.name == "10gbe"


def test_a_recorded_trace_is_measured_and_said_so() -> None:
    name = next(name for name in shipped_traces() if name.startswith("vgg"))
    told: list[str] = []
    words = Words(device="v100", nodes=2, network="1gbe")
    overrides = [*QUICK, "compressors=[none, fp16, topk]"]
    found = advice(ask(name, words, overrides), tell=told.append)
    assert (found.shipped, found.measured) == ((), ("dense", "fp16", "topk"))
    assert len(told) == 1
    assert "for dense, fp16, topk: measured now" in told[0]
    assert "twice the bandwidth" in {one.words for one in found.findings.changes}


@pytest.mark.parametrize("kind", sorted(REGISTRY))
def test_what_is_to_be_pasted_is_python_or_says_why_not(kind: str) -> None:
    parameters = check_parameters(kind, {}).model_dump()
    found = paste(CompressorChoice(kind=kind, label=kind, parameters=parameters))
    assert max(map(len, found)) <= 90
    if len(found) > 1:
        ast.parse(text := "\n".join(found))
        cls, checked = method_of(kind, {})
        assert ("SGD with momentum=0" in text) == (cls.momentum(checked)[0] > 0)
        assert ("ddp_hook" in text and cls.warmup_steps(checked) > 0) == ("steps send more" in text)


def test_hooks_of_pytorch_to_be_pasted_are_there() -> None:
    for kind in ("torch_fp16", "torch_bf16", "torch_powersgd"):
        parameters = check_parameters(kind, {}).model_dump()
        code = paste(CompressorChoice(kind=kind, label=kind, parameters=parameters))
        model = Mock()
        exec("\n".join(code), {"model": model})  # noqa: S102
        state, hook = model.register_comm_hook.call_args.args
        assert callable(hook)
        if state is not None:
            assert state.matrix_approximation_rank == parameters["rank"]
            assert state.start_powerSGD_iter == parameters["start"]


def test_parameters_to_be_pasted_are_those_that_differ() -> None:
    parameters = check_parameters("topk", {"ratio": 0.03}).model_dump()
    found = paste(CompressorChoice(kind="topk", label="topk", parameters=parameters))
    assert found[1] == 'gcsim.ddp_hook("topk", ratio=0.03).register(model)'
    gcsim.ddp_hook("topk", ratio=0.03)


@pytest.mark.parametrize(
    ("given", "before"),
    [({"dense_steps": 0.1}, 20), ({"dense_steps": 30}, 30), ({"warm_up": {"steps": 0.1}}, 20)],
)
def test_options_to_be_pasted_make_a_hook(given: dict[str, Any], before: int) -> None:
    """A share of 200 steps is a tenth of them."""
    choice = CompressorChoice(kind="topk", label="topk", parameters={"ratio": 0.03, **given})
    code = paste(choice)[1].removesuffix(".register(model)")
    hook = eval(code, {"gcsim": gcsim, "steps": 200})  # noqa: S307
    assert hook.parameters.before + hook.parameters.warming == before


# --- the command ---------------------------------------------------------------------------------

ASKED = ("--model", "transformer_tiny", "--device", "v100", "--nodes", "2", "--network", "1 Gbit/s")
SET = ("--set", "uncertainty.draws=8")


def test_a_plan_by_bucket_is_told_and_its_hook_is_there() -> None:
    found = advised()
    by_kind = {choice.kind: choice for choice in found.scenario.compressors}
    rows = {row.compressor: row for row in found.result.rows}
    choices = tuple(by_kind[kind] for kind in ("none", "topk", "fp16", "topk"))
    slow, fast = (replace(rows["topk"], iteration_s=t, iteration_draws_s=()) for t in (0.2, 0.1))
    elements = (10, 30, 20, 40)
    one = Plan(label="x", choices=choices, elements=elements, row=fast, alone=slow)
    told = lines(replace(with_findings(found, Findings()), plans=(one,)), 80)
    code = paste_plan(choices)
    assert not [line for line in told if line.strip() not in code and len(line) > 80]
    text = " ".join(line.strip() for line in told[-7:])
    # the last bucket's method comes first; 70, 20 and 10 of 100 elements; 0.2 s over 0.1 s
    assert "100 ms, 2.00x Top-k 1 % for all" in text
    assert "of the gradient: Top-k 1 % 70 %, fp16 20 %, dense 10 %" in text
    assert "train before you trust it: Top-k 1 % import" in text  # fp16 is safe
    seen = Evidence(steps_vs_dense=1.0, words="", source="")
    evident = with_findings(found, Findings(known={"Top-k 1 %": seen}))
    assert "trust it: Top-k" not in " ".join(lines(replace(evident, plans=(one,)), 80)[-7:])
    hook, *_ = eval(code[1].replace(".register(model)", ","), {"gcsim": gcsim})  # noqa: S307
    assert (hook.kind, hook.parameters.ratio) == ("topk", 0.01)
    assert {n: other.kind for n, other in hook._others.items()} == {0: "none", 2: "fp16"}
    uniform = replace(one, choices=(by_kind["fp16"],) * 4)
    assert "no mixture is faster" in lines(replace(found, plans=(uniform,)), 80)[-1]
    assert "nothing to choose" in lines(replace(found, plans=()), 80)[-1]


def test_the_command_prints_it_and_writes_a_scenario_that_runs(tmp_path: Path) -> None:
    finished = command("advise", *ASKED, *SET, "--save", "mine.yaml", folder=tmp_path, COLUMNS="80")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == advised(model="transformer_tiny").summary(80)
    assert "gcsim run mine.yaml" in finished.stderr
    assert "shipped with gcsim" in finished.stderr
    saved = gcsim.load_scenario(tmp_path / "mine.yaml")
    words = Words(model="transformer_tiny", device="v100", nodes=2, network="1 Gbit/s")
    question = ask(None, words, QUICK)
    assert (saved.cluster, saved.compressors) == (
        question.scenario.cluster,
        question.scenario.compressors,
    )


def test_json_is_the_document(tmp_path: Path) -> None:
    finished = command("advise", *ASKED, *SET, "--json", "-q", folder=tmp_path)
    assert (finished.stdout, finished.stderr) == (advised(model="transformer_tiny").to_json(), "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--model: error: missing"),
        (("no_such_file.yaml",), "no_such_file.yaml"),
        ((*ASKED[:-1], "25 Gbit/x"), "--network: error: unknown unit 'Gbit/x'"),
        ((*ASKED, "--set", "cluster.nodes=x"), "--set cluster.nodes: error"),
        ((*ASKED, "--map", "bandwidth"), "--map: error: 'bandwidth' does not name two settings"),
        ((*ASKED, "--map", "bandwidth,latency", "-o", "m.gif"), "m.gif: error: '.gif' is no"),
    ],
)
def test_mistakes_end_with_2(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    finished = command("advise", *arguments, folder=tmp_path)
    assert finished.returncode == 2
    assert said in finished.stderr
    assert not finished.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("docs/advice.md", Words(model="resnet50", device="v100", gpus=4, nodes=8, network="25G")),
        (
            "README.md",
            Words(
                model="gpt2",
                device="a100",
                gpus=8,
                nodes=4,
                network="25 Gbit/s",
                loop="ddp",
                limited=False,
            ),
        ),
    ],
)
def test_pages_show_what_the_command_prints(page: str, words: Words) -> None:
    text = (Path(__file__).parents[3] / page).read_text(encoding="utf-8")
    assert f"```\n{advice(ask(None, words)).summary(80)}```\n" in text


@pytest.mark.parametrize(("network", "asked"), [("100gbe", True), ("25gbe", False)])
def test_rdma_is_asked_for_first_where_it_decides(network: str, asked: bool) -> None:
    """One TCP connection carries a part of 100 Gbit/s, and most of 25 Gbit/s."""
    words: dict[str, Any] = {"model": "gpt2", "nodes": 8, "gpus": 4, "network": network}
    found = advised("compressors=[none, fp16]", **words)
    assert any(one.answer.words == "RDMA" for one in found.findings.open)
    first = "First         find out whether NCCL uses RDMA: NCCL_DEBUG=INFO logs NET/IB"
    assert found.summary().startswith(first, found.summary().index("\n") + 1) is asked


def test_a_change_saves_as_much_as_advice_with_it_says() -> None:
    """An uplink at the network's goodput limits dense training in half of the drawn worlds."""

    def asked(rate: int) -> Advice:
        uplink = f"{{like: 10gbe, bandwidth: {rate} Gbit/s, latency: 5 us}}"
        racks = f"cluster.racks={{nodes: 4, uplink: {uplink}}}"
        words = Words(model="vgg16", device="v100", gpus=4, nodes=8, network="25gbe")
        settings = [racks, "compressors=[none]", "uncertainty.draws=128"]
        return advice(ask(None, words, settings))

    now, then = asked(20), asked(40)
    (change,) = (one for one in now.findings.changes if "uplinks" in one.words)
    saved = now.rows[0].iteration_s - then.rows[0].iteration_s
    assert change.saves_s["dense"] == pytest.approx(saved)
    assert saved > 0.02 * now.rows[0].iteration_s
