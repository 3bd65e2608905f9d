"""Checks of a compressor against its own declarations: `check(MyCompressor)`.

    from gcsim.compressors import check
    check(MyCompressor)                       # with its default parameters
    check("qsgd", {"steps": 1, "norm": "l2"})
    check("my_package.my_module:MyCompressor")

Every check is a function of a `Subject` that raises `AssertionError`: `structure` checks any
method's updates and what they depend on, `transport` that only payloads pass between workers,
`promises` the method's `properties`. Statistical checks allow five standard errors or more: a
correct method fails once in a million; seeds are fixed, so repeated runs agree. Checks that fail
for the same cause (the same error in the same line, or `FOLLOWS`) are one finding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gcsim.compressors.base import Compressor
from gcsim.compressors.conformance import promises, structure, transport
from gcsim.compressors.conformance.subject import Subject, subject_of
from gcsim.compressors.mistakes import is_users, location_of_class
from gcsim.errors import ExpectationError, InputError

Check = Callable[[Subject], None]

CHECKS: dict[str, Check] = {
    check.__name__: check for check in (*structure.CHECKS, *transport.CHECKS, *promises.CHECKS)
}

_NUMBERS = re.compile(r"\d[\d.,…\s]*")
"""Sizes and counts, which differ between checks that find the same mistake."""

_COMPARES_RUNS = (
    "steps_stand_alone_without_memory",
    "only_what_travelled_is_used",
    "metering_changes_nothing",
    "sharing_changes_nothing",
    "damaged_payloads_are_refused",
    "payloads_of_another_tensor_are_refused",
)
_NEEDS_THE_MEAN = (
    "mean_is_right_when_unbiased",
    "what_is_not_sent_is_kept",
    "lossless_is_lossless",
)
FOLLOWS: dict[str, tuple[str, ...]] = {
    "something_is_sent": (
        "replicas_stay_together",
        "every_workers_gradient_counts",
        *_NEEDS_THE_MEAN,
    ),
    "equal_seeds_repeat_themselves": ("replicas_stay_together", *_COMPARES_RUNS),
    "every_workers_gradient_counts": ("replicas_stay_together", *_NEEDS_THE_MEAN),
    "more_workers_do_not_scale_the_update": _NEEDS_THE_MEAN,
    "the_update_has_the_size_of_the_gradient": _NEEDS_THE_MEAN,
}
"""Checks that cannot hold if a given one fails, by that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause, and the checks that fail because of it."""

    message: str
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    name: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """Properties that are not mistakes but that users should know."""

    def __str__(self) -> str:
        failed = sum(len(finding.checks) for finding in self.findings)
        if not failed:
            return f"{self.name} passes all {len(CHECKS)} checks"
        count = len(self.findings)
        causes = f", {count} causes" if count > 1 else ", one cause"
        lines = [f"{self.name} fails {failed} of {len(CHECKS)} checks{causes * (failed > count)}"]
        for found in self.findings:
            checks = ", ".join(check.replace("_", " ") for check in found.checks)
            lines.append(f"  {checks}:\n      {found.message}")
        return "\n".join(lines)


def check(
    compressor: type[Compressor] | str,
    parameters: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
) -> tuple[str, ...]:
    """Run all checks on a compressor, with gradients on a device; return their names. Raises
    `ExpectationError`, which lists causes and failed checks; `InputError` for invalid arguments."""
    report = examine(compressor, parameters, device=device)
    if report.findings:
        raise ExpectationError(str(report))
    return tuple(CHECKS)


def refuse_side_channels(name: str, parameters: Mapping[str, Any]) -> None:
    """Raise `InputError` if a user's workers exchange data outside collectives."""
    subject = subject_of(name, parameters)
    if not is_users(subject.compressor):
        return
    try:
        transport.only_what_travelled_is_used(subject)
    except InputError:
        return  # another mistake, which appears when the compressor is used
    except AssertionError as error:
        place = f"{subject.compressor.about.title}, {location_of_class(subject.compressor)}"
        hint = "let workers exchange it by a request: they are processes on a cluster"
        raise InputError(str(error), place=place, hint=hint) from None


def examine(
    compressor: type[Compressor] | str,
    parameters: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
) -> Report:
    """Run all checks. Raises `InputError` as `check` does."""
    subject = replace(subject_of(compressor, parameters or {}), device=device)
    failed: dict[str, Exception] = {}
    for name, function in CHECKS.items():
        try:
            function(subject)
        except Exception as raised:  # a faulty compressor may raise anything
            failed[name] = raised
    causes: dict[object, list[str]] = {}
    for name, error in failed.items():
        causes.setdefault(_cause(name, error, failed), []).append(name)
    findings = []
    for cause, names in causes.items():
        names.sort(key=lambda name: name != cause)
        findings.append(Finding(message=_said(failed[names[0]]), checks=tuple(names)))
    note = None if findings else structure.scale_is_told(subject)
    return Report(name=subject.name, findings=tuple(findings), notes=(note,) if note else ())


def _cause(name: str, error: Exception, failed: Mapping[str, Exception]) -> object:
    """Return a key that is equal for checks that fail for the same cause."""
    if isinstance(error, InputError):
        return tuple(
            (problem.place, _NUMBERS.sub("#", problem.message)) for problem in error.problems
        )
    if not isinstance(error, AssertionError):
        return _NUMBERS.sub("#", _said(error))
    for root, rest in FOLLOWS.items():
        if name in rest and isinstance(failed.get(root), AssertionError):
            return root
    return name


def _said(error: Exception) -> str:
    what = str(error) or type(error).__name__
    expected = isinstance(error, AssertionError | InputError)
    return what if expected else f"{type(error).__name__}: {what}"
