"""Fit of the layer model's coefficients: non-negative least squares on logarithms.

Each (board, model, batch) counts once, with the median of its measurements, and each (board, model)
equally. The square of (predicted - measured) / sqrt(predicted * measured) is minimised by
reweighting: a time k times too long weighs as much as one k times too short. Tensor cores (TF32,
half precision) use no Winograd algorithm: one coefficient for all products. On processors, whose
nominal rates say little, boards' factors are fitted too.

Models are built on torch's meta device; scipy and torch are imported on use.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log

import numpy as np

from gcsim.scenarios.catalog.rates import (
    Board,
    Measurement,
    Processor,
    boards,
    large_measurements,
    measurements,
)
from gcsim.simulator.devices.training_rates import (
    PRECISIONS,
    PRODUCTS,
    LayerCosts,
    Precision,
    layer_terms,
)
from gcsim.simulator.training import Training
from gcsim.traces.models.registry import MODELS
from gcsim.traces.models.table import table_facts
from gcsim.traces.profile import ModelFacts

FAMILIES: tuple[tuple[Processor, Precision], ...] = (
    ("gpu", "fp32"),
    ("gpu", "tf32"),
    ("gpu", "fp16"),
    ("cpu", "fp32"),
)
"""Terms with their own coefficients."""
_ROUNDS = 30

_Columns = Sequence[Sequence[int]]  # terms that share a coefficient, by position in `layer_terms`
_COLUMNS: Mapping[tuple[Processor, Precision], _Columns] = {
    ("gpu", "fp32"): ((0,), (1,), (2,), (3,)),
    ("gpu", "tf32"): ((0,), (1, 2), (3,)),
    ("gpu", "fp16"): ((0,), (1, 2), (3,)),
    ("cpu", "fp32"): ((0,), (1,), (2,), (3,)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A model's step on a board at a batch, median of its measurements."""

    board: str
    model: str
    tokens: int
    batch: int
    seconds: float

    @property
    def group(self) -> tuple[str, str, int]:
        """Key of points that count equally together."""
        return (self.board, self.model, self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Coefficients, and the factor of each measured board."""

    costs: LayerCosts
    factors: Mapping[str, float]
    models: Mapping[str, int]  # models behind each factor

    def seconds(self, seen: Observation, board: Board, precision: Precision) -> float:
        """Predicted seconds, without the board's factor."""
        coefficients = (self.costs.launch, self.costs.conv3x3, self.costs.other, self.costs.outputs)
        terms = _terms(seen, board, precision)
        return sum(c * term for c, term in zip(coefficients, terms, strict=True))


def observations(
    processor: Processor, precision: Precision, keep: Callable[[Measurement], bool] = lambda _: True
) -> list[Observation]:
    """Observations of a family on boards whose rate of products at this precision is known."""
    times: dict[tuple[str, str, int, int], list[float]] = {}
    for row in measurements():
        board = boards().get(row.board)
        if board is None or board.processor != processor or row.precision != precision:
            continue
        if precision in board.flop_rates and keep(row):
            key = (row.board, row.model, row.tokens, row.batch)
            times.setdefault(key, []).append(row.seconds)
    return [
        Observation(
            board=board, model=model, tokens=tokens, batch=batch, seconds=statistics.median(found)
        )
        for (board, model, tokens, batch), found in times.items()
    ]


def fit(seen: Sequence[Observation], processor: Processor, precision: Precision) -> Fit:
    """Best coefficients for `seen`, with the boards' factors."""
    columns = _COLUMNS[processor, precision]
    terms = np.array([_terms(each, boards()[each.board], precision) for each in seen])
    basis = np.stack([terms[:, list(column)].sum(axis=1) for column in columns], axis=1)
    measured = np.array([each.seconds for each in seen])
    counts = Counter(each.group for each in seen)
    weights = np.array([counts[each.group] ** -0.5 for each in seen])
    slowdowns = np.ones(len(seen))
    found = _solve(basis, measured, weights)
    for _ in range(_ROUNDS if processor == "cpu" else 0):
        factors = _factors(seen, measured / (basis @ found))
        middle = exp(statistics.median(log(factor) for factor, _ in factors.values()))
        slowdowns = np.array([factors[each.board][0] / middle for each in seen])
        found = _solve(basis, measured / slowdowns, weights)
    spread = [0.0] * 4
    for column, value in zip(columns, found, strict=True):
        for term in column:
            spread[term] = float(value)
    factors = _factors(seen, measured / (basis @ found))
    return Fit(
        costs=LayerCosts(launch=spread[0], conv3x3=spread[1], other=spread[2], outputs=spread[3]),
        factors={board: factor for board, (factor, _) in factors.items()},
        models={board: models for board, (_, models) in factors.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """Terms of a large transformer's step, and its measured seconds."""

    board: str
    model: str
    terms: tuple[float, float]  # products, with those of checkpointing; outputs
    seconds: float


def large_observations() -> list[Large]:
    """Rows of `large_rates.csv`."""
    found = []
    for row in large_measurements():
        entry, board = MODELS[row.model], boards()[row.board]
        network = entry.transformer
        assert network is not None, row.model
        facts = table_facts(entry, row.batch)
        training = Training(checkpointing=row.checkpointing)
        again = float(training.computed_again(network, facts.forward_flops))
        _, _, products, outputs = layer_terms(
            facts, row.batch, flop_rate=board.flop_rates["fp16"], bandwidth=board.bandwidth
        )
        found.append(
            Large(
                board=row.board,
                model=row.model,
                terms=(products * (1 + again / PRODUCTS), outputs),
                seconds=row.batch * network.sequence / row.tokens_per_s,
            )
        )
    return found


def fit_large(seen: Sequence[Large]) -> np.ndarray:
    """Coefficients of products and outputs."""
    basis = np.array([each.terms for each in seen])
    return _solve(basis, np.array([each.seconds for each in seen]), np.ones(len(seen)))


def large_ratios(left_out: Callable[[Large], str]) -> list[float]:
    """Measured over predicted, each from the fit without those of the same key."""
    seen = large_observations()
    found = []
    for each in seen:
        others = fit_large([one for one in seen if left_out(one) != left_out(each)])
        found.append(each.seconds / float(np.dot(others, each.terms)))
    return found


def _solve(basis: np.ndarray, measured: np.ndarray, weights: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls

    scale = measured
    for _ in range(_ROUNDS):
        rows = (weights / scale)[:, None] * basis
        found, _ = nnls(rows, weights * measured / scale)
        scale = np.sqrt((basis @ found) * measured)
    return np.asarray(found)


def _factors(seen: Sequence[Observation], ratios: Iterable[float]) -> dict[str, tuple[float, int]]:
    """Factor of each board: measured / predicted, median over models of medians over batches."""
    by_group: dict[tuple[str, str, int], list[float]] = {}
    for each, ratio in zip(seen, ratios, strict=True):
        by_group.setdefault(each.group, []).append(log(ratio))
    by_board: dict[str, list[float]] = {}
    for (board, *_), logs in by_group.items():
        by_board.setdefault(board, []).append(statistics.median(logs))
    return {board: (exp(statistics.median(logs)), len(logs)) for board, logs in by_board.items()}


def _terms(
    seen: Observation, board: Board, precision: Precision
) -> tuple[float, float, float, float]:
    facts = facts_of(seen.model, seen.tokens)
    return layer_terms(
        facts, seen.batch, flop_rate=board.flop_rates[precision], bandwidth=board.bandwidth
    )


@cache
def facts_of(model: str, tokens: int = 0) -> ModelFacts:
    """Layers of a shipped model, of samples of `tokens` tokens if not 0."""
    from gcsim.traces.models.building import build_model
    from gcsim.traces.models.facts import model_facts

    entry = MODELS[model]
    if tokens:
        entry = replace(entry, input_shape=(tokens,))
    return model_facts(entry, build_model(entry, seed=0, device="meta"), 1)


def written(fits: Mapping[tuple[Processor, Precision], Fit], errors: Mapping[str, object]) -> str:
    """`layer_times.yaml`: coefficients to five digits, ranges of `errors`."""
    lines = [
        "# Written by `python tests/benchmarks/device_table.py --fit`; tests/analysis/calibration/",
        "# test_training_fit.py refits and compares. Meaning: simulator/devices/training_rates.py;",
        "# errors: docs/devices.md.",
        "costs:",
    ]
    for processor in ("gpu", "cpu"):
        lines.append(f"  {processor}:")
        for family, precision in FAMILIES:
            if family != processor:
                continue
            costs = fits[family, precision].costs
            lines += [
                f"    {precision}:",
                f"      launch: {costs.launch * 1e6:.5g} us",
                f"      conv3x3: {costs.conv3x3:.5g}",
                f"      other: {costs.other:.5g}",
                f"      outputs: {costs.outputs:.5g}",
                f"      known: {errors[f'{family} {precision} known']}",
                f"      single: {errors[f'{family} {precision} single']}",
                f"      unknown: {errors[f'{family} {precision} unknown']}",
                f"      flops: {errors[f'{family} {precision} flops']}",
            ]
    other, outputs = fit_large(large_observations())
    lines += [
        "large:",
        f"  other: {other:.5g}",
        f"  outputs: {outputs:.5g}",
        f"  known: {errors['large known']}",
        f"  unknown: {errors['large unknown']}",
        "factors:",
    ]
    names = sorted({board for each in fits.values() for board in each.factors})
    for board in names:
        lines.append(f"  {board}:")
        for precision in PRECISIONS:
            found = fits.get((boards()[board].processor, precision))
            if found is not None and board in found.factors:
                lines.append(
                    f"    {precision}: {{factor: {found.factors[board]:.5g}, "
                    f"models: {found.models[board]}}}"
                )
    lines += [f"{kind}: {errors[kind]}" for kind in ("strange", "between", "beyond", "elsewhere")]
    return "\n".join(lines) + "\n"
