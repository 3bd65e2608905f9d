"""Results and lists on a terminal: text on stdout, notes on stderr, never truncated.

The width is the terminal's, or `COLUMNS`, or 120 if stdout is not a terminal.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gcsim.cli.links import ABOUT_LINKS, link_details, link_tables
from gcsim.cli.list import ABOUT_MODELS, Entry, Kind, model_details, model_tables
from gcsim.errors import printable

if TYPE_CHECKING:
    from gcsim.scenarios.result import Result, Row
    from gcsim.scenarios.scenario import Scenario
    from gcsim.scenarios.trained.result import TrainedRow, TrainingResult


MEANING = 30
"""Terminal cells that a parameter's meaning needs next to the other columns."""


def width() -> int:
    """Return the width of stdout in terminal cells."""
    return shutil.get_terminal_size((120, 24)).columns


def emit(*parts: RenderableType) -> None:
    """Write to stdout. A closed pipe raises `BrokenPipeError`; rich would make it exit code 1."""
    from gcsim.analysis.report.numbers import printed

    console = Console(width=width(), highlight=False, markup=False, emoji=False)
    sys.stdout.write(printed(parts, console))


def emit_exactly(text: str) -> None:
    """Write UTF-8 to stdout byte for byte, whatever stdout's encoding and line ends are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def show(
    as_json: bool, to_json: Callable[[], str], parts: Callable[[], Iterable[RenderableType]]
) -> None:
    """Write a command's answer to stdout, as JSON or as text, before anything else can fail."""
    if as_json:
        emit_exactly(to_json())
    else:
        emit(*parts())
    sys.stdout.flush()


def note(*lines: str) -> None:
    """Write to stderr, with wrapped lines indented below their first."""
    for line in map(printable, lines):
        indent = " " * (len(line) - len(line.lstrip()))
        following = f"{indent}  " if indent else ""
        wrapped = textwrap.wrap(
            line, width() - 1, subsequent_indent=following, break_on_hyphens=False
        )
        print("\n".join(wrapped), file=sys.stderr)


# --- a run ---------------------------------------------------------------------------------------


def note_cached(result: Result) -> None:
    """Note which parts of a run came from the cache."""
    from gcsim.scenarios.result import FROM_CACHE

    came = result.provenance.get(FROM_CACHE)
    if not came or not came["profiles"]:
        return
    simulation = ", and the simulation" if came["simulation"] else ""
    profiles = f"profiles of {_methods(came['profiles'], result.rows)}"
    note("", f"From the cache: {profiles}{simulation} (--no-cache recomputes them).")


def note_trained_before(result: TrainingResult) -> None:
    """Note which methods came from the cache of trajectories."""
    if result.from_cache:
        named = _methods(result.from_cache, result.rows)
        note("", f"From the cache: trajectories of {named}, trained before.")


def _methods(labels: Sequence[str], rows: Sequence[Row | TrainedRow]) -> str:
    all_of = len({row.label for row in rows})
    return f"all {all_of} methods" if len(labels) == all_of else ", ".join(labels)


def note_written(folder: Path, paths: Iterable[Path], more: str = "") -> None:
    """Note the files written to a folder of results."""
    note("", f"Written to {folder}: {', '.join(path.name for path in paths)}{more}")


def recorded_lines(folder: Path, asked: int, max_size: str) -> list[str]:
    """Return lines on a new trace, and on iterations omitted from those that were `asked` for."""
    from gcsim.analysis.report.numbers import plural
    from gcsim.traces.storage.store import Trace

    trace = Trace.open(folder, verify=False)  # this process has just written it
    kept, size = trace.iterations, trace.nbytes
    workers = plural(trace.workers, "worker")
    lines = [f"Written to {folder}: {plural(kept, 'iteration')} of {workers}, {size:,} bytes"]
    if kept < asked:
        left = f"kept {kept} of {plural(asked, 'iteration')}: no more fit in --max-size {max_size}"
        lines.append(left)
    return lines


def note_next(arguments: Sequence[str], what: str) -> None:
    """Note a gcsim command to try next."""
    command = [*started_as(), *arguments]
    note("", f"Next, {what}:")
    print(f"  {shlex.join(command)}", file=sys.stderr)  # never wrapped: it is to be copied


def started_as() -> list[str]:
    """Return the words that start this gcsim again in the user's shell, by path if not in PATH."""
    script = Path(sys.argv[0])
    if script.parts[-2:] == ("gcsim", "__main__.py"):
        return [_as_typed(Path(sys.executable)), "-m", "gcsim"]
    return [_as_typed(script) if script.stem == "gcsim" else "gcsim"]


def _as_typed(program: Path) -> str:
    """Return a program's name if PATH finds it, else its path, relative if below this folder."""
    found = shutil.which(program.name)
    if found is not None and Path(found).resolve() == program.resolve():
        return program.name
    return str(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program)


def summary(scenario: Scenario) -> str:
    """Summarize a scenario on one line."""
    from gcsim.analysis.report.numbers import plural

    cluster = scenario.cluster
    nodes = ", ".join(str(count) for count in scenario.node_counts)
    kinds = [f"{group.nodes} of {group.device.title}" for group in cluster.groups]
    devices = ", ".join(kinds) or cluster.device.title
    counts = list(dict.fromkeys(cluster.sizes)) or [cluster.devices_per_node]
    source = type(scenario.gradients).__name__.removesuffix("Gradients").lower()
    return (
        f"{scenario.name}: ok. {scenario.model.name}, {scenario.batch_size} samples per worker, "
        f"{source} gradients; {plural(len(scenario.compressors), 'compressor')}; {nodes} nodes of "
        f"{' or '.join(map(str, counts))} {'device' if counts == [1] else 'devices'} ({devices}), "
        f"network {cluster.network.name}"
    )


# --- lists ---------------------------------------------------------------------------------------


def show_entries(kind: Kind, found: Iterable[Entry]) -> None:
    """Show entries of a list: names on the left, a description to the right of each."""
    entries = list(found)
    if kind in _TABLES:
        emit(*_TABLES[kind](entries))
    else:
        emit(two_columns((entry["name"], _LINES[kind](entry)) for entry in entries))


def _compressors(entries: Sequence[Entry]) -> list[RenderableType]:
    """Return compressors below the names of their families."""
    parts: list[RenderableType] = []
    widest = max(len(entry["name"]) for entry in entries)
    for family, members in groupby(entries, key=itemgetter("family")):
        parts += [""] if parts else []
        parts.append(Text(family, style="bold underline"))
        parts.append(two_columns(((e["name"], _brief(e)) for e in members), least=widest))
    return parts


def _brief(entry: Entry) -> list[str]:
    bias = "unbiased" if entry["unbiased"] else "biased"
    return [
        f"{entry['title']} ({bias}; {entry['collective']})",
        f"bits per element: {entry['bits']}; state: {entry['state']}",
        entry["paper"],
    ]


def push_pull_line(entry: Entry) -> str:
    """Return how a compressor's push-pulls are carried out, and the alternatives."""
    from gcsim.simulator.push_pull import SERVED, WAYS

    usual = entry["without_server"]
    other = f", or {WAYS['all_gather']} (collectives.push_pull: all_gather)"
    return (
        f"push-pull: {WAYS[SERVED]} where a scenario names them (collectives.servers), else "
        f"{WAYS[usual]}{other if usual != 'all_gather' else ''}"
    )


def two_columns(entries: Iterable[tuple[str, Sequence[str]]], least: int = 0) -> Text:
    """Lay out names, at least `least` cells wide, with lines to the right of each. Words such as
    paths stay whole, to be copied."""
    from gcsim.analysis.report.numbers import wrapped

    rows = list(entries)
    left = max([least, *(cell_len(name) for name, _ in rows)]) + 2
    found = []
    for name, lines in rows:
        parts = (part for line in lines for part in line.split("\n"))
        right = [one for part in parts for one in wrapped(part, max(1, width() - left)) or [""]]
        said = f"\n{' ' * left}".join(right)
        found.append(Text.assemble((set_cell_size(name, left), "bold"), said))
    text = Text("\n").join(found)
    text.no_wrap, text.overflow = True, "ignore"
    return text


def show_details(kind: Kind, entry: Entry) -> None:
    """Show one entry in full."""
    emit(Group(Text(entry["name"], style="bold"), *_DETAILS[kind](entry)))


def _model_details(entry: Entry) -> Iterator[RenderableType]:
    yield from (Text(entry["title"]), "")
    yield two_columns((label, [text]) for label, text in model_details(entry))


def _compressor_details(entry: Entry) -> Iterator[RenderableType]:
    from gcsim.compressors.options.method import OPTIONS

    yield from map(Text, _compressor_lines(entry))
    if entry["summary"]:
        yield from ("", Text(entry["summary"].split("\n\n")[0]))
    if entry["requires"]:
        yield Text(f"needs: {', '.join(entry['requires'])}")
    if entry["without_server"]:
        yield Text(push_pull_line(entry))
    yield from ("", _parameters(entry["parameters"]))
    if entry["family"] != "dense":
        yield from ("", Text(f"options of any method: {', '.join(OPTIONS)} (docs/scenarios.md)"))


def _device_details(entry: Entry) -> Iterator[RenderableType]:
    from gcsim.scenarios.catalog.devices import entry_yaml

    yield from map(Text, _device_lines(entry))
    text = entry_yaml(entry["name"], entry["section"], width() - 12)
    yield from ("", Text(text, no_wrap=True, overflow="ignore"))
    yield _training(entry)


def _compressor_lines(entry: Entry) -> list[str]:
    bias = "unbiased" if entry["unbiased"] else "biased"
    return [
        f"{entry['title']} ({entry['family']}, {bias})",
        f"collective: {entry['collective']}",
        f"bits per element: {entry['bits']}",
        f"state: {entry['state']}",
        f"paper: {entry['paper']}",
    ]


def _task_lines(entry: Entry) -> list[str]:
    models = entry["default_of"]
    named = ", ".join(models) if len(models) <= 8 else f"{len(models)} models"
    return [entry["title"], f"input: {entry['input']}; default of {named or 'no model'}"]


def _trace_lines(entry: Entry) -> list[str]:
    batch = f"{entry['workers']} workers with {entry['batch_size']} samples"
    return [
        f"{entry['model']}, {batch}, {entry['dtype']}, {entry['bytes'] / 1e6:.2f} MB",
        f"after {entry['warmup_steps']:,} steps on {entry['data']}, loss {entry['loss']:.2f}",
    ]


def _paper_lines(entry: Entry) -> list[str]:
    return [entry["title"], entry["source"]]


def _paper_details(entry: Entry) -> Iterator[RenderableType]:
    yield from map(Text, [*_paper_lines(entry), "", entry["about"]])
    if entry["printed"]:
        table = _table("row", "column", "printed")
        for line in entry["printed"]:
            table.add_row(line["row"], line["column"], f"{line['value']:g}")
        yield from ("", table)


def _device_lines(entry: Entry) -> list[str]:
    rate = _flops(entry["effective_flops"], entry["effective_flops_range"])
    return [
        entry["title"],
        f"effective rate of a training step: {rate}",
        f"models with measured step times: {', '.join(entry['models']) or 'none'}",
        f"other models, from their layers: {', '.join(entry['precisions']) or 'no'}",
        f"estimated kernel classes: {', '.join(entry['estimated_kernels']) or 'none'}",
    ]


def _titled(
    tables: Iterable[tuple[str, tuple[str, ...], Sequence[tuple[str, ...]]]], below: Sequence[str]
) -> list[RenderableType]:
    """Return tables with titles, names in bold, and notes below."""
    parts: list[RenderableType] = []
    for title, headings, rows in tables:
        table = _table(*headings)
        for row in rows:
            table.add_row(Text(row[0], style="bold"), *map(Text, row[1:]))
        parts += ["", Text(title, style="bold underline"), table]
    return [*parts[1:], "", Text("\n".join(below))]


def _parameters(parameters: Sequence[Entry]) -> RenderableType:
    if not parameters:
        return Text("no parameters")
    rows = [
        (e["name"], "required" if e["required"] else default_text(e), e["range"], e["meaning"])
        for e in parameters
    ]
    headings = ("parameter", "default", "accepts", "meaning")
    fixed = sum(max(map(len, column)) + 2 for column in zip(headings, *rows, strict=True)) - max(
        len(row[3]) + 2 for row in rows
    )
    if fixed + MEANING > width():  # the table would cut words
        return two_columns(
            (name, [f"default {default}; {accepted}", meaning])
            for name, default, accepted, meaning in rows
        )
    table = _table(*headings)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def default_text(entry: Entry) -> str:
    """Return the default of a parameter, as a scenario states it."""
    value = entry["default"]
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def _flops(value: float, range_: tuple[float, float] | None) -> str:
    """Return a FLOP rate in TFLOP/s, or in GFLOP/s below a tenth of a TFLOP/s."""
    unit, name = (1e12, "TFLOP/s") if value >= 1e11 else (1e9, "GFLOP/s")
    low, high = range_ or (value, value)
    ends = "" if range_ is None else f" ({low / unit:.3g} to {high / unit:.3g})"
    return f"{value / unit:.3g}{ends} {name}"


def _training(entry: Entry) -> Text:
    """Return a table of training rates: measured ones, and those of the layer model."""
    rows = []
    for curve in entry["measured"]:
        length = f", {curve['tokens']} tokens" if curve["tokens"] else ""
        steps = ", ".join(
            f"{step['batch']}: {step['batch'] / step['seconds']:.4g}" for step in curve["steps"]
        )
        what = f"{curve['precision']}{length}, samples per second by batch: {steps}"
        mark = "estimate: " if curve["estimate"] else "measured: "
        rows.append((curve["model"], [what + _times(curve), mark + curve["source"]]))
    for precision, model in entry["layer_model"].items():
        own = f"factor {model['factor']:.2f} of {model['models']} models measured on it"
        what = f"{precision}: {own if model['models'] else 'no model measured on it'}"
        rows.append(("by layers", [what + _times(model), model["source"]]))
    return two_columns(rows)


def _times(found: Entry) -> str:
    low, high = found["time_range"] or (1, 1)
    return f", {low:.2f} to {high:.2f} times that" if low < high else ""


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="underline")
    for number, heading in enumerate(headings):
        last = number == len(headings) - 1
        table.add_column(Text(heading), overflow="fold", no_wrap=not last)
    return table


_LINES: dict[Kind, Callable[[Entry], list[str]]] = {
    Kind.devices: _device_lines,
    Kind.papers: _paper_lines,
    Kind.scenarios: lambda entry: [entry["description"], entry["path"]],
    Kind.tasks: _task_lines,
    Kind.traces: _trace_lines,
}
"""Functions for the lines to the right of a name."""
_TABLES: dict[Kind, Callable[[Sequence[Entry]], list[RenderableType]]] = {
    Kind.compressors: _compressors,
    Kind.links: lambda entries: _titled(link_tables(entries), ABOUT_LINKS),
    Kind.models: lambda entries: _titled(model_tables(entries), ABOUT_MODELS),
}
"""Functions for the tables of the other kinds."""
_DETAILS: dict[Kind, Callable[[Entry], Iterable[RenderableType]]] = {
    Kind.compressors: _compressor_details,
    Kind.devices: _device_details,
    Kind.links: lambda entry: ("", two_columns((one, [text]) for one, text in link_details(entry))),
    Kind.models: _model_details,
    Kind.papers: _paper_details,
    Kind.tasks: lambda entry: map(Text, _task_lines(entry)),
    Kind.traces: lambda entry: map(Text, _trace_lines(entry)),
}
