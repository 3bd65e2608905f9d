"""What is temporary goes with its process: at its end, or when the next one comes."""

import csv
import errno
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim import files
from gcsim.analysis.calibration.measurements import reading as measurements
from gcsim.analysis.write import to_csv
from gcsim.errors import InputError
from gcsim.files import csv_text
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.reading.document import read_text
from gcsim.scenarios.result import Result
from gcsim.scenarios.stored import read_results
from gcsim.scenarios.sweeps import store as sweep_store
from gcsim.traces.kineto import json_stream
from gcsim.traces.storage import tensor_file
from gcsim.traces.storage.manifest import MANIFEST
from gcsim.traces.storage.store import Trace
from gcsim.traces.synthetic.fit_file import open_fits
from gcsim.traces.tasks.folder import fingerprint
from tests.analysis.drawn import plain_row

HOLDS = """\
import sys, time
from pathlib import Path
from gcsim.files import becoming, replacing, temporary_folder
here = Path(sys.argv[1])
with temporary_folder("gradients-", here) as folder, replacing(here / "results.json") as file:
    with becoming(here / "trace") as trace:
        for path in (folder, trace):
            (path / "many").mkdir()
            (path / "many" / "bytes").write_text("x")
        file.write_text("{")
        print("ready", flush=True)
        time.sleep(600)
"""
WRITES = """\
import sys
from pathlib import Path
from gcsim.files import write_text
for number in range(500):
    write_text(Path(sys.argv[1]), str(number % 10) * int(sys.argv[2]))
    text = Path(sys.argv[1]).read_text()
    assert len(text) in (7, 9999) and len(set(text)) == 1
"""
LEFT = ("gradients-", ".results.json.gcsim-", ".trace.gcsim-")


@contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is in the middle of making all that is temporary."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def left(folder: Path) -> list[int]:
    names = [path.name for path in folder.iterdir()]
    return [sum(name.startswith(prefix) for name in names) for prefix in LEFT]


def use(folder: Path) -> None:
    """What the next process does."""
    with files.temporary_folder("gradients-", folder):
        pass
    with files.becoming(folder / "trace"):
        pass
    files.write_text(folder / "results.json", "{}")


def test_a_living_process_keeps_what_it_has_and_a_killed_one_loses_it(tmp_path: Path) -> None:
    with holding(tmp_path) as process:
        use(tmp_path)
        assert left(tmp_path) == [1, 1, 1]
        process.kill()
        process.wait()
        assert left(tmp_path) == [1, 1, 1]
        use(tmp_path)
    assert left(tmp_path) == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_folder_is_removed_where_a_signal_comes_before_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signal(*_: object, **__: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(files, "lock", signal)
    with pytest.raises(SystemExit), files.temporary_folder("gradients-", tmp_path):
        raise AssertionError("it was held")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_without_a_look_at_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand points in a folder the last one costs no more than the first."""
    monkeypatch.delattr(os, "listdir")
    monkeypatch.delattr(os, "scandir")
    for name in ("a", "b", "a"):
        files.write_text(tmp_path / f"{name}.json", name)
        assert (tmp_path / f"{name}.json").read_text() == name


def test_many_processes_write_one_file_and_each_is_whole(tmp_path: Path) -> None:
    """Temporary names are used again: nobody takes another's, and nothing is left."""
    path = tmp_path / "results.json"
    writing = [
        subprocess.Popen([sys.executable, "-c", WRITES, str(path), str(size)]) for size in (7, 9999)
    ]
    assert [process.wait() for process in writing] == [0, 0]
    text = path.read_text()
    assert len(text) in {7, 9999}
    assert list(tmp_path.iterdir()) == [path]


def test_what_only_has_such_a_name_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "gradients-abc").symlink_to(tmp_path / "mine")
    use(tmp_path / "cache")
    assert (tmp_path / "mine" / "file").read_text() == "mine"


def test_without_locks_nothing_is_taken_for_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr("fcntl.flock", unsupported)
    other = tmp_path / "gradients-abc"
    other.mkdir()
    use(tmp_path)
    assert other.is_dir()
    assert (tmp_path / "results.json").read_text() == "{}"
    with files.waiting_for(tmp_path / "lock"):
        pass


def test_a_failure_leaves_the_earlier_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text("earlier")

    def full_disk() -> None:
        with files.replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="cannot write"):
        full_disk()
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", [".", "", "/", "a/.", ".."])
def test_a_folder_is_no_file_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(InputError, match=r"is a folder|cannot write"):
        files.write_text(Path(name), "x")
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]


def test_a_locks_file_is_neither_followed_nor_cut(tmp_path: Path) -> None:
    """Whoever made it: of a file that is another user's, reading has to do."""
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("precious")
    link.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"), files.waiting_for(link):
        raise AssertionError("followed")
    victim.chmod(0o444)
    with files.waiting_for(victim):
        assert victim.read_text() == "precious"
        with victim.open() as file, pytest.raises(BlockingIOError):
            files.lock(file)


def test_a_sweeps_lock_is_neither_followed_nor_cut(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "sweep"
    victim.write_text("precious")
    folder.mkdir()
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(InputError, match="symbolic link"), sweep_store.locked(folder):
        raise AssertionError("followed")
    assert victim.read_text() == "precious"
    (folder / ".lock").unlink()
    (folder / ".lock").write_text("1" * 99)
    with sweep_store.locked(folder):
        text = (folder / ".lock").read_text()
        with pytest.raises(InputError, match=f"process {os.getpid()}"), sweep_store.locked(folder):
            raise AssertionError("entered")
    assert len(text) == 99


@pytest.mark.parametrize(
    ("given", "expected"), [("~", "{home}"), ("~/inside", "{home}/inside"), ("/a/~", "/a/~")]
)
def test_the_cache_folders_tilde_is_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GCSIM_CACHE_DIR", given)
    assert files.cache_folder() == Path(expected.format(home=tmp_path))


def read_images(path: Path) -> None:
    """A folder of images, one of which is no file."""
    folder = path.parent / "images" / "train" / "one"
    folder.mkdir(parents=True)
    (folder / "a.png").symlink_to(path)
    fingerprint(path.parent / "images")


def read_trace(path: Path) -> None:
    """A recording whose manifest is no file."""
    (path.parent / "trace").mkdir()
    (path.parent / "trace" / MANIFEST).symlink_to(path)
    Trace.open(path.parent / "trace")


READERS: dict[str, Callable[[Path], object]] = {
    "scenario": load_scenario,
    "results": read_results,
    "gradients' fit": open_fits,
    "measurements": lambda path: measurements.read([path]),
    "profiler's trace": lambda path: list(json_stream.events(path)),
    "recording": read_trace,
    "tensors": tensor_file.measure_file,
    "images": read_images,
    "CSV or YAML": lambda path: read_text(path, str(path)),
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_what_may_never_end(tmp_path: Path, reader: str, kind: str) -> None:
    """Within seconds: a pipe that nobody writes to would hold a reader for ever."""
    path = tmp_path / "given.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")

    def never(*_: object) -> None:
        raise AssertionError("still reading")

    before = signal.signal(signal.SIGALRM, never)
    signal.alarm(10)
    try:
        with pytest.raises((InputError, OSError), match="pipe or a device"):
            READERS[reader](path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


CELLS = st.one_of(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r")),
    st.builds(lambda head, tail: head + tail, st.sampled_from("=+-@\t"), st.text("abc1|!'\"")),
)


@given(st.lists(st.fixed_dictionaries({"a": CELLS, "b": CELLS})))
def test_no_text_is_a_formula_and_all_text_comes_back(records: list[dict[str, str]]) -> None:
    back = list(csv.DictReader(io.StringIO(csv_text(["a", "b"], records), newline="")))
    assert [line["a"] is not None for line in back] == [True] * len(records)
    for line, record in zip(back, records, strict=True):
        for name, text in record.items():
            cell = line[name]
            assert cell in {text, f"'{text}"}
            assert not re.match(r"[=+@\t-]", cell) or float(text) is not None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_whole(value: float) -> None:
    assert csv_text(["x"], [{"x": value}, {"x": str(value)}]) == f"x\n{value!r}\n{value!r}\n"


def test_a_label_of_a_run_is_no_formula() -> None:
    row = replace(plain_row("none", 0.1), label='=cmd|"/c calc"!A1')
    text = to_csv(Result(scenario={"name": "+1+1"}, provenance={}, rows=(row,), wall={}))
    (line,) = csv.DictReader(io.StringIO(text))
    assert (line["scenario"], line["label"]) == ("'+1+1", "'" + row.label)
