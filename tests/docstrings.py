"""Docstrings of the product that do not begin with their subject, as `make lint` refuses them.

    python tests/docstrings.py [folders]

A docstring begins with a noun or an imperative, never with a relative word or an adverbial, and its
first sentence is no question.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("compressors", "traces", "simulator", "scenarios", "analysis", "gcsim")
FIRST = re.compile(
    r"(What|Of|By|Those|That|Who|Whose|See|How|Which|Where|When|With|As|On what|One of|After|Beside"
    r"|If|In|Not|Only|Over|So|Such|Told|There|Under|Until|Up|While|Why|Within|Held(?!-))\b"
)


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, attributes' among them."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, value.value.strip()


def wrong(text: str) -> bool:
    """Whether a docstring begins with a relative word or an adverbial, or asks."""
    first = re.split(r"(?<=[.?])\s", text)[0]
    return FIRST.match(text) is not None or "?" in re.sub(r"`[^`]*`", "", first)


def main(folders: list[str]) -> int:
    """Print what is wrong; the exit code."""
    patterns = [f"{folder}/*.py" for folder in folders or ROOMS]
    listed = subprocess.run(
        ["git", "ls-files", *patterns], capture_output=True, text=True, check=True
    )
    found = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path in listed.stdout.split()
        for line, text in docstrings(ast.parse(Path(path).read_text(encoding="utf-8")))
        if wrong(text)
    ]
    print("\n".join([*found, f"{len(found)} docstrings to reword"]))
    return min(1, len(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
