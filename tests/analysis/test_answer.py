"""The sentences name the right winner, and say so when compression does not pay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gcsim.analysis.answer import answer
from gcsim.analysis.selection import TIE, at_largest, best, error_of
from gcsim.analysis.sources import provenance_notes
from gcsim.scenarios.result import Result, Row


def at(result: Result, **times: dict[int, float] | float) -> Result:
    """Only the named compressors, with these iteration times in seconds (by nodes, or all)."""
    rows = []
    for row in result.rows:
        if row.compressor in times:
            given = times[row.compressor]
            time = given.get(row.nodes) if isinstance(given, dict) else given
            if time is not None:
                rows.append(replace(row, iteration_s=time))
    return replace(result, rows=tuple(rows))


def test_the_winner_its_speedup_and_its_error_are_named(result: Result) -> None:
    # 0.4 s / 0.1 s = 4; NMSE and cosine are those of the PowerSGD row
    first, second, *_ = answer(at(result, none=0.4, powersgd=0.1, topk=0.3))
    assert first == (
        "On 32 nodes (64 workers) PowerSGD rank 4 is fastest: 4.00x the speed of dense, 100 ms an "
        "iteration against 400 ms."
    )
    assert "NMSE 0.310" in second
    assert "cosine similarity 0.830" in second


def test_a_large_error_is_put_into_proportion(result: Result) -> None:
    # the definition |update - dense|^2 / |dense|^2 at update = 0
    assert (
        "NMSE 0.990 (an update of zero would have 1)"
        in answer(at(result, none=0.4, randomk=0.1))[1]
    )
    assert "zero" not in answer(at(result, none=0.4, powersgd=0.1))[1]


def test_a_dense_row_without_a_label_reads_well(result: Result) -> None:
    rows = tuple(
        replace(row, label="none") if row.compressor == "none" else row for row in result.rows
    )
    unnamed = at(replace(result, rows=rows), none=0.4, powersgd=0.1)
    assert "4.00x the speed of no compression" in answer(unnamed)[0]


def test_a_nearer_method_is_named_when_the_winner_has_a_large_error(result: Result) -> None:
    text = " ".join(answer(at(result, none=0.4, powersgd=0.1, fp16=0.2)))
    assert (
        "Of the methods without memory that have an NMSE of at most 0.1, FP16 is fastest: 2.00x "
        "(NMSE 8.3e-08)." in text
    )


def test_a_small_error_over_a_few_steps_does_not_recommend_a_method_with_memory(
    result: Result,
) -> None:
    rows = tuple(
        replace(row, memory="residual (n)", nmse=0.01) if row.compressor == "powersgd" else row
        for row in at(result, none=0.4, powersgd=0.1, fp16=0.2).rows
    )
    text = " ".join(answer(replace(result, rows=rows)))
    assert "4 steps from empty memory" in text
    assert "FP16 is fastest: 2.00x" in text


def test_it_is_said_when_no_near_method_is_faster_than_dense(result: Result) -> None:
    alone = " ".join(answer(at(result, none=0.4, powersgd=0.1)))
    nothing = "No method without memory that has an NMSE of at most 0.1 is faster than dense."
    assert nothing in alone


def test_no_nearer_method_is_named_when_the_winner_is_near(result: Result) -> None:
    assert "at most 0.1" not in " ".join(answer(at(result, none=0.4, fp16=0.1, powersgd=0.2)))


def test_it_is_said_when_dense_wins(result: Result) -> None:
    # 0.15 s / 0.1 s = 1.5
    assert answer(at(result, none={32: 0.1}, fp16={32: 0.15}, dgc={32: 0.3})) == [
        "On 32 nodes (64 workers) compression does not pay: dense is fastest, 100 ms an iteration; "
        "the next, FP16, takes 1.50x as long (150 ms)."
    ]


def test_within_one_per_cent_of_dense_does_not_pay(result: Result) -> None:
    said = answer(at(result, none={32: 0.1}, fp16={32: 0.0995}))
    assert said == [
        "On 32 nodes (64 workers) compression does not pay: nothing is more than 1% faster than "
        "dense (100 ms an iteration; FP16 takes 99.5 ms)."
    ]


def test_of_equally_fast_methods_the_smaller_error_wins(result: Result) -> None:
    tied = at(result, none=0.4, topk=0.1, powersgd=0.1 * (1 + TIE / 2))
    text = " ".join(answer(tied))
    assert "PowerSGD rank 4 is fastest" in text
    assert "As fast within 1%, with a larger error: Top-k 1%." in text


def test_just_outside_the_tie_the_faster_one_wins(result: Result) -> None:
    apart = at(result, none=0.4, topk=0.1, powersgd=0.1 * (1 + 2 * TIE))
    assert "Top-k 1% is fastest" in answer(apart)[0]


def test_the_change_with_the_size_is_told(result: Result) -> None:
    sizes = (1, 2, 4, 8, 16, 32)
    scaled = at(
        result,
        none=dict.fromkeys(sizes, 0.2),
        fp16={n: 0.3 if n == 1 else 0.15 for n in sizes},
        powersgd={n: 0.3 if n < 16 else 0.1 for n in sizes},
    )
    assert answer(scaled)[-1] == (
        "Fastest by size: dense on 1 node, FP16 on 2 to 8 nodes, PowerSGD rank 4 from 16 nodes on."
    )


def test_one_winner_at_every_size_and_a_single_size(result: Result) -> None:
    same = answer(at(result, none=0.2, fp16=0.1))[-1]
    assert same == "The same method wins at every size, from 1 node on."
    single = at(result, none={32: 0.2}, fp16={32: 0.1})
    assert not any("size" in sentence for sentence in answer(single))


def test_a_method_that_wins_at_the_largest_size_only(result: Result) -> None:
    late = at(result, none={1: 0.1, 2: 0.1}, fp16={1: 0.2, 2: 0.05})
    assert answer(late)[-1] == "Fastest by size: dense on 1 node, FP16 on 2 nodes."


def test_without_a_dense_row_no_speedup_is_claimed(result: Result) -> None:
    text = " ".join(answer(at(result, fp16=0.2, powersgd=0.1)))
    assert "PowerSGD rank 4 is fastest: 100 ms an iteration" in text
    assert "no speedup to state" in text


def test_a_single_row_is_not_called_a_winner(result: Result) -> None:
    assert answer(at(result, none={32: 0.2})) == [
        "On 32 nodes (64 workers) dense takes 200 ms an iteration: nothing to compare it with."
    ]


def test_the_winner_has_the_smallest_error_among_the_nearly_fastest(result: Result) -> None:
    rows: list[Row] = [row for row in result.rows if row.nodes == 32]
    found = best(rows)
    fastest = min(row.iteration_s for row in rows)
    near = [row for row in rows if row.iteration_s <= fastest * (1 + TIE)]
    assert found.row.nmse == min(error_of(row) for row in near)
    assert {found.row, *found.equals} == set(near)


# --- random times --------------------------------------------------------------------------------


def spread(result: Result, iterations: int | None = 50) -> Result:
    """Iterations that are 10 % shorter and 20 % longer now and then."""
    rows = tuple(
        replace(row, iteration_p5_s=row.iteration_s * 0.9, iteration_p95_s=row.iteration_s * 1.2)
        for row in result.rows
    )
    facts = {} if iterations is None else {"averages": {"iterations": iterations}}
    return replace(result, rows=rows, provenance=facts)


def test_random_times_are_called_means_with_their_spread(result: Result) -> None:
    said = answer(spread(at(result, none={32: 0.4}, powersgd={32: 0.1})))
    assert said[0].endswith("4.00x the speed of dense, 100 ms an iteration against 400 ms.")
    assert said[1] == (
        "These are means of 50 iterations; nine in ten take: PowerSGD rank 4 90.0 ms to 120 ms, "
        "dense 360 ms to 480 ms."
    )


def test_every_kind_of_answer_says_so(result: Result) -> None:
    for shown in (
        at(result, none={32: 0.4}),
        at(result, none={32: 0.1}, fp16={32: 0.4}),
        at(result, fp16={32: 0.4}, topk={32: 0.1}),
    ):
        assert "means of 50 iterations" in answer(spread(shown))[1]
        assert "mean" not in " ".join(answer(shown))


def test_unknown_numbers_of_iterations_are_not_invented(result: Result) -> None:
    said = answer(spread(at(result, none={32: 0.4}, fp16={32: 0.1}), iterations=None))
    assert said[1].startswith("These are means of many iterations; ")


def noisy(result: Result, error: float, **errors: float) -> Result:
    """Spread, with this standard error in seconds, or the named compressors' own."""
    shown = spread(result)
    rows = tuple(
        replace(row, iteration_error_s=errors.get(row.compressor, error)) for row in shown.rows
    )
    return replace(shown, rows=rows)


def test_within_two_standard_errors_of_dense_it_is_not_known_whether_compression_pays(
    result: Result,
) -> None:
    # 2 sqrt(3^2 + 4^2) = 10 ms: 91 and 100 ms are nearer than that, 89 and 100 ms are not
    near = at(result, none={32: 0.1}, fp16={32: 0.091})
    assert answer(noisy(near, 0.003, none=0.004)) == [
        "On 32 nodes (64 workers) FP16 and dense cannot be told apart with 50 iterations: their "
        "means differ by less than two standard errors. An iteration takes: FP16 91.0 ms (+- 3.00 "
        "ms), dense 100 ms (+- 4.00 ms).",
        "So it is not known whether compression pays. Set training.iterations higher to tell them "
        "apart.",
        "These are means of 50 iterations; nine in ten take: FP16 81.9 ms to 109 ms, dense 90.0 ms "
        "to 120 ms.",
    ]
    far = at(result, none={32: 0.1}, fp16={32: 0.089})
    assert "FP16 is fastest: 1.12x" in answer(noisy(far, 0.003, none=0.004))[0]


def test_dense_is_not_said_to_win_by_luck_either(result: Result) -> None:
    near = at(result, none={32: 0.1}, fp16={32: 0.105})
    text = " ".join(answer(noisy(near, 0.003)))
    assert "dense and FP16 cannot be told apart" in text
    assert "does not pay" not in text
    assert "does not pay" in answer(near)[0]


def test_methods_that_cannot_be_told_apart_may_still_beat_dense(result: Result) -> None:
    shown = at(result, none={32: 0.4}, powersgd={32: 0.1}, topk={32: 0.104}, fp16={32: 0.3})
    said = answer(noisy(shown, 0.002))
    assert said[0].startswith(
        "On 32 nodes (64 workers) PowerSGD rank 4 and Top-k 1% cannot be told apart with 50 iter"
    )
    assert said[1] == (
        "Faster than dense (400 ms (+- 2.00 ms)): PowerSGD rank 4 4.00x, Top-k 1% 3.85x. Set "
        "training.iterations higher to tell them apart."
    )
    assert "FP16 is fastest: 1.33x (NMSE" in said[-1]
    assert not any("fastest: 4.00x" in sentence for sentence in said)


def test_of_those_only_what_is_beyond_doubt_is_said_to_beat_dense(result: Result) -> None:
    # dense is 15 ms from PowerSGD, and 2 sqrt(2) 5 = 14 ms are doubt; Top-k is 7 ms from both
    shown = noisy(at(result, none={32: 0.115}, powersgd={32: 0.1}, topk={32: 0.1075}), 0.005)
    found = best(shown.rows)
    assert [row.label for row in found.unclear] == ["PowerSGD rank 4", "Top-k 1%"]
    assert "PowerSGD rank 4 1.15x. Set" in answer(shown)[1]


def test_errors_below_the_tie_leave_the_rule_of_the_smaller_error(result: Result) -> None:
    tied = at(result, none={32: 0.4}, topk={32: 0.1}, powersgd={32: 0.1001})
    assert "PowerSGD rank 4 is fastest" in answer(noisy(tied, 0.0001))[0]
    assert "cannot be told apart" in answer(noisy(tied, 0.001))[0]


def test_of_equals_one_that_dense_may_equal_does_not_win(result: Result) -> None:
    # 100, 100.9 and 101.2 ms with doubts of 0.6 ms: FP16 is within 1 %, and within doubt of dense
    shown = noisy(at(result, none={32: 0.1012}, topk={32: 0.1}, fp16={32: 0.1009}), 0.0002)
    assert "Top-k 1% is fastest" in answer(shown)[0]


def test_a_nearer_method_must_be_faster_than_dense_beyond_luck(result: Result) -> None:
    shown = at(result, none={32: 0.4}, powersgd={32: 0.1}, fp16={32: 0.38})
    text = " ".join(answer(noisy(shown, 0.001, none=0.011)))
    assert "PowerSGD rank 4 is fastest: 4.00x" in text
    assert "at most 0.1 can be told from dense with 50 iterations." in text
    assert "FP16 is fastest" in " ".join(answer(noisy(shown, 0.001, none=0.009)))


def test_nearer_methods_that_cannot_be_told_apart_are_all_named(result: Result) -> None:
    shown = at(result, none={32: 0.4}, powersgd={32: 0.1}, fp16={32: 0.2}, qsgd={32: 0.204})
    text = " ".join(answer(noisy(shown, 0.003)))
    assert "FP16 (2.00x) and QSGD 4 bit (1.96x) are faster, and cannot be told apart." in text


def test_sizes_without_a_winner_are_told(result: Result) -> None:
    late = at(result, none={1: 0.1, 2: 0.1}, fp16={1: 0.101, 2: 0.05})
    assert answer(noisy(late, 0.004))[-1] == (
        "Fastest by size: not told apart on 1 node, FP16 on 2 nodes."
    )
    never = at(result, none={1: 0.1, 2: 0.1}, fp16={1: 0.101, 2: 0.099})
    assert answer(noisy(never, 0.004))[-1] == (
        "At no size can it be told which method is fastest, with 50 iterations."
    )


def test_dense_is_named_however_many_cannot_be_told_apart(result: Result) -> None:
    kinds = [row.compressor for row in at_largest(result) if row.compressor != "none"]
    many = at(result, none={32: 0.11}, **{kind: {32: 0.1} for kind in kinds})
    first = answer(noisy(many, 0.02))[0]
    assert "dense and 7 others cannot be told apart" in first


def test_without_a_dense_row_nothing_is_compared_with_it(result: Result) -> None:
    text = " ".join(answer(noisy(at(result, topk={32: 0.1}, fp16={32: 0.101}), 0.01)))
    assert "Top-k 1% and FP16 cannot be told apart" in text
    assert "no speedup to state" in text


def test_a_single_random_iteration_may_be_luck(result: Result) -> None:
    once = spread(at(result, none={32: 0.4}, fp16={32: 0.1}), iterations=1)
    assert answer(once)[1].startswith("Each time is of one iteration, which may be luck.")


# --- provenance ----------------------------------------------------------------------------------


@pytest.fixture
def facts() -> dict[str, Any]:
    return {
        "versions": {"gcsim": "0.1.0", "torch": "2.13.0"},
        "seed": 7,
        "gradients": {
            "source": "live", "iterations": 4, "workers": 2, "warmup_losses": [6.9, 3.0, 2.2],
        },
        "compute": {"source": "alexnet, batch 32, on a P100", "estimate": True},
        "kernels": {
            "method": "metered",
            "device": "P100",
            "classes": {
                "streaming": {"source": "x", "estimate": False},
                "sort": {"source": "y", "estimate": True},
            },
        },
        "links": {
            "network": {
                "name": "10gbe", "calibration": "estimate", "efficiency": 0.9415, "source": "TCP",
            },
            "intra_node": {
                "name": "pcie", "calibration": "measured", "efficiency": 1.0,
                "source": "PCIe " * 99,
            },
        },
        "transport": "gloo",
        "algorithms": {"dense": ["Gloo ring"], "Top-k": ["all-gather", "Gloo ring"]},
    }  # fmt: skip


def test_each_kind_of_number_has_a_note(result: Result, facts: dict[str, Any]) -> None:
    notes = provenance_notes(replace(result, provenance=facts))
    assert notes[:3] == [
        "gradients: live, workers 2, iterations 4, loss 6.90 -> 2.20 before the first was taken",
        "forward and backward: an estimate; alexnet, batch 32, on a P100",
        "encode and decode: metered, P100; measured: streaming; ESTIMATES: sort",
    ]
    assert notes[3] == "network: 10gbe, an estimate (94.2% of the line rate); TCP"
    assert notes[4].startswith("intra node: pcie, measured; PCIe ")
    assert len(notes[4]) < 300
    assert "transport: gloo; algorithms: Gloo ring; all-gather" in notes
    assert "versions: seed 7, gcsim 0.1.0, torch 2.13.0" in notes
    assert "not simulated" in notes[-1]


@pytest.mark.parametrize(
    ("calibration", "said"),
    [("measured", "measured"), ("estimate", "an estimate"), ("ideal", "ideal"),
     ("stated", "stated by the user")],
)  # fmt: skip
def test_a_links_note_says_how_it_is_known(result: Result, calibration: str, said: str) -> None:
    link = {"name": "mine", "calibration": calibration, "efficiency": 1.0, "source": "x"}
    notes = provenance_notes(replace(result, provenance={"links": {"network": link}}))
    assert notes[0] == f"network: mine, {said}; x"  # all of the line rate: no share to tell


def test_every_kind_of_card_has_a_note_with_its_nodes(result: Result) -> None:
    card = {"calibration": "estimate", "efficiency": 0.9, "source": "x"}
    links = {
        "cards": [
            {"nodes": [3], "name": "1gbe", **card},
            {"nodes": list(range(10, 20)), "name": "5gbe", **card},
        ],
        "rack_uplink": {"name": "20gbe", **card},
    }
    notes = provenance_notes(replace(result, provenance={"links": links}))
    assert notes[:3] == [
        "card of node 3: 1gbe, an estimate (90.0% of the line rate); x",
        "cards of nodes 10, 11, 12, 13, 14, 15 and 4 more: 5gbe, an estimate (90.0% of the line "
        "rate); x",
        "rack uplink: 20gbe, an estimate (90.0% of the line rate); x",
    ]


def test_why_iterations_differ_is_told(result: Result) -> None:
    facts = {"random": ["training.noise", "cluster.network"], "iterations": 50, "seed": 3}
    notes = provenance_notes(replace(result, provenance={"averages": facts}))
    assert notes[0] == (
        "means of 50 iterations, which differ; random, from seed 3: training.noise, cluster.network"
    )
    timed = {"random": [], "changing_with_time": ["cluster.network"], "iterations": 9, "seed": 3}
    notes = provenance_notes(replace(result, provenance={"averages": timed}))
    assert notes[0] == "means of 9 iterations, which differ; changing with time: cluster.network"
    assert not any("differ" in note for note in provenance_notes(result)[:-1])


def test_with_accumulation_the_error_is_of_one_micro_batch(result: Result) -> None:
    scenario = {**result.scenario, "training": {"accumulation": 4}}
    last = provenance_notes(replace(result, scenario=scenario))[-1]
    assert "of single updates from one micro-batch's gradients, not the sum of 4;" in last
    assert "micro-batch" not in provenance_notes(result)[-1]


def test_unknown_provenance_is_not_invented(result: Result) -> None:
    notes = provenance_notes(replace(result, provenance={}))
    assert len(notes) == 1  # what holds of every run


def test_a_compute_source_may_be_a_sentence(result: Result) -> None:
    notes = provenance_notes(replace(result, provenance={"compute": "measured by the user"}))
    assert notes[0] == "forward and backward: measured by the user"


def test_a_winner_whose_scale_is_the_learning_rates_has_a_cosine_and_no_nmse(
    result: Result,
) -> None:
    winner = best(at_largest(result)).row
    rows = tuple(
        replace(row, nmse=None) if row.label == winner.label else row for row in result.rows
    )
    said = " ".join(answer(replace(result, rows=rows)))
    assert "its scale is the learning rate's" in said
    assert f"cosine similarity {winner.cosine_similarity:.3f}" in said
