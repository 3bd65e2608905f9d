"""What is installed is what lies in the folders, under one import name."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import gcsim

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("analysis", "compressors", "scenarios", "simulator", "traces")


def test_every_folder_with_code_is_listed_in_packages() -> None:
    # setuptools leaves an unlisted sub-package out of the wheel in silence
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {"gcsim"}
    for path in (ROOT / "gcsim").iterdir():  # rooms of its own; the others are links to folders
        for init in path.rglob("__init__.py") if not path.is_symlink() else ():
            found.add(".".join(init.parent.relative_to(ROOT).parts))
    for room in ROOMS:
        for init in (ROOT / room).rglob("__init__.py"):
            found.add("gcsim." + ".".join(init.parent.relative_to(ROOT).parts))
    assert set(settings["packages"]) == found
    assert settings["package-dir"] == {"gcsim": "gcsim"} | {f"gcsim.{room}": room for room in ROOMS}


def test_every_place_that_names_the_version_names_this_one() -> None:
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {gcsim.__version__}\n" in cited
    assert f"\n## {gcsim.__version__} - 20" in changes


def test_rooms_are_importable_only_below_gcsim() -> None:
    code = f"import importlib.util as u; print([n for n in {ROOMS} if u.find_spec(n)])"
    shown = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    assert shown.stdout.strip() == "[]"


def test_modules_carry_the_path_of_their_room() -> None:
    from gcsim.simulator import clock

    assert Path(clock.__file__).resolve() == ROOT / "simulator" / "clock.py"
