"""Compiled loops on disk: nothing is unpickled that somebody else may have written or that is cut.

A loop is compiled in a cache of its own, its file is spoilt, and a second dispatcher of the same
function, as in the next process, has to give the same sum. Whether it compiled or loaded is what
numba counts; whether a pickle ran is seen by the file that it leaves.
"""

import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core import config

from gcsim.compressors import loop_cache
from gcsim.compressors.loops import loop
from gcsim.files import others_write, sealed, unsealed


def twice(values: Any) -> float:
    total = 0.0
    for i in range(values.size):
        total += 2 * values[i]
    return total


def thrice(values: Any) -> float:
    total = 0.0
    for i in range(values.size):
        total += 3 * values[i]
    return total


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache's folder; nothing in it."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    _forget()
    yield tmp_path / "cache"
    _forget()


def _forget() -> None:
    loop_cache.loops_folder.cache_clear()
    loop_cache._not_kept.cache_clear()


def hits(function: Callable[..., Any] = twice) -> int:
    """Call a loop, as a process that has not called it; 1 when it was found, 0 when compiled."""
    compiled: Any = loop(function)
    factor = 2 if function is twice else 3
    assert compiled(np.arange(4.0)) == factor * 6.0
    return sum(compiled.stats.cache_hits.values())


def entry(folder: Path, name: str = "twice") -> Path:
    (found,) = (p for p in folder.rglob(f"*.{name}.*") if p.suffix != ".lock")
    return found


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_a_loop_is_found_by_the_next_process_and_by_no_other_user(folder: Path) -> None:
    assert hits() == 0
    assert hits() == 1
    for path in (entry(folder), entry(folder).parent):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_compressors_are_imported_without_numba_until_a_loop_is_called() -> None:
    code = (
        "import sys\n"
        "from gcsim.compressors.registry import REGISTRY, compressor_class\n"
        "from gcsim.simulator import predict\n"
        "for name in REGISTRY:\n    compressor_class(name)\n"
        "assert 'numba' not in sys.modules\n"
        "import numpy as np\n"
        "from gcsim.compressors.coding import scans\n"
        "before = scans.greatest_magnitude\n"
        "print(hex(before(np.array([1, -3], dtype=np.float32))))\n"  # the bits of 3.0
        "import numba\n"
        "assert isinstance(scans.greatest_magnitude, numba.core.dispatcher.Dispatcher)\n"
        "assert before is scans.greatest_magnitude\n"  # in this module as well
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0x40400000\n", "")


SPOILT: dict[str, Callable[[bytes, Path], bytes]] = {
    "empty": lambda data, mark: b"",
    "cut": lambda data, mark: data[: len(data) // 2],
    "cut in its checksum": lambda data, mark: data[:20],
    "without its checksum": lambda data, mark: data[65:],
    "changed by a bit": lambda data, mark: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "longer": lambda data, mark: data + b"\0",
    "a pickle that runs code": lambda data, mark: pickle.dumps(Bomb(mark)),
    "one behind an old checksum": lambda data, mark: data[:65] + pickle.dumps(Bomb(mark)),
    "one with a checksum, of no loop": lambda data, mark: sealed(pickle.dumps(Bomb(mark))),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_damaged_entry_is_compiled_again(folder: Path, tmp_path: Path, how: str) -> None:
    hits()
    path, mark = entry(folder), tmp_path / "ran"
    whole = path.read_bytes()
    path.write_bytes(SPOILT[how](whole, mark))
    assert hits() == 0
    assert unsealed(entry(folder).read_bytes()) is not None
    assert hits() == 1
    assert not mark.exists()


def test_an_entry_of_another_loop_is_not_taken(folder: Path) -> None:
    hits(thrice)
    hits()
    shutil.copyfile(entry(folder, "thrice"), entry(folder))
    assert hits() == 0
    assert hits() == 1


def test_a_file_that_others_could_write_is_not_unpickled(folder: Path, tmp_path: Path) -> None:
    """Even where its checksum is right, which its writer can compute."""
    hits()
    path, mark = entry(folder), tmp_path / "ran"
    body = unsealed(path.read_bytes())
    assert body is not None
    key = body[: body.index(b"\x80")]  # where the pickle begins
    path.write_bytes(sealed(key + pickle.dumps(Bomb(mark))))
    path.chmod(0o666)
    assert hits() == 0
    assert not mark.exists()
    path.write_bytes(sealed(key + pickle.dumps(Bomb(mark))))  # by this user: it is believed
    with pytest.raises(TypeError):
        hits()
    assert mark.exists()


@pytest.mark.parametrize("of", ["cache", "cache/gcsim"])
def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, of: str) -> None:
    hits()
    build = entry(folder).parent
    shared = folder if of == "cache" else build
    shared.chmod(0o777)
    _forget()
    before = sorted(folder.rglob("*"))
    with pytest.warns(UserWarning, match=rf"{shared}: .* somebody else can write .* chmod go-w"):
        assert hits() == 0
    assert hits(thrice) == 0  # without a second warning
    assert sorted(folder.rglob("*")) == before
    shared.chmod(0o700)


def test_where_no_folder_can_be_made_loops_are_compiled_with_one_warning(folder: Path) -> None:
    folder.write_text("a file where the folder would be")
    with pytest.warns(UserWarning, match="not kept.*cannot write"):
        assert hits() == 0
    assert hits() == hits(thrice) == 0


def test_a_disk_that_takes_no_more_costs_one_warning(folder: Path) -> None:
    build = loop_cache.loops_folder()
    assert build is not None
    shutil.rmtree(build)
    build.write_text("a file where the folder was")
    with pytest.warns(UserWarning, match="not kept.*cannot write"):
        assert hits() == 0
    assert hits(thrice) == 0


@given(
    owner=st.sampled_from(["me", "root", "another"]),
    mode=st.integers(0, 0o7777),
    group=st.sampled_from(["mine", "another"]),
)
def test_whose_files_are_believed(owner: str, mode: int, group: str) -> None:
    """Owner and bits decide; only a group that bears the user's name may write."""
    me = os.geteuid()
    ids = {"me": me, "root": 0, "another": me + 4242}
    gid = os.getegid() if group == "mine" else 987654
    status = os.stat_result((mode, 0, 0, 1, ids[owner], gid, 0, 0, 0, 0))
    import grp
    import pwd

    own = group == "mine" and grp.getgrgid(gid).gr_name == pwd.getpwuid(me).pw_name
    foreign = owner == "another" or bool(mode & 0o002) or (bool(mode & 0o020) and not own)
    assert others_write(status) == foreign


@given(body=st.binary(max_size=200), cut=st.integers(1, 300))
def test_what_is_cut_is_not_whole(body: bytes, cut: int) -> None:
    assert unsealed(sealed(body)) == body
    assert unsealed(sealed(body)[:-cut]) is None
