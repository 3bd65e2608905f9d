"""Table of the suites: a new one is a folder and a line here.

A name outside the table, `package.module:SUITE`, is imported from the user's code. Modules are
imported on use.
"""

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

SUITES: dict[str, str] = {
    "shaped-collectives": "shaped_collectives",
    "shaped-training": "shaped_training",
    "ddl-benchmarks": "ddl_benchmarks",
    "grace": "grace",
    "other-clusters": "other_clusters",
    "tc-cluster": "tc_cluster",
    "nccl-clusters": "nccl_clusters",
    "racks": "racks",
    "raysgd": "raysgd",
    "bagua": "bagua",
    "global-qsgd": "global_qsgd",
    "gpu-hook": "gcsim.analysis.validation.suites.gpu_hook.suite:SUITE",
    "papers": "gcsim.analysis.validation.suites.papers.suite:SUITE",
    "scaling": "gcsim.analysis.validation.suites.scaling.suite:SUITE",
    "regret": "gcsim.analysis.validation.suites.regret.suite:SUITE",
    "accuracy": "gcsim.analysis.validation.suites.accuracy.suite:SUITE",
}
"""Suites by name, in the report's order: a folder in `suites/`, or a module and a value."""


def chosen(names: Sequence[str] = ()) -> list[Suite]:
    """Suites of these names, or the whole table. Raises `InputError` for an unknown or ambiguous
    name, and for a user's module that does not import or holds no such `Suite`."""
    found = [_suite(name) for name in dict.fromkeys(names or SUITES)]
    twice = {suite.name for suite in found if [one.name for one in found].count(suite.name) > 1}
    if twice:
        raise _wrong(f"two suites are called {min(twice)!r}", "give yours another name")
    return found


@cache
def _shipped(name: str) -> Suite:
    """A suite of the table."""
    from gcsim.analysis.validation.folder import suite_of

    module, _, attribute = SUITES[name].partition(":")
    if attribute:
        own: Suite = getattr(import_module(module), attribute)
        return own
    return suite_of(Path(__file__).parent / "suites" / module, name)


@cache
def _found(name: str) -> Findings:
    """Findings of a suite of the table, predicted once."""
    return _shipped(name).find()


def _suite(name: str) -> Suite:
    from gcsim.analysis.validation.folder import suite_of
    from gcsim.analysis.validation.suite import Suite

    if name in SUITES:
        return replace(_shipped(name), find=partial(_found, name))
    if Path(name).is_dir():
        return suite_of(Path(name), Path(name).resolve().name)
    if ":" not in name:
        hint = f"{did_you_mean(name, SUITES)} Your own is a folder, or package.module:SUITE"
        raise _wrong(f"no suite is called {name!r}", hint)
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # the user's module may raise anything
        message = f"cannot import suite {name!r}: {type(error).__name__}: {error}"
        raise _wrong(message, "write package.module:SUITE, importable from here") from error
    if not isinstance(found, Suite):
        raise _wrong(
            f"{name!r} is a {type(found).__name__}, not a suite",
            "make it with gcsim.analysis.validation.suite.Suite",
        )
    return found


def _wrong(message: str, hint: str) -> InputError:
    return InputError(message, place="SUITE", hint=hint)
