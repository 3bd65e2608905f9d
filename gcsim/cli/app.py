"""The command line: `gcsim run`, `advise`, `plan`, `train`, `sweep`, `check`, `list`, `record`.

stdout has the answer, or with `--json` exactly `results.json`; all other text goes to stderr. Each
command imports its heavy modules itself, so that `gcsim --help` is quick.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from gcsim.cli import options, outcome
from gcsim.cli.advise import advise
from gcsim.cli.calibrate.device import calibrate_device_command
from gcsim.cli.calibrate.link import calibrate_link_command
from gcsim.cli.compare import compare
from gcsim.cli.explain import explain
from gcsim.cli.list import Kind
from gcsim.cli.plan import plan
from gcsim.cli.plot import plot
from gcsim.cli.reproduce import reproduce
from gcsim.cli.sweep import sweep
from gcsim.cli.train import train
from gcsim.cli.validate import validate
from gcsim.errors import did_you_mean
from gcsim.signals import stoppable

_YOUNG = 10_000
"""Number of new objects between two garbage collections: imports make so many that the default of
700 would cost an eighth of a short command."""

app = typer.Typer(
    name="gcsim",
    help="Would gradient compression make my training faster, by how much, and at what cost?",
    epilog=(
        "Exit codes: 0 success; 1 an expectation failed; 2 wrong usage or input, nothing simulated"
        " (in a sweep: wrong input at a point); 3 a bug in gcsim; 130 interrupted (Ctrl-C, SIGTERM"
        " or SIGHUP)."
    ),
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

calibrate = typer.Typer(
    name="calibrate", help="Fit a link or a device to measurements.", no_args_is_help=True
)
calibrate.command(name="device")(calibrate_device_command)
calibrate.command(name="link")(calibrate_link_command)
app.add_typer(calibrate)


class Dtype(StrEnum):
    """Storage format of a trace's gradients."""

    float32 = "float32"
    float16 = "float16"


def _version(asked: bool) -> None:
    if asked:
        from gcsim.version import __version__

        print(f"gcsim {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, options.option("--version", "Show the version.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, options.option("--debug", "Show a bug's traceback.", envvar="GCSIM_DEBUG")
    ] = False,
) -> None:
    outcome.Reporting.debug = debug
    if context.invoked_subcommand is None:
        with contextlib.redirect_stdout(sys.stderr):
            print(context.get_help(), end="")  # typer prints by itself and returns nothing
        raise typer.Exit(outcome.WRONG_INPUT)


@app.command()
@outcome.reported
def run(
    scenario: options.ScenarioArgument,
    *,
    output: Annotated[Path | None, options.option("-o --output DIR", "Default: runs/NAME.")] = None,
    sets: options.SetOption = None,
    seed: options.SeedOption = None,
    as_json: options.ResultsOption = False,
    quiet: options.QuietOption = False,
    verbose: Annotated[
        bool, options.option("-v --verbose", "All columns, all notes, all sources.")
    ] = False,
    no_cache: Annotated[
        bool, options.option("--no-cache", "Run every compressor again, store nothing.")
    ] = False,
) -> None:
    """Compare compressors on a simulated cluster.

    Runs every compressor on gradients of the model and simulates the cluster at every size.
    """
    from gcsim.analysis.advice.advice import advised_run
    from gcsim.analysis.report.answer import parts
    from gcsim.analysis.report.sources import provenance_notes
    from gcsim.analysis.write import draw_figures, write_results
    from gcsim.cli import terminal
    from gcsim.cli.progress import watching
    from gcsim.scenarios.advice.changes import BY_SPEED
    from gcsim.scenarios.load import load_scenario

    with outcome.users_code():
        loaded = load_scenario(scenario, sets or (), seed)
    folder = options.results_folder(output, loaded.name)
    with watching(quiet) as progress:
        result = advised_run(loaded, cache=not no_cache, progress=progress)

    paths = write_results(result, folder, cache=not no_cache)
    if verbose and not quiet:
        sources = (f"  {line}" for line in provenance_notes(result))
        terminal.note("Where the numbers come from:", *sources, "")
    width = terminal.width()
    terminal.show(as_json, result.to_json, lambda: parts(result, width, full=verbose))
    asked = ["run", scenario, *options.again(sets, seed)]
    command = shlex.join(["gcsim", *asked])
    paths = (*draw_figures(result, folder, command=command, cache=not no_cache), *paths)
    if not quiet:
        terminal.note_cached(result)
        terminal.note_written(folder, paths, "; timeline.json opens in ui.perfetto.dev")
        if not verbose:
            terminal.note("-v adds a time breakdown, column definitions and sources.")
        suffix = "10gbe" if loaded.cluster.network.bandwidth > 15e9 / 8 else "25gbe"
        change, what = f"cluster.network={suffix}", "another network"
        if loaded.cluster.groups:
            suffix, change, what = "by_speed", BY_SPEED, "other batches"
            faster = result.advice.changes if result.advice else ()
            if all(one.overrides != (BY_SPEED,) for one in faster):
                return
        other = [*asked, "--set", change]
        elsewhere = ["-o", str(folder.with_name(f"{folder.name}_{suffix}"))]
        cached = "" if no_cache else " (compressors are not run again)"
        terminal.note_next([*other, *elsewhere], f"{what}{cached}")


for _command_of in (compare, explain, plot, advise, plan, train, sweep, reproduce):
    app.command()(_command_of)


@app.command()
@outcome.reported
def check(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO|MODULE:CLASS",
            help="A YAML file, a shipped scenario's name, or your own compressor.",
        ),
    ],
    *,
    sets: options.SetOption = None,
    seed: options.SeedOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Check a scenario or your own compressor.

    Reports all problems of a scenario and of the trace that it replays, without simulating, and
    shows how gcsim read it: nodes, links, and the algorithms that the transport chooses. Modules of
    your own compressors are imported, which runs their code; a model's is not. A compressor
    (my_module:Mine, parameters with --set) runs on small gradients, and its stated properties are
    checked. Exit code 2 if a check fails.
    """
    from gcsim.cli.check import names_a_compressor, report_on, text_of

    if names_a_compressor(scenario):
        report = report_on(scenario, sets or ())
        if report.findings or not quiet:
            print(text_of(report))
        if report.findings:
            raise typer.Exit(outcome.WRONG_INPUT)
        return
    from gcsim.cli.check import lines
    from gcsim.cli.terminal import emit, summary, two_columns
    from gcsim.scenarios.load import load_scenario
    from gcsim.scenarios.running.gradients import check_trace

    with outcome.users_code():
        loaded = load_scenario(scenario, sets or (), seed)
    check_trace(loaded)
    if not quiet:
        emit(summary(loaded), two_columns((label, [text]) for label, text in lines(loaded)))


@app.command(name="list")
@outcome.reported
def list_(
    kind: Annotated[
        Kind, typer.Argument(metavar="KIND", show_choices=False, help=f"One of: {', '.join(Kind)}.")
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this entry in full.")
    ] = None,
    as_json: options.JsonOption = False,
    layers: Annotated[
        bool, options.option("--layers", "Print tensors as CSV, for model: {layers: FILE}.")
    ] = False,
) -> None:
    """List models, devices, compressors and more."""
    from gcsim.cli.list import details, entries, scenario_text
    from gcsim.cli.terminal import emit_exactly, show_details, show_entries
    from gcsim.files import json_text

    if layers:
        from gcsim.cli.list import layers_text

        emit_exactly(layers_text(kind, name))
    elif as_json:
        emit_exactly(json_text(entries(kind) if name is None else details(kind, name)))
    elif name is None:
        show_entries(kind, entries(kind))
    elif kind is Kind.scenarios:
        emit_exactly(scenario_text(name))
    else:
        show_details(kind, details(kind, name))


@app.command()
@outcome.reported
def schema(
    suite: Annotated[
        bool, options.option("--suite", "Print the schema of a suite's suite.yaml instead.")
    ] = False,
) -> None:
    """Print the JSON schema of a scenario file.

    Editors use it to complete and check keys.
    """
    from gcsim.cli.terminal import emit_exactly
    from gcsim.files import json_text

    if suite:
        from gcsim.analysis.validation.rows import schema_json
    else:
        from gcsim.scenarios.sections.file import schema_json

    emit_exactly(json_text(schema_json()))


@app.command()
@outcome.reported
def record(
    scenario: options.ScenarioArgument,
    *,
    output: Annotated[Path, options.option("-o --output FOLDER", "A new folder for the trace.")],
    iterations: Annotated[
        int | None, options.option("--iterations", "Default: the scenario's.", min=1)
    ] = None,
    workers: Annotated[
        int | None, options.option("--workers", "Default: the scenario's.", min=1)
    ] = None,
    dtype: Annotated[Dtype, options.option("--dtype", "Stored precision.")] = Dtype.float32,
    max_size: Annotated[str | None, options.option("--max-size SIZE", 'e.g. "2 GiB".')] = None,
    second_moments: Annotated[
        bool,
        options.option(
            "--second-moments", "Also store second moments, for variance-based methods."
        ),
    ] = False,
    times: Annotated[
        bool, options.option("--times", "Also time the passes, for compute: {recorded: true}.")
    ] = False,
    sets: options.SetOption = None,
    seed: options.SeedOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Train a model here and store its gradients."""
    import json

    from gcsim.cli.progress import watching
    from gcsim.cli.terminal import note, note_next, recorded_lines
    from gcsim.scenarios.load import load_scenario
    from gcsim.scenarios.running.gradients import record as store
    from gcsim.units import parse_bytes

    max_bytes = None if max_size is None else options.parsed("--max-size", parse_bytes, max_size)
    with outcome.users_code():
        loaded = load_scenario(scenario, sets or (), seed)
    options.check_writable(output)
    with watching(quiet) as progress:
        folder = store(
            loaded,
            output,
            iterations=iterations,
            workers=workers,
            dtype=dtype.value,
            max_bytes=max_bytes,
            second_moments=second_moments,
            times=times,
            progress=progress,
        )
    if not quiet:
        asked = iterations or int(getattr(loaded.gradients, "iterations", 0))
        note(*recorded_lines(folder, asked, max_size or ""))
        trace = json.dumps(str(folder), ensure_ascii=False)  # a YAML scalar
        replay = f"gradients={{source: recorded, trace: {trace}}}"
        note_next(
            ["run", scenario, *options.again(sets, seed), "--set", replay], "replay the trace"
        )


@app.command()
@outcome.reported
def fit(
    traces: Annotated[
        list[Path], typer.Argument(metavar="TRACE", help="Folders made by gcsim record.")
    ],
    *,
    output: Annotated[Path, options.option("-o --output FILE", "The fit, as JSON.")],
    quiet: options.QuietOption = False,
) -> None:
    """Fit distributions to recorded gradients.

    A scenario draws from them with gradients: {source: synthetic, fit: FILE}.
    """
    from gcsim.cli.list import fit_traces, fitted_lines
    from gcsim.cli.progress import watching
    from gcsim.cli.terminal import note

    with watching(quiet) as progress:
        fits = fit_traces(traces, output, progress)
    if not quiet:
        note(*fitted_lines(fits, output))


app.command()(validate)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its exit code."""
    if arguments is None:  # own process: most objects live until its end
        # torch's threads: active waiting takes a tenth of the processor time, and a third if other
        # processes run
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        gc.set_threshold(_YOUNG)
        atexit.register(gc.freeze)  # a collection at exit takes 0.7 s with torch
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: the next file opened would get its number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    with contextlib.suppress(OSError):  # a folder that is gone
        if not {"", str(Path.cwd())} & set(sys.path):  # the folder with the user's modules
            sys.path.append(str(Path.cwd()))  # last, so that gcsim's own imports come first
    with stoppable():
        code = _main(arguments)
    if code == outcome.INTERRUPTED and arguments is None:
        # Without this Python would end itself by SIGINT if the interrupt came at a bad moment.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # a terminal that was closed
                stream.flush()
        os._exit(code)
    sys.exit(code)


@cache
def _command() -> Any:
    """Return all commands as Click has them, built once per process from function annotations."""
    return typer.main.get_command(app)


def _no_such_option(name: str, command: Any) -> str:
    """Return the message for an option that a command lacks, with the one that is meant."""
    plain = name.lower().replace("_", "-")
    words = [one[2:] for option in command.params for one in option.opts if one.startswith("--")]
    hint = did_you_mean(_MEANT.get(plain, plain)[2:], words, near=_NEAR)
    near = hint.replace("'", "--", 1).replace("'", "") if hint.endswith("?") else ""
    return "; ".join(filter(None, (f"No such option: {name}", near)))


_NEAR = 75  # per cent
_MEANT = {
    **dict.fromkeys(("--bandwidth", "--net", "--link", "--links", "--rate"), "--network"),
    **dict.fromkeys(("--rdma", "--roce", "--tcp", "--infiniband", "--ethernet"), "--network"),
    **dict.fromkeys(("--gpus-per-node", "--num-gpus", "--devices-per-node"), "--gpus"),
    **dict.fromkeys(("--num-nodes", "--nnodes", "--machines", "--workers", "--hosts"), "--nodes"),
    **dict.fromkeys(("--batch", "--bs", "--micro-batch-size"), "--batch-size"),
    **dict.fromkeys(("--seq-len", "--seq-length", "--context"), "--sequence"),
    **dict.fromkeys(("--dtype", "--amp", "--fp16", "--bf16"), "--precision"),
    **dict.fromkeys(("--cost", "--price", "--per-hour"), "--cost-per-hour"),
    **{"--params": "--parameters"},
}
"""Options by words that people try instead."""


def _main(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _command().main(args=given, prog_name="gcsim", standalone_mode=False)
    except typer.Abort:
        return outcome.interrupted()
    except KeyboardInterrupt:
        return outcome.interrupted()
    except Exception as error:
        if not outcome.is_usage_error(error):
            raise
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "gcsim"
        message = " ".join(error.format_message().replace("Value error, ", "").split())  # type: ignore[attr-defined]
        if context and hasattr(error, "possibilities"):
            message = _no_such_option(error.option_name, context.command)  # type: ignore[attr-defined]
        see = " See" if message.endswith("?") else "; see"
        outcome.say(f"error: {message.rstrip('.')}{see} {path} --help")
        return outcome.WRONG_INPUT
    return code if isinstance(code, int) else 0
