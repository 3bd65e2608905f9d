"""What is installed is what lies in the folders, under one import name."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcsim
from tests.process import ROOT, printed

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
    assert printed("-P", "-c", code, folder=Path("/")) == "[]\n"


def test_modules_carry_the_path_of_their_room() -> None:
    from gcsim.simulator import clock

    assert Path(clock.__file__).resolve() == ROOT / "simulator" / "clock.py"


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {left_out}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from gcsim.cli.app import main
main({words}.split())
"""
"""gcsim where the libraries that the small installation leaves out cannot be imported."""


def _left_out() -> set[str]:
    page = (ROOT / "docs/advice.md").read_text(encoding="utf-8")
    (names,) = re.findall(r"^printf '%s; .*' (.*) > small.txt$", page, re.MULTILINE)
    return set(names.split())


def _without(words: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    code = WITHOUT.format(left_out=_left_out() | {"llvmlite"}, words=repr(words))
    return subprocess.run(
        [sys.executable, "-c", code], env={"GCSIM_CACHE_DIR": str(tmp_path)}, text=True,
        capture_output=True, check=False, cwd=tmp_path,
    )  # fmt: skip


ADVISE = "advise --model lenet --device v100 --nodes 2 --network 10gbe --loop own --nic -q"


@pytest.mark.long
def test_the_small_installation_advises_from_shipped_profiles_to_the_same_answer(
    tmp_path: Path,
) -> None:
    small = _without(ADVISE, tmp_path)
    assert small.returncode == 0, small.stderr
    whole = subprocess.run(
        [sys.executable, "-m", "gcsim", *ADVISE.split()], text=True, capture_output=True,
        check=True, env={"GCSIM_CACHE_DIR": str(tmp_path / "other")},
    )  # fmt: skip
    lines = [one for one in whole.stdout.splitlines() if "# PyTorch's" not in one]
    assert small.stdout.splitlines() == lines


def test_what_the_small_installation_lacks_is_named(tmp_path: Path) -> None:
    refused = _without("run lenet_2node", tmp_path)
    assert refused.returncode == 2
    assert re.search(r"this needs \w+, which is not installed; pip install", refused.stderr)


def test_small_and_left_out_are_all_dependencies() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    small = {re.split("[>=]", one)[0] for one in settings["dependency-groups"]["advise"]}
    every = {re.split("[>=]", one)[0] for one in settings["project"]["dependencies"]}
    assert every == small | _left_out() | {"typing-extensions"}
    page = (ROOT / "docs/advice.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"`pip install (numpy .*?)`", page)
    assert set(named.split()) == small


def test_a_plain_loop_overflows_and_divides_as_machine_code_does() -> None:
    from gcsim.compressors import loop_cache, plain_loops

    def mixed(values: Any, factor: Any) -> Any:
        total = np.uint64(0)
        for value in values:
            total = np.uint64(total * factor + value)
        return total, 1.0 / np.float64(values[0] - values[0])

    values = np.arange(1, 9, dtype=np.uint64)
    both = [
        module.compiled(mixed)(values, np.uint64(2**63 + 12345))
        for module in (loop_cache, plain_loops)
    ]
    assert both[0] == both[1]
    assert both[0][1] == np.inf
