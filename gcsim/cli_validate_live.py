"""`gcsim validate --live`: measure here, in network namespaces, what was predicted before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gcsim.analysis.validation.judge import Report
    from gcsim.scenarios.progress import Progress


def validate_live(*, output: Path, quick: bool, progress: Progress) -> Report:
    """The live suite's report; predictions and measurements are left in the folder `live` of
    `output`. Raises `InputError` where rights or tools are missing."""
    from gcsim.analysis.live.live import run_live

    return run_live(output / "live", quick=quick, progress=progress)
