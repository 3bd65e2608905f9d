"""A suite in a folder (`rows.py`): every row is a scenario with a measured number."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.analysis.validation import rows as row_files
from gcsim.analysis.validation.data_files import citation, layer_table
from gcsim.analysis.validation.drawn import device_without, passes_of, step_in_worlds
from gcsim.analysis.validation.leaving_out import work_of
from gcsim.analysis.validation.suite import Bound, Excluded, Factor, Findings, Point, Suite
from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.scenarios.reading.document import Document, Keys
from gcsim.scenarios.reading.overrides import apply
from gcsim.scenarios.stated import StatedRun, stated

_OF_GROUPS = frozenset({"fitted", "catalogue", "longest", "unknown"})
_CELL = re.compile(r"\$([\w.]+)")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_LET, _HOST = "traffic.let.", "cluster.host."
_CLOSE = 1e-3


def suite_of(path: Path, name: str, find: Callable[[], Findings] | None = None) -> Suite:
    """Return the suite in a folder, under this name; `find` is for a suite whose rows are not
    scenarios. Raises `InputError` if the files do not form a suite."""
    document, file = row_files.read_suite(path)
    page = row_files.read_page(path)
    return Suite(
        name=name,
        title=file.title,
        about=page.get("Measured", ""),
        fitted_on=page.get("Fitted", ""),
        missing=page.get("Missing", ""),
        bounds=tuple(one.value(Bound) for one in file.bounds),
        find=find or Folder(path, document, file).findings,
        figure_x=file.figure_x,
    )


@dataclass(eq=False)
class Folder:
    """Files and predictions of a suite."""

    path: Path
    document: Document
    file: row_files.SuiteFile
    values: dict[str, float] = field(default_factory=dict)  # values fitted so far
    _runs: dict[str, StatedRun] = field(default_factory=dict)
    _drawn: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[row_files.Row]:
        """All rows of the CSV."""
        return row_files.read_rows(self.path / "rows.csv")

    # --- a row's runs ---------------------------------------------------------------------------

    def runs(
        self, row: row_files.Row, *, catalogue: bool = False, steps: bool = False
    ) -> list[StatedRun]:
        """Return the runs that a row waits for, the longest of which counts. Empty if the catalogue
        alone does not know one of them. `steps`: with the measured step stated."""
        variants = [v for group in self._groups(row) for v in group.get("longest", ())] or [{}]
        found = [self._run(row, variant, catalogue, steps) for variant in variants]
        unknown = any(group.get("unknown") for group in self._groups(row))
        return [] if catalogue and (unknown or not all(map(_is_known, found))) else found

    def _groups(self, row: row_files.Row) -> list[row_files.Changes]:
        """Return the row's changes of the defaults, in order."""
        names = (row["group"] or row["series"]).split(" + ")
        return [self.file.groups.get(name) or {} for name in names]

    def _changes(self, row: row_files.Row, catalogue: bool) -> Iterator[tuple[str, Any]]:
        """Yield keys and values that replace defaults; the last value of a key counts."""
        kind = "catalogue" if catalogue else "fitted"
        yield from _flat(self.file.catalogue if catalogue else self.file.fitted)
        for group in self._groups(row):
            own = {key: value for key, value in group.items() if key not in _OF_GROUPS}
            yield from _flat(own)
            yield from _flat(group.get(kind) or {})
        yield from row.changes.items()

    def _run(
        self, row: row_files.Row, variant: row_files.Changes, catalogue: bool, steps: bool = False
    ) -> StatedRun:
        changes: dict[str, str] = {}
        prices: dict[str, str] = {}
        for key, value in (*self._changes(row, catalogue), *_flat(variant)):
            text = value if isinstance(value, str) else json.dumps(value)
            text = _CELL.sub(lambda found: row[found[1]], text)
            if text[:1] == "?":
                known = not catalogue or (steps and self._is_given(text))
                text = self._fitted(row, key, text) if known else ""
                if key.startswith(_HOST):  # set on the run, which need not be read again
                    prices |= {key.removeprefix(_HOST): text.split()[0]} if text else {}
                    continue
            elif text[:1] == "@":
                text = f"{self.given(row, text)!r} s" if steps or not catalogue else ""
            if isinstance(value, Mapping):
                changes = {k: old for k, old in changes.items() if not k.startswith(f"{key}.")}
            if text:
                changes[key] = text
        let = {key: text for key, text in changes.items() if key.startswith(_LET)}
        name = json.dumps([changes, prices], sort_keys=True)
        if name not in self._runs:
            others = {key: text for key, text in changes.items() if key not in let}
            base = json.dumps(others, sort_keys=True)
            try:
                if base not in self._runs:
                    document = self._defaults()
                    if problems := apply(document, others):
                        raise InputError(problems)
                    self._runs[base] = stated(document, self._facts)
                own = {key.removeprefix(_LET): text for key, text in let.items()}
                self._runs[name] = self._runs[base].changed(own, prices)
            except InputError as error:
                raise InputError([_with_place(row, one) for one in error.problems]) from error
        return self._runs[name]

    def _defaults(self) -> Document:
        """Return the scenario of a row without changes."""
        values, keys = self._places
        return Document(
            name=self.document.name,
            data=deepcopy(self.file.scenario),
            values=dict(values),
            keys=dict(keys),
            order=self.document.order,
        )

    @cached_property
    def _places(self) -> list[dict[Keys, str]]:
        """Return the places of the scenario's values and keys in the file."""
        return [
            {key[1:]: place for key, place in places.items() if key[:1] == ("scenario",)}
            for places in (self.document.values, self.document.keys)
        ]

    def _facts(self, model: str, batch: int, tokens: int) -> Any:
        files = tuple(self.path / name for name in self.file.layers)
        return layer_table(files, model, batch, tokens)

    def _fitted(self, row: row_files.Row, key: str, text: str) -> str:
        """Replace `?NAME` by its value; returns "" before it is fitted."""
        factors = text[1:].split("*")
        names = [one for one in factors if not _NUMBER.fullmatch(one)]
        number = math.prod(float(one) for one in factors if one not in names)
        for name in names:
            if name not in self._fits:
                hint = did_you_mean(name, self._fits)
                raise InputError(f"nothing is fitted as {name!r}", place=row.place(key), hint=hint)
        if not all(name in self.values for name in names):
            return ""
        value = math.prod(self.values[name] for name in names) * number
        return f"{value:.9g} {self._fits[names[0]].unit}".strip()

    def _is_given(self, text: str) -> bool:
        names = text[1:].split("*")
        return all(name in self._fits and self._fits[name].given for name in names)

    def given(self, row: row_files.Row, text: str) -> float:
        """Return the seconds of the rows in "@ROW @OTHER", which `row` refers to."""
        return statistics.median(self.measured(other) for other in self._referred(row, text))

    def _referred(self, row: row_files.Row, text: str) -> list[row_files.Row]:
        names = [name.strip() for name in text.split("@")[1:]]
        for name in names:
            if name not in self._named:
                hint = did_you_mean(name, self._named)
                raise InputError(f"no row is called {name!r}", place=row.place(), hint=hint)
        return [self._named[name] for name in names]

    @cached_property
    def _named(self) -> dict[str, row_files.Row]:
        return {key: row for row in self.rows for key in (row["id"], row["name"]) if key}

    # --- seconds and published values -----------------------------------------------------------

    def measured(self, row: row_files.Row) -> float:
        """Return the measured seconds per iteration."""
        value = row.number("measured")
        if row.unit == "s":
            return value / row.number("iterations", 1)
        return self._samples(row) / value

    def published(self, row: row_files.Row, seconds: float) -> float:
        """Convert seconds per iteration to the row's unit."""
        if row.unit == "s":
            return seconds * row.number("iterations", 1)
        return self._samples(row) / seconds

    def _samples(self, row: row_files.Row) -> float:
        batch = self._run(row, {}, catalogue=True).batch
        return row.number("samples", batch * self._workers(row))

    def _workers(self, row: row_files.Row) -> int:
        simulated = self._run(row, {}, catalogue=True).cluster.workers
        return int(row.number("workers", simulated))

    # --- fits -------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Fit the values in order; values with the same rows are fitted together."""
        if self._beside is not None:
            self._beside.fit()
            self.values |= self._beside.values
        for served, names in groupby(self.file.fit, key=self._served):
            self._together(served, list(names))

    @cached_property
    def _beside(self) -> Folder | None:
        path = self.path.parent / self.file.beside
        return Folder(path, *row_files.read_suite(path)) if self.file.beside else None

    @cached_property
    def _fits(self) -> dict[str, row_files.FitSection]:
        """Fits of this suite and of the suite that it builds on."""
        return (self._beside._fits if self._beside else {}) | self.file.fit

    def _together(self, served: list[row_files.Row], names: list[str]) -> None:
        measured = [self.measured(row) for row in served]

        def predicted(values: Sequence[float]) -> list[float]:
            self.values |= dict(zip(names, values, strict=True))
            return [_longest(self.runs(row)) for row in served]

        within = [(self.file.fit[name].low, self.file.fit[name].high) for name in names]
        predicted(nearest(predicted, measured, within))

    def _served(self, name: str) -> list[row_files.Row]:
        return [row for row in self.rows if name in row.fits]

    # --- findings ---------------------------------------------------------------------------------

    def findings(self) -> Findings:
        """Return the points of all rows that are not left out, and all other results."""
        self.fit()
        compared = [row for row in self.rows if not row["left_out"]]
        given = {
            text: self._referred(row, text)
            for row in compared
            for _, text in self._changes(row, catalogue=False)
            if isinstance(text, str) and text[:1] == "@"
        }
        served = {id(row) for rows in given.values() for row in rows}
        return Findings(
            points=tuple(
                self._point(row, served=bool(row.fits) or id(row) in served) for row in compared
            ),
            factors=(*self._steps(given), *self._factors()),
            excluded=tuple(self._excluded()),
        )

    def _steps(self, given: Mapping[str, Sequence[row_files.Row]]) -> Iterator[Factor]:
        for text, rows in given.items():
            first, known = rows[0], self.runs(rows[0], catalogue=True)
            yield Factor(
                first["series"] or "all", f"step of {first['name']}", self.given(first, text), "s",
                len(rows), catalogue=known[0].step if known else None, given=True,
            )  # fmt: skip

    def _factors(self) -> Iterator[Factor]:
        for name, one in self.file.fit.items():
            rows = self._served(name)
            known = one.catalogue
            if known is None:
                known = self._in_catalogue(f"?{name}", rows[0])
            yield Factor(
                one.series, one.title, self.values[name], one.unit, len(rows), catalogue=known,
                given=one.given,
            )  # fmt: skip

    def _in_catalogue(self, text: str, row: row_files.Row) -> float | None:
        """Return the catalogue's value for a fitted key."""
        stands = (key for key, own in self._changes(row, catalogue=False) if own == text)
        value: Any = self._run(row, {}, catalogue=True)
        for word in next(stands, "").replace(".bandwidth", ".rate").split("."):
            value = getattr(value, word, None)
        return None if value is None else float(value)

    def _excluded(self) -> Iterator[Excluded]:
        for key, one in self.file.left_out.items():
            here = sum(row["left_out"] == key for row in self.rows)
            yield Excluded(one.what, here + one.count, one.rule)

    def _point(self, row: row_files.Row, *, served: bool) -> Point:
        runs, known = self.runs(row), self.runs(row, catalogue=True)
        source = self._source(row)
        step = self.file.in_ranges and runs[0].model is not None and row.unit != "bytes"
        own = self.runs(row, catalogue=True, steps=True) if step else []
        if any(one.stated_step is None for one in own):
            own = []
        others = self._without(source, known) if step else []
        if any(one.stated_step is not None for one in others):  # if both state it
            others = []
        return Point(
            name=row["name"],
            series=row["series"],
            unit=row.unit,
            measured=row.number("measured"),
            predicted=self._predicted(row, runs),
            unfitted=self._predicted(row, known) if known else None,
            fitted=served,
            source=source,
            workers=self._workers(row),
            nbytes=runs[0].message_bytes,
            setting=row["setting"],
            method=row["method"],
            panel=row["panel"],
            curve=row["curve"],
            x=row.number("x") if row["x"] else None,
            worlds=self._worlds(row, others) if others else (),
            stated_worlds=self._worlds(row, own) if own else (),
        )

    def _predicted(self, row: row_files.Row, runs: Sequence[StatedRun]) -> float:
        if row.unit == "bytes":
            return runs[0].sent * row.number("samples", 1)
        return self.published(row, _longest(runs))

    def _source(self, row: row_files.Row) -> str:
        return (
            citation(self.path, row["source"], row["where"]) if row["source"] else self.file.source
        )

    def _worlds(self, row: row_files.Row, runs: Sequence[StatedRun]) -> tuple[float, ...]:
        """Return published values in drawn worlds; empty if the row is not a training step."""
        if any(one.traffic.grouping == "none" or one.cluster.workers == 1 for one in runs):
            return ()
        seconds = np.max([self._drawing(one) for one in runs], axis=0).tolist()
        return tuple(self.published(row, one) for one in seconds)

    def _drawing(self, run: StatedRun) -> NDArray[np.float64]:
        """Return the seconds in all worlds, cached per run."""
        if id(run) not in self._drawn:
            # a range of almost zero: collectives' times are those of the catalogue's passes
            compute = {"stated": run.passes, "slowest": run.passes.scaled(Fraction(100001, 100000))}
            if run.stated_step is None:
                compute = passes_of(
                    run.passes, run.profile.model, run.cluster.device, run.training.timed_as
                )
            self._drawn[id(run)] = step_in_worlds(
                run.cluster, run.training, run.profile, compute, run.seconds
            )
        return self._drawn[id(run)]

    def _without(self, source: str, runs: Sequence[StatedRun]) -> list[StatedRun]:
        """Return the runs on devices without the source's own steps; empty if no other has any."""
        work = work_of(source, "")
        found = [self._others(work, one) if work else one for one in runs]
        return found if all(map(_is_known, found)) else []

    def _others(self, work: str, run: StatedRun) -> StatedRun:
        """Return a run without the statements of its source."""
        name = f"{id(run)} without {work}"
        if name not in self._runs:
            precision = run.training.timed_as
            device = device_without(work, run.cluster.device, run.profile.model, precision)
            cluster = replace(run.cluster, device=device)
            same = device is run.cluster.device
            self._runs[name] = run if same else replace(run, cluster=cluster, _exchanges_by_size={})
        return self._runs[name]


def _longest(runs: Sequence[StatedRun]) -> float:
    return max(run.seconds for run in runs)


def _is_known(run: StatedRun) -> bool:
    """Whether the catalogue knows the step."""
    try:
        return run.step >= 0
    except InputError:
        return False


def _with_place(row: row_files.Row, problem: Problem) -> Problem:
    """Return the problem with the place of its cell, if it belongs to a row."""
    if not problem.place.startswith("--set "):
        return problem
    return replace(problem, place=row.place(problem.place.removeprefix("--set ")))


def _flat(changes: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; a mapping with `like` replaces the former one."""
    for key, value in changes.items():
        if isinstance(value, Mapping):
            if "like" in value:
                yield f"{above}{key}", {"like": value["like"]}
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def nearest(
    predicted: Callable[[Sequence[float]], Sequence[float]],
    measured: Sequence[float],
    within: Sequence[tuple[float, float]],
) -> list[float]:
    """Return the values, to 0.1 %, whose predictions are nearest to all measurements. Least squares
    of log(predicted / measured) over the logarithms of the values: Brent's method for one value,
    Gauss-Newton for several, with less weight on errors beyond 10 %."""
    from scipy.optimize import least_squares, minimize_scalar

    def misses(logarithms: Sequence[float]) -> list[float]:
        both = zip(predicted([math.exp(one) for one in logarithms]), measured, strict=True)
        return [math.log(one / other) for one, other in both]

    low, high = ([math.log(end) for end in side] for side in zip(*within, strict=True))
    if len(within) == 1:
        found = minimize_scalar(
            lambda one: sum(miss**2 for miss in misses([one])),
            bounds=(low[0], high[0]),
            method="bounded",
            options={"xatol": _CLOSE},
        )
        return [math.exp(float(found.x))]
    start = [(one + other) / 2 for one, other in zip(low, high, strict=True)]
    several = least_squares(
        misses, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, diff_step=_CLOSE
    )
    return [math.exp(one) for one in several.x.tolist()]
