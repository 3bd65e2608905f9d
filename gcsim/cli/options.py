"""Which arguments and options do several commands share?"""

from __future__ import annotations

from typing import Annotated

import typer

ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A YAML file, or a shipped scenario's name.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value, e.g. cluster.nodes='[1, 8]'. Repeatable.",
    ),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Instead of the scenario's.")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="No progress and no notes.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
ResultsOption = Annotated[bool, typer.Option("--json", help="results.json on stdout.")]
