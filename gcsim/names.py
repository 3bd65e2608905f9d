"""Lookup of catalogue entries by the names that people write: "GPT-2", "RTX 4090", "A100 80GB".

`entry_named` normalises case, blanks, hyphens and vendor words, compares with names, titles and
aliases, and accepts a unique match. Anything else is refused, with the few entries that could be
meant.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from gcsim.errors import InputError, did_you_mean

_LOG = logging.getLogger(__name__)

_IDLE = re.compile(
    r"\b(nvidia|geforce|tesla|quadro|radeon|grid|mellanox|aws|graphics|gpus?|card|model|pretrained"
    r"|uncased|cased|imagenet|torchvision|hf|hbm\d?e?|gddr\d\w?|[dh]gx(?=[ -]?[abh]\d)|instruct"
    r"|chat|whole[ -]word[ -]masking|in\d+k|oam|nvl\d\d)\b"
)
"""Words that do not distinguish entries."""
_MEMORY = re.compile(r"\b(\d+) ?gb?\b", re.IGNORECASE)
_VARIANTS = {"ti", "s", "g", "cifar"}
"""Parts of a name that mark another product: an L40S is not an L40, VGG-16 for CIFAR not VGG-16."""
_DIGIT = re.compile(r"\d")
_NEAR = 78  # per cent: "B200" is not a mistyped "h200", but "alexnt" is "alexnet"
_FEW = 3  # up to this many letters, each one matters: "GH200" is not a mistyped "h200"
_SLIPS = 8  # from this many letters, two typing errors in a run are likely
_OTHERS = {"resnext", "resnest"}  # products whose names differ by one letter from an entry's
_SIMILAR = 4  # most entries of the word's family that a message names
_COUNTED = (
    re.compile(r"(?:\d+ ?[x\u00d7*] ?|(?:dual|quad) )(?=\D|\d+ ?[gm])(.+)", re.IGNORECASE),
    re.compile(r"(?!pci)(.+?)(?:\s|(?<=\d))\(?[x\u00d7*] ?\d+\)?", re.IGNORECASE),  # PCIe: lanes
)
"""Patterns for several of an entry: "8xA100", "2x 100 Gbit/s", "dual 25GbE", "H100 x 8"."""
_NUMBER = {
    "device": "their number as devices_per_node (--gpus) or nodes (--nodes)",
    "link": "their number as nics_per_node (--nics)",
}
_ELSE = {
    "device": "gcsim calibrate device measures yours",
    "link": "a rate alone will do: 25 Gbit/s",
}
"""Alternatives to an entry that the catalogue lacks."""
_GIGABIT = "(?:gbps|gbit/s|gbit|gb/s|gbe|gb|gige|gig|gigabit|g)"
_SPELLINGS = (
    (re.compile(r"\brdma over converged ethernet\b|\broce ?v\d\b"), "roce"),
    (re.compile(r"(\d)gbase-?\w+"), r"\1gbe"),
    (re.compile(rf"\b(\d+) ?(?:gb?e\b|{_GIGABIT} ?ethernet\b|{_GIGABIT} (?=roce))"), r"\1gbe "),
    (re.compile(r"\b(\d+) ?(?:gbps|gigabit|gbit|gb/s)(/s)?(?!\w)"), r"\1g"),
    (re.compile(r"^gig(abit|e)?( ethernet)?$|\b1000base-?\w+"), "1gbe"),
    (re.compile(r"\bpci(?:-?e| express) ?(?:gen ?)?(\d)(?:\.0)?(?![\d.])"), r"pcie\1 "),
    (re.compile(r"\b(nvlink) ?(\d)\.0\b"), r"\1\2"),
    (re.compile(r"\bone ?-?bit"), "1bit"),
    (re.compile(r"\b(?:gh200 )?grace hopper(?: superchip)?\b"), "gh200"),
    (re.compile(r"\bwikitext ?-?2\b"), "wt2"),
    (re.compile(r"\befa ?v\d\b"), "efa"),
    (re.compile(r"\bib\b"), "infiniband"),
    (re.compile(r"\brpi ?(?=\d)"), "raspberry pi "),
    (re.compile(r"\bwi-fi\b"), "wifi"),
    (re.compile(r"\.[a-z][\w ]*\bin\d+k\b.*"), ""),  # timm's tag of the weights: .a1_in1k
    (re.compile(r"^(torchvision\.)?models\."), ""),
    (re.compile(r"^[a-z]{4}[a-z-]*/"), ""),  # who publishes it: google/, meta-llama/
    (re.compile(r"\b(\d)\.(\d)(?=b\b)"), r"\1p\2"),
)


def entry_named(
    word: str,
    kind: str,
    titles: Mapping[str, Sequence[str]],
    *,
    others: str = "",
    akin: Callable[[str], bool] = bool,
) -> str:
    """Return the name of the entry that a word stands for.

    Parameters
    ----------
    word, kind
        The user's word, and the noun of the entries for messages: "device".
    titles
        Title and aliases by entry name.
    others
        A further sentence for the hint if no entry matches.
    akin
        Function that tells whether an entry may be called similar.

    Raises `InputError` if no entry or more than one matches the word.
    """
    if word in titles:
        return word
    size = _MEMORY.search(word) if kind == "device" else None
    found = _matches(_MEMORY.sub(r"\1gb", word) if size else word, titles)
    if not found and size:  # a card that exists in one size, or in this one
        plain = _matches(_MEMORY.sub("", word), titles)
        sizes = {
            one: _MEMORY.findall(" ".join((one, *titles[one])).replace("_", " ")) for one in plain
        }
        found = [one for one in plain if not sizes[one] or size[1] in sizes[one]]
    if len(found) == 1:
        if found[0] != word.lower():
            say(kind, word, found[0])
        return found[0]
    for several in (
        () if found or kind not in _NUMBER else (one.fullmatch(word) for one in _COUNTED)
    ):
        if several and _matches(several[1], titles):
            raise InputError(
                f"{word!r} names several", hint=f"write {several[1]}, and {_NUMBER[kind]}"
            )
    hint = did_you_mean(word, _alike(word, titles), near=_NEAR)
    most = {} if found else _but_one(word, titles)
    if most and not hint.endswith("?"):
        hint = ", ".join(f"without {left!r} it is {name}" for left, name in most.items())
    elif found:
        hint = f"there {'are' if len(found) > 1 else 'is'} {', '.join(found)}"
    elif not hint.endswith("?"):
        similar = _family(word, {one: titles[one] for one in titles if akin(one)})
        hint = f"similar: {', '.join(similar)}" if similar else _ELSE.get(kind, "")
        others = "; ".join(filter(None, (f"gcsim list {kind}s has all", others)))
    joined = " " if hint.endswith("?") else "; "
    raise InputError(f"unknown {kind} {word!r}", hint=joined.join(filter(None, (hint, others))))


def _but_one(word: str, titles: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the entry that all pieces of a word but one stand for, by this piece. The first piece
    and a number name the product, so both remain."""
    first, *rest = pieces(word) or [""]
    others = {
        left: " ".join((first, *rest[:place], *rest[place + 1 :]))
        for place, left in enumerate(rest)
    }
    found = {left: _matches(text, titles) for left, text in others.items() if _DIGIT.search(text)}
    return {left: names[0] for left, names in found.items() if len(names) == 1}


def _family(word: str, titles: Mapping[str, Sequence[str]]) -> list[str]:
    """Return entries that begin like a word, nearest first: "v100x" and "v1000" like v100,
    "resnet5O" like resnet50."""
    from rapidfuzz import fuzz, process

    start = re.match(r"[^\W\d_]{3,}|[^\W\d_]?\d+(?![\d.])", next(iter(pieces(word)), ""))
    if start is None:
        return []
    before = r"(?<!\d)" if start[0].isdigit() else "^"
    begins = re.compile(rf"{before}{start[0].removesuffix('v')}(?!(?<=\d)\d)")
    own = [
        name
        for name, texts in titles.items()
        if any(begins.search(compact(text)) for text in (name, *texts))
    ]
    if not own and re.fullmatch(r"[^\W\d_]\d{4,}", start[0]):  # a digit too many
        return _family(start[0][:-1], titles)
    near = process.extract(word, own, scorer=fuzz.ratio, processor=str.casefold, limit=None)
    return sorted((name for name, *_ in near), key=lambda name: _apart(word, name))[:_SIMILAR]


def _apart(word: str, name: str) -> int:
    """Return the difference of the numbers of two products, such as RTX 4080 and RTX 3090."""
    numbers = [re.search(r"\d{3,}", text) for text in (word, name)]
    one, other = (int(found[0]) if found else 0 for found in numbers)
    return abs(one - other)


def _alike(word: str, names: Iterable[str]) -> list[str]:
    """Return names that a word may misspell. Digits must agree, each run of letters must be one or
    two errors from one of the name's, and short words and runs need the same letters: "XDR" is not
    a mistyped "EDR", nor "roberta" a mistyped "bert"."""
    from rapidfuzz.distance import OSA

    def characters(text: str) -> tuple[list[str], set[str], list[str]]:
        runs = re.findall(r"[^\W\d_]+", text.casefold())
        return sorted(re.findall(r"\d", text)), set("".join(runs)), runs

    def near(run: str, others: list[str]) -> bool:
        if len(run) <= _FEW:
            return set(run) in map(set, others)
        slips = 1 + (len(run) >= _SLIPS)
        return any(OSA.distance(run, one) <= slips for one in (*others, "".join(others)))

    digits, letters, runs = characters(word)
    if _OTHERS & set(runs):
        return []
    kept = []
    for name in names:
        own, other, others = characters(name)
        few = other == letters if len(letters) <= _FEW else all(near(run, others) for run in runs)
        if own == digits and few:
            kept.append(name)
    return kept


@functools.cache
def say(kind: str, word: str, name: str) -> None:
    """Log once how a word is read."""
    _LOG.warning("note: %s %r is read as %s", kind, word, name)


def _matches(word: str, titles: Mapping[str, Sequence[str]]) -> list[str]:
    """Return entries by the first rule that any satisfies: same spelling, then all pieces of the
    word in the entry, without variants ("gpt2_128") of other matches ("gpt2")."""
    own, words = compact(word), pieces(word)
    if not own:
        return []
    found = [name for name, texts in titles.items() if own in map(compact, (name, *texts))]
    found = found or [
        name
        for name, texts in titles.items()
        if not re.fullmatch(r"\dx?", own)  # "4x" is a count of something
        and any(all(_holds(f"{name} {text}", piece) for piece in words) for text in texts)
        and not _VARIANTS & (_runs(name) - _runs(word))
    ]
    return [one for one in found if not any(one.startswith(f"{other}_") for other in found)]


def _normal(text: str) -> str:
    text = text.casefold().replace("_", " ").strip()
    for pattern, plain in _SPELLINGS:
        text = pattern.sub(plain, text)
    return _IDLE.sub(" ", text)


def pieces(text: str) -> list[str]:
    """Return the words and numbers of a text that distinguish entries."""
    return re.findall(r"\d+\.\d+|[^\W_]+", _normal(text))


def _runs(text: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]+|\d+", text.casefold()))


def compact(text: str) -> str:
    """Return text without case, blanks, hyphens and words that do not distinguish entries."""
    return "".join(pieces(text))


def _holds(text: str, piece: str) -> bool:
    """Whether a piece is a run of whole words or numbers in a text, ignoring blanks."""
    runs = list(re.finditer(r"[^\W\d_]+|\d+", _normal(text)))
    ends, starts = [0], set()
    for run in runs:
        letter = re.search(r"(?<![^\W_])[^\W\d_]$", run.string[: run.start()])
        if not (letter and run[0].isdigit()):  # A6000 is not RTX 6000
            starts.add(ends[-1])
        ends.append(ends[-1] + len(run[0]))
    joined, borders = "".join(run[0] for run in runs), set(ends)
    return any(
        at in starts and at + len(piece) in borders
        for at in (match.start() for match in re.finditer(f"(?={re.escape(piece)})", joined))
    )
