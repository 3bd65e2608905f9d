"""Text of a plan: the offers that are left out and why, what is assumed, and doubtful points."""

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from gcsim.analysis.advice.plan import document, header, parts, sections, table
from gcsim.scenarios.planning.choice import Measurement, Plan, planned
from gcsim.scenarios.planning.offers import Offer
from gcsim.scenarios.planning.search import Job
from gcsim.scenarios.uncertainty.worlds import FACTORS

SETTINGS = ("compressors=[none, fp16]", "uncertainty.draws=20")


def offer(device: str, gpus: int, nodes: int, network: str = "10gbe") -> Offer:
    return Offer(
        place="offers.csv:2", name=device, device=device, gpus=gpus, nodes=nodes, network=network,
        price=1.0,
    )  # fmt: skip


def plan(
    *offers: Offer, deadline: float | None = None, budget: float | None = None,
    sets: tuple[str, ...] = (), **job: Any,
) -> Plan:  # fmt: skip
    given: dict[str, Any] = {"model": "lenet", "amount": 1e7, "batch": 4096.0, **job}
    job_of = Job(**given, overrides=(*SETTINGS, *sets))
    return planned(job_of, offers, deadline=deadline, budget=budget)


def said(found: Plan) -> dict[str, str]:
    return {word: " ".join(texts) for word, texts in sections(found)}


@pytest.fixture(scope="module")
def fast() -> Plan:
    """Two nodes, the faster of one and two; neither is in time."""
    return plan(offer("v100", 1, 2), deadline=1e-6, model="resnet50", batch=256.0)


def test_an_offer_of_which_nothing_is_simulated_is_told_with_the_reason() -> None:
    """7e10 parameters times 2^22 tokens are 1.8e18 FLOPs, six of each; two cores do under 3e11 a
    second, and the clock ends after 4.6e6 s."""
    offers = offer("h100_sxm", 1, 1), offer("cpu_2core", 1, 1, "1gbe")
    found = plan(*offers, model="llama3_70b", batch=2.0**22)
    text = said(found)
    assert text["Choose"] == "none of the offers"
    assert ", has 80 GiB; would fit: " in text["Too small"].replace("\N{NO-BREAK SPACE}", " ")
    assert text["Too small"].startswith("h100_sxm")
    assert "cpu_2core (offers.csv:2): 1 x 1: iteration 0 would end" in text["Left out"]
    assert "53 days" in text["Left out"]
    assert [one["offer"] for one in document(found)["left_out"]] == ["cpu_2core"]


def test_a_node_of_more_gpus_than_samples_of_a_step_is_left_out() -> None:
    text = said(plan(offer("v100", 4, 2), batch=2.0))
    assert set(text) == {"Choose", "Left out"}
    assert "4 GPUs per node, but 2 samples per step; would help: --batch" in text["Left out"]


def test_the_network_and_a_memory_that_nobody_states_are_assumed(fast: Plan) -> None:
    assert "NCCL over TCP, 10gbe: latency" in said(fast)["Assumed"]
    assert "memory" not in said(fast)["Assumed"]
    alone = said(plan(offer("cpu_2core", 1, 1, "1gbe")))["Assumed"]
    assert "memory not checked: the device states none" in alone
    assert "TCP" not in alone


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("compressors=[none, {kind: local_sgd, interval: 100}]", "local_sgd"),
        ("training.local_steps=4", "local steps"),
        ("training.local_steps=1", None),
    ],
)
def test_methods_and_local_steps_without_evidence_are_assumed_to_need_as_many_steps(
    given: str, named: str | None
) -> None:
    """On 10 Gbit/s both beat an exchange after each step, so the front has them."""
    found = said(plan(offer("t4", 1, 4), sets=(given,)))["Assumed"]
    told = f"so does training with {named} (check accuracy first)"
    assert (told in found) == ("check accuracy first" in found) == (named is not None)


def test_a_probability_is_the_same_in_table_and_sentence(fast: Plan) -> None:
    """At least 1 %: 20 worlds tell no more."""
    _, lines = table(fast)
    assert [line[-1].replace("\N{NO-BREAK SPACE}", " ") for line in lines] == ["1 %"] * len(lines)
    assert "this one does in 1\N{NO-BREAK SPACE}%" in said(fast)["Choose"]


def test_long_names_of_machines_stay_whole_and_off_the_margin() -> None:
    """The margin has the mark of the choice alone."""
    names = "a100_sxm_80gb", "infiniband_ndr_of_the_old_hall"
    long = replace(offer("a100_sxm_80gb", 8, 4, "infiniband_ndr"), name=", ".join(names))
    found = plan(long, deadline=1.0)
    console = Console(width=80)
    with console.capture() as shown:
        console.print(parts(found, 80)[2])
    lines = shown.get().splitlines()[3:]
    assert {line[:2] for line in lines} == {"> ", "  "}
    assert all(shown.get().count(name) == len(found.front) for name in names)


def test_without_draws_there_is_neither_a_range_nor_a_probability() -> None:
    """A V100 takes more than an hour for 1e12 samples."""
    late = plan(offer("v100", 1, 1), deadline=1.0, sets=("uncertainty.draws=0",), amount=1e12)
    headings, _ = table(late)
    assert not {"range", "P(in\ntime)"} & set(headings)
    assert {one["probability_in_time"] for one in document(late)["front"]} == {None}
    assert "no setting meets the deadline with the stated inputs" in said(late)["Choose"]
    assert "%" not in said(late)["Choose"]
    assert "Measure" not in said(late)


@pytest.mark.parametrize(
    ("hours", "text"), [(0.05, "3 minutes"), (1.5, "90 minutes"), (40, "40 hours"), (72, "3 days")]
)
def test_a_deadline_is_told_in_a_unit_of_its_size(fast: Plan, hours: float, text: str) -> None:
    assert header(replace(fast, deadline=hours)).endswith(f"deadline {text}")


def test_what_may_not_fit_is_marked_in_its_row_and_passed_over(fast: Plan) -> None:
    (sure, *_) = fast.front
    point = replace(sure.point, work=replace(sure.point.work, sure=False))
    doubtful = replace(sure, point=point, hours=sure.hours / 2)
    found = replace(fast, front=(doubtful, sure), deadline=None)
    _, (first, second) = table(found)
    assert first[0].endswith(", may not fit")
    assert second[0].startswith("> ")
    assert "the cheapest that surely fits" in said(found)["Choose"]


def test_a_divided_optimizer_has_a_column_where_a_row_needs_it(fast: Plan) -> None:
    (one, *_) = fast.front
    assert "strategy" not in table(fast)[0]
    point = replace(one.point, work=replace(one.point.work, strategy="zero1"))
    headings, (line,) = table(replace(fast, front=(replace(one, point=point),)))
    assert line[headings.index("strategy")] == "zero1"
    (row,) = document(replace(fast, front=(replace(one, point=point),)))["front"]
    assert row["strategy"] == "zero1"
    assert "--set training.strategy=zero1" in row["command"]
    stated = replace(fast.job, overrides=("training.strategy=zero1", *SETTINGS))
    (row,) = document(replace(fast, job=stated, front=(replace(one, point=point),)))["front"]
    assert row["command"].count("--set training.strategy=zero1") == 1


def test_a_ratio_of_times_to_measure_is_named_so(
    fast: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Measurement(
        name=f"{FACTORS[1]} (your code)", unit="", stated=1.0, end=0.9, below=True,
        instead=fast.front[0], command="time one step on your machine",
    )  # fmt: skip
    monkeypatch.setattr(Plan, "measure", measure)
    assert document(fast)["measure"]["input"].startswith("measured times of compressed steps")
    text = said(fast)["Measure"]
    assert "measured times of compressed steps over predicted ones" in text
    assert "below 0.900 (assumed 1.00)" in text
    assert text.startswith("time one step on your machine; with ")
