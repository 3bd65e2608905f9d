"""Advice if nothing fits in the devices' memory: how much is missing, what would fit, and the
advice with the smallest change of settings that fits."""

from __future__ import annotations

from gcsim.analysis.advice.advice import Advice
from gcsim.analysis.report import sections
from gcsim.files import json_text
from gcsim.scenarios.checks.fits import NOTHING, DoesNotFitError, assigned, gib, span


def summary(unfit: DoesNotFitError, cured: Advice | None = None, width: int = 80) -> str:
    """Return the text of `gcsim advise`; `cured` is the advice with the settings `misfit.sets`."""
    misfit = unfit.misfit
    memory = misfit.memory
    parts = [f"{part.name} {span(part.low, part.high)}" for part in memory.parts]
    first, *others = [f"{one.text}\n" for one in misfit.remedies] or [NOTHING]
    found = [f"{unfit.model} on {misfit.device}: does not fit"]
    for word, texts in (
        ("Needs", [f"{span(memory.low, memory.high)} per GPU, with {misfit.label}\n", *parts]),
        ("Has", [f"{gib(memory.device or 0)}: at least {gib(misfit.over)} too few"]),
        ("Change first", [first, *(f"or {text}" for text in others)]),
    ):
        found += sections.section_lines(word, texts, max(60, min(width, sections.WIDEST)))
    if cured is not None:
        found += ["", f"With {assigned(misfit.sets)}:", "", cured.summary(width).rstrip()]
    return "\n".join(found) + "\n"


def to_json(unfit: DoesNotFitError, cured: Advice | None = None) -> str:
    """Return the JSON text of `gcsim advise --json`."""
    document = {"fits": False, "model": unfit.model, **unfit.misfit.document()}
    if cured is not None:
        document |= {"set": list(unfit.misfit.sets), "advice": cured.document()}
    return json_text(document)
