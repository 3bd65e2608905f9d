"""Files of a run: its results, and figures of them.

Results are written under temporary names and renamed together once complete, before the first
figure is drawn; a figure that cannot be drawn costs only itself. Figures and the timeline of a
known result come from the cache: they take longer than all else then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from gcsim.analysis.page.run import run_page
from gcsim.analysis.page.sweep import sweep_page
from gcsim.analysis.timeline import chrome_trace
from gcsim.errors import InputError, InternalError
from gcsim.files import alone_in, csv_text, replacing, replacing_together
from gcsim.scenarios.reading import document
from gcsim.scenarios.result import Result
from gcsim.scenarios.running import result_cache
from gcsim.scenarios.sweeps.result import SweepResult
from gcsim.traces.stage1.cache import version

Writer = Callable[[Any, Path], None]  # function that writes a result, or a figure of it, to a path


def to_csv(result: Result) -> str:
    """Rows with full precision; fields are empty where there is no dense row to compare to."""
    return csv_text(Result.columns(), result.records())


def to_yaml(result: Result) -> str:
    """The scenario with every default filled in, keys in order, ready to run again."""
    return document.write(result.scenario)


def as_text(make: Callable[[Any], str]) -> Writer:
    """Writer of a result from a function that returns its text."""

    def produce(result: Any, path: Path) -> None:
        path.write_text(make(result), encoding="utf-8", newline="\n")

    return produce


def drawn(figure: str, form: str = "png") -> Writer:
    """Writer of a picture drawn by `module:function`; matplotlib is imported on use."""

    def produce(result: Any, path: Path) -> None:
        from gcsim.analysis.plots.style import save

        module, _, function = figure.partition(":")
        save(getattr(import_module(module), function)(result), path, form)

    return produce


def once(writers: Mapping[str, Writer], result: Result) -> dict[str, Writer]:
    """Writers of the same files, from the cache if they were written of this result before."""
    code = [result_cache.code_of("analysis"), result_cache.simulation_code()]
    text = json.dumps([result.lasting(), *code, version("matplotlib"), version("numpy")])

    def known(name: str, write: Writer) -> Writer:
        key = hashlib.sha256(f"{name} {text}".encode()).hexdigest()

        def produce(result: Any, path: Path) -> None:
            body = result_cache.read(key)
            if body is None:
                write(result, path)
                result_cache.write(key, path.read_bytes())
            else:
                path.write_bytes(body)

        return produce

    return {name: known(name, write) for name, write in writers.items()}


TIMELINE = "timeline.json"
RESULTS: dict[str, Writer] = {
    "results.json": as_text(Result.to_json),
    "results.csv": as_text(to_csv),
    TIMELINE: as_text(chrome_trace),
    "scenario.yaml": as_text(to_yaml),
}
FIGURES: dict[str, Writer] = {
    "speedup.png": drawn("gcsim.analysis.plots.speedup:speedup_figure"),
    "breakdown.png": drawn("gcsim.analysis.plots.breakdown:breakdown_figure"),
    "faults.png": drawn("gcsim.analysis.plots.faults:faults_figure"),
}
ASKED_FOR = {
    "speedup": "gcsim.analysis.plots.speedup:speedup_figure",
    "breakdown": "gcsim.analysis.plots.breakdown:breakdown_figure",
    "pareto": "gcsim.analysis.plots.pareto:pareto_figure",
}
"""Pictures that `gcsim plot` draws of a run."""
OF_SWEEP = {
    "winner": "gcsim.analysis.plots.sweep:winner_figure",
    "speedup": "gcsim.analysis.plots.sweep:gain_figure",
}
"""Pictures of a sweep; the first over two keys or more."""


def for_paper(form: str) -> Writer:
    """Writer of a table or of references by this function of `report/paper.py`, imported on use."""

    def produce(result: Any, path: Path) -> None:
        paper = import_module("gcsim.analysis.report.paper")
        as_text(getattr(paper, form))(result, path)

    return produce


TABLES: dict[str, dict[str, Writer]] = {
    "tex": {"table.tex": for_paper("latex"), "references.bib": for_paper("bibtex")},
    "md": {"table.md": for_paper("markdown")},
}
REPORT = "report.html"
FORMS = ("png", "svg", "pdf")
FAULTS_ONLY = {"faults.png"}  # pictures only of a scenario with `training.faults`


def write_results(result: Result, folder: Path, *, cache: bool = False) -> tuple[Path, ...]:
    """Write a run's results into `folder`, the timeline from the `cache` if it is there; see
    `write_all`."""
    stems = {Path(name).stem for name in (*FIGURES, *ASKED_FOR)}
    figures = [f"{stem}.{form}" for stem in sorted(stems) for form in FORMS]
    texts = dict(RESULTS)
    if cache and result.faulty is None:
        texts |= once({TIMELINE: texts[TIMELINE]}, result)
    return write_all(result, folder, texts, (*figures, REPORT))


def draw_figures(
    result: Result, folder: Path, *, command: str = "", cache: bool = False
) -> tuple[Path, ...]:
    """Draw a run's figures into `folder`, or take them from the `cache`; see `draw_all`. The report
    comes first; it names its `command`."""
    left_out = FAULTS_ONLY if result.faulty is None else set()
    figures = {name: draw for name, draw in FIGURES.items() if name not in left_out}
    if cache and result.faulty is None:  # `results.json` does not hold all of faults
        figures = once(figures, result)
    report = as_text(lambda shown: run_page(shown, command))
    return draw_all(result, folder, {REPORT: report, **figures}, beside="results.json")


def draw_sweep_report(result: SweepResult, folder: Path, command: str) -> tuple[Path, ...]:
    """Write the report of a sweep; see `draw_all`."""
    return draw_all(result, folder, {REPORT: as_text(lambda shown: sweep_page(shown, command))})


def draw_again(result: Result, folder: Path, form: str) -> tuple[Path, ...]:
    """Draw the figures of a stored result, or its table as `tex` or `md`; see `draw_all`."""
    if form in TABLES:
        return draw_all(result, folder, TABLES[form])
    figures = {f"{name}.{form}": drawn(where, form) for name, where in ASKED_FOR.items()}
    return draw_all(result, folder, figures)


def draw_sweep(result: SweepResult, folder: Path, form: str) -> tuple[Path, ...]:
    """Draw a sweep's figures as `form`; see `draw_all`. Raises `InputError` without results."""
    if len(result.failed) == len(result.points):
        message, hint = "no point of this sweep has a result", "gcsim sweep says why"
        raise InputError(message, place=str(result.folder or folder), hint=hint)
    several = sum(len(values) > 1 for values in result.grid.values()) > 1
    names = list(OF_SWEEP) if several else list(OF_SWEEP)[1:]
    return draw_all(result, folder, {f"{n}.{form}": drawn(OF_SWEEP[n], form) for n in names})


def write_all(
    result: Any, folder: Path, texts: Mapping[str, Writer], figures: Iterable[str]
) -> tuple[Path, ...]:
    """Write `texts` of a result, by name of the file, into `folder`, made if missing. Earlier
    `figures` there are removed, as they show another result. Raises `InputError` if the disk is
    full or the folder cannot be written; earlier files then stay."""
    with alone_in(folder), replacing_together(folder) as temporary:
        for name, make in texts.items():
            make(result, temporary(name))
    for name in figures:
        (folder / name).unlink(missing_ok=True)
    return tuple(folder / name for name in texts)


def draw_all(
    result: Any, folder: Path, figures: Mapping[str, Writer], beside: str | None = None
) -> tuple[Path, ...]:
    """Draw figures of a result into `folder`, by name of the file.

    `beside` names the result's own file: figures never stand beside another run's results. Raises
    `InputError` if that file is another run's by now, the disk is full or the folder cannot be
    written, and, after drawing all others, `InternalError` naming those that failed.
    """
    paths = [folder / name for name in figures]
    own = None if beside is None else result.to_json()
    failed: dict[str, Exception] = {}
    for path in list(paths):
        try:
            with alone_in(folder), replacing(path) as temporary:
                figures[path.name](result, temporary)
                if own is not None and beside is not None:
                    _require_own(folder / beside, own)
        except InputError:
            raise
        except Exception as error:
            failed[path.name] = error
            paths.remove(path)
    if failed:
        last = list(failed.values())[-1]
        raise InternalError(
            f"{' and '.join(failed)} could not be drawn ({type(last).__name__}: {last}); "
            f"the results are in {folder}"
        ) from last
    return tuple(paths)


def _require_own(path: Path, own: str) -> None:
    """Raise `InputError` if a file of results exists and is not `own`."""
    if path.exists() and path.read_text(encoding="utf-8") != own:
        message = "another run has replaced this run's results, so no figures are drawn"
        raise InputError(message, place=str(path), hint="give each run its own folder with -o")
