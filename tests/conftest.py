"""What do all tests share? Threads, compiled loops, and the examples of property-based tests.

The tensors of tests are small, and as many workers as cores run them: more threads would wait for
each other most of the time (PowerSGD's checks take 1 s on one thread and 20 on two). What must not
depend on the number of threads sets it.

`make test` draws the same examples everywhere: whether a change is accepted must not depend on
luck. `make properties` draws other ones, to find what nobody has thought of.
"""

import functools
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from gcsim.files import cache_folder
from tests.process import printed

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported; processes that tests start have it
os.environ["OMP_WAIT_POLICY"] = "passive"  # threads that spin take the core of the other worker
os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported: no test needs a GPU
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder() / "loops"))
os.environ.setdefault("TRITON_CACHE_DIR", str(cache_folder() / "kernels"))  # by hash of the source

gc.disable()  # all that is imported and collected stays; until then the collector finds nothing

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=16)
settings.register_profile("fuzz", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of the tests that all workers share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def main_job(shared_folder: Path) -> tuple[str, Path]:
    """What the main job prints as JSON, as a newcomer runs it, and its cache. Who comes first runs
    it, in a process of its own; other workers wait."""
    import fcntl

    cache = shared_folder / "cache of the main job"
    with (shared_folder / "main job.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if not (said := file.read()):
            command = ("-m", "gcsim", "run", "alexnet_32node", "--json", "-q")
            said = printed(*command, folder=shared_folder, seconds=1500, GCSIM_CACHE_DIR=str(cache))
            file.write(said)
    return said, cache


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the file's own."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def own_cache(cache: Path) -> Iterator[None]:
    """The same, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCSIM_CACHE_DIR", str(cache))
        yield


@pytest.fixture(scope="session")
def digits_read_once() -> Iterator[None]:
    """scikit-learn's digits, which a training takes 40 ms to read: a tenth of the smallest."""
    from sklearn import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_digits", functools.cache(datasets.load_digits))
        yield


def pytest_configure() -> None:
    """Processes that tests start hear signals, also where nohup or a shell's `&` started pytest."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


_LONGEST = (
    "test_main_job.py", "test_page.py", "test_ddp.py", "test_settings.py",
    "test_vision.py",
)  # fmt: skip


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the collector need not look at a million objects each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of minutes begin first, so that no core is idle at the end."""
    place = {name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def pytest_unconfigure() -> None:
    """Nothing is collected on the way out, which takes a second."""
    gc.freeze()
