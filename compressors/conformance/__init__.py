"""Is a compressor what it says it is? `check(MyCompressor)` puts it to the test.

    from gcsim.compressors import check
    check(MyCompressor)                       # with its default parameters
    check("qsgd", {"steps": 1, "norm": "l2"})
    check("my_package.my_module:MyCompressor")

Every check is a function of a `Subject` that raises `AssertionError` with what it found.
`structure` holds what any method must survive, `transport` that nothing but payloads passes
between workers, `promises` the method's own `laws`. The statistical ones compare with bounds of
five standard errors or more: a correct method fails one in a million times, and never by chance
in a repeated run, because the seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gcsim.compressors.base import Compressor
from gcsim.compressors.conformance import promises, structure, transport
from gcsim.compressors.conformance.subject import Subject, subject_of
from gcsim.errors import ExpectationError

CHECKS: dict[str, Callable[[Subject], None]] = {
    check.__name__: check for check in (*structure.CHECKS, *transport.CHECKS, *promises.CHECKS)
}


def check(
    compressor: type[Compressor] | str, parameters: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """Run all checks on a compressor; the names of what was checked.

    Raises `ExpectationError` that lists every check that failed and why, and `InputError` for an
    unknown compressor or impossible parameters.
    """
    subject = subject_of(compressor, parameters or {})
    failures = []
    for name, function in CHECKS.items():
        try:
            function(subject)
        except Exception as error:  # a faulty compressor may raise anything
            what = str(error) or type(error).__name__
            if not isinstance(error, AssertionError):
                what = f"{type(error).__name__}: {what}"
            failures.append(f"{name.replace('_', ' ')}: {what}")
    if failures:
        raise ExpectationError(
            f"{subject.name} fails {len(failures)} of {len(CHECKS)} checks\n  "
            + "\n  ".join(failures)
        )
    return tuple(CHECKS)
