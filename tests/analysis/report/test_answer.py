"""The sentences say whether compression pays, what is safe and what to try, and claim no more."""

import re
from dataclasses import replace
from typing import Any

import pytest

from gcsim.analysis.report.answer import answer
from gcsim.analysis.report.selection import largest_verdict
from gcsim.analysis.report.sources import provenance_notes
from gcsim.analysis.report.wording import chance_of, steps_as_dense
from gcsim.scenarios.result import Result
from gcsim.scenarios.trained.horizon import DELAY
from gcsim.scenarios.trained.shipped_tasks import TASKS
from gcsim.scenarios.uncertainty.close_pairs import TIE
from gcsim.simulator.luck import as_probability
from tests.analysis.drawn import between, open_result


def at(result: Result, **times: dict[int, float] | float) -> Result:
    """Only the named compressors, with these iteration times in seconds (by nodes, or all)."""
    rows = []
    for row in result.rows:
        if row.compressor in times:
            given = times[row.compressor]
            time = given.get(row.nodes) if isinstance(given, dict) else given
            if time is not None:
                rows.append(replace(row, iteration_s=time))
    dense = {row.nodes: row.iteration_s for row in rows if row.compressor == "none"}
    compared = tuple(
        replace(row, speedup_vs_dense=dense[row.nodes] / row.iteration_s if dense else None)
        for row in rows
    )
    return replace(result, rows=compared)


def plain(result: Result) -> list[str]:
    """The answer with plain blanks."""
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in answer(result)]


def said(result: Result, **times: dict[int, float] | float) -> str:
    return " ".join(plain(at(result, **times)))


def test_ring_and_tree_are_told_side_by_side_where_they_differ(result: Result) -> None:
    shown = at(result, none={32: 0.4}, fp16={32: 0.2})
    assert "ring or tree" not in " ".join(answer(shown))

    def with_shapes(ring: float, tree: float) -> str:
        rows = tuple(
            replace(row, iteration_ring_s=ring, iteration_tree_s=tree)
            if row.compressor == "none"
            else row
            for row in shown.rows
        )
        return " ".join(answer(replace(shown, rows=rows)))

    assert "NCCL may use a ring or a tree here: dense 410 ms or 550 ms." in with_shapes(0.41, 0.55)
    assert "ring or tree" not in with_shapes(0.4, 0.401)  # no more than a tie


# --- safe, and to try ----------------------------------------------------------------------------


def test_what_is_safe_and_what_to_try_are_two_lines(result: Result) -> None:
    # 0.4 s / 0.1 s = 4; NMSE and cosine are those of the PowerSGD row
    text = plain(at(result, none={32: 0.4}, powersgd={32: 0.1}, fp16={32: 0.2}))
    assert [
        line for line in text if not line.startswith(("PowerSGD rank 4 on", "No training"))
    ] == [
        "Use: FP16: 200 ms; 2.00x dense.",
        "Try: PowerSGD rank 4: 100 ms; 4.00x dense; 2.00x FP16; train before you trust it.",
        "Gradient error of PowerSGD rank 4: NMSE 0.310, cosine similarity to the dense update "
        "0.830 (over 4 steps).",
    ]


def test_in_brief_errors_and_rivals_are_left_out(result: Result) -> None:
    shown = at(result, none={32: 0.4}, powersgd={32: 0.1}, fp16={32: 0.2}, topk={32: 0.1})
    brief = answer(shown, full=False)
    left = [line for line in answer(shown) if line not in brief]
    assert [line.split()[0] for line in left] == ["Gradient", "Not"]
    assert answer(at(result, none={32: 0.2}), full=False) == answer(at(result, none={32: 0.2}))


def test_both_have_their_intervals(result: Result) -> None:
    # the middle 80 % of 0.04 to 0.06 s is 0.042 to 0.058 s; of 0.19 to 0.21, 0.192 to 0.208
    shown = open_result(
        result, none=between(0.4, 0.4), topk=between(0.04, 0.06), fp16=between(0.19, 0.21)
    )
    use, to_try, *_ = plain(shown)
    assert use == "Use: FP16: 200 ms; 2.00x dense (1.92-2.08), faster in at least 99 % of draws."
    surely = "8.00x dense (6.90-9.52), faster in at least 99 % of draws; "
    assert to_try.startswith(f"Try: Top-k 1%: 50.0 ms; {surely}")


def test_nothing_is_to_try_where_the_safe_method_is_the_fastest(result: Result) -> None:
    text = plain(at(result, none={32: 0.4}, fp16={32: 0.1}, powersgd={32: 0.2}))
    assert text[0] == "Use: FP16: 100 ms; 4.00x dense."
    assert text[1] == "Try: nothing: no other method is clearly faster."


def test_dense_is_used_where_nothing_safe_is_faster(result: Result) -> None:
    text = said(result, none=0.4, powersgd=0.1, fp16=0.5)
    assert "Use: dense: 400 ms; FP16: 0.800x dense." in text
    assert "Try: PowerSGD rank 4: 100 ms" in text


def test_half_precision_near_dense_is_too_close_to_call(result: Result) -> None:
    # of 41 worlds in even steps from 0.35 s, those below 0.4 s
    shown = open_result(result, none=between(0.4, 0.4), fp16=between(0.35, 0.5))
    assert "too close to call: FP16 is faster in 34 % of draws" in plain(shown)[0]


def test_a_large_error_is_put_into_proportion(result: Result) -> None:
    # the definition |update - dense|^2 / |dense|^2 at update = 0
    assert "NMSE 0.610 (a zero update has 1)" in said(result, none=0.4, topk=0.1)
    assert "zero" not in said(result, none=0.4, powersgd=0.1)


def test_memory_is_said_to_move_the_error_later(result: Result) -> None:
    rows = tuple(
        replace(row, memory="residual (n)", nmse=1e-6) if row.compressor == "powersgd" else row
        for row in at(result, none=0.4, powersgd=0.1, fp16=0.2).rows
    )
    text = " ".join(answer(replace(result, rows=rows)))
    assert "over 4 steps from an empty residual; later steps differ" in text
    assert "Use: FP16" in text  # a small error over a few steps does not make memory safe


def test_a_dense_row_without_a_label_reads_well(result: Result) -> None:
    rows = tuple(
        replace(row, label="none") if row.compressor == "none" else row for row in result.rows
    )
    unnamed = at(replace(result, rows=rows), none=0.4, powersgd=0.1)
    assert answer(unnamed)[0] == "Use: dense: 400 ms."


def test_what_nothing_can_be_trained_with_is_said_and_not_named(result: Result) -> None:
    # random-k of the fixture: NMSE 0.99, cosine 0.1, no memory
    text = said(result, none={32: 0.4}, randomk={32: 0.05}, powersgd={32: 0.1})
    assert "Try: PowerSGD rank 4" in text
    assert (
        "Not counted: random-k 1%, 8.00x: its update contains almost none of the gradient "
        "(cosine similarity 0.100)." in text
    )
    assert "Not counted" not in said(result, none=0.4, randomk=0.3, powersgd=0.1)
    alone = said(result, none={32: 0.4}, randomk={32: 0.05})
    assert "train uncompressed: no method here supports this training" in alone
    assert "Not counted: random-k 1%" in alone


def test_a_scale_that_is_the_learning_rates_has_a_cosine_and_no_nmse(result: Result) -> None:
    rows = tuple(
        replace(row, nmse=None) if row.compressor == "powersgd" else row
        for row in at(result, none=0.4, powersgd=0.1).rows
    )
    text = " ".join(answer(replace(result, rows=rows)))
    assert "to the dense update 0.830 (over 4 steps); its scale is the learning rate's." in text


# --- does it pay? --------------------------------------------------------------------------------


def test_it_is_said_when_dense_wins(result: Result) -> None:
    # 0.1 s / 0.15 s = 0.667
    assert plain(at(result, none={32: 0.1}, fp16={32: 0.15}, dgc={32: 0.3})) == [
        "Use: dense: 100 ms; FP16: 0.667x dense.",
        "Try: train uncompressed: no method is more than 1 % faster.",
    ]


def test_within_one_per_cent_of_dense_does_not_pay(result: Result) -> None:
    assert "train uncompressed" in said(result, none={32: 0.1}, fp16={32: 0.0995})
    assert "Use: FP16" in said(result, none={32: 0.1}, fp16={32: 0.0985})


@pytest.mark.parametrize(
    ("high", "begins"),
    [
        (0.42, "Top-k 1%: 360 ms; 1.11x dense (0.980-1.28), faster in 83 % of draws"),
        (0.47, "Top-k 1%: 385 ms; 1.04x dense (0.883-1.26), faster in 59 % of draws"),
        (0.55, "train uncompressed: Top-k 1% may slow this down (0.941x dense, faster in 39 %"),
        (0.67, "train uncompressed: Top-k 1% probably slows this down (0.825x dense, faster in 27"),
    ],
)
def test_what_is_open_has_its_probability(result: Result, high: float, begins: str) -> None:
    # of 41 worlds in even steps from 0.3 s, 34, 24, 16 and 11 are below 0.4 s
    use, to_try, *_ = plain(open_result(result, none=between(0.4, 0.4), topk=between(0.3, high)))
    assert use == "Use: dense: 400 ms."
    assert to_try.startswith(f"Try: {begins}")


@pytest.mark.parametrize(
    ("faster", "likely"),
    [
        (0, "at most 1 %"),
        (2, "at most 1 %"),
        (3, "1 %"),
        (253, "99 %"),
        (254, "at least 99 %"),
        (256, "at least 99 %"),
    ],
)
def test_no_share_of_draws_is_said_to_be_all_or_none(faster: int, likely: str) -> None:
    """Of 256 draws 2 are 0.8 % and 254 are 99.2 %, beyond the bounds of 1 and 99 %."""
    words = chance_of(as_probability(faster / 256), 256).replace("\N{NO-BREAK SPACE}", " ")
    assert words == f", faster in {likely} of draws"


def test_shipped_tasks_that_tell_are_named_with_whose_parameters_they_had(result: Result) -> None:
    """Top-k's thousandth trained on three long tasks, its hundredth on the others; DGC was trained
    with a thousandth alone, on the short tasks for one delay."""

    def of(kind: str, **given: float) -> str:
        shown = at(result, none={32: 0.4}, **{kind: {32: 0.1}})
        row = next(row for row in shown.rows if row.compressor == kind)
        entry = {"kind": kind, "label": row.label, **given}
        text = plain(replace(shown, scenario={**shown.scenario, "compressors": [entry]}))
        (line,) = [one.removeprefix(f"{row.label} ") for one in text if "shipped tasks" in one]
        assert "inconclusive" not in line
        assert DELAY not in text
        return line

    tasks = re.compile(r"(\w+) \([\w ]+\)( with other parameters)? (?:needs|misses)")
    mixed, others = of("topk", ratio=0.001), of("dgc", ratio=0.01)
    assert mixed.startswith("on the shipped tasks: digits_8")
    found = {name: bool(others) for name, others in tasks.findall(mixed)}
    assert found == {
        name: not name.startswith(("textures_long", "characters_long")) for name in TASKS
    }
    assert others.startswith("dgc with other parameters on the shipped tasks: textures_long")
    assert [name for name, _ in tasks.findall(others)] == ["textures_long", "characters_long"]
    assert "textures_long (momentum SGD)" in others


def test_a_ratio_of_steps_that_rounds_to_one_is_no_number() -> None:
    assert steps_as_dense(2.0) == "2.00 times as many steps as dense"
    assert steps_as_dense(1.004) == "as many steps as dense"


def test_one_worker_alone_is_told_that_it_sends_nothing(result: Result) -> None:
    shown = at(result, none={1: 0.4}, fp16={1: 0.3})  # faster, by whatever luck
    rows = tuple(replace(row, workers=1) for row in shown.rows)
    assert answer(replace(shown, rows=rows)) == [
        "Use: dense: 400 ms; a single worker sends nothing, so there is nothing to compress."
    ]


def test_of_equally_fast_methods_the_smaller_error_is_named(result: Result) -> None:
    text = said(result, none={32: 0.4}, topk={32: 0.1}, powersgd={32: 0.1 * (1 + TIE / 2)})
    assert "Try: PowerSGD rank 4" in text
    assert "Not clearly slower: Top-k 1%, 4.00x." in text
    apart = said(result, none={32: 0.4}, topk={32: 0.1}, powersgd={32: 0.1 * (1 + 2 * TIE)})
    assert "Try: Top-k 1%" in apart
    assert "As fast" not in apart


def test_of_many_that_are_as_fast_a_few_are_named(result: Result) -> None:
    kinds = ["topk", "dgc", "qsgd", "ef_block_sgdm", "variance", "powersgd", "qsparse_local_sgd"]
    text = said(result, none={32: 0.4}, **{kind: {32: 0.1} for kind in kinds})
    (line,) = [part for part in text.split(". ") if part.startswith("Not clearly slower")]
    assert line.count("4.00x") == 4
    assert "; 2 others" in line


# --- sizes ---------------------------------------------------------------------------------------


def test_the_change_with_the_size_is_told(result: Result) -> None:
    sizes = (1, 2, 4, 8, 16, 32)
    scaled = at(
        result,
        none=dict.fromkeys(sizes, 0.2),
        fp16={n: 0.3 if n == 1 else 0.15 for n in sizes},
        powersgd={n: 0.3 if n < 16 else 0.1 for n in sizes},
    )
    assert answer(scaled)[-1] == (
        "Best method by cluster size: dense on 1 node, FP16 on 2 to 8 nodes, PowerSGD rank 4 "
        "from 16 nodes on."
    )


def test_a_size_whose_memory_is_too_small_has_no_best_method(result: Result) -> None:
    """Sharded weights may fit on two nodes and not on one."""
    scaled = at(result, none={1: 0.1, 2: 0.1, 4: 0.1}, fp16={1: 0.2, 2: 0.05, 4: 0.05})
    rows = tuple(replace(row, fits="no" if row.nodes == 1 else "yes") for row in scaled.rows)
    assert "on 1 node" in answer(scaled)[-1]
    assert answer(replace(scaled, rows=rows))[-1] == (
        "The same holds at every size, from 2 nodes on."
    )


def test_the_same_at_every_size_and_a_single_size(result: Result) -> None:
    same = answer(at(result, none=0.2, fp16=0.1))[-1]
    assert same == "The same holds at every size, from 1 node on."
    single = at(result, none={32: 0.2}, fp16={32: 0.1})
    assert not any("size" in sentence for sentence in answer(single))


def test_a_method_that_wins_at_the_largest_size_only(result: Result) -> None:
    late = at(result, none={1: 0.1, 2: 0.1}, fp16={1: 0.2, 2: 0.05})
    assert answer(late)[-1] == "Best method by cluster size: dense on 1 node, FP16 on 2 nodes."


def test_without_a_dense_row_no_speedup_is_claimed(result: Result) -> None:
    text = said(result, fp16={32: 0.2}, powersgd={32: 0.1})
    assert "no speedup to state" in text
    assert "Use: FP16: 200 ms. Try: PowerSGD rank 4: 100 ms; " in text


def test_a_single_row_is_not_called_a_winner(result: Result) -> None:
    assert answer(at(result, none={32: 0.2})) == [
        "Use: dense: 200 ms.",
        "There is only one method, so there is nothing to compare.",
    ]


# --- random times --------------------------------------------------------------------------------


def spread(result: Result, iterations: int | None = 50) -> Result:
    """Iterations that are 10 % shorter and 20 % longer now and then."""
    rows = tuple(
        replace(row, iteration_p5_s=row.iteration_s * 0.9, iteration_p95_s=row.iteration_s * 1.2,
                iterations=iterations)
        for row in result.rows
    )  # fmt: skip
    return replace(result, rows=rows)


def test_random_times_are_called_means_with_their_spread(result: Result) -> None:
    text = answer(spread(at(result, none={32: 0.4}, powersgd={32: 0.1})))
    assert text[-1] == (
        "These are means of 50 iterations; nine in ten take: PowerSGD rank 4 90.0 ms to 120 ms, "
        "dense 360 ms to 480 ms."
    )


def test_every_kind_of_answer_says_so(result: Result) -> None:
    for shown in (
        at(result, none={32: 0.4}),
        at(result, none={32: 0.1}, fp16={32: 0.4}),
        at(result, fp16={32: 0.4}, topk={32: 0.1}),
    ):
        assert "means of 50 iterations" in " ".join(answer(spread(shown)))
        assert "mean" not in " ".join(answer(shown))


def test_a_single_random_iteration_may_be_luck(result: Result) -> None:
    once = spread(at(result, none={32: 0.4}, fp16={32: 0.1}), iterations=1)
    assert "Each time is that of one random iteration." in " ".join(answer(once))
    assert answer(once)[-1] in answer(once, full=False)


def noisy(result: Result, error: float, **errors: float) -> Result:
    """Spread, with this standard error in seconds, or the named compressors' own."""
    shown = spread(result)
    rows = tuple(
        replace(row, iteration_error_s=errors.get(row.compressor, error)) for row in shown.rows
    )
    return replace(shown, rows=rows)


def test_within_two_standard_errors_of_dense_it_is_not_sure_that_compression_pays(
    result: Result,
) -> None:
    # 2 sqrt(3^2 + 4^2) = 10 ms: 91 and 100 ms are nearer than that, 89 and 100 ms are not;
    # 9 ms are 1.8 standard errors, below which 96 % of a normal distribution lie
    near = " ".join(answer(noisy(at(result, none={32: 0.1}, fp16={32: 0.091}), 0.003, none=0.004)))
    assert (
        "Use: FP16: 91.0 ms; 1.10x dense (0.989-1.21), 96\N{NO-BREAK SPACE}% likely to be" in near
    )
    assert "50 iterations cannot separate some of these methods: raise training.iterations" in near
    far = answer(noisy(at(result, none={32: 0.1}, fp16={32: 0.089}), 0.003, none=0.004))
    assert far[0].startswith("Use: FP16: 89.0 ms; 1.12x dense")
    assert "luck" not in " ".join(far)


def test_dense_is_not_said_to_win_by_luck_either(result: Result) -> None:
    # 5 ms between means known to 3 ms each: 1.18 standard errors, beyond which lie 12 %
    near = at(result, none={32: 0.1}, fp16={32: 0.105})
    assert (
        "FP16 probably slows this down (0.952x dense, 12\N{NO-BREAK SPACE}% likely"
        in answer(noisy(near, 0.003))[1]
    )
    assert "no method is more than 1\N{NO-BREAK SPACE}% faster" in answer(near)[1]


def test_methods_that_luck_may_reverse_are_rivals(result: Result) -> None:
    shown = noisy(
        at(result, none={32: 0.4}, powersgd={32: 0.1}, topk={32: 0.104}, fp16={32: 0.3}), 0.002
    )
    text = " ".join(answer(shown))
    assert "Not clearly slower: Top-k 1%, 3.85x." in text
    assert "Use: FP16: 300 ms; 1.33x dense" in text
    assert "50 iterations cannot separate some of these methods: raise training.iterations" in text
    found = largest_verdict(shown)
    assert [row.compressor for row in found.foremost] == ["powersgd", "topk"]


def test_sizes_where_it_is_open_have_the_probability(result: Result) -> None:
    # 1 ms between means that are known to 4 ms each: 0.18 standard errors
    late = at(result, none={1: 0.1, 2: 0.1}, fp16={1: 0.099, 2: 0.05})
    assert answer(noisy(late, 0.004))[-1] == (
        "Best method by cluster size: FP16 on 1 node (faster than dense in "
        "57\N{NO-BREAK SPACE}% of draws), FP16 on 2 nodes."
    )


def test_sizes_alike_are_one_and_their_probabilities_a_range(result: Result) -> None:
    """0.18 and 0.35 standard errors are 57 and 64 % of a normal distribution."""
    late = at(result, none={1: 0.1, 2: 0.1}, fp16={1: 0.099, 2: 0.098})
    assert answer(noisy(late, 0.004))[-1] == (
        "Best method by cluster size: FP16 from 1 node on (faster than dense in "
        "57 to 64\N{NO-BREAK SPACE}% of draws)."
    )


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
        "gradients: live, workers 2, iterations 4, loss 6.90 -> 2.20 in the warm-up",
        "forward and backward: an estimate; alexnet, batch 32, on a P100",
        "encode and decode: metered, P100; measured: streaming; ESTIMATES: sort",
    ]
    assert notes[3] == "network: 10gbe, an estimate (94.2% of the line rate); TCP"
    assert notes[4].startswith("intra node: pcie, measured; PCIe ")
    assert len(notes[4]) < 300
    assert "transport: gloo; algorithms: Gloo ring; all-gather" in notes
    assert "versions: seed 7, gcsim 0.1.0, torch 2.13.0" in notes
    assert "does not simulate convergence" in notes[-1]


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
    nic = {"calibration": "estimate", "efficiency": 0.9, "source": "x"}
    links = {
        "nics": [
            {"nodes": [3], "name": "1gbe", **nic},
            {"nodes": list(range(10, 20)), "name": "5gbe", **nic},
        ],
        "rack_uplink": {"name": "20gbe", **nic},
    }
    notes = provenance_notes(replace(result, provenance={"links": links}))
    assert notes[:3] == [
        "NIC of node 3: 1gbe, an estimate (90.0% of the line rate); x",
        "NICs of nodes 10, 11, 12, 13, 14, 15 and 4 more: 5gbe, an estimate (90.0% of the line "
        "rate); x",
        "rack uplink: 20gbe, an estimate (90.0% of the line rate); x",
    ]


def test_why_iterations_differ_is_told(result: Result) -> None:
    facts = {"random": ["training.noise", "cluster.network"], "iterations": 50, "seed": 3}
    notes = provenance_notes(replace(result, provenance={"averages": facts}))
    assert notes[0] == (
        "means of 50 iterations, which vary; random, from seed 3: training.noise, cluster.network"
    )
    timed = {"random": [], "changing_with_time": ["cluster.network"], "iterations": 9, "seed": 3}
    notes = provenance_notes(replace(result, provenance={"averages": timed}))
    assert notes[0] == "means of 9 iterations, which vary; changing with time: cluster.network"
    assert not any("differ" in note for note in provenance_notes(result)[:-1])


def test_with_accumulation_the_error_is_of_one_micro_batch(result: Result) -> None:
    scenario = {**result.scenario, "training": {"accumulation": 4}}
    last = provenance_notes(replace(result, scenario=scenario))[-1]
    assert "of single updates from one micro-batch's gradients, not the sum of 4;" in last
    assert "micro-batch" not in provenance_notes(result)[-1]


def test_unknown_provenance_is_not_invented(result: Result) -> None:
    notes = provenance_notes(replace(result, provenance={}))
    assert len(notes) == 1  # what holds of every run
