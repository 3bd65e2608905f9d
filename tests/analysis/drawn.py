"""Rows with chosen draws, as a run fills them in, and the table of a result as text."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gcsim.analysis.report.answer import plain
from gcsim.analysis.report.table import answer_table
from gcsim.scenarios.result import Result, Row

WORLDS = 41
"""Draws of an example: the 10th percentile is then the fifth smallest, and nothing is between."""


def plain_row(label: str, seconds: float, **stated: object) -> Row:
    """A method on four nodes of two devices."""
    plain = Row(
        compressor=label, label=label, nodes=4, workers=8, iteration_s=seconds, forward_s=0.01,
        backward_s=0.02, encode_s=0.0, communication_s=seconds, decode_s=0.0,
        exposed_communication_s=seconds - 0.03, throughput_samples_per_s=256 / seconds,
        speedup_vs_dense=None, scaling_efficiency=0.03 / seconds, wire_bytes_per_worker=1e6,
        compression_ratio=1.0, nmse=0.1, cosine_similarity=0.9, period=1, steps_run=4,
        memory="none",
    )  # fmt: skip
    return replace(plain, **stated)  # type: ignore[arg-type]


def busy(result: Result) -> Result:
    """With input, an optimiser and random times: every column that there is."""
    rows = tuple(
        replace(
            row,
            iteration_s=row.iteration_s + 0.0123,
            input_s=0.0073,
            optimizer_s=0.005,
            iteration_p5_s=row.iteration_s + 0.0100,
            iteration_p95_s=row.iteration_s * 1.3 + 0.0123,
            iteration_error_s=0.0016,
            iterations=50,
        )
        for row in result.rows
    )
    scenario = {**result.scenario, "training": {"accumulation": 4}}
    return replace(result, rows=rows, scenario=scenario)


def render(result: Result, width: int, *, full: bool = True) -> str:
    """The table for `width` terminal cells."""
    return plain([answer_table(result, width, full=full)], width)


def between(low: float, high: float, *, worlds: int = WORLDS) -> tuple[float, ...]:
    """Draws from so much to so much, in even steps; their middle 80 % is a tenth narrower at both
    ends."""
    return tuple(float(value) for value in np.linspace(low, high, worlds))


def drawn(rows: Sequence[Row], draws: Mapping[str, Sequence[float]]) -> tuple[Row, ...]:
    """Rows of these labels with these iterations by world, and what follows from them; as stated
    is the middle. The first uncompressed row is what speedups are against."""
    kept = [row for row in rows if row.label in draws]
    dense = next((row.label for row in kept if row.compressor == "none"), None)
    every = np.array([draws[row.label] for row in kept])
    return tuple(_filled(row, draws, dense, every) for row in kept)


def _filled(
    row: Row, draws: Mapping[str, Sequence[float]], dense: str | None, every: object
) -> Row:
    own = np.array(draws[row.label])
    low, middle, high = np.quantile(own, (0.1, 0.5, 0.9)).tolist()
    found = replace(
        row,
        iteration_s=middle,
        iteration_draws_s=tuple(own.tolist()),
        iteration_low_s=low,
        iteration_high_s=high,
        iteration_as_stated_s=middle,
        probability_fastest=float(np.mean(own == np.min(every, axis=0))),  # type: ignore[call-overload]
        speedup_vs_dense=None,
    )
    if dense is None:
        return found
    against = np.array(draws[dense])
    ratio = against / own
    low, median, high = np.quantile(ratio, (0.1, 0.5, 0.9)).tolist()
    stated = float(np.median(against)) / middle
    if row.label == dense:
        return replace(found, speedup_vs_dense=1.0, speedup_as_stated=1.0)
    return replace(
        found, speedup_vs_dense=median, speedup_low=low, speedup_high=high,
        speedup_as_stated=stated, probability_pays=float(np.mean(ratio > 1)),
    )  # fmt: skip


def open_result(result: Result, **draws: Sequence[float]) -> Result:
    """Only these compressors, at the largest size, with these iterations by world."""
    rows = [row for row in result.rows if row.nodes == 32 and row.compressor in draws]
    by_label = {row.label: draws[row.compressor] for row in rows}
    return replace(result, rows=drawn(rows, by_label))
