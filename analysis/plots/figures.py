"""The figures of a run, as files: `speedup.png`, `breakdown.png` and, with faults, `faults.png`."""

from __future__ import annotations

from pathlib import Path

from gcsim.analysis.plots.breakdown import breakdown_figure
from gcsim.analysis.plots.faults import faults_figure
from gcsim.analysis.plots.speedup import speedup_figure
from gcsim.analysis.plots.style import save
from gcsim.scenarios.result import Result


def save_speedup(result: Result, path: Path) -> None:
    """Throughput relative to one device against the number of workers, as PNG."""
    save(speedup_figure(result), path)


def save_breakdown(result: Result, path: Path) -> None:
    """Where an iteration goes at the largest size, as PNG."""
    save(breakdown_figure(result), path)


def save_faults(result: Result, path: Path) -> None:
    """How far training gets when nodes die, as PNG; of a result with faults."""
    save(faults_figure(result), path)
