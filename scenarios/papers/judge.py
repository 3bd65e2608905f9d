"""Comparison with a paper's statements: orders, pair by pair, and shapes, as orders along an axis.

A pair is *kept* if the paper's leader also leads here, *reversed* if it is behind, and *open* if
the difference is not significant. With seeds: two-sided t-test on the differences by seed, at 10 %
for all pairs of an order together (S. Holm, "A simple sequentially rejective multiple test
procedure", Scandinavian Journal of Statistics 6, 1979). Without seeds: differences above 1 %.
Kendall's tau is (kept - reversed) over all pairs (M. Kendall, "A new measure of rank correlation",
Biometrika 30, 1938).

An order is open unless more than half of its pairs are significant; then it agrees if none is
reversed, agrees in part if more are kept than reversed, and otherwise disagrees. Methods whose
training is too short for a verdict (`scenarios/trained/horizon.py`) are left out, and named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy.special import stdtr

from gcsim.scenarios.papers.preset import Agrees, Verdict
from gcsim.scenarios.trained.bands import holm

TIE = 0.01  # largest relative difference that counts as a tie without seeds
LEVEL = 0.1  # probability that any pair of an order is significant by chance
_SHOWN = 3  # most reversed pairs to name

Groups = Sequence[Sequence[str]]  # best first; members of a group are not compared


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
        if 2 * len(self.open) >= self.count:
            return "open"
        if not self.reversed:
            return "agrees"
        return "in part" if self.tau > 0 else "disagrees"


def pairs_of(here: Mapping[str, Sequence[float]], expected: Groups) -> Pairs:
    """Sort pairs of different groups by their results (one value per seed, larger is ahead)."""
    pairs = [
        (better, worse)
        for ahead, behind in combinations(expected, 2)
        for better in ahead
        for worse in behind
    ]
    signs = significant_signs([(here[better], here[worse]) for better, worse in pairs])
    found = [
        tuple(p for p, s in zip(pairs, signs, strict=True) if s == sign) for sign in (1, -1, 0)
    ]
    return Pairs(kept=found[0], reversed=found[1], open=found[2])


def significant_signs(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[int]:
    """Return for each pair 1 if the first is larger, -1 if smaller, 0 if the difference is not
    significant among all pairs."""
    tested = [_tested(*pair) for pair in pairs]
    chances = holm([chance for _, chance in tested])
    return [sign if p <= LEVEL else 0 for (sign, _), p in zip(tested, chances, strict=True)]


def _tested(first: Sequence[float], second: Sequence[float]) -> tuple[int, float]:
    """Return the sign of the mean difference, and its p-value."""
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    differences, count = a - b, len(a)
    mean = float(differences.mean())
    if count == 1:
        tie = abs(mean) <= TIE * max(abs(float(a[0])), abs(float(b[0])))
        return int(np.sign(mean)), float(tie)
    error = float(differences.std(ddof=1)) / count**0.5
    if error == 0:
        return int(np.sign(mean)), float(mean == 0)
    return int(np.sign(mean)), 2 * float(stdtr(count - 1, -abs(mean) / error))


def ranked(values: Mapping[str, float]) -> Groups:
    """Return groups by printed values, largest first; equal values form one group."""
    levels = sorted(set(values.values()), reverse=True)
    return [[name for name, value in values.items() if value == level] for level in levels]


def order(
    claim: str,
    where: str,
    here: Mapping[str, Sequence[float]],
    expected: Groups,
    *,
    least: bool = False,
    too_short: Collection[str] = (),
) -> Verdict:
    """Judge whether methods are in the paper's order; `least`: the smallest is ahead."""
    sign = -1 if least else 1
    signed = {name: [sign * v for v in values] for name, values in here.items()}
    found = pairs_of(signed, [_without(group, too_short) for group in expected])
    said = f"{len(found.kept)} of {found.count} pairs kept" if found.count else "no pairs"
    if found.reversed:
        shown = [f"{worse} before {better}" for better, worse in found.reversed[:_SHOWN]]
        more = len(found.reversed) - len(shown)
        also = f" and {more} more" if more else ""
        said += f", {len(found.reversed)} reversed ({', '.join(shown)}{also})"
    if found.open:
        said += f", {len(found.open)} open"
    if found.count > 1:
        said += f"; tau {found.tau:.2f}"
    said += _named([name for group in expected for name in group], too_short)
    printed = (" < " if least else " > ").join(" = ".join(group) for group in expected)
    return Verdict(claim, where, printed, said, found.agrees)


def monotone(
    claim: str, where: str, along: Mapping[str, Sequence[float]], *, falling: bool = False
) -> Verdict:
    """Judge whether values grow (or fall) along `along`, by position and seed."""
    found = order(claim, where, along, [[name] for name in reversed(list(along))], least=falling)
    return replace(found, printed="falls" if falling else "grows")


def overtakes(
    claim: str, where: str, own: Mapping[str, float], others: Mapping[str, float]
) -> Verdict:
    """Judge whether a line is below another at the last place, and from which place on."""
    ahead = [own[place] < others[place] for place in own]
    since = len(ahead) - next((n for n, a in enumerate(reversed(ahead)) if not a), len(ahead))
    places = list(own)
    if not ahead[-1]:
        said = "behind everywhere" if not any(ahead) else f"behind at {places[-1]}"
    else:
        said = f"ahead from {places[since]} on" if since else "ahead everywhere"
    agrees: Agrees = "agrees" if ahead[-1] else "disagrees"
    return Verdict(claim, where, "ahead in the end", said, agrees)


def near(claim: str, where: str, here: float, printed: float, factor: float) -> Verdict:
    """Judge whether a ratio is within a factor of the printed one."""
    inside = printed / factor <= here <= printed * factor
    said = f"{here:.3g} (within a factor of {factor:g}: {'yes' if inside else 'no'})"
    return Verdict(claim, where, f"{printed:g}", said, "agrees" if inside else "disagrees")


def at_most(
    claim: str,
    where: str,
    here: Mapping[str, float],
    limit: float,
    unit: str,
    *,
    too_short: Collection[str] = (),
) -> Verdict:
    """Judge whether no value exceeds the paper's limit."""
    judged = _without(here, too_short)
    beyond = [name for name in judged if here[name] > limit]
    said = ", ".join(f"{name} {value:.3g}" for name, value in here.items())
    said += _named(here, too_short)
    agrees: Agrees = "agrees" if judged else "open"
    if beyond:
        agrees = "in part" if 2 * len(beyond) < len(judged) else "disagrees"
    return Verdict(claim, where, f"at most {limit:g} {unit}", said, agrees)


def _without(names: Iterable[str], too_short: Collection[str]) -> list[str]:
    return [name for name in names if name not in too_short]


def _named(names: Iterable[str], too_short: Collection[str]) -> str:
    """Return a note on the methods that are left out."""
    short = [name for name in names if name in too_short]
    return f"; too few steps for {', '.join(short)}" if short else ""
