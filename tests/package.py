"""Build, install and try the distributions where there is no checkout: `make package`.

    python tests/package.py [dist]

Builds the sdist and, from it, the wheel, checks that both hold every file of the rooms, installs
each into a new environment with the newest libraries of the index, without `constraints.txt`, and
runs what a user runs first, elsewhere, with an empty cache. `uvx` and `pipx run` then take the
wheel from the folder as an index; `uvx` makes the small installation (docs/advice.md), of which
size and seconds are shown. Exit code 1 and the output on failure.
"""

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import gcsim  # noqa: E402

ROOMS = ("analysis", "compressors", "gcsim", "scenarios", "simulator", "traces")
_PLUG_IN = """\
from gcsim.compressors import About, AllReduce, Compressor, Parameters


class Half(Compressor[Parameters]):
    about = About(
        title="Half precision", family="quantization", collective="all-reduce", bits="16",
        unbiased=False, state="none", paper="this file",
    )

    def exchange(self, bucket, step):
        total = yield AllReduce(tensor=bucket.gradient.half())
        return total.float() / self.worker.count
"""
_ADVISE = "advise --model resnet50 --device v100 --gpus 4 --nodes 8 --network 25gbe"
_COMMANDS = (
    # arguments of gcsim, and what the answer has in it
    ("--version", f"gcsim {gcsim.__version__}"),
    ("list scenarios", "alexnet_32node"),
    ("check my_half:Half", "passes all"),
    ("run lenet_2node --set 'compressors=[none, fp16, {kind: my_half:Half, label: mine}]'", "mine"),
    (_ADVISE, "Use"),
    ("train digits_8", "QSGD 8 bit"),
    ("validate papers", "papers"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, look, install, run; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    folder = Path(words[0] if words else "dist").resolve()
    _run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], ROOT)
    stem = f"gcsim-{gcsim.__version__}"
    with tarfile.open(folder / f"{stem}.tar.gz") as archive:
        _complete("sdist", {name.removeprefix(f"{stem}/") for name in archive.getnames()})
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as packed:
        _complete("wheel", {_in_checkout(name) for name in packed.namelist()})
        _readable(packed.read(f"{stem}.dist-info/METADATA").decode())
    for file in (wheel, folder / f"{stem}.tar.gz"):
        with tempfile.TemporaryDirectory(prefix="gcsim-package-") as place:
            _try(file, Path(place))
    with tempfile.TemporaryDirectory(prefix="gcsim-package-") as place:
        _from_index(folder, Path(place))
    return 0


def _readable(metadata: str) -> None:
    """What an index shows is the README, without links to files that it does not have."""
    for words in ("# gcsim", "gcsim check my_model.yaml", "docs/tutorial.md"):
        if words not in metadata:
            sys.exit(f"METADATA: no {words!r}")
    if found := re.search(r"\]\((?!https?:)[^)]*\)", metadata):
        sys.exit(f"METADATA: a link to a file, {found.group()}")
    print("METADATA: the README, without links to files", flush=True)


def _in_checkout(name: str) -> str:
    """`gcsim/simulator/clock.py` lies in `simulator/`."""
    room = name.split("/")[1:2]
    return name.removeprefix("gcsim/") if room and room[0] in ROOMS else name


def _complete(what: str, names: set[str]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", *ROOMS], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    missing = {name for name in tracked if not (ROOT / name).is_symlink()} - names
    if missing:
        sys.exit(f"{what}: these are missing: {', '.join(sorted(missing))}")
    print(f"{what}: all {len(tracked)} files of the rooms", flush=True)


def _try(file: Path, place: Path) -> None:
    """Install it in `place`, and run the commands there."""
    venv.create(place / "venv", with_pip=True)
    home = place / "elsewhere"
    home.mkdir()
    (home / "my_half.py").write_text(_PLUG_IN)
    _run([str(place / "venv/bin/python"), "-m", "pip", "install", "--no-compile", str(file)], home)
    tried = _run([str(place / "venv/bin/python"), "-m", "pip", "freeze"], home).split()
    print(f"{file.name}: with {', '.join(one for one in tried if '==' in one)}", flush=True)
    for words, expected in _COMMANDS:
        start = time.monotonic()
        shown = _run([str(place / "venv/bin/gcsim"), *shlex.split(words)], home)
        if expected not in shown:
            sys.exit(f"{file.name}: gcsim {words}: no {expected!r} in:\n{shown}")
        print(f"{file.name}: gcsim {words} ({time.monotonic() - start:.0f} s)", flush=True)


def _from_index(folder: Path, place: Path) -> None:
    """Answer with `uvx` in the small installation, and start with `pipx run` in a whole one."""
    venv.create(place / "venv", with_pip=True)
    tools = place / "venv/bin"
    _run([str(tools / "python"), "-m", "pip", "install", "uv", "pipx"], place)
    (page,) = re.findall(r"^printf .* > small\.txt$", (ROOT / "docs/advice.md").read_text(), re.M)
    _run(["sh", "-c", page], place)
    uvx = [str(tools / "uvx"), "-p", sys.executable, "--find-links", str(folder)]
    small = [*uvx, "--overrides", "small.txt", "gcsim"]
    _run([*small, "--version"], place)
    for words in (_ADVISE, _ADVISE):
        start = time.monotonic()
        if "Use" not in (shown := _run([*small, *words.split()], place)):
            sys.exit(f"uvx gcsim {words}: no 'Use' in:\n{shown}")
        print(f"uvx gcsim {words} ({time.monotonic() - start:.1f} s)", flush=True)
    print(f"the small installation: {_run(['du', '-smL', 'uv'], place).split()[0]} MB", flush=True)
    whole = [
        str(tools / "pipx"),
        "run",
        "--backend",
        "pip",
        f"--pip-args=--find-links={folder}",
        "gcsim",
    ]
    print(f"pipx run gcsim --version: {_run([*whole, '--version'], place)}", flush=True)


def _run(command: Sequence[str], folder: Path) -> str:
    """What it prints; a failure ends all."""
    own = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    own |= {"UV_CACHE_DIR": str(folder / "uv"), "PIPX_HOME": str(folder / "pipx")}
    own["GCSIM_CACHE_DIR"] = str(folder / ".cache")
    done = subprocess.run(
        command, cwd=folder, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
