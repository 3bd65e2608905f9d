"""How wrong is a predicted training step? Everything is predicted from what is left when it is out.

known    one model is left out of all boards: the coefficients are fitted without it, each
         board's factor is the median over its other models
unknown  one board is left out: coefficients from the others, factor 1
strange  a source is left out, with the boards and the models that it measured: factor 1; and steps
         of one GPU that sources of the suites measured, which have no part in the fit
flops    one model is left out; three times its forward FLOPs at the board's effective rate,
         the median over its other models at their largest batch: what the layer model replaces
between  one measured batch inside a curve: the line between its neighbours
beyond   one measured batch alone: every other batch of its curve, with the layer model's shape
elsewhere  a batch by what another source measured of it on the same board
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, log
from pathlib import Path

import numpy as np

from gcsim.analysis.validation import suites
from gcsim.analysis.validation.folder import Folder
from gcsim.analysis.validation.rows import read_suite
from gcsim.scenarios.catalog.rates import Measurement, Processor, boards, measurements
from gcsim.simulator.devices.training_rates import PRODUCTS, Precision
from tests.benchmarks.layer_model_fit import FAMILIES, Fit, Observation, facts_of, fit, observations

_OUTER = 0.05
"""Share of the errors that a range leaves out at each end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """One prediction."""

    name: str
    """Board, model and batch."""
    ratio: float
    """Measured over predicted time."""

    @property
    def relative(self) -> float:
        """(predicted - measured) / measured."""
        return 1 / self.ratio - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of one kind."""

    count: int
    median: float
    """Of the absolute relative errors."""
    tenth: float
    """Their 90th percentile."""
    bias: float
    """Median of the signed ones: above 0 predicts too long a time."""
    range: tuple[float, float]
    """What 90 % of measured / predicted lie in, as many below as above; 1 is always in it."""
    worst: tuple[Error, ...]


def summary(errors: Sequence[Error], worst: int = 3) -> Summary:
    """Raises `ValueError` without errors."""
    absolute = [abs(error.relative) for error in errors]
    low, high = np.quantile([log(error.ratio) for error in errors], (_OUTER, 1 - _OUTER))
    return Summary(
        count=len(errors),
        median=statistics.median(absolute),
        tenth=float(np.quantile(absolute, 0.9)),
        bias=statistics.median(error.relative for error in errors),
        range=(min(1.0, exp(low)), max(1.0, exp(high))),
        worst=tuple(sorted(errors, key=_size)[:worst]),
    )


def _size(error: Error) -> tuple[float, float]:
    """Largest first. A pair that predicts each other misses by a factor and its inverse, equal but
    for the last bits, which differ between processors: then the one predicted too short."""
    return -round(abs(log(error.ratio)), 9), -error.ratio


def known(processor: Processor, precision: Precision) -> list[Error]:
    """Leave one model out; boards on which no other model was measured are not predicted."""
    seen = observations(processor, precision)
    found = []
    for model in sorted({each.model for each in seen}):
        rest = [each for each in seen if each.model != model]
        fitted = fit(rest, processor, precision)
        found += [
            _error(each, fitted, precision, fitted.factors[each.board])
            for each in seen
            if each.model == model and each.board in fitted.factors
        ]
    return found


def single(processor: Processor, precision: Precision) -> list[Error]:
    """Leave one model out, and take a board's factor from one other model alone."""
    seen = observations(processor, precision)
    found = []
    for model in sorted({each.model for each in seen}):
        rest = [each for each in seen if each.model != model]
        fitted = fit(rest, processor, precision)
        for other in sorted({each.model for each in rest}):
            alone = [each for each in rest if each.model == other]
            for board in {each.board for each in alone}:
                factor = statistics.median(
                    _error(each, fitted, precision, 1.0).ratio
                    for each in alone
                    if each.board == board
                )
                found += [
                    _error(each, fitted, precision, factor)
                    for each in seen
                    if each.model == model and each.board == board
                ]
    return found


def unknown(processor: Processor, precision: Precision) -> list[Error]:
    """Leave one board out."""
    seen = observations(processor, precision)
    found = []
    for board in sorted({each.board for each in seen}):
        fitted = fit([each for each in seen if each.board != board], processor, precision)
        found += [_error(each, fitted, precision, 1.0) for each in seen if each.board == board]
    return found


_GIVEN = {
    "bagua": ["bagua-bert-64gbps-bagua-async", "bagua-vgg16-128gpu-100-gb-s-bagua-async"],
    "grace": ["1ipvrhj50", "02m813vx0"],
    "other_clusters": [
        f"{model}, dense, 1 worker"
        for model in ("VGG-16 CIFAR", "ResNet-20 CIFAR", "AlexNet", "ResNet-50")
    ],
    "raysgd": ["Horovod, 25 Gbit/s, 8 GPUs", "DDP, 25 Gbit/s, 8 GPUs", "DDP, 100 Gbit/s, 8 GPUs"],
}
"""Rows of suites whose works are no source of `training_rates.csv`: asynchronous training, dense
training on one GPU or inside one node."""


def strange() -> dict[str, list[Error]]:
    """By source, gpu fp32."""
    found: dict[str, list[Error]] = {}
    for source in sorted({row.source for row in measurements()}):

        def own(row: Measurement, source: str = source) -> bool:
            return row.source == source

        seen = observations("gpu", "fp32", own)
        for board, model in sorted({(each.board, each.model) for each in seen}):

            def strangers(
                row: Measurement, known: tuple[str, ...] = (source, board, model)
            ) -> bool:
                return not {row.source, row.board, row.model} & set(known)

            fitted = fit(observations("gpu", "fp32", strangers), "gpu", "fp32")
            found.setdefault(source, []).extend(
                _error(each, fitted, "fp32", 1.0)
                for each in seen
                if (each.board, each.model) == (board, model)
            )
    costs = fit(observations("gpu", "fp32"), "gpu", "fp32").costs
    for suite, names in _GIVEN.items():
        path = Path(suites.__path__[0]) / suite
        folder = Folder(path, *read_suite(path))
        for row in (one for one in folder.rows if one["id"] in names or one["name"] in names):
            (run, *_) = folder.runs(row, catalogue=True)
            assert run.model is not None
            facts = facts_of(run.model.name.replace("_v2", ""), run.model.tokens)
            shape = replace(run.cluster.device.layer_times["fp32"], costs=costs, factor=1.0)
            ratio = folder.measured(row) / shape.seconds(facts, run.batch)
            errors = found.setdefault(row["source"] or suite, [])
            errors.append(Error(name=row["name"], ratio=ratio))
    return found


def evenly(errors: Mapping[str, list[Error]]) -> tuple[float, float]:
    """Range of measured / predicted, each source of equal weight."""
    pairs = sorted((one.ratio, 1 / len(own)) for own in errors.values() for one in own)
    places = list(accumulate(weight / len(errors) for _, weight in pairs))
    low, high = (
        next(one for (one, _), place in zip(pairs, places, strict=True) if place >= share - 1e-9)
        for share in (_OUTER, 1 - _OUTER)
    )
    return min(1.0, low), max(1.0, high)


def flops(processor: Processor, precision: Precision) -> list[Error]:
    """Leave one model out, with nothing but FLOPs."""
    seen = observations(processor, precision)
    found = []
    for each in seen:
        rates: dict[tuple[str, int], tuple[int, float]] = {}
        for other in seen:
            if other.board == each.board and other.model != each.model:
                rate = _flops(other) / other.seconds
                key = (other.model, other.tokens)
                rates[key] = max(rates.get(key, (0, 0.0)), (other.batch, rate))
        if rates:
            rate = statistics.median(rate for _, rate in rates.values())
            found.append(Error(name=_name(each), ratio=each.seconds / (_flops(each) / rate)))
    return found


def between() -> list[Error]:
    """Leave one batch out that has measured neighbours on both sides."""
    found = []
    for held in _curves():
        for below, each, above in zip(held, held[1:], held[2:], strict=False):
            share = (each.batch - below.batch) / (above.batch - below.batch)
            line = below.seconds + share * (above.seconds - below.seconds)
            found.append(Error(name=_name(each), ratio=each.seconds / line))
    return found


def beyond() -> list[Error]:
    """Keep one batch of a curve, and predict its others."""
    fits = {family: fit(observations(*family), *family) for family in FAMILIES}
    found = []
    for processor, precision in FAMILIES:
        fitted = fits[processor, precision]
        for held in _curves([(processor, precision)]):
            for kept in held:
                for each in held:
                    if each is not kept:
                        board = boards()[each.board]
                        shape = fitted.seconds(each, board, precision) / fitted.seconds(
                            kept, board, precision
                        )
                        name = f"{_name(each)} from {kept.batch}"
                        found.append(Error(name=name, ratio=each.seconds / (kept.seconds * shape)))
    return found


def elsewhere() -> list[Error]:
    """A source's median (over frameworks) of a batch by each other source's, both ways."""
    groups: dict[tuple[object, ...], dict[str, list[float]]] = {}
    for row in measurements():
        key = row.board, row.model, row.tokens, row.precision, row.batch
        groups.setdefault(key, {}).setdefault(row.source, []).append(row.seconds)
    return [
        Error(
            name=f"{key[0]}, {key[1]}, batch {key[4]}: {one}, {other}",
            ratio=statistics.median(seconds) / statistics.median(own[other]),
        )
        for key, own in groups.items()
        for one, seconds in own.items()
        for other in own
        if one != other
    ]


def backward_ratios() -> tuple[list[Error], list[Error], float]:
    """Errors of the backward pass's share when one board is left out: with one ratio for all
    models, and with each model's own; and the ratio of all."""
    rows = [
        (row.board, row.model, row.backward_over_forward)
        for row in measurements()
        if row.backward_over_forward is not None
    ]
    everything: list[Error] = []
    own: list[Error] = []
    for board, model, ratio in rows:
        others = [(other, value) for held, other, value in rows if held != board]
        same = [value for other, value in others if other == model]
        if same:
            for errors, pool in ((everything, [value for _, value in others]), (own, same)):
                predicted = _share(statistics.median(pool))
                errors.append(Error(name=f"{board} {model}", ratio=_share(ratio) / predicted))
    return everything, own, statistics.median(ratio for *_, ratio in rows)


def _share(ratio: float) -> float:
    """Of the backward pass in a step."""
    return ratio / (1 + ratio)


def _curves(families: Iterable[tuple[Processor, Precision]] = FAMILIES) -> list[list[Observation]]:
    """By board, model and precision; ascending in batch and time, as the catalogue keeps them."""
    found = []
    for processor, precision in families:
        groups: dict[tuple[str, str, int], list[Observation]] = {}
        for each in observations(processor, precision):
            groups.setdefault(each.group, []).append(each)
        for held in groups.values():
            kept: list[Observation] = []
            for each in sorted(held, key=lambda one: -one.batch):
                if not kept or each.seconds < kept[-1].seconds:
                    kept.append(each)
            found.append(kept[::-1])
    return found


def _error(each: Observation, fitted: Fit, precision: Precision, factor: float) -> Error:
    predicted = factor * fitted.seconds(each, boards()[each.board], precision)
    return Error(name=_name(each), ratio=each.seconds / predicted)


def _flops(each: Observation) -> float:
    return PRODUCTS * each.batch * facts_of(each.model, each.tokens).forward_flops


def _name(each: Observation) -> str:
    length = f" of {each.tokens} tokens" if each.tokens else ""
    return f"{each.board}, {each.model}{length}, batch {each.batch}"
