"""The sentences name the right winner, and say so when compression does not pay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gcsim.analysis.answer import answer, provenance_notes
from gcsim.analysis.selection import TIE, at_largest, best, error_of
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
    assert "transport: gloo; Gloo ring, all-gather" in notes
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
