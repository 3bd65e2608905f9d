"""Choices based on predictions: whether a method beats dense training, and which is fastest.

The points of a setting are one model on one cluster with several methods. A method is compared with
a measured dense exchange, unless its own point was used in a fit; the fastest method is searched
among all points. Measurements closer than `TIE` decide nothing and are counted separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gcsim.analysis.validation.statistics import grouped
from gcsim.analysis.validation.suite import Point
from gcsim.simulator.training import DENSE

TIE = 0.02
"""Relative difference below which two measurements tie, since repeated runs of the published
benchmarks differ by 1 to 2 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Numbers of right and wrong choices between points."""

    right: int
    wrong: tuple[Point, ...]  # methods whose prediction and measurement differ on beating dense
    ties: int
    faster: int  # decided methods that are faster than dense
    unfitted_right: int  # right choices with the catalogue alone
    unfitted_decided: int
    fastest_right: int
    """Settings in which the predicted fastest method is within `TIE` of the measured one."""
    fastest: int  # settings with at least three methods
    regret: float
    """Mean over those settings of the relative time lost by choosing the predicted fastest."""

    @property
    def decided(self) -> int:
        """Number of choices between a method and dense."""
        return self.right + len(self.wrong)

    @property
    def commoner(self) -> int:
        """Number of right choices when always giving the more frequent answer."""
        return max(self.faster, self.decided - self.faster)

    @property
    def share(self) -> float:
        """Share of right choices between a method and dense."""
        return self.right / self.decided if self.decided else 1.0


def decisions(points: Sequence[Point]) -> Decisions | None:
    """Return the choices between the points; None if there are none."""
    choices: list[tuple[Point, Point]] = []  # dense, and a method
    regrets: list[float] = []
    for group in by_setting(points).values():
        dense = next((point for point in group if point.method == DENSE), None)
        if dense is not None:
            choices += [(dense, one) for one in group if one is not dense and not one.fitted]
        if len(group) >= 3:
            sign = 1 if group[0].less_is_better else -1
            chosen = min(group, key=lambda point: sign * point.predicted)
            best = min(group, key=lambda point: sign * point.measured)
            regrets.append(_gain(chosen.measured, best.measured, best) - 1)
    gains = {pair: _gain(pair[0].measured, pair[1].measured, pair[1]) for pair in choices}
    decided = {pair: gain > 1 for pair, gain in gains.items() if abs(gain - 1) >= TIE}
    if not decided and not regrets:
        return None
    wrong = [
        one
        for (dense, one), pays in decided.items()
        if (_gain(dense.predicted, one.predicted, one) > 1) != pays
    ]
    unfitted = [
        (_gain(dense.unfitted, one.unfitted, one) > 1) == pays
        for (dense, one), pays in decided.items()
        if dense.unfitted is not None and one.unfitted is not None
    ]
    return Decisions(
        right=len(decided) - len(wrong),
        wrong=tuple(wrong),
        ties=len(choices) - len(decided),
        faster=sum(decided.values()),
        unfitted_right=sum(unfitted),
        unfitted_decided=len(unfitted),
        fastest_right=sum(regret < TIE for regret in regrets),
        fastest=len(regrets),
        regret=sum(regrets) / len(regrets) if regrets else 0.0,
    )


def by_setting(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Return the points of settings with several methods, by setting."""
    chosen = (point for point in points if point.setting and point.method)
    return grouped(chosen, lambda point: point.setting)


def _gain(reference: float, own: float, point: Point) -> float:
    """Return the speed relative to the reference."""
    return reference / own if point.less_is_better else own / reference
