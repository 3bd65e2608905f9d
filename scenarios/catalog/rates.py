"""Measured training steps and their devices: the catalogue's tables.

`training_rates.csv` has a measurement per row, `large_rates.csv` those of language models,
`training_sources.csv` the citations, `hardware.csv` the boards' data for the layer model, and
`layer_times.yaml` its coefficients, fitted by `tests/benchmarks/layer_model_fit.py`. Boards with
rates but without kernel prices are used in the fit only; they are not devices of the catalogue.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from gcsim.scenarios.reading.checking import Section, shipped_table
from gcsim.scenarios.reading.values import As, Spelled
from gcsim.simulator.devices.ranges import Range
from gcsim.simulator.devices.training_rates import (
    PRECISIONS,
    LargeCosts,
    LayerCosts,
    LayerTimes,
    MeasuredTimes,
    Precision,
    curve,
)
from gcsim.traces.models.transformer import Checkpointing

FOLDER = Path(__file__).parent

Processor = Literal["gpu", "cpu"]
_Device = Annotated[str, Field(alias="device")]
_SEVERAL = 3  # models from which on a board's factor is as good as in cross-validation


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Row of `training_rates.csv`."""

    board: _Device
    model: str
    tokens: int = 0  # length of a sample; 0 without tokens
    batch: int
    precision: Precision
    samples_per_s: float
    framework: str
    source: str  # key in `sources`
    confidence: str  # "read" from the source, or what was assumed
    backward_over_forward: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds per step."""
        return self.batch / self.samples_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeMeasurement:
    """Row of `large_rates.csv`: a transformer in 16 bits, per GPU of a node of eight."""

    board: _Device
    model: str
    batch: int  # samples of a micro-batch
    checkpointing: Checkpointing
    tokens_per_s: float
    source: str  # key in `sources`


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A device's facts for the layer model."""

    processor: Processor
    bandwidth: float  # bytes per second of a copy, read plus written
    flop_rates: Mapping[Precision, float]  # FLOP per second of large matrix products
    estimate: bool
    source: str


_Range = Annotated[Range, Field(strict=False)]
_COSTS = As(LayerCosts, **dict.fromkeys(("known", "single", "unknown", "flops"), (_Range, ...)))


_MEASUREMENTS = TypeAdapter(tuple[Measurement, ...])
_LARGE = TypeAdapter(tuple[LargeMeasurement, ...])
_LARGE_COSTS = As(LargeCosts, time_range=None, **dict.fromkeys(("known", "unknown"), (_Range, ...)))


class _Factor(Section):
    factor: Annotated[float, Field(gt=0)]
    models: Annotated[int, Field(ge=1)]


class _LayerTimesFile(Section):
    large: Annotated[Spelled, _LARGE_COSTS]
    costs: dict[Processor, dict[Precision, Annotated[Spelled, _COSTS]]]
    factors: dict[str, dict[Precision, _Factor]]
    strange: _Range
    between: _Range
    beyond: _Range
    elsewhere: _Range


@functools.cache
def measurements() -> tuple[Measurement, ...]:
    """All rows, in file order."""
    return _MEASUREMENTS.validate_python(_rows("training_rates.csv"))


@functools.cache
def large_measurements() -> tuple[LargeMeasurement, ...]:
    """All rows of `large_rates.csv`, in file order."""
    return _LARGE.validate_python(_rows("large_rates.csv"))


@functools.cache
def sources() -> Mapping[str, str]:
    """Citation and date of each source."""
    return MappingProxyType(
        {
            row["source"]: f"{row['citation']} ({row['date']})"
            for row in _rows("training_sources.csv")
        }
    )


@functools.cache
def boards() -> Mapping[str, Board]:
    """Boards by name."""
    found = {}
    for row in _rows("hardware.csv"):
        rates = {
            precision: float(row[column]) * 1e12
            for precision in PRECISIONS
            if (column := f"{precision}_tflop_per_s") in row
        }
        found[row["device"]] = Board(
            processor="cpu" if row["processor"] == "cpu" else "gpu",
            bandwidth=float(row["bandwidth_gb_per_s"]) * 1e9,
            flop_rates=rates,
            estimate=row["estimate"] == "true",
            source=row["source"],
        )
    return MappingProxyType(found)


@functools.cache
def _fit() -> _LayerTimesFile:
    return shipped_table(_LayerTimesFile, FOLDER / "layer_times.yaml")


def measured_times(board: str) -> dict[tuple[str, Precision, int], MeasuredTimes]:
    """Curves of a board by model, precision and sequence length (0 without tokens)."""
    fit = _fit()
    groups: dict[tuple[str, Precision, int], list[Measurement]] = {}
    for row in measurements():
        if row.board == board:
            groups.setdefault((row.model, row.precision, row.tokens), []).append(row)
    return {
        key: MeasuredTimes(
            model=key[0],
            precision=key[1],
            steps=curve([(row.batch, row.seconds, sources()[row.source]) for row in rows])[0],
            source=_cited(rows),
            between=fit.between,
            beyond=fit.beyond,
            elsewhere=fit.elsewhere,
        )
        for key, rows in groups.items()
    }


def layer_times(board: Board, *names: str) -> dict[Precision, LayerTimes]:
    """Layer model of a board, at the precisions with coefficients for its processor. The factor at
    a precision is that of the first of `names` that has one."""
    fit = _fit()
    found = {}
    for precision, costs in fit.costs.get(board.processor, {}).items():
        rate = board.flop_rates.get(precision)
        if rate is None:
            continue
        factors = (fit.factors.get(name, {}).get(precision) for name in names)
        known = next(filter(None, factors), None)
        models = 0 if known is None else known.models
        found[precision] = LayerTimes(
            costs=costs.value(LayerCosts),
            large=_large(*names) if precision == "fp16" and "tf32" in board.flop_rates else None,
            flop_rate=rate,
            bandwidth=board.bandwidth,
            factor=1.0 if known is None else known.factor,
            models=models,
            time_range=_error_of(costs, models),
            strange_range=_strange(costs) if known is None and board.processor == "gpu" else None,
            known_models=_measured_models(),
            source=f"coefficients fitted to published training rates, docs/devices.md; "
            f"{board.source}",
        )
    return found


def _large(*names: str) -> LargeCosts:
    """Return the coefficients for large products; the range is wider for a board not in the fit."""
    fit = _fit().large
    known = any(one.board in names for one in large_measurements())
    return fit.value(LargeCosts, time_range=fit.known if known else fit.unknown)


def _strange(costs: Spelled) -> Range:
    """Return the error for an unmeasured model on an unmeasured board."""
    (low, high), (other_low, other_high) = costs.unknown, _fit().strange
    return min(low, other_low), max(high, other_high)


@functools.cache
def _measured_models() -> tuple[str, ...]:
    return tuple(sorted({row.model for row in measurements()}))


def _error_of(costs: Spelled, models: int) -> Range:
    """Error of a board's factor, by its number of models."""
    found: Range = costs.single if models < _SEVERAL else costs.known
    return found if models else costs.unknown


def effective_range(processor: Processor, rate: float) -> Range:
    """Return the range of an effective rate, for models of which only the FLOPs are known."""
    fastest, slowest = _fit().costs[processor]["fp32"].flops
    return rate / slowest, rate / fastest


def _cited(rows: list[Measurement]) -> str:
    names = list(dict.fromkeys(row.source for row in rows))
    counted = f"{len(rows)} measurements" if len(rows) > 1 else "one measurement"
    return f"{counted}; {'; '.join(sources()[name] for name in names)}"


def _rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table by column, without empty cells."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return [{key: cell for key, cell in row.items() if cell} for row in csv.DictReader(file)]
