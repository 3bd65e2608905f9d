"""Answer of advice where nothing fits in the devices' memory: by how much, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gcsim.analysis.report import sections
from gcsim.files import json_text
from gcsim.scenarios.checks.fits import NOTHING, DoesNotFitError, gib, span


def summary(unfit: DoesNotFitError, width: int = 80) -> str:
    """Text that `gcsim advise` prints in the place of times."""
    misfit = unfit.misfit
    memory = misfit.memory
    parts = [f"{part.name} {span(part.low, part.high)}" for part in memory.parts]
    found = [f"{unfit.model} on {misfit.device}: does not fit"]
    for word, texts in (
        ("Needs", [f"{span(memory.low, memory.high)} per GPU, with {misfit.label}\n", *parts]),
        ("Has", [f"{gib(memory.device or 0)}: at least {gib(misfit.over)} too few"]),
        ("Change first", [f"{text}\n" for text in _either(misfit.remedies or [NOTHING])]),
    ):
        found += sections.section_lines(word, texts, max(60, min(width, sections.WIDEST)))
    return "\n".join(found) + "\n"


def _either(remedies: Sequence[str]) -> Iterator[str]:
    """Each of several ways out on a line of its own."""
    yield remedies[0]
    yield from (f"or {text}" for text in remedies[1:])


def to_json(unfit: DoesNotFitError) -> str:
    """The same for `--json`."""
    document = {"fits": False, "model": unfit.model, **unfit.misfit.document()}
    return json_text(document)
