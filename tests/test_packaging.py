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


def test_public_names_resolve() -> None:
    for name in gcsim.__all__:
        assert getattr(gcsim, name) is not None


def test_reading_a_profile_and_building_a_cluster_needs_no_torch() -> None:
    code = (
        "import sys, gcsim.traces.profile, gcsim.traces.stage1.cache, gcsim.simulator.predict,"
        " gcsim.scenarios.load, gcsim.scenarios.run, gcsim.analysis.report.table;"
        " from gcsim.compressors.registry import REGISTRY, check_parameters;"
        " [check_parameters(name, {}) for name in REGISTRY];"
        " print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def test_help_imports_neither_torch_nor_matplotlib_nor_pydantic() -> None:
    code = (
        "import sys, contextlib, io\n"
        "from gcsim.cli.app import main\n"
        "sys.argv = ['gcsim', '--help']\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main()\n"
        "print({'torch', 'matplotlib', 'pydantic', 'numpy'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip().endswith("set()")
