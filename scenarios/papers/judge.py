"""Comparison with a paper's statements: orders, pair by pair, and shapes, which are orders along an
axis.

A pair is *kept* when the paper's leader leads here, *reversed* when it is behind, and *open* when
nothing tells them apart: with seeds, when the mean difference is within its standard error times
Student's t for 90 %; without, when they differ by less than a hundredth. Kendall's tau is
(kept - reversed) over all pairs (M. Kendall, "A new measure of rank correlation", Biometrika 30,
1938).

An order is open when more pairs are open than not; else it agrees when none is reversed, agrees in
part when more are kept than reversed, and else disagrees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import stdtrit

from gcsim.scenarios.papers.preset import Agrees, Verdict

TIE = 0.01
"""Relative difference that tells nothing without seeds."""
_CONFIDENCE = 0.95  # one-sided: 90 % between both ends
_SHOWN = 3  # most reversed pairs to name

Groups = Sequence[Sequence[str]]
"""Best first; members of a group are not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs of an order: (ahead in the paper, behind)."""

    kept: tuple[tuple[str, str], ...]
    reversed: tuple[tuple[str, str], ...]
    open: tuple[tuple[str, str], ...]

    @property
    def count(self) -> int:
        """All pairs."""
        return len(self.kept) + len(self.reversed) + len(self.open)

    @property
    def tau(self) -> float:
        """Kendall's tau; 0 without pairs."""
        return (len(self.kept) - len(self.reversed)) / max(1, self.count)

    @property
    def agrees(self) -> Agrees:
        """Agreement, by the module's rules."""
        if 2 * len(self.open) > self.count:
            return "open"
        if not self.reversed:
            return "agrees"
        return "in part" if self.tau > 0 else "disagrees"


def pairs_of(here: Mapping[str, Sequence[float]], expected: Groups) -> Pairs:
    """Pairs of different groups by their results (a value per seed, more is ahead)."""
    found: dict[int, list[tuple[str, str]]] = {1: [], -1: [], 0: []}
    for ahead, behind in combinations(expected, 2):
        for better in ahead:
            for worse in behind:
                found[told_apart(here[better], here[worse])].append((better, worse))
    return Pairs(kept=tuple(found[1]), reversed=tuple(found[-1]), open=tuple(found[0]))


def told_apart(first: Sequence[float], second: Sequence[float]) -> int:
    """1 when `first` is more, -1 when less, 0 when they are not told apart, by seed."""
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    differences = a - b
    mean = float(differences.mean())
    if len(differences) == 1:
        width = TIE * max(abs(float(a[0])), abs(float(b[0])))
    else:
        error = float(differences.std(ddof=1)) / len(differences) ** 0.5
        width = error * float(stdtrit(len(differences) - 1, _CONFIDENCE))
    return 0 if abs(mean) <= width else (1 if mean > 0 else -1)


def ranked(values: Mapping[str, float]) -> Groups:
    """Groups by printed values, largest first; equal ones are one group."""
    levels = sorted(set(values.values()), reverse=True)
    return [[name for name, value in values.items() if value == level] for level in levels]


def order(
    claim: str,
    where: str,
    here: Mapping[str, Sequence[float]],
    expected: Groups,
    *,
    least: bool = False,
) -> Verdict:
    """Whether methods are in the paper's order; `least`: the smallest is ahead."""
    sign = -1 if least else 1
    found = pairs_of({name: [sign * v for v in values] for name, values in here.items()}, expected)
    said = f"{len(found.kept)} of {found.count} pairs kept"
    if found.reversed:
        shown = [f"{worse} before {better}" for better, worse in found.reversed[:_SHOWN]]
        more = len(found.reversed) - len(shown)
        also = f" and {more} more" if more else ""
        said += f", {len(found.reversed)} reversed ({', '.join(shown)}{also})"
    if found.open:
        said += f", {len(found.open)} open"
    if found.count > 1:
        said += f"; tau {found.tau:.2f}"
    return Verdict(
        claim=claim,
        where=where,
        printed=(" < " if least else " > ").join(" = ".join(group) for group in expected),
        here=said,
        agrees=found.agrees,
    )


def monotone(
    claim: str, where: str, along: Mapping[str, Sequence[float]], *, falling: bool = False
) -> Verdict:
    """Whether values grow (or fall) along `along`, by place and seed."""
    found = order(claim, where, along, [[name] for name in reversed(list(along))], least=falling)
    return Verdict(
        claim=claim,
        where=where,
        printed="falls" if falling else "grows",
        here=found.here,
        agrees=found.agrees,
    )


def overtakes(
    claim: str, where: str, own: Mapping[str, float], others: Mapping[str, float]
) -> Verdict:
    """Whether a line is below another at the last place, and since where."""
    ahead = [own[place] < others[place] for place in own]
    since = len(ahead) - next((n for n, a in enumerate(reversed(ahead)) if not a), len(ahead))
    places = list(own)
    if not ahead[-1]:
        said = "behind everywhere" if not any(ahead) else f"behind at {places[-1]}"
    else:
        said = f"ahead from {places[since]} on" if since else "ahead everywhere"
    return Verdict(
        claim=claim,
        where=where,
        printed="ahead in the end",
        here=said,
        agrees="agrees" if ahead[-1] else "disagrees",
    )


def near(claim: str, where: str, here: float, printed: float, factor: float) -> Verdict:
    """Whether a ratio is within a factor of the printed one."""
    inside = printed / factor <= here <= printed * factor
    return Verdict(
        claim=claim,
        where=where,
        printed=f"{printed:g}",
        here=f"{here:.3g} (within a factor of {factor:g}: {'yes' if inside else 'no'})",
        agrees="agrees" if inside else "disagrees",
    )


def at_most(claim: str, where: str, here: Mapping[str, float], limit: float, unit: str) -> Verdict:
    """Whether none exceeds the paper's limit."""
    beyond = {name: value for name, value in here.items() if value > limit}
    said = ", ".join(f"{name} {value:.3g}" for name, value in here.items())
    agrees: Agrees = "agrees"
    if beyond:
        agrees = "in part" if 2 * len(beyond) < len(here) else "disagrees"
    return Verdict(
        claim=claim, where=where, printed=f"at most {limit:g} {unit}", here=said, agrees=agrees
    )
