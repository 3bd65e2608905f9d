"""Does this checkout say the same as another commit? `make same OLD=<commit>`.

Both are copied to a temporary folder: the commit, and the working tree with what git does not
know yet. In each, with the packages of one environment, every shipped scenario is run and the
generated pages are made; then all files are compared, byte for byte but for what a run took
(`wall` in results.json). A change of layout changes none of them; a change of results is seen here
before it is explained.

    python tests/same.py HEAD~3 [SCENARIO ...] [--no-pages]

Exit code 1 where anything differs. What compressors send is kept in the usual cache, under the
hash of the code that made it: a change in compressors/ or traces/ costs some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "gallery": "docs/compressors.md",
    "devices": "docs/devices.md",
    "validation": "docs/validation.md",
}
"""By the target that makes it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print a line a file; the exit code."""
    parser = argparse.ArgumentParser(description="Does this checkout say the same as a commit?")
    parser.add_argument("old", help="a commit")
    parser.add_argument("scenarios", nargs="*", help="names of shipped scenarios; all by default")
    parser.add_argument("--no-pages", dest="pages", action="store_false", help="scenarios alone")
    options = parser.parse_args(arguments)
    names = options.scenarios or sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml"))
    with tempfile.TemporaryDirectory(prefix="gcsim-same-") as folder:
        old, new = Path(folder, "old"), Path(folder, "new")
        _commit(options.old, old)
        _working_tree(new)
        different = 0
        for name in names:
            for tree in (old, new):
                _run(tree, [sys.executable, "-P", "-m", "gcsim", "run", name, "-q", "-o", "out"])
            for file in ("results.json", "scenario.yaml"):
                found = [tree / "out" / file for tree in (old, new)]
                different += _compare(f"{name}/{file}", *found)
            for tree in (old, new):
                shutil.rmtree(tree / "out", ignore_errors=True)
        for target, page in PAGES.items() if options.pages else ():
            for tree in (old, new):
                _run(tree, ["make", target, *_environment()])
            different += _compare(page, old / page, new / page)
    return 1 if different else 0


def _commit(name: str, folder: Path) -> None:
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", name], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)


def _working_tree(folder: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _environment() -> list[str]:
    """For make: this environment as it is, nothing is installed."""
    venv = Path(sys.prefix)
    stamps = (f"-o{venv / stamp}" for stamp in ("run.stamp", "dev.stamp"))
    return [f"VENV={venv}", *stamps]


def _run(tree: Path, command: Sequence[str]) -> None:
    """In that tree, which comes before the installed package; what it says is shown if it fails."""
    done = subprocess.run(
        command,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"{tree.name}: {' '.join(command)}: exit code {done.returncode}\n{done.stdout}")


def _compare(name: str, old: Path, new: Path) -> int:
    """Print whether they are the same; 1 if not."""
    missing = [path.parts[-3:] for path in (old, new) if not path.is_file()]
    if missing:
        print(f"MISSING  {name}")
        return 1
    if name.endswith(".json"):
        differences = [*_different(_told(old), _told(new), "")]
    else:
        lines = [path.read_text(encoding="utf-8").splitlines() for path in (old, new)]
        pairs = zip(*lines, strict=False)
        differences = [f"line {n}: {a} -> {b}" for n, (a, b) in enumerate(pairs, 1) if a != b]
        if len(lines[0]) != len(lines[1]):
            differences.append(f"{len(lines[0])} -> {len(lines[1])} lines")
    print(f"{'DIFFERS' if differences else 'same':8} {name}")
    for difference in differences[:_SHOWN]:
        print(f"           {difference[:_WIDTH]}")
    if len(differences) > _SHOWN:
        print(f"           and {len(differences) - _SHOWN} more")
    return 1 if differences else 0


_SHOWN, _WIDTH = 5, 160


def _told(path: Path) -> Any:
    """What a run found, without how long it took."""
    document = json.loads(path.read_text(encoding="utf-8"))
    document.pop("wall", None)
    return document


def _different(old: Any, new: Any, where: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _different(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from _different(*pair, f"{where}[{number}]")
    elif old != new:
        yield f"{where}: {old} -> {new}"


if __name__ == "__main__":
    sys.exit(main())
