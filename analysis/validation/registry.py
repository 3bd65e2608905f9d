"""Table of the suites; a new suite needs a folder in `suites/` and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gcsim.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from gcsim.analysis.validation.suite import Findings, Suite

SUITES = (
    "shaped-collectives",
    "shaped-training",
    "ddl-benchmarks",
    "grace",
    "other-clusters",
    "tc-cluster",
    "nccl-clusters",
    "racks",
    "pcie",
    "raysgd",
    "bagua",
    "global-qsgd",
    "sharded",
    "gpu-hook",
    "papers",
    "scaling",
    "regret",
    "accuracy",
)
"""Suites in the report's order. A suite whose rows are not scenarios has a `suite.py` that defines
`SUITE`, imported on use."""


def chosen(names: Sequence[str] = ()) -> list[Suite]:
    """Return the suites of these names or folders, or the whole table. Raises `InputError` for an
    unknown or ambiguous name, and for files that do not form a suite."""
    found = [_suite(name) for name in dict.fromkeys(names or SUITES)]
    twice = {suite.name for suite in found if [one.name for one in found].count(suite.name) > 1}
    if twice:
        raise _wrong(f"two suites are called {min(twice)!r}", "give yours another name")
    return found


@cache
def _shipped(name: str) -> Suite:
    """Return a suite of the table."""
    from gcsim.analysis.validation.folder import suite_of

    folder = Path(__file__).parent / "suites" / name.replace("-", "_")
    if (folder / "suite.py").exists():
        own: Suite = import_module(f"{__package__}.suites.{folder.name}.suite").SUITE
        return own
    return suite_of(folder, name)


@cache
def _findings(name: str) -> Findings:
    """Return the findings of a suite of the table, predicted once."""
    return _shipped(name).find()


def _suite(name: str) -> Suite:
    from gcsim.analysis.validation.folder import suite_of

    if name in SUITES:
        return replace(_shipped(name), find=partial(_findings, name))
    if Path(name).is_dir():
        return suite_of(Path(name), Path(name).resolve().name)
    hint = did_you_mean(name, SUITES)
    hint += f"{'' if hint.endswith('?') else '.'} Or name a folder of your own"
    raise _wrong(f"no suite is called {name!r}", hint)


def _wrong(message: str, hint: str) -> InputError:
    return InputError(message, place="SUITE", hint=hint)
