"""Whether compression pays, what is safe and what to try: laws over generated results, examples."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gcsim.analysis.report import selection
from gcsim.analysis.report.trust import fault_of, is_safe
from gcsim.analysis.report.wording import uncompressed
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.uncertainty.close_pairs import TIE
from tests.analysis.drawn import WORLDS, between, drawn, open_result, plain_row

DENSE = between(0.4, 0.4)


def a_row(number: int, kind: str) -> Row:
    """Safe, to try, or one that nothing can be trained with."""
    nmse, cosine = {"none": (0.0, 1.0), "safe": (1e-7, 1.0), "risky": (0.5, 0.7),
                    "useless": (0.99, 0.1)}[kind]  # fmt: skip
    return plain_row(
        f"{kind} {number}", 1.0, compressor="none" if kind == "none" else f"method{number}",
        nmse=nmse, cosine_similarity=cosine,
    )  # fmt: skip


@st.composite
def sizes(draw: st.DrawFn) -> tuple[Row, ...]:
    """A dense row and one to six methods, in worlds that all share."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = draw(st.lists(st.sampled_from(["safe", "risky", "useless"]), min_size=1, max_size=6))
    rows = [a_row(number, kind) for number, kind in enumerate(["none", *kinds])]
    world = np.exp(draw(st.sampled_from([0.0, 0.5])) * generator.normal(size=WORLDS))
    draws = {}
    for row in rows:
        level = draw(st.sampled_from([0.7, 0.95, 0.985, 0.995, 1.0, 1.05, 1.3]))
        width = draw(st.sampled_from([0.0, 0.001, 0.02, 0.2]))
        draws[row.label] = (level * world * np.exp(width * generator.normal(size=WORLDS))).tolist()
    return drawn(rows, draws)


def share_beyond(one: Row, other: Row, factor: float) -> float:
    """In which share of the worlds `one` is more than `factor` times as fast: by counting."""
    pairs = zip(one.iteration_draws_s, other.iteration_draws_s, strict=True)
    return sum(b / a > factor for a, b in pairs) / len(one.iteration_draws_s)


def beats(one: Row, other: Row, share: float = 0.95) -> bool:
    """Certainly in nine worlds of ten: the tenth percentile lies between two of few worlds."""
    return share_beyond(one, other, 1 + TIE) >= share


def methods(rows: Iterable[Row]) -> list[Row]:
    """Those that something can be trained with."""
    return [row for row in rows if row.compressor != "none" and not fault_of(row, None)]


def named(found: selection.Verdict) -> tuple[object, ...]:
    labels = [None if row is None else row.label for row in (found.safe, found.to_try)]
    return found.pays, *labels, tuple(row.label for row in found.rivals)


@given(sizes())
def test_a_method_that_surely_gains_makes_the_verdict_pays_and_never_dense(
    rows: tuple[Row, ...],
) -> None:
    found = selection.verdict(rows)
    if any((row.speedup_low or 0) > 1 + TIE for row in methods(rows)):
        assert found.pays == "yes"
        assert all(row.compressor != "none" for row in found.foremost)


@given(sizes())
def test_what_is_named_is_not_surely_beaten(rows: tuple[Row, ...]) -> None:
    found = selection.verdict(rows)
    usable = [*methods(rows), *(row for row in rows if row.compressor == "none")]
    if found.to_try is not None and found.pays == "yes":
        assert not any(beats(other, found.to_try) for other in usable)
    if found.safe is not None:
        assert is_safe(found.safe)
        assert not any(beats(other, found.safe) for other in usable if is_safe(other))
    few, most = (
        {row.label for row in usable if not any(beats(other, row, share) for other in usable)}
        for share in (0.85, 0.95)
    )
    assert few <= {row.label for row in selection.candidates(usable)} <= most


@given(sizes())
def test_what_changes_the_update_is_used_if_likely_faster_than_all_that_does_not(
    rows: tuple[Row, ...],
) -> None:
    """Likely is two worlds of three; of the rest the mean iteration decides, to 1 %."""
    used = selection.best_known(selection.verdict(rows), {row.label: 1.0 for row in rows})
    assert used is not None
    mean = {row.label: float(np.mean(row.iteration_draws_s)) for row in rows}
    dense = next(row for row in rows if row.compressor == "none")
    likely = [
        row for row in [dense, *methods(rows)]
        if row is dense or share_beyond(row, dense, 1) >= 2 / 3
    ]  # fmt: skip
    nearest = min((row for row in likely if is_safe(row)), key=lambda row: mean[row.label])
    fit = [row for row in likely if is_safe(row) or share_beyond(row, nearest, 1) >= 2 / 3]
    assert used.label in {row.label for row in fit}
    assert mean[used.label] <= (1 + TIE) * min(mean[row.label] for row in fit)


@given(sizes())
def test_whether_compression_pays_is_a_matter_of_counting_worlds(rows: tuple[Row, ...]) -> None:
    found, dense = selection.verdict(rows), next(row for row in rows if row.compressor == "none")
    usable = methods(rows)
    gain = max((share_beyond(row, dense, 1 + TIE) for row in usable), default=0.0)
    faster = max((share_beyond(row, dense, 1) for row in usable), default=0.0)
    if not usable:
        assert found.pays is None
    elif gain <= 0.1:
        assert found.pays == "no"
    elif faster >= 0.9:
        assert found.pays == "yes"
    else:
        assert found.best is not None
        chance = share_beyond(found.best, dense, 1)
        expected = "likely" if chance >= 2 / 3 else "unlikely" if chance <= 1 / 3 else "not known"
        assert found.pays == expected


@given(sizes())
def test_what_is_less_probable_than_not_to_pay_is_never_named(rows: tuple[Row, ...]) -> None:
    found, dense = selection.verdict(rows), next(row for row in rows if row.compressor == "none")
    for row in (found.safe, found.to_try, *found.rivals, *found.foremost):
        assert row is None or row is dense or share_beyond(row, dense, 1) >= 0.5
    assert (found.to_try is None) == (uncompressed(found) != "")
    if found.to_try is None:
        assert found.foremost == (dense,)


@given(sizes(), st.sampled_from(["safe", "risky", "useless"]))
def test_a_surely_slower_row_changes_nothing(rows: tuple[Row, ...], kind: str) -> None:
    if not methods(rows):
        return
    slowest = np.max([row.iteration_draws_s for row in rows], axis=0) * 1.2
    draws = {row.label: row.iteration_draws_s for row in rows}
    more = drawn([*rows, a_row(99, kind)], {**draws, f"{kind} 99": slowest.tolist()})
    assert named(selection.verdict(more)) == named(selection.verdict(rows))


@given(sizes())
def test_what_is_left_out_decides_nothing_and_the_order_neither(rows: tuple[Row, ...]) -> None:
    found = selection.verdict(rows)
    without = [row for row in rows if row.compressor == "none" or not fault_of(row, None)]
    assert named(selection.verdict(without)) == named(found)
    assert named(selection.verdict(reversed(rows))) == named(found)
    useless = {row.label for row, _ in found.left_out}
    assert useless == {row.label for row in rows if row.label.startswith("useless")}
    assert not useless & {row.label for row in found.foremost}


@given(sizes(), st.integers(0, 2**32 - 1))
def test_worlds_that_are_slow_for_all_change_no_comparison(
    rows: tuple[Row, ...], seed: int
) -> None:
    factors = np.exp(np.random.default_rng(seed).normal(size=WORLDS))
    draws = {row.label: (np.array(row.iteration_draws_s) * factors).tolist() for row in rows}
    slower = drawn(rows, draws)
    assert selection.verdict(slower).pays == selection.verdict(rows).pays
    assert {row.label for row in selection.candidates(slower)} == {
        row.label for row in selection.candidates(rows)
    }


# --- examples ------------------------------------------------------------------------------------


def kinds(rows: Sequence[Row]) -> list[str]:
    return [row.compressor for row in rows]


def found_in(result: Result, **draws: Sequence[float]) -> selection.Verdict:
    return selection.largest_verdict(open_result(result, **draws))


def test_one_wide_interval_does_not_hide_that_others_pay(result: Result) -> None:
    """Low-rank 1.46 (0.97-1.82 and so 0.99 and less), top-k and half precision 1.42, by a tenth
    each way less: the first may be the fastest or none, the others surely pay."""
    found = found_in(
        result, none=DENSE, powersgd=[0.4 / x for x in between(0.8, 2.1)],
        topk=[0.4 / x for x in between(1.34, 1.50)], fp16=[0.4 / x for x in between(1.35, 1.49)],
    )  # fmt: skip
    assert found.pays == "yes"
    assert found.safe is not None
    assert found.safe.compressor == "fp16"
    assert found.safe is found.to_try  # of equals the smaller error
    assert set(kinds(found.rivals)) == {"powersgd", "topk"}


def test_dense_through_servers_is_neither_compression_nor_a_question(result: Result) -> None:
    rows = [row for row in selection.at_largest(result) if row.compressor in {"none", "topk"}]
    served = replace(rows[0] if rows[0].compressor == "none" else rows[1], label="dense, servers",
                     via="2 servers")  # fmt: skip
    draws = {"dense": DENSE, "dense, servers": between(0.2, 0.21), "Top-k 1%": between(0.3, 0.31)}
    found = selection.verdict(drawn([*(row for row in rows), served], draws))
    assert found.pays == "no"  # Top-k beats the one, and not the other
    assert found.dense is not None
    assert found.dense.label == "dense"
    assert found.safe is not None
    assert found.safe.label == "dense, servers"
    assert [row.label for row in found.foremost] == ["dense, servers"]


# --- luck ----------------------------------------------------------------------------------------


def lucky(result: Result, paired: bool, **means: float) -> selection.Verdict:
    """Ten batches each that rise and fall by 20 % together, or by themselves."""
    swing = np.linspace(-0.2, 0.2, 10)
    rows = []
    for number, row in enumerate(selection.at_largest(result)):
        if row.compressor in means:
            mean = means[row.compressor]
            own = swing if paired else np.random.default_rng(number).permutation(swing)
            batches = mean * (1 + own)
            error = float(np.std(batches, ddof=1)) / 10**0.5
            rows.append(
                replace(row, iteration_s=mean, iteration_error_s=error, iterations=100,
                        iteration_batches_s=tuple(batches.tolist()))
            )  # fmt: skip
    return selection.verdict(rows)


def test_methods_that_met_the_same_luck_are_told_apart_by_their_difference(result: Result) -> None:
    # each mean is known to 4 %, the difference of 5 % to 0.2 %
    found = lucky(result, True, none=0.4, topk=0.38)
    assert (found.pays, found.by_luck) == ("yes", False)
    # with luck of their own the difference is known to 5 %
    found = lucky(result, False, none=0.4, topk=0.38)
    assert (found.pays, found.by_luck) == ("likely", True)
    assert found.probability is not None
    assert 0.5 < found.probability < 0.98


def test_unequal_numbers_of_iterations_are_not_paired(result: Result) -> None:
    found = lucky(result, True, none=0.4, topk=0.38)
    rows = [replace(row, iterations=100 if row.compressor == "none" else 200) for row in found.rows]
    assert selection.verdict(rows).pays == "likely"


def test_luck_between_methods_that_both_pay_leaves_rivals(result: Result) -> None:
    found = lucky(result, False, none=0.4, topk=0.1, powersgd=0.103)
    assert (found.pays, found.by_luck, len(found.rivals)) == ("yes", True, 1)
    found = lucky(result, True, none=0.4, topk=0.1, powersgd=0.103)
    assert (found.by_luck, found.rivals) == (False, ())


def test_ten_that_beat_each_other_in_a_circle_still_have_a_first() -> None:
    rows = [a_row(number, "risky") for number in range(40)]
    # in world k the order begins with k: each is beaten by the one before it in 39 of 40 worlds
    draws = {
        row.label: [1.05 ** ((number - world) % 40) for world in range(40)]
        for number, row in enumerate(rows)
    }
    assert len(selection.candidates(drawn(rows, draws))) == 1
