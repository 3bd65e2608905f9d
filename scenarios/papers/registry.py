"""The presets by name: one more is a file in its paper's folder, and a line here."""

from __future__ import annotations

import importlib

from gcsim.errors import InputError, did_you_mean
from gcsim.scenarios.papers.preset import Preset

PRESETS = (
    "sampling_fig3",
    "sampling_table1",
    "sampling_fig5a",
    "sampling_fig5b",
    "orq_fig1",
    "orq_fig2",
    "orq_table2",
    "variance_table1",
    "variance_table2",
    "ce_sgd_fig3",
    "ce_sgd_table1",
    "ce_sgd_fig4",
)


def preset(name: str) -> Preset:
    """The preset of a name. Raises `InputError` with a suggestion where there is none."""
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}", hint=did_you_mean(name, PRESETS))
    paper, _, experiment = name.rpartition("_")
    found: Preset = importlib.import_module(f"{__package__}.{paper}.{experiment}").PRESET
    return found
