"""Compare this checkout's results with another commit's: `make same OLD=<commit> [ONLY=name,name]`.

The commit and the working tree are copied to a temporary folder. In each, every shipped scenario is
run and the generated pages (gallery, devices, validation) are made; files are compared line by
line, results.json value by value, without `wall` and `provenance.profiles`. Exit code 1 where
anything differs.

    python tests/same.py HEAD~3 [--only lenet_2node,validation]

What compressors send is cached under the hash of their code: after a change in compressors/ or
traces/ all scenarios take an hour, and the largest 12 GB; choose some then.
"""

import argparse
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
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
_SHOWN, _WIDTH = 8, 160
"""Differences of a file, and characters of each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print a line a file; the exit code."""
    known = [*sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml")), *PAGES]
    parser = argparse.ArgumentParser(description="Does this checkout say the same as a commit?")
    parser.add_argument("old", help="a commit")
    parser.add_argument("--only", default="", help="scenarios and pages, NAME,NAME; default: all")
    options = parser.parse_args(arguments)
    names = list(filter(None, options.only.split(","))) or known
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"--only: {', '.join(unknown)}; known: {', '.join(known)}")
    with tempfile.TemporaryDirectory(prefix="gcsim-same-") as folder:
        trees = Path(folder, "old"), Path(folder, "new")
        _commit(options.old, trees[0])
        _working_tree(trees[1])
        return int(sum([_differences(name, trees) for name in names]) > 0)


def _differences(name: str, trees: tuple[Path, Path]) -> int:
    """Make what is called that in both trees; how many of its files differ."""
    start = time.monotonic()
    if name in PAGES:
        files, command = [PAGES[name]], ["make", name, *_environment()]
    else:
        files = ["out/results.json", "out/scenario.yaml"]
        command = [sys.executable, "-P", "-m", "gcsim", "run", name, "-q", "-o", "out"]
    for tree in trees:
        shutil.rmtree(tree / "out", ignore_errors=True)
        _run(tree, command)
    took = time.monotonic() - start
    return sum(
        _compare(f"{name}: {Path(file).name} ({took:.0f} s)", *(tree / file for tree in trees))
        for file in files
    )


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
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        print(f"{tree.name}: {' '.join(command)}: exit code {done.returncode}\n{done.stdout}")


def _compare(name: str, old: Path, new: Path) -> int:
    """Print whether they are the same; 1 if not."""
    if not (old.is_file() and new.is_file()):
        print(f"MISSING  {name}", flush=True)
        return 1
    if old.suffix == ".json":
        found = [*_different(_told(old), _told(new), "")]
    else:
        before, after = (path.read_text(encoding="utf-8").splitlines() for path in (old, new))
        changes = difflib.unified_diff(before, after, n=0, lineterm="")
        found = [line for line in changes if not line.startswith(("---", "+++", "@@"))]
    print(f"{'DIFFERS' if found else 'same':8} {name}", flush=True)
    for difference in found[:_SHOWN]:
        print(f"           {difference[:_WIDTH]}")
    if len(found) > _SHOWN:
        print(f"           and {len(found) - _SHOWN} more", flush=True)
    return 1 if found else 0


def _told(path: Path) -> Any:
    """What a run found, without how long it took and which code made the profiles."""
    document = json.loads(path.read_text(encoding="utf-8"))
    document.pop("wall", None)
    document.get("provenance", {}).pop("profiles", None)
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
