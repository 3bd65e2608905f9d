"""Which text do language models learn here? One made by this file: the same bits everywhere.

A text of the machine's own (the sources of its Python, say) would differ from machine to machine,
and with it every error that is measured; a corpus would be a download. So sentences are drawn. They
mean nothing, but have what the gradients of language models depend on:

- words by Zipf's law, function words (English) before content words (made of syllables), of which
  the common ones are short;
- syntax: sentences are expansions of a small grammar, function words introduce phrases, endings
  tell nouns, verbs and adverbs apart;
- collocations: half of the time the verb that goes with a noun, its adjective, and the object that
  goes with a verb are one of few;
- topics: a paragraph uses some nouns again and again.

So there is something to learn at every range, first of all the frequencies, as in natural text. It
is no benchmark corpus: a perplexity on it compares with nothing published.

All is integer arithmetic on Philox's raw numbers, whatever numpy's distributions become; a test
knows the hash of the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.random import stream
from gcsim.errors import InputError

Numbers = NDArray[np.int64]

_SENTENCES = 60_000
_PARAGRAPH = 6
"""Sentences that share a topic."""
_LINE = 72
"""Characters after which a line ends, but for the rest of a word."""
_EXPANSIONS = 2_000
"""Different sentences before words are chosen."""
_FEW = 8
"""Words that go with a word, and nouns of a topic."""

_GRAMMAR: Mapping[str, Sequence[str]] = {
    "sentence": (
        *("clause .",) * 5,
        *("clause , conjunction clause .",) * 2,
        "conjunction clause , clause .",
        "place , clause .",
        "clause ; clause .",
    ),
    "clause": (
        *("subject verb object",) * 4,
        *("subject verb object place",) * 3,
        "subject verb place",
        "subject adverb verb object",
        "subject auxiliary verb object place",
    ),
    "subject": (
        *("pronoun", "pronoun", "name"),
        *("determiner noun",) * 2,
        *("determiner adjective noun", "determiner noun preposition name"),
    ),
    "object": (
        *("determiner thing",) * 3,
        *("determiner quality thing",) * 2,
        *("quality thing", "name", "number thing"),
    ),
    "place": (
        *("preposition determiner noun",) * 3,
        *("preposition determiner adjective noun", "preposition name", "preposition number"),
    ),
}
"""Expansions, each as likely as it is frequent. `thing` and `quality`: an object's noun and
adjective."""
_FUNCTION = {
    "determiner": "the a this his her their some no each any every another such my our your its",
    "pronoun": "it he they she we I you one who nobody everyone something",
    "preposition": "of in to for with on at by from as into about over after under between through "
    "against before without during along behind across near beyond toward beneath",
    "conjunction": "and but when if because while so though where until or unless since whereas",
    "auxiliary": "was had could would is has did will can must may should might",
}
_CONTENT = {"noun": 9000, "verb": 4000, "adjective": 5000, "adverb": 1500, "name": 5000}
"""How many there are, before endings."""
_ENDINGS = {"noun": ("", "", "", "s"), "verb": ("ed", "ed", "s", "ing"), "adverb": ("ly",)}
_ONSETS = "t s d r m c p b l w f h st n g pr tr br cl gr v sh th fl ch dr pl cr wh j sp sl qu"
_VOWELS = "e a o i u ea ou ai ee io oo au"
_CODAS = "/n/r/l/s/t/nd/m/ck/st/rt/ng/ss/p/ll/nt/d/rd/mp/x"
_LIKE = {"thing": "noun", "quality": "adjective"}
_HEADS = {"noun": "", "verb": "noun", "thing": "verb", "adjective": "noun", "quality": "thing"}
"""Which word a word goes with, and in which order words are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The text, and what it is."""

    text: str
    source: str


@lru_cache(maxsize=1)
def made_text() -> Text:
    """The text: a second on one core, the first time."""
    text = "".join(_spelled(_sentences(_lexicon())))
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return Text(text=text, source=f"text made here ({len(text):,} characters, blake2b {digest})")


# --- draws ---------------------------------------------------------------------------------------


def _uniform(purpose: str, many: int, below: int) -> Numbers:
    raw = stream(0, 0, 0, f"text: {purpose}").bit_generator.random_raw(many)
    return (raw % np.uint64(below)).astype(np.int64)


def _zipf(purpose: str, many: int, below: int) -> Numbers:
    """The r-th number, from 0, in proportion to 1 / (r + 2)."""
    ends = np.cumsum(1_000_000_000 // np.arange(2, below + 2, dtype=np.int64))
    return np.searchsorted(ends, _uniform(purpose, many, int(ends[-1])), side="right")


def _one_of_few(purpose: str, heads: Numbers, below: int) -> Numbers:
    """For each head one of the few numbers that go with it."""
    few = _zipf(f"{purpose}, few", _FEW * (int(heads.max()) + 1), below).reshape(-1, _FEW)
    return few[heads, _zipf(f"{purpose}, one", len(heads), _FEW)]


# --- words ---------------------------------------------------------------------------------------


def _lexicon() -> dict[str, list[str]]:
    """By kind, the words without endings, the commonest first."""
    made = _made_words(len(_CONTENT) * max(_CONTENT.values()))
    words = {kind: text.split() for kind, text in _FUNCTION.items()}
    for number, (kind, count) in enumerate(_CONTENT.items()):
        words[kind] = made[number :: len(_CONTENT)][:count]
    words["name"] = [word.capitalize() for word in words["name"]]
    words["number"] = [str(number) for number in (*range(2, 100), *range(1700, 2000))]
    return words | {mark: [mark] for mark in ".,;"}


def _made_words(count: int) -> list[str]:
    """Different words of one to four syllables, the short ones first on the whole."""
    many = 3 * count
    parts = [_ONSETS.split(), _VOWELS.split(), _CODAS.split("/")]
    drawn = [
        [part[number] for number in _zipf(f"part {n} of syllables", 4 * many, len(part)).tolist()]
        for n, part in enumerate(parts)
    ]
    syllables = list(map("".join, zip(*drawn, strict=True)))
    found: dict[str, int] = {}
    for number, length in enumerate((1 + _zipf("syllables", many, 4)).tolist()):
        word = "".join(syllables[4 * number : 4 * number + length])
        found.setdefault(word, 8 * len(word) + number % 16)
    return sorted(found, key=lambda word: (found[word], word))[:count]


# --- sentences -----------------------------------------------------------------------------------


def _expansion(symbol: str, draws: Iterator[int]) -> list[str]:
    rules = _GRAMMAR.get(symbol)
    if rules is None:
        return [symbol]
    rule = rules[next(draws) % len(rules)]
    return [leaf for part in rule.split() for leaf in _expansion(part, draws)]


def _heads(kinds: Sequence[str]) -> list[int]:
    """How far away the word is that each goes with; 0 where there is none in its clause."""
    found = []
    for place, kind in enumerate(kinds):
        head, step = _HEADS.get(kind), 1 if kind in {"adjective", "quality"} else -1
        at = place + step
        while head and 0 <= at < len(kinds) and kinds[at] not in {head, ",", ";"}:
            at += step
        there = head and 0 <= at < len(kinds) and kinds[at] == head
        found.append(at - place if there else 0)
    return found


def _sentences(words: Mapping[str, Sequence[str]]) -> list[str]:
    """The words of the text, marks among them."""
    draws = iter(_uniform("expansions", 100 * _EXPANSIONS, 1 << 32).tolist())
    patterns = [_expansion("sentence", draws) for _ in range(_EXPANSIONS)]
    chosen = _uniform("patterns", _SENTENCES, _EXPANSIONS).tolist()
    kinds = np.array([kind for number in chosen for kind in patterns[number]])
    relative = [_heads(pattern) for pattern in patterns]
    offsets = np.array([offset for number in chosen for offset in relative[number]])
    topics = np.repeat(
        np.arange(_SENTENCES) // _PARAGRAPH, [len(patterns[number]) for number in chosen]
    )
    heads = np.arange(len(kinds)) + offsets
    numbers = np.zeros(len(kinds), dtype=np.int64)
    spelled = np.empty(len(kinds), dtype=object)
    for kind in dict.fromkeys([*_HEADS, *words]):
        stems = words[_LIKE.get(kind, kind)]
        places = np.flatnonzero(kinds == kind)
        own = _zipf(f"{kind}", len(places), len(stems))
        if kind in _HEADS:
            others = topics[places] if kind == "noun" else numbers[heads[places]]
            goes = _one_of_few(f"{kind} and head", others, len(stems))
            free = (kind != "noun") & (offsets[places] == 0)
            free |= _uniform(f"{kind}, free", len(places), 2) == 0
            own = np.where(free, own, goes)
        numbers[places] = own
        endings = _ENDINGS.get(_LIKE.get(kind, kind), ("",))
        ending = _uniform(f"endings of {kind}", len(places), len(endings))
        forms = np.array([[stem + end for end in endings] for stem in stems], dtype=object)
        spelled[places] = forms[own, ending]
    return spelled.tolist()


def _spelled(words: Sequence[str]) -> Iterator[str]:
    """With blanks, ends of lines and capitals."""
    begins, column, sentences = True, 0, 0
    for word in words:
        if word in ".,;":
            yield word
            column += 1
        else:
            if column >= _LINE:
                yield "\n"
                column = 0
            elif column:
                yield " "
            yield word[0].upper() + word[1:] if begins else word
            column += len(word) + 1
        begins = word == "."
        if begins:
            sentences += 1
            if sentences % _PARAGRAPH == 0:
                column = _LINE
    yield "\n"


# --- samples -------------------------------------------------------------------------------------


class TokenSequences:
    """Stretches of a text as tokens, and for each token the one that follows it."""

    def __init__(self, tokens: NDArray[np.int32], *, length: int, seed: int, source: str) -> None:
        """`tokens` is the whole text. Raises `InputError` when a sample would not fit into it."""
        if length >= len(tokens):
            raise InputError(
                f"the text has {len(tokens):,} tokens, fewer than a sample of "
                f"{length:,} and the one behind it",
                place="input_shape",
                hint="choose a shorter length",
            )
        self.source = source
        self._tokens = tokens
        self._length = length
        self._seed = seed

    def batch(self, size: int, *, worker: int, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and the tokens that follow them, both int64 `[size, length]`.

        Where a sample starts in the text is uniform, a function of (seed, worker, step, position
        in the batch).
        """
        places = len(self._tokens) - self._length
        starts = [
            stream(self._seed, step, position, "text samples", worker).integers(places)
            for position in range(size)
        ]
        rows = [self._tokens[start : start + self._length + 1] for start in starts]
        taken = torch.from_numpy(np.stack(rows).astype(np.int64))  # [size, length + 1]
        return taken[:, :-1].contiguous(), taken[:, 1:].contiguous()
