"""Random factors on whole steps, for prediction errors that no uncertain input explains.

In `gcsim validate` more than one measured step in five lies outside the 80 % range of the inputs
alone. So in each world a step is multiplied by random factors of the width that the measurements
need: one common to all methods, narrower with stated passes; one common to all compressors but
dense; one per compressor. `gcsim.analysis.validation.leaving_out` fits the widths. The median of a
factor is 1, so ranges and probabilities get wider and estimates stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.scenarios.reading.checking import Section, shipped_table
from gcsim.scenarios.uncertainty.figures import Figure, Input, KeyPath
from gcsim.scenarios.uncertainty.worlds import FACTORS, Worlds
from gcsim.simulator.training import DENSE

Values = NDArray[np.float64]
FILE = Path(__file__).parent.parent / "catalog" / "discrepancy.yaml"
WIDER = 1.25  # width of a uniform distribution over the width of its middle 80 %
_STEP = "time one step of this method on your machine"
_Width = Annotated[float, Field(ge=1)]


class Widths(Section):
    """Factors f: the middle 80 % of a drawn factor lies between 1/f and f."""

    catalogue: _Width  # common to all methods, with the catalogue's passes
    stated: _Width  # common to all methods, with stated passes
    compressed: _Width
    compressor: _Width


class SourceSection(Section):
    """Contribution of a source of measurements to the widths."""

    steps: int
    gains: int
    without: Widths  # widths from all other sources


class DiscrepancyFile(Section):
    """Contents of `discrepancy.yaml`."""

    widths: Widths
    sources: dict[str, SourceSection]

    def without(self, source: str) -> Widths:
        """Return the widths fitted without this source."""
        known = self.sources.get(source)
        return self.widths if known is None else known.without


@cache
def shipped() -> DiscrepancyFile:
    """Return the catalogue's widths and sources."""
    return shipped_table(DiscrepancyFile, FILE)


def inputs(widths: Widths, *, stated: bool, kinds: Iterable[str]) -> list[Input]:
    """Return the factors as inputs, for these kinds of compressors; `stated`: the user's passes."""
    width, measure = widths.catalogue, "compute.forward and compute.backward"
    if stated:
        width, measure = widths.stated, _STEP
    found = [_input((), FACTORS[0], width, measure)]
    compressed = [kind for kind in dict.fromkeys(kinds) if kind != DENSE]
    if compressed:
        found.append(_input(("compressed",), FACTORS[1], widths.compressed, _STEP))
    for kind in compressed:
        name = f"measured steps of {kind} over those of other compressors"
        found.append(_input(("compressed", kind), name, widths.compressor, _STEP))
    return found


def _input(place: KeyPath, name: str, width: float, measure: str) -> Input:
    end = width**WIDER
    figure = Figure(
        key_path=("discrepancy", *place), field="factor", stated=1.0, low=1 / end, high=end
    )
    return Input(name=name, unit="", measure=measure, figures=(figure,))


def factors(worlds: Worlds, found: Sequence[Input], kind: str = DENSE) -> Values:
    """Return the factor on a step with a kind of compressor, by world."""
    place = ("discrepancy", *(() if kind == DENSE else ("compressed", kind)))
    own = [one for one in found if one.main.key_path == place[: len(one.main.key_path)]]
    product = np.ones(len(worlds))
    for one in own:
        product *= one.main.at(worlds.slowness(one))
    return product
