"""Factors on a world's step: errors of measured clusters that no input explains.

Measured steps leave the ranges of `gcsim validate` more often than one in five, so each world's
step gets factors as wide as those measurements ask for: one common to a cluster's methods, narrower
with stated passes; one common to all compressors beside dense; one per compressor.
`gcsim.analysis.validation.leaving_out` finds the widths. They widen ranges and probabilities, not
estimates: half of the factors of each method are above 1.
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
WIDER = 1.25  # width of an evenly drawn range over that of its middle 80 %
_STEP = "time one step of this method on your machine"
_Width = Annotated[float, Field(ge=1)]


class Widths(Section):
    """Factors f: the middle 80 % of a drawn factor lies between 1/f and f."""

    catalogue: _Width  # common to all methods, with the catalogue's passes
    stated: _Width  # common to all methods, with stated passes
    compressed: _Width
    compressor: _Width


class SourceSection(Section):
    """A source's part in the widths."""

    steps: int
    gains: int
    without: Widths  # widths from all other sources


class DiscrepancyFile(Section):
    """All of `discrepancy.yaml`."""

    widths: Widths
    sources: dict[str, SourceSection]

    def without(self, source: str) -> Widths:
        """Widths without this source."""
        known = self.sources.get(source)
        return self.widths if known is None else known.without


@cache
def shipped() -> DiscrepancyFile:
    """The catalogue's widths and sources."""
    return shipped_table(DiscrepancyFile, FILE)


def inputs(widths: Widths, *, stated: bool, kinds: Iterable[str]) -> list[Input]:
    """Inputs for these kinds of compressors, with stated passes or the catalogue's."""
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
    """Factor on a kind of compressor's step, by world."""
    place = ("discrepancy", *(() if kind == DENSE else ("compressed", kind)))
    own = [one for one in found if one.main.key_path == place[: len(one.main.key_path)]]
    product = np.ones(len(worlds))
    for one in own:
        product *= one.main.at(worlds.slowness(one))
    return product
