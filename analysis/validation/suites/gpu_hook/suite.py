"""Stages and iterations of gcsim's hooks on an H100, from counted launches and their prices."""

from __future__ import annotations

import csv
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from gcsim.analysis.validation.folder import suite_of
from gcsim.analysis.validation.suite import Excluded, Factor, Findings, Point, given_step
from gcsim.compressors.queued import QUEUED, Queued
from gcsim.scenarios.calibration.host import fitted
from gcsim.scenarios.catalog.devices import HOST
from gcsim.simulator.devices.device import KernelRate

_HERE = Path(__file__).parent
_SOURCE = "gcsim's `make gpu` on an H100 80GB HBM3, 2026-11, suites/gpu_hook/{}.csv"
_FITTED_AT = "1000000"
_BUCKETS = {"bert_base": ("bert_base bucket 5", 14, 199), "resnet50": ("resnet50 bucket 3", 5, 161)}
"""Measured bucket, number of buckets, and tensors, by model."""
_PER_BUCKET, _PER_TENSOR = 313e-6, 21.8e-6
"""Seconds of DDP's code around an exchange, by `gcsim calibrate device` in the same run."""
_PHASES = {"gradient_sampling_bayes": "sampled"}
_ON_HOST = frozenset({"adacomp"})
"""Methods that bring tensors to the host, which no launch count prices."""

Row = dict[str, str]
Prices = dict[Queued, float]


@functools.cache
def _rows(name: str) -> list[Row]:
    lines = (_HERE / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def counts(row: Row) -> tuple[float, ...]:
    """Launches of Triton, of torch, and waits."""
    launches, triton, waits = (
        float(row[column]) for column in ("launches", "triton_launches", "waits")
    )
    return triton, launches - triton, waits


def priced(row: Row, host: Prices) -> float:
    """Seconds of a stage: those of the slower clock."""
    queued = sum(n * host[what] for n, what in zip(counts(row), QUEUED, strict=True))
    return max(queued, 1e-6 * float(row["device_us"]))


def find() -> Findings:
    """Stages, half of whose methods are fitted, and iterations."""
    stages = [row for row in _rows("stages") if any(counts(row))]
    kept = [row for row in stages if row["method"] not in _ON_HOST]
    served = set(sorted({row["method"] for row in kept})[::2])
    short = [row for row in kept if row["method"] in served and row["data"] == _FITTED_AT]
    rates = fitted([(counts(row), 1e-6 * float(row["total_us"])) for row in short], "", "")
    own, known = _launch(rates), _launch(HOST)
    points = tuple(_stage(row, served, own, known) for row in kept)
    return Findings(
        points=(*points, *_iterations(kept, own, known), *_by_launches(own, known)),
        factors=(
            *(
                Factor("stages", f"host time of a {what}", own[what], "s", len(short),
                       catalogue=known[what])
                for what in QUEUED
            ),
            *_ninth(points),
            *(
                given_step("iterations", f"{model} without a hook", _dense(model))
                for model in _BUCKETS
            ),
        ),
        excluded=(
            Excluded("stages of methods in host memory", len(stages) - len(kept),
                     "copies of the whole gradient are in no launch"),
            Excluded("stages of 2026-11-26", 56,
                     "measured on earlier code, without the launches of a stage"),
        ),
    )  # fmt: skip


def _launch(rates: dict[Queued, KernelRate]) -> Prices:
    return {what: float(rate.launch) for what, rate in rates.items()}


def _stage(row: Row, served: set[str], own: Prices, known: Prices) -> Point:
    mine = row["method"] in served
    return Point(
        name=f"{row['method']} {row['phase']}, {row['stage']}, {row['data']}",
        series="stages, methods fitted on" if mine else "stages, other methods",
        unit="s",
        measured=1e-6 * float(row["total_us"]),
        predicted=priced(row, own),
        unfitted=priced(row, known),
        fitted=mine and row["data"] == _FITTED_AT,
        source=_SOURCE.format("stages"),
        workers=1,
        nbytes=4 * float(row["elements"]),
        method=row["method"],
    )


def _ninth(points: Sequence[Point]) -> Iterator[Factor]:
    errors: defaultdict[str, list[float]] = defaultdict(list)
    for point in points:
        if not point.fitted:
            errors[point.series].append(abs(point.error))
    for series, each in errors.items():
        found = float(np.quantile(each, 0.9))
        yield Factor(series, "90th percentile of the errors", found, "x", len(each), given=True)


def _dense(model: str) -> float:
    rows = _rows("deployed")
    return next(
        1e-3 * float(row["iteration_ms"])
        for row in rows
        if row["model"] == model and row["hook"] == "dense"
    )


def _iterations(stages: Iterable[Row], own: Prices, known: Prices) -> Iterator[Point]:
    """Dense, and with each bucket's stages and the code around its exchange in turn."""
    both: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in stages:
        if row["phase"] == _PHASES.get(row["method"], row["phase"]):
            both[row["method"], row["data"]].append(row)
    for row in _rows("deployed"):
        data, buckets, tensors = _BUCKETS[row["model"]]
        if not (one := both[row["hook"], data]):
            continue
        around = _dense(row["model"]) + buckets * _PER_BUCKET + tensors * _PER_TENSOR
        fitted_on, catalogue = (
            around + buckets * sum(priced(stage, host) for stage in one) for host in (own, known)
        )
        name = f"{row['model']}, {row['hook']}"
        yield _iteration(
            row, "iterations", name, "deployed", predicted=fitted_on, unfitted=catalogue
        )


def _by_launches(own: Prices, known: Prices) -> Iterator[Point]:
    """Dense, and with an iteration's further launches, if no stages were measured."""
    for file, day in (("deployed", "27"), ("earlier", "26")):
        dense = {row["model"]: row for row in _rows(file) if row["hook"] == "dense"}
        for row in _rows(file):
            alone = dense[row["model"]]
            if row is alone or (file == "deployed" and not row["hook"].startswith("torch")):
                continue
            triton = _more(row, alone, "triton_launches") * (file == "earlier")
            others = _more(row, alone, "launches") - triton
            base = 1e-3 * float(alone["iteration_ms"])
            fitted_on, catalogue = (
                base + triton * host["kernel"] + others * host["operator"] for host in (own, known)
            )
            name = f"{row['model']}, {row['hook']}, 2026-11-{day}"
            series = "iterations, by their launches"
            yield _iteration(row, series, name, file, predicted=fitted_on, unfitted=catalogue)


def _iteration(
    row: Row, series: str, name: str, file: str, *, predicted: float, unfitted: float
) -> Point:
    return Point(
        name=name,
        series=series,
        unit="s",
        measured=1e-3 * float(row["iteration_ms"]),
        predicted=predicted,
        unfitted=unfitted,
        source=_SOURCE.format(file),
        workers=1,
        method=row["hook"],
    )


def _more(row: Row, alone: Row, column: str) -> float:
    return float(row[column]) - float(alone[column])


SUITE = suite_of(_HERE, "gpu-hook", find)
