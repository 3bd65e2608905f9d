"""Is a compressor of one's own what it says it is? `gcsim check my_compressor:Mine`."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gcsim.cli.outcome import users_code
from gcsim.compressors.conformance import CHECKS, Report, examine
from gcsim.errors import InputError
from gcsim.scenarios.reading.document import Document
from gcsim.scenarios.reading.overrides import apply


def names_a_compressor(text: str) -> bool:
    """Whether an argument is `package.module:Class`, and no file of that name."""
    module, colon, cls = text.partition(":")
    named = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and named and cls.isidentifier() and not Path(text).exists()


def report_on(name: str, sets: Sequence[str]) -> Report:
    """What all checks find of a compressor with the parameters of `--set limit=0.5`.

    Raises `InputError` where it cannot be imported, and for impossible parameters.
    """
    document = Document("--set", {})
    if problems := apply(document, sets):
        raise InputError(problems)
    try:
        with users_code():
            return examine(name, document.data)
    except InputError as error:
        places = {key: f"--set {key}" for key in document.data}
        raise InputError(
            [replace(p, place=places.get(p.place, p.place)) for p in error.problems]
        ) from error


def text_of(report: Report) -> str:
    """The report for people; where all is well, also what was looked at."""
    lines = str(report).splitlines()
    if not report.findings:
        checked = "; ".join(check.replace("_", " ") for check in CHECKS)
        lines += [f"  {checked}", *(f"note: {text}" for text in report.notes)]
    width = shutil.get_terminal_size((100, 24)).columns
    return "\n".join(_wrapped(line, width) for line in lines)


def _wrapped(line: str, width: int) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + (0 if line.startswith("  ") else 2))
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
