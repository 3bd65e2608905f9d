"""`gcsim validate --live`: measure here, in network namespaces, what was predicted before."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gcsim.analysis.validation.judge import Report
    from gcsim.scenarios.progress import Progress


def validate_live(*, output: Path, quick: bool, progress: Progress) -> Report:
    """The live suite's report; predictions and measurements are left in a new folder in `output`,
    named by the time (UTC). Raises `InputError` where rights or tools are missing."""
    from gcsim.analysis.live.live import run_live

    begun = datetime.now(UTC).strftime("live-%Y%m%dT%H%M%SZ")
    return run_live(output / begun, quick=quick, progress=progress)
