"""gcsim: does gradient compression make my training faster, by how much, at what cost.

The parts (`analysis`, `scenarios`, `simulator`, `traces`, `compressors`) are top-level folders of
the checkout and sub-packages of `gcsim` when installed. In a checkout the folder that holds
`pyproject.toml` comes first on this package's path, so `gcsim.simulator` is the folder
`simulator/`, and breakpoints and coverage show the real files.

Public names load on first use, so `import gcsim` takes only a few milliseconds.
"""
# ruff: noqa: F401
# mypy: implicit-reexport

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gcsim.lazy import offered
from gcsim.version import __version__

_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file() and (_checkout / "simulator").is_dir():
    __path__.insert(0, str(_checkout))

if TYPE_CHECKING:
    from gcsim.analysis.advice.advice import Advice
    from gcsim.api import (
        Result,
        SweepResult,
        TrainingResult,
        advise,
        record_scenario,
        run,
        sweep,
        train,
    )
    from gcsim.compressors.base import Compressor
    from gcsim.compressors.ddp.hook import ddp_hook
    from gcsim.errors import GcsimError, InputError
    from gcsim.scenarios.load import load_scenario
    from gcsim.traces.recording.recording import record

_MODULES = {
    "gcsim.analysis.advice.advice": "Advice",
    "gcsim.api": "Result SweepResult TrainingResult advise record_scenario run sweep train",
    "gcsim.compressors.base": "Compressor",
    "gcsim.compressors.ddp.hook": "ddp_hook",
    "gcsim.errors": "GcsimError InputError",
    "gcsim.scenarios.load": "load_scenario",
    "gcsim.traces.recording.recording": "record",
}

__getattr__, __dir__, __all__ = offered(__name__, _MODULES, "__version__")
