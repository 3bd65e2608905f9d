"""gcsim: would gradient compression make my training faster, by how much, at what cost?

The rooms (`analysis`, `scenarios`, `simulator`, `traces`, `compressors`) are top-level
folders of the checkout and sub-packages of `gcsim` when installed. In a checkout the folder
that holds `pyproject.toml` is put first on this package's path, so that `gcsim.simulator` is
`simulator/` itself and breakpoints and coverage show the real files.

Public names load on first use: `import gcsim` costs a few milliseconds.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file() and (_checkout / "simulator").is_dir():
    __path__.insert(0, str(_checkout))

_PUBLIC = {
    "load_scenario": "gcsim.scenarios.load:load_scenario",
    "run": "gcsim.scenarios.run:run",
    "sweep": "gcsim.scenarios.sweeps.sweep:sweep",
    "record": "gcsim.traces.recording.recording:record",
    "record_scenario": "gcsim.scenarios.running.gradients:record",
    "Result": "gcsim.scenarios.result:Result",
    "SweepResult": "gcsim.scenarios.sweeps.result:SweepResult",
    "GcsimError": "gcsim.errors:GcsimError",
    "InputError": "gcsim.errors:InputError",
    "ddp_hook": "gcsim.compressors.ddp.hook:ddp_hook",
    "Compressor": "gcsim.compressors.base:Compressor",
}

__all__ = [*sorted(_PUBLIC), "__version__"]  # noqa: PLE0604 - names resolve through __getattr__


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _PUBLIC[name].split(":")
    except KeyError:
        raise AttributeError(f"module 'gcsim' has no attribute {name!r}") from None
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
