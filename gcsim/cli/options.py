"""Arguments and options that several commands share.

The folder for results is checked before hours of work, not after them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from gcsim.errors import InputError

T = TypeVar("T")


def option(words: str, text: str, **more: Any) -> Any:
    """Make an option: its names, a placeholder for its value if it has one, and its help."""
    names = [word for word in words.split() if word.startswith("-")]
    value = words.rsplit(maxsplit=1)[-1]
    metavar = None if value in names else value
    return typer.Option(*names, metavar=metavar, help=text, **more)


ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A YAML file, or a shipped scenario's name.")
]
SetOption = Annotated[
    list[str] | None,
    option("--set KEY=VALUE", "Change a value, e.g. cluster.nodes='[1, 8]'. Repeatable."),
]
SeedOption = Annotated[int | None, option("--seed", "Override the scenario's seed.")]
JobsOption = Annotated[
    int | None, option("--jobs", "Processes. Default: one per core, if memory allows.", min=1)
]
DaskOption = Annotated[str | None, option("--dask ADDRESS", "Use this dask.distributed scheduler.")]


def _silence(quiet: bool) -> bool:
    """Keep logged notes off stderr when `quiet`; warnings stay."""
    if logging.lastResort is not None:
        (logging.lastResort.addFilter if quiet else logging.lastResort.removeFilter)(_no_note)
    return quiet


def _no_note(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("note: ")


QuietOption = Annotated[bool, option("-q --quiet", "No progress and no notes.", callback=_silence)]
JsonOption = Annotated[bool, option("--json", "Print JSON to stdout.")]
ResultsOption = Annotated[bool, option("--json", "Print results.json to stdout.")]


def again(sets: Sequence[str] | None, seed: int | None) -> list[str]:
    """Return the options that change the scenario in the same way."""
    repeated = [word for assignment in sets or () for word in ("--set", assignment)]
    return repeated + ([] if seed is None else ["--seed", str(seed)])


def parsed(option: str, parse: Callable[[str], T], text: str) -> T:
    """Parse an option's text; an `InputError` names the option."""
    try:
        return parse(text)
    except InputError as error:
        raise InputError([replace(one, place=option) for one in error.problems]) from error


def results_folder(output: Path | None, name: str) -> Path:
    """Return `output` or `runs/NAME`; raises `InputError` as `check_writable` does."""
    folder = output or Path("runs") / name
    check_writable(folder)
    return folder


def check_writable(folder: Path, option: str = "-o") -> None:
    """Raise `InputError`, with `option` as its place, if no files can be created in `folder`;
    creates nothing."""
    folder.absolute()  # raises if the working folder is gone
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        message = f"{existing} is a file, not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        message = f"no permission to write in {existing}"
    else:
        return
    raise InputError(message, place=str(folder), hint=f"choose another folder with {option}")
