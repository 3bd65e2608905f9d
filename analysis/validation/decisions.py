"""Choices that follow a prediction: beats dense, yes or no; and the fastest method.

A setting's points are one model on one cluster with several methods. Methods are judged against a
measured dense exchange, unless their own point served a fit; the fastest is looked for among all.
Measurements closer than `TIE` decide nothing and are counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gcsim.analysis.validation.statistics import grouped
from gcsim.analysis.validation.suite import Point
from gcsim.simulator.training import DENSE

TIE = 0.02
"""Relative difference below which two measurements tie: repeated runs of the published benchmarks
differ by 1 to 2 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Choices between points."""

    right: int
    wrong: tuple[Point, ...]  # methods whose prediction and measurement disagree on beating dense
    ties: int
    faster: int  # decided ones that are faster than dense
    unfitted_right: int  # right choices of the catalogue alone
    unfitted_decided: int
    fastest_right: int
    """Settings whose predicted fastest method is within `TIE` of the measured one."""
    fastest: int  # settings with at least three methods
    regret: float
    """Mean over those settings of how much slower the predicted fastest is than the measured."""

    @property
    def decided(self) -> int:
        """Choices between a method and dense."""
        return self.right + len(self.wrong)

    @property
    def commoner(self) -> int:
        """Choices that are right if the commoner answer is always given, without any knowledge."""
        return max(self.faster, self.decided - self.faster)

    @property
    def share(self) -> float:
        """Share of right choices between a method and dense."""
        return self.right / self.decided if self.decided else 1.0


def decisions(points: Sequence[Point]) -> Decisions | None:
    """Choices between the points; None without any."""
    right, ties, fastest_right, fastest = 0, 0, 0, 0
    faster, unfitted_right, unfitted_decided = 0, 0, 0
    wrong: list[Point] = []
    regrets: list[float] = []
    for group in by_setting(points).values():
        dense = next((point for point in group if point.method == DENSE), None)
        for point in group:
            if dense is None or point is dense or point.fitted:
                continue
            gain = _gain(dense.measured, point.measured, point)
            if abs(gain - 1) < TIE:
                ties += 1
                continue
            faster += gain > 1
            if dense.unfitted is not None and point.unfitted is not None:
                unfitted_decided += 1
                unfitted_right += (gain > 1) == (_gain(dense.unfitted, point.unfitted, point) > 1)
            if (gain > 1) == (_gain(dense.predicted, point.predicted, point) > 1):
                right += 1
            else:
                wrong.append(point)
        if len(group) >= 3:
            sign = 1 if group[0].less_is_better else -1
            chosen = min(group, key=lambda point: sign * point.predicted)
            best = min(group, key=lambda point: sign * point.measured)
            regret = _gain(chosen.measured, best.measured, best) - 1
            fastest += 1
            fastest_right += regret < TIE
            regrets.append(regret)
    if not right and not wrong and not fastest:
        return None
    return Decisions(
        right=right,
        wrong=tuple(wrong),
        ties=ties,
        faster=faster,
        unfitted_right=unfitted_right,
        unfitted_decided=unfitted_decided,
        fastest_right=fastest_right,
        fastest=fastest,
        regret=sum(regrets) / len(regrets) if regrets else 0.0,
    )


def by_setting(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points of several methods, by setting."""
    chosen = (point for point in points if point.setting and point.method)
    return grouped(chosen, lambda point: point.setting)


def _gain(reference: float, own: float, point: Point) -> float:
    """Speed over the reference's."""
    return reference / own if point.less_is_better else own / reference
