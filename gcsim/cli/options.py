"""Which arguments and options do several commands share?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, TypeVar

import typer

from gcsim.errors import InputError

T = TypeVar("T")

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
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Processes. Default: cores, or fewer by memory."),
]
DaskOption = Annotated[
    str | None,
    typer.Option("--dask", metavar="ADDRESS", help="A dask.distributed scheduler instead."),
]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="No progress and no notes.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
ResultsOption = Annotated[bool, typer.Option("--json", help="results.json on stdout.")]


def again(sets: Sequence[str] | None, seed: int | None) -> list[str]:
    """The options that make the same scenario once more."""
    repeated = [word for assignment in sets or () for word in ("--set", assignment)]
    return repeated + ([] if seed is None else ["--seed", str(seed)])


def parsed(option: str, parse: Callable[[str], T], text: str) -> T:
    """What an option's text says; an `InputError` names the option."""
    try:
        return parse(text)
    except InputError as error:
        raise InputError([replace(one, place=option) for one in error.problems]) from error
