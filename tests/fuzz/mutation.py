"""What does a fuzzer change? A value, a tree of values, a text line by line, bytes.

Everything is drawn from the `random.Random` that is passed in. A tree is what JSON holds: the
functions return changed copies.
"""

import copy
import json
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

Keys = tuple[str | int, ...]

NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 255, 2**31, 2**63, 10**40, -(10**40), 0.0, -0.0, 0.5, 1e-9,
    5e-324, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), "", " ", "\0", "\ud800",
    "nan", "inf", "-1", "0", "1e400", "1e-400", "1/0", "9" * 5000, "a\nb", "\x1b[31m", "..", "/",
    "~", ".", "none", "null", "auto", r"$\frac$", "%s", "{}", "<name>", "\u202e", "\U0001d518",
    "A" * 5000, "__class__", "a:b", "a.yaml", "a.yaml:b", [], {}, [[]], [None], {"": 0},
)  # fmt: skip
_DEEP = 300
_TIMES = (0, -1, 0.5, 2, 10, 1e3, 1e6, 1e9, 1e-3, 1e-9, 1e30, 1e-30)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORDS = (
    ".nan", ".inf", "-.inf", "NaN", "-Infinity", "-1", "0", "1e308", "1e400", "-0.0", "9" * 50,
    "null", "true", "''", "[]", "{}", "[", "}", "[" * 3000, "{a: " * 500, '"', "'", "&a", "*a",
    "!!python/object:os.system", "\t", "\0", "\x1b", "#", ":", ",", "- ", "\ufeff", "\u2028",
)  # fmt: skip


def value(rng: Random, old: Any) -> Any:
    """Something else in the place of `old`: nasty, or near it."""
    kind = rng.random()
    if isinstance(old, bool) or old is None or kind < 0.4:
        return copy.deepcopy(rng.choice(NASTY))
    if isinstance(old, int | float):
        return _near_number(rng, old)
    if isinstance(old, str):
        return _near_text(rng, old)
    if kind < 0.5:
        return nested(rng, _DEEP)
    return rng.choice(([old], {"a": old}, str(old)[:100], len(old)))


def _near_number(rng: Random, old: float) -> Any:
    if rng.random() < 0.5:
        return old + rng.choice((-1, 1))
    new = old * rng.choice(_TIMES)
    return int(new) if isinstance(old, int) and abs(new) < 1e40 else new


def _near_text(rng: Random, old: str) -> str:
    """Other numbers in `10 Gbit/s`; letters changed, lost, twice."""
    found = list(_NUMBER.finditer(old))
    if found and rng.random() < 0.7:
        one = rng.choice(found)
        number = repr(_near_number(rng, float(one[0])))
        other = rng.choice((number, number, "-" + one[0], "0", "1e308", "1e-308", "9" * 60, "nan"))
        return old[: one.start()] + other + old[one.end() :]
    at = rng.randrange(len(old) + 1)
    return rng.choice(
        (old[:at], old[at:], old + old, old[:at] + rng.choice(_WORDS) + old[at:], old.upper())
    )


def nested(rng: Random, depth: int) -> Any:
    """Lists or mappings inside each other."""
    found: Any = 1
    for _ in range(depth):
        found = [found] if rng.random() < 0.5 else {"a": found}
    return found


def tree(rng: Random, old: Any, times: int | None = None) -> Any:
    """A copy with some nodes replaced, lost, twice, renamed, swapped or moved."""
    new = copy.deepcopy(old)
    for _ in range(rng.choice((1, 1, 1, 2, 3)) if times is None else times):
        paths = list(_paths(new))
        if not paths:
            return value(rng, new)
        path = rng.choice(paths)
        holder = at(new, path[:-1])
        rng.choice((_replace, _replace, _replace, _replace, _lose, _twice, _rename, _swap))(
            rng, holder, path[-1]
        )
    return new


def at(node: Any, path: Keys) -> Any:
    """What stands there."""
    for key in path:
        node = node[key]
    return node


def _paths(node: Any, above: Keys = ()) -> Iterator[Keys]:
    entries = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    if len(above) > 20:
        return
    for key, below in entries:
        yield (*above, key)
        yield from _paths(below, (*above, key))


def _replace(rng: Random, holder: Any, key: Any) -> None:
    holder[key] = value(rng, holder[key])


def _lose(rng: Random, holder: Any, key: Any) -> None:
    del holder[key]


def _twice(rng: Random, holder: Any, key: Any) -> None:
    if isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
    else:
        holder[f"{key}_"] = copy.deepcopy(holder[key])


def _rename(rng: Random, holder: Any, key: Any) -> None:
    if isinstance(holder, list):
        rng.shuffle(holder)
        return
    texts = [word for word in NASTY if isinstance(word, str)]
    holder[rng.choice([*holder, key[:-1], key.upper(), *rng.sample(texts, 3)])] = holder.pop(key)


def _swap(rng: Random, holder: Any, key: Any) -> None:
    other = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


def as_json(node: Any) -> bytes:
    """JSON, lone surrogates and all; NaN and infinity as Python writes them."""
    return json.dumps(node, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass")


def as_yaml(node: Any) -> bytes:
    """JSON that YAML reads, NaN and infinity as YAML spells them."""
    text = as_json(node)
    for theirs, ours in ((b"-Infinity", b"-.inf"), (b"Infinity", b".inf"), (b"NaN", b".nan")):
        text = text.replace(theirs, ours)
    return text


def lines(rng: Random, old: str) -> str:
    """Lines that are lost, twice, swapped, cut, or have other words."""
    new = old.splitlines(keepends=True)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not new:
            break
        one, two = rng.randrange(len(new)), rng.randrange(len(new))
        act = rng.randrange(7)
        if act == 0:
            del new[one]
        elif act == 1:
            new.insert(two, new[one])
        elif act == 2:
            new[one], new[two] = new[two], new[one]
        elif act == 3:
            new = [*new[:one], new[one][: rng.randrange(len(new[one]) + 1)]]
        else:
            new[one] = _words(rng, new[one])
    return "".join(new)


def _words(rng: Random, line: str) -> str:
    parts = re.split(r"([\s,:=\[\]{}]+)", line)
    which = rng.randrange(len(parts))
    word = parts[which]
    parts[which] = rng.choice((rng.choice(_WORDS), _near_text(rng, word), word + word, ""))
    return "".join(parts)


def damaged(rng: Random, old: bytes) -> bytes:
    """Bytes that are flipped, cut, lost, twice, zero; or nothing at all."""
    new = bytearray(old)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if not new:
            break
        start = rng.randrange(len(new))
        until = min(len(new), start + rng.choice((1, 2, 8, 100)))
        act = rng.randrange(8)
        if act == 0:
            del new[start:]
        elif act == 1:
            del new[start:until]
        elif act == 2:
            new[start:start] = new[start:until]
        elif act == 3:
            new[start:until] = bytes(until - start)
        elif act == 4:
            new[start:start] = rng.randbytes(until - start)
        else:
            new[start] ^= 1 << rng.randrange(8)
    return bytes(new) if rng.random() > 0.02 else b""


def pick(rng: Random, texts: Sequence[str]) -> bytes:
    """One of the texts with other lines or other bytes."""
    old = rng.choice(texts)
    if rng.random() < 0.2:
        return damaged(rng, old.encode())
    return lines(rng, old).encode("utf-8", "surrogatepass")
