"""A user's code is known by what it reaches, opens and makes, and by nothing beside it."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gcsim import opened
from gcsim.traces.stage1 import own_code
from gcsim.traces.stage1.own_code import reached

FILES = {
    "owner/__init__.py": "",
    "owner/model.py": (
        "import json, os, pathlib, numpy as np\n"
        "import loose\n"
        "from . import near\n"
        "from .deep.far import K\n"
        "from namespace.inner import part\n"
        "HERE = pathlib.Path(__file__).parent.parent / 'data'\n"
        "AT_IMPORT = json.loads((HERE / 'import.json').read_text())\n"
        "def build():\n"
        "    from owner import late\n"
        "    import importlib\n"
        "    plugged = importlib.import_module('plug' + 'in')\n"
        "    with open(HERE / 'opened.txt') as file: a = int(file.read())\n"
        "    b = np.load(HERE / 'array.npy').tolist()\n"
        "    c = sorted(os.listdir(HERE / 'folder'))\n"
        "    d = len(list((HERE / 'globbed').glob('*')))\n"
        "    try:\n"
        "        with open(HERE / 'missing.txt') as file: e = file.read()\n"
        "    except OSError: e = ''\n"
        "    f = (HERE / 'exists.txt').exists()\n"
        "    g = os.environ.get('OWNERS_WIDTH', '1')\n"
        "    (HERE / 'written.txt').write_text('1')\n"
        "    return [plugged.P, a, b, c, d, e, f, g]\n"
    ),
    "owner/near.py": "from . import cousin\n",
    "owner/cousin.py": "C = 1\n",
    "owner/late.py": "L = 1\n",
    "owner/deep/__init__.py": "",
    "owner/deep/far.py": "from ..cousin import C\nK = 1\n",
    "owner/unrelated.py": "U = 1\n",
    "loose.py": "W = 1\n",
    "plugin.py": "P = 1\n",
    "namespace/inner/part.py": "N = 1\n",
    "data/import.json": "1",
    "data/opened.txt": "1",
    "data/folder/a": "",
    "data/globbed/a": "",
    "data/unread.txt": "1",
}


def forget() -> None:
    """As a new process is."""
    own_code._calls.clear()
    opened._notes.clear()
    for name in list(sys.modules):
        if name.partition(".")[0] in ("owner", "loose", "plugin", "namespace"):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import numpy as np

    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two edits in a second are two
    folder = tmp_path / "project"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    np.save(folder / "data" / "array.npy", np.arange(3))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    forget()
    yield folder
    forget()


calls: list[object] = []


def known(*, remembered: bool = True) -> object:
    def call() -> object:
        calls.append(None)
        return importlib.import_module("owner.model").build()

    return own_code.own_code("owner.model:build", call, remembered=remembered)


def test_a_module_reaches_what_it_imports_and_no_library(project: Path) -> None:
    assert set(reached("owner.model")) == {
        "owner", "owner.model", "owner.near", "owner.cousin", "owner.late", "owner.deep",
        "owner.deep.far", "loose", "namespace.inner.part",
    }  # fmt: skip


REACHED = [name for name in FILES if name.endswith(".py")]
UNREACHED = ("owner/unrelated.py",)


@pytest.mark.parametrize("name", [n for n in REACHED if n not in UNREACHED])
def test_a_change_of_reached_code_counts_and_a_comment_does_not(project: Path, name: str) -> None:
    before = known()
    with (project / name).open("a") as file:
        file.write("# a comment\n")
    forget()
    assert known() == before
    with (project / name).open("a") as file:
        file.write("MORE = 1\n")
    forget()
    assert known() != before


@pytest.mark.parametrize("name", [*UNREACHED, "beside.py", "owner/new.py", "data/unread.txt"])
def test_a_file_that_is_neither_reached_nor_opened_changes_nothing(
    project: Path, name: str
) -> None:
    before = known()
    (project / name).write_text("ANOTHER = 2\n")
    forget()
    assert known() == before


def change_array(project: Path) -> None:
    import numpy as np

    np.save(project / "data" / "array.npy", np.arange(4))


@pytest.mark.parametrize(
    "name",
    [
        "import.json", "opened.txt", "folder/b", "globbed/b", "missing.txt", "exists.txt",
        "array.npy",
    ],
)  # fmt: skip
def test_a_file_that_was_opened_counts_however_it_was(project: Path, name: str) -> None:
    """Also where it was sought in vain, or only its folder was listed."""
    before = known()
    if name == "array.npy":
        change_array(project)
    else:
        (project / "data" / name).write_text("2")
    forget()
    assert known() != before


def test_what_the_environment_decides_counts(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = known()
    monkeypatch.setenv("OWNERS_WIDTH", "2")
    forget()
    assert known() != before
    monkeypatch.delenv("OWNERS_WIDTH")
    assert known() == before


def test_an_unchanged_function_is_not_called_again(project: Path) -> None:
    """In the same process and in another one; a module that may have been changed is called."""
    calls.clear()
    before = known()
    assert known() == before
    forget()
    assert known() == before
    assert len(calls) == 1
    assert known(remembered=False) == before
    assert len(calls) == 2


def test_a_damaged_memory_of_a_call_is_as_good_as_none(project: Path) -> None:
    before = known()
    (path,) = (project.parent / "cache" / "calls").iterdir()
    whole = path.read_bytes()
    for damage in (b"", whole[:-9], whole.replace(b"opened.txt", b"closed.txt")):
        path.write_bytes(damage)
        forget()
        assert known() == before
        assert path.read_bytes() == whole


def test_a_call_that_asks_other_programs_is_made_each_time(project: Path) -> None:
    with (project / "owner/late.py").open("a") as file:
        file.write("import subprocess\nsubprocess.run(['true'])\n")
    calls.clear()
    known()
    forget()
    known()
    assert len(calls) == 2
