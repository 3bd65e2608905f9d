"""Table of `gcsim train` that fits in 80 cells, and the answer in words."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gcsim.analysis.report.answer import html_table
from gcsim.analysis.report.numbers import fixed, plural, significant, times
from gcsim.analysis.report.sources import conditions
from gcsim.analysis.report.table import MEDIANS, bare_table
from gcsim.analysis.report.wording import steps_as_dense
from gcsim.scenarios.trained.bands import ALPHA
from gcsim.scenarios.trained.horizon import TELLING, TELLING_LOST, in_words, inconclusive
from gcsim.scenarios.trained.known import OTHER
from gcsim.scenarios.trained.result import HALF, TrainedRow, TrainingResult
from gcsim.simulator.training import DENSE

FASTEST = "> "
NOT = "-"
SHORT = "too short"
_HALF, _DELAYS, _ITERATION = "vs fp16\n[x]", "delays", "iteration\n[x]"
_LABEL = 18  # cells of a label next to the numbers, in 80
_MORE = "More seeds (train.seeds) would separate more methods."

Column = tuple[str, Callable[[TrainedRow], str]]


def parts(result: TrainingResult, width: int) -> tuple[RenderableType, ...]:
    """Return the text of `gcsim train` on `width` terminal cells: table, notes, answer."""
    table, without = _table(result, width)
    said = f" No room for {', '.join(without)}; report.html has them." if without else ""
    return (
        Text(title(result), style="bold"),
        "",
        table,
        "",
        Text(legend(result) + said),
        "",
        Text("\n".join(answer(result))),
    )


def html(result: TrainingResult) -> str:
    """Return table, notes and answer as HTML for a notebook."""
    rows = ranking(result)
    columns = columns_of(result, rows)
    headings = ["method", *(heading.replace("\n", " ") for heading, _ in columns)]
    lines = [[row.label, *(cell(row) for _, cell in columns)] for row in rows]
    return html_table(title(result), headings, lines, [legend(result), *answer(result)])


def ranking(result: TrainingResult) -> list[TrainedRow]:
    """Return the rows of the largest size, the fastest to the target first, then by accuracy."""
    largest = max(row.workers for row in result.rows)
    return sorted(
        (row for row in result.rows if row.workers == largest),
        key=lambda row: (
            bool(row.untrained or row.too_short),
            -(row.speedup_to_target or 0.0),
            _falls_short(result, row),
        ),
    )


def _falls_short(result: TrainingResult, row: TrainedRow) -> float:
    """Return the final measure as a sort key: lower is better."""
    last = median(row.final(result.measure))
    return last if result.measure == "loss" else -last


def groups_of(result: TrainingResult) -> dict[str, list[TrainedRow]]:
    """Return the trained rows of the largest size by title: those at the target, and others."""
    rows = [row for row in ranking(result) if not row.untrained]
    groups = {
        f"reach {result.target}": [row for row in rows if row.speedup_to_target is not None],
        "miss it, or inconclusive": [row for row in rows if row.speedup_to_target is None],
    }
    return {title: group for title, group in groups.items() if group}


def label_text(row: TrainedRow) -> str:
    """Return a method's name, with its outcome if it does not reach the target."""
    if row.too_short:
        return f"{row.label} ({in_words(row.delays or 0)})"
    if row.speedup_to_target is None:
        return f"{row.label} ({row.reached} of {plural(len(row.ended), 'seed')})"
    return row.label


def middle_of(by_seed: Sequence[float | None]) -> float | None:
    """Return the median seed's steps or seconds to the target; None if it misses the target."""
    middle = median(math.inf if one is None else one for one in by_seed)
    return middle if math.isfinite(middle) else None


def title(result: TrainingResult) -> str:
    """Return the title above the table."""
    row = ranking(result)[0]
    return (
        f"{result.scenario.get('name', 'scenario')}: time to {result.target}, "
        f"{plural(row.nodes, 'node')}, {plural(row.workers, 'worker')}, "
        f"{conditions(result.scenario, row.nodes, row.workers)}fastest first"
    )


def legend(result: TrainingResult) -> str:
    """Return the meanings of the columns."""
    seeds = len(result.rows[0].ended)
    half = result.scenario.get("training", {}).get("precision") == "bf16"
    said = (
        f"Compared with dense {'bf16' if half else 'float32'} training. steps: until the target is "
        "reached for good, on held-out samples. to target: dense training's simulated seconds to "
        f"the target over the method's; median of {plural(seeds, 'seed')}; "
        f"range: {coverage(seeds)}, over draws of the uncertain inputs (0: not reached). "
        f"iteration: {MEDIANS}. reached: seeds that reach the target."
    )
    if any(row.delays is not None for row in result.rows):
        said += (
            " delays: whole gradients sent, for methods that send parts; fewer than "
            f"{TELLING} ({TELLING_LOST} if the rest is lost) are inconclusive."
        )
    return said


def coverage(seeds: int) -> str:
    """Return what the range of a speedup contains, given the number of seeds."""
    return f"{'another' if seeds > 1 else 'this'} seed would fall inside in 8 of 10 cases"


def answer(result: TrainingResult) -> list[str]:
    """Return the answer, a list of sentences."""
    rows = ranking(result)
    best = rows[0]
    said = [_first(result, rows)]
    quick = max(rows, key=lambda row: row.speedup_per_iteration or 0.0)
    if quick is not best and quick.compressor != DENSE:
        gain = times(quick.speedup_per_iteration or 0.0)
        if quick.too_short:
            then = "is inconclusive"
        elif quick.steps_against_dense is None:
            then = "does not reach the target in most runs"
        else:
            then = f"needs {steps_as_dense(quick.steps_against_dense)}"
        said.append(f"{quick.label} has the fastest iteration ({gain}) but {then}.")
    said += _changing(result, rows)
    said += [f"{row.label}: not trained: {row.untrained}." for row in rows if row.untrained]
    said += inconclusive((row.label, row.too_short) for row in rows if row.too_short)
    for row in rows:
        early = [(how, why) for how, why in zip(row.ended, row.why, strict=True) if why]
        if early:
            how, why = early[0]
            many = f"{len(early)} of {len(row.ended)} runs"
            said.append(f"{row.label}: {many} stopped early, {how}: {why}.")
    edge = [row for row in rows if row.rate_at_edge and not row.untrained]
    if edge:
        rates = ", ".join(f"{row.label} ({row.learning_rate:g})" for row in edge)
        which = "all methods" if len(edge) == len(rows) else rates
        said.append(f"Best learning rate at the edge of those tried: {which}.")
    if shipped := [row for row in rows if row.made]:
        which = "all methods" if shipped == rows else ", ".join(row.label for row in shipped)
        made = "; ".join(dict.fromkeys(row.made for row in shipped))
        said.append(
            f"Trajectories shipped with gcsim: {which} (trained on {made}); --fresh trains here."
        )
    if any(row.workers != result.trained_workers for row in result.rows):
        said.append(
            f"Trained with {plural(result.trained_workers, 'worker')}: other cluster sizes take "
            "the same steps with the same batch per worker."
        )
    return said


def _changing(result: TrainingResult, rows: Sequence[TrainedRow]) -> Iterator[str]:
    """Yield a sentence for each method that sends different amounts in the halves of training."""
    for row in rows:
        windows = [one.wire_bytes_per_worker for one in result.curves if one.label == row.label]
        halves = [(sent[: len(sent) // 2], sent[len(sent) // 2 :]) for sent in windows]
        sent = [fmean(map(fmean, half)) for half in zip(*halves, strict=True) if all(half)]
        if len(sent) == 2 and abs(sent[0] - sent[1]) > OTHER * sent[1]:
            first, second = (significant(each / 1e6) for each in sent)
            yield (
                f"{row.label} sends {first} MB per step in the first half of the training, "
                f"{second} in the second, so gcsim run, which measures only a few steps, predicts "
                "a different iteration time."
            )


def _first(result: TrainingResult, rows: Sequence[TrainedRow]) -> str:
    """Name the first method at the target, if it is clearly ahead of the others."""
    best, where = rows[0], f"on {plural(rows[0].nodes, 'node')}"
    if len(best.ended) == 1:
        ahead = "" if best.compressor == DENSE else f": {_gain(best, 'the uncertain inputs')}"
        return (
            f"One seed cannot separate the methods. With it, {best.label} reaches "
            f"{result.target} first {where}{ahead}. {_MORE}"
        )
    leading = [row for row in rows if row.leads]
    if leading == [best] and best.compressor == DENSE:
        return f"Dense training reaches {result.target} first {where}: no method here is faster."
    if any(row.compressor == DENSE for row in leading):
        alike, slower = (
            [row.label for row in rows if like_dense(row) is one] for one in (True, False)
        )
        behind = f" Significantly slower: {', '.join(slower)}." if slower else ""
        return (
            f"No significant difference from dense training in the time to {result.target} "
            f"{where}: {', '.join(alike)} ({_test(rows)}).{behind} {_MORE}"
        )
    gain = times(best.speedup_to_target or 0.0)
    if len(leading) > 1:
        label_text, least = ", ".join(row.label for row in leading), leading[-1].speedup_to_target
        return (
            f"{label_text} reach {result.target} first {where}, with no significant difference: "
            f"{times(least or 0.0)} to {gain} as fast as dense training ({_test(rows)}). "
            f"Against dense training: {_against_dense(rows)}."
        )
    said = (
        f"{best.label} reaches {result.target} first {where}: "
        f"{_gain(best, 'seeds and the uncertain inputs')}."
    )
    if best.compressor != HALF and best.speedup_to_target_vs_half is not None:
        said += f" Against fp16: {times(best.speedup_to_target_vs_half)}."
    return f"{said} Against dense training ({_test(rows)}): {_against_dense(rows)}."


def _against_dense(rows: Sequence[TrainedRow]) -> str:
    """List the methods that differ significantly from dense training, and the others."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        if (alike := like_dense(row)) is not None:
            faster = "faster" if (row.speedup_to_target or 0.0) > 1 else "slower"
            kind = "no significant difference" if alike else f"significantly {faster}"
            kinds.setdefault(kind, []).append(row.label)
    return "; ".join(f"{kind}: {', '.join(labels)}" for kind, labels in kinds.items())


def _gain(row: TrainedRow, over: str) -> str:
    """ "1.89x as fast as dense training (1.38-2.80 over seeds and … of the cluster)" """
    gain = times(row.speedup_to_target or 0.0)
    return f"{gain} as fast as dense training ({speedup_range(row)} over {over} of the cluster)"


def like_dense(row: TrainedRow) -> bool | None:
    """Whether a method does not differ significantly from dense; None if it is not compared."""
    if row.compressor == DENSE or row.p_as_dense is None:
        return None
    return row.p_as_dense > ALPHA


def _test(rows: Sequence[TrainedRow]) -> str:
    compared = sum(row.p_as_first is not None for row in rows) - 1
    return (
        f"paired t-test over {plural(len(rows[0].ended), 'seed')}, Holm's correction for "
        f"{plural(compared, 'method')}, {100 * ALPHA:.0f} %"
    )


def columns_of(result: TrainingResult, rows: Sequence[TrainedRow]) -> tuple[Column, ...]:
    """Return headings and cell functions of the table, without those for a wide terminal."""
    measure, cost = result.measure, result.scenario.get("cost")
    half = any(row.speedup_to_target_vs_half is not None for row in rows)
    accuracy = ("accuracy\n[%]", lambda row: fixed(median(row.final(measure)), 1))
    loss = ("loss", lambda row: fixed(median(row.final(measure)), 3))
    delays = (_DELAYS, lambda row: _significant(row.delays, 1.0))
    against = (_HALF, lambda row: _number(row.speedup_to_target_vs_half))
    columns: tuple[Column, ...] = (
        ("to target\n[x]", lambda row: _number(row.speedup_to_target)),
        ("range\n[x]", speedup_range),
        *((against,) if half else ()),
        (_ITERATION, lambda row: _number(row.speedup_per_iteration)),
        ("steps\n[x]", lambda row: _number(row.steps_against_dense)),
        *((delays,) if any(row.delays is not None for row in rows) else ()),
        *((accuracy,) if measure == "accuracy" else (loss,)),
        ("reached", lambda row: NOT if row.too_short else f"{row.reached}/{len(row.ended)}"),
        *((("cost to\ntarget", lambda row: _cost(result, row, cost["per_hour"])),) if cost else ()),
    )
    return tuple((heading, _of_trained(cell)) for heading, cell in columns)


def _of_trained(cell: Callable[[TrainedRow], str]) -> Callable[[TrainedRow], str]:
    """Make a cell empty in the rows of methods that were not trained."""
    return lambda row: NOT if row.untrained else cell(row)


def _cost(result: TrainingResult, row: TrainedRow, per_hour: float) -> str:
    """Return the cost of all nodes until the target: from dense training's median seconds divided
    by the speedup, as in a run."""
    if not row.speedup_to_target:
        return NOT
    same = (one for one in result.rows if (one.compressor, one.nodes) == (DENSE, row.nodes))
    seconds = middle_of(next(same).seconds_to_target) or 0.0
    spent = seconds / row.speedup_to_target / (row.goodput or 1.0)
    return significant(spent / 3600 * row.nodes * per_hour)


def _number(value: float | None) -> str:
    return NOT if value is None else fixed(value, 2)


def speedup_range(row: TrainedRow) -> str:
    """Return the range of a row's speedup to the target, such as "0.19-1.42"."""
    low, high = row.speedup_to_target_low, row.speedup_to_target_high
    if row.too_short:
        return SHORT
    if low is None or high == 0 or row.compressor == DENSE:
        return NOT
    return f"{fixed(low, 2)}-{'inf' if high is None else fixed(high, 2)}"


WIDE: tuple[Column, ...] = (
    ("iteration\n[ms]", lambda row: _significant(row.iteration_s, 1e3)),
    ("sent\n[MB]", _of_trained(lambda row: _significant(row.wire_bytes_per_worker, 1e-6))),
    ("learning\nrate", _of_trained(lambda row: f"{row.learning_rate:g}")),
)
"""Further columns for a wide terminal and for pages."""


def _table(result: TrainingResult, width: int) -> tuple[Table, list[str]]:
    """Return the table, with `WIDE` on a wide terminal, and the names of columns that do not fit;
    the comparison with fp16 is dropped first."""
    rows = ranking(result)
    every = columns_of(result, rows)
    columns = list(every)
    for name in (_HALF, _DELAYS, _ITERATION):
        if _room(columns, rows, width) < _LABEL:
            columns = [column for column in columns if column[0] != name]
    widest = max(len(FASTEST) + cell_len(row.label) for row in rows)
    for column in WIDE:
        if _room([*columns, column], rows, width) >= widest:
            columns.append(column)
    label = min(widest, max(_LABEL, _room(columns, rows, width)))
    headings = ["method", *(f">{heading}" for heading, _ in columns)]
    lines = []
    for row in rows:
        alone = row.leads and sum(each.leads for each in rows) == 1
        mark = FASTEST if alone else " " * len(FASTEST)
        name = textwrap.fill(
            row.label, label, initial_indent=mark, subsequent_indent=" " * len(FASTEST)
        )
        lines.append([name, *(f" {cell(row)}" for _, cell in columns)])
    table = bare_table(headings, lines, gap=0, whole=True, width=label)
    without = [heading for heading, _ in (*every, *WIDE) if heading not in dict(columns)]
    return table, [heading.replace("\n", " ") for heading in without]


def _room(columns: Sequence[Column], rows: Sequence[TrainedRow], width: int) -> int:
    used = 0
    for heading, cell in columns:
        cells = [*heading.split("\n"), *(f" {cell(row)}" for row in rows)]
        used += 1 + max(map(cell_len, cells))
    return width - used


def _significant(value: float | None, unit: float) -> str:
    return NOT if value is None else significant(value * unit)
