"""A sentence about methods that begin with dense steps: predictions are of the steps after."""

from __future__ import annotations

from typing import Any

from gcsim.analysis.report.numbers import plural
from gcsim.analysis.report.wording import listed
from gcsim.scenarios.result import Result


def dense_at_first(result: Result) -> list[str]:
    """A sentence that names the methods with `dense_steps`; none where there are none."""
    entries: Any = result.scenario.get("compressors", ())
    told = [
        f"{entry['label']} ({_share(entry['dense_steps'])})"
        for entry in entries
        if "dense_steps" in entry
    ]
    if not told:
        return []
    return [f"Dense first, and predicted for the steps after that: {listed(told)}."]


def _share(steps: float) -> str:
    return f"{steps:.4g} of all steps" if steps < 1 else plural(int(steps), "step")
