"""Lines of a log without what launchers, terminals and mails have put into them.

Colours and other control sequences of a terminal go. The text before a table's headings is a prefix
(`0: ` of `srun -l`, `[1,0]<stdout>:` of Open MPI, a time stamp of kubectl, `> ` of a quote, an
indent), and goes from all lines that begin in its shape: words, numbers and blanks may differ,
signs may not. Lines keep their numbers.
"""

from __future__ import annotations

import re

_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\x07")
"""ECMA-48: CSI sequences, operating system commands, single functions."""
_PIECE = re.compile(r"\d+|[^\W\d_]\w*|[ \t]+|.")
_LONGEST = 200
"""Characters of a prefix."""


def plain(text: str) -> str:
    """The text without control sequences of a terminal."""
    return _CONTROL.sub("", text) if "\x1b" in text or "\x07" in text else text


def without_prefix(text: str, headings: re.Pattern[str]) -> str:
    """The text; its lines lose the prefix that stands before `headings` in one of them."""
    lines = text.splitlines()
    shapes: dict[str, None] = {}
    for line in lines:
        if (found := headings.search(line)) and 0 < found.start() <= _LONGEST:
            shapes[_shape(line[: found.start()])] = None
    if not shapes:
        return text
    longest_first = sorted(shapes, key=len, reverse=True)
    prefix = re.compile("^(?:" + "|".join(longest_first) + ")")
    return "\n".join(prefix.sub("", line) for line in lines)


def _shape(prefix: str) -> str:
    return "".join(_generalised(piece) for piece in _PIECE.findall(prefix))


def _generalised(piece: str) -> str:
    if piece.isdigit():
        return r"\d+"
    if piece.isspace():
        return rf"[ \t]{{0,{len(piece)}}}"
    if piece[0].isalpha():
        return r"\w+"
    return re.escape(piece)
