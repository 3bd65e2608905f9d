"""Which collectives were measured on shaped links? Those of `data/shaped_collectives.csv`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gcsim.analysis.validation.data_files import data_values

UNSHAPED = 100_000
"""Mbit/s that stand for no shaper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, and what was measured of it; times in seconds."""

    collective: str
    shape: str
    """Of blocks: equal, linear, heavy; "": there is no choice."""
    block: int | None
    """Bytes that a ring of sends and receives forwards at a time; 0: whole blocks."""
    ranks: int
    rate_mbit: int
    slow_mbit: int | None
    """Of the last node's card, where it is slower."""
    nbytes: int
    seconds: float
    repeats: int
    wire_bytes: int | None
    """Of all cards together, with headers and acknowledgements, where they were counted."""

    @property
    def name(self) -> str:
        """Unique, for a person."""
        slow = f", one of {self.slow_mbit}" if self.slow_mbit else ""
        return f"{self.label} {self.nbytes} B, {self.ranks} ranks, {self.rate_mbit} Mbit/s{slow}"

    @property
    def label(self) -> str:
        """What was carried out."""
        pieces = f"by {self.block} B" if self.block else ""
        return " ".join(" ".join([self.collective, self.shape, pieces]).split())

    def sizes(self) -> list[int]:
        """Bytes of each rank's block."""
        ranks, total = self.ranks, self.nbytes
        if self.shape == "linear":
            unit = ranks * (ranks + 1) // 2
            return [total * (rank + 1) // unit for rank in range(ranks)]
        if self.shape == "heavy":
            rest = total // 2 // (ranks - 1)
            return [total - (ranks - 1) * rest] + [rest] * (ranks - 1)
        return [total // ranks] * ranks


@cache
def settings() -> tuple[Setting, ...]:
    """All of them, in the order of the file."""
    return tuple(
        data_values(
            "shaped_collectives", Setting, slow_mbit="slow", nbytes="bytes", seconds="median_s"
        )
    )
