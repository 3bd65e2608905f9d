"""Does a profile's key change with the code that the compressor reaches, and with no other?"""

import json
from pathlib import Path

import pytest

from gcsim.compressors.registry import REGISTRY
from gcsim.traces.stage1 import code
from tests.process import printed

FILES = {
    "room/__init__.py": "def __getattr__(name):\n    from room.registry import make\n",
    "room/base.py": '"""Base."""\nSIZE = 1\n',
    "room/topk.py": "from room import base\ndef run():\n    from room.inside.late import K\n",
    "room/inside/__init__.py": "",
    "room/inside/late.py": "K = 2  # entries\n",
    "room/other.py": "import room.base\n",
    "room/registry.py": "NAMES = {}\n",
    "room/wrapped.py": "from room import make\n",
}


def written(folder: Path) -> dict[str, Path]:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    return code.modules({"room": folder / "room"})


def test_a_module_reaches_what_it_imports_also_inside_functions(tmp_path: Path) -> None:
    files = written(tmp_path)
    known = {path: code.parsed(path.read_text()) for path in files.values()}
    reached = code.reach({"room.topk"}, files.get, known.__getitem__)
    assert reached == {"room", "room.topk", "room.base", "room.inside", "room.inside.late"}
    # a name that the package itself gives may come from anything that the package imports
    assert code.reach({"room.wrapped"}, files.get, known.__getitem__) == {
        "room",
        "room.wrapped",
        "room.registry",
    }


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("K = 2\n", True),
        ('"""What?"""\n\nK = 2  # of all\n"""Entries."""\n', True),
        ("K = 3\n", False),
        ("K = '2'\n", False),
        ("K = 2\nimport sys\n", False),
    ],
)
def test_comments_and_docstrings_are_no_code(other: str, same: bool) -> None:
    assert (code.parsed(other)[0] == code.parsed("K = 2  # entries\n")[0]) == same


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("ratio = Field(0.01, description='part that is sent')\n", True),
        ("ratio = Field(0.02, description='share sent')\n", False),
        ("ratio = Field(0.01, alias='share sent')\n", False),
    ],
)
def test_an_options_description_is_no_code(other: str, same: bool) -> None:
    option = "ratio = Field(0.01, description='share sent')\n"
    assert (code.parsed(other)[0] == code.parsed(option)[0]) == same


def changed(
    monkeypatch: pytest.MonkeyPatch, module: str, users: tuple[str, ...] = ()
) -> dict[str, bool]:
    """By compressor: does its key change when a module of gcsim does?"""
    targets = {name: REGISTRY[name] for name in ("topk", "qsgd", "dgc")}
    files, known = code._gcsim()
    before = {name: code.code_hash.__wrapped__(target, users) for name, target in targets.items()}
    monkeypatch.setitem(known, files[module], ("another", ()))
    found = {}
    for name, target in targets.items():
        found[name] = code.code_hash.__wrapped__(target, users) != before[name]
    return found


@pytest.mark.parametrize(
    ("module", "those"),
    [
        ("gcsim.compressors.sparsification.by_size.topk", {"topk"}),
        ("gcsim.compressors.quantization.rounding.qsgd", {"qsgd"}),
        ("gcsim.compressors.lockstep", {"topk", "qsgd", "dgc"}),
        ("gcsim.compressors.registry", {"topk", "qsgd", "dgc"}),
        ("gcsim.traces.models.building", {"topk", "qsgd", "dgc"}),
        ("gcsim.compressors.low_rank.powersgd", set()),
        ("gcsim.compressors.ddp.hook", set()),  # deploys
        ("gcsim.compressors.conformance.promises", set()),  # checks
    ],
)
def test_a_change_concerns_those_that_reach_it(
    monkeypatch: pytest.MonkeyPatch, module: str, those: set[str]
) -> None:
    """A module that makes no payload is in no profile."""
    assert {name for name, other in changed(monkeypatch, module).items() if other} == those


USERS = ("gcsim.traces.training.loop", "gcsim.traces.tasks.digits", "gcsim.traces.networks.small")


@pytest.mark.parametrize(
    ("module", "those"),
    [
        ("gcsim.traces.training.team", {"topk", "qsgd", "dgc"}),
        ("gcsim.traces.tasks.digits", {"topk", "qsgd", "dgc"}),
        ("gcsim.compressors.sparsification.by_size.topk", {"topk"}),
        ("gcsim.traces.tasks.text", set()),
        ("gcsim.traces.tasks.own", set()),
        ("gcsim.traces.recording.recording", set()),
    ],
)
def test_with_users_a_change_concerns_what_they_reach(
    monkeypatch: pytest.MonkeyPatch, module: str, those: set[str]
) -> None:
    found = changed(monkeypatch, module, USERS)
    assert {name for name, other in found.items() if other} == those


def test_a_hash_is_the_same_with_every_version_of_python() -> None:
    """This one was made with Python 3.11, whose trees have no parameters of types."""
    source = '''
import a.b
from c import (d as e)

class K(B, metaclass=M):
    """Text."""
    x: int = 1

    @f
    async def g(self, a, /, b=2, *c, d: str = "é", **e) -> None:
        async with p as q, r:
            return [await y async for y in z if y is not ...]

def h(x):
    match x:
        case {"k": [1, *_]} | None if (n := 1.5):
            yield f"{n!r:>{x}} and {n:.2f}" "more"
        case _:
            raise E from x
    return lambda: (b"b", -1j, *x, {**x}, x[1:, ::2])
'''
    found, names = code.parsed(source)
    assert names == ["a.b", "c.d"]
    assert found == "20b942549014f9a7c192a1dad891928e40d543f0efc24c4ba9b70e2ccbafe26c"


@pytest.mark.long
@pytest.mark.parametrize("name", ["topk", "powersgd"])
def test_nothing_is_loaded_that_is_not_reached(name: str) -> None:
    """Against what Python has imported after the compressor has run once."""
    program = f"""
import json, sys
from gcsim.compressors.registry import compressor_class, create
before = set(sys.modules)
import torch
from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.participation import participate
slices = (TensorSlice(index=0, name="w", shape=(8, 16), offset=0),)
layout = BucketLayout(index=0, slices=slices)
team = [create({name!r}, Worker(rank=rank, count=2, seed=0), {{}}) for rank in range(2)]
lockstep([participate(one, Bucket(layout=layout, gradient=torch.ones(128)), 0) for one in team])
print(json.dumps([m for m in sys.modules if m.startswith("gcsim.compressors") and m not in before]))
"""
    loaded = set(json.loads(printed("-c", program).splitlines()[-1]))
    files, known = code._gcsim()
    start = f"gcsim.compressors.{REGISTRY[name].partition(':')[0]}"
    assert start in loaded
    traces = {module for module in files if module.startswith("gcsim.traces")}
    assert loaded <= code.reach({start, *traces}, files.get, known.__getitem__)


def test_a_damaged_memo_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in its place: nothing, half of it, JSON of another shape, another name."""
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    files = list(written(tmp_path).values())

    def read() -> dict[Path, code.Known]:
        known = code.Trees(files)
        found = {path: known[path] for path in files}
        known.keep()
        return found

    known = read()
    memo = tmp_path / "cache" / "code.hashes"
    whole = memo.read_bytes()
    (name, *_) = (k for k in json.loads(whole.partition(b"\n")[2]))
    wrong = json.dumps({name: 5}).encode()
    for damage in (b"", whole[:-9], b"[[", wrong, whole.replace(b"room.base", b"room.bass")):
        memo.write_bytes(damage)
        assert read() == known
        assert memo.read_bytes() == whole


def test_a_file_is_parsed_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not asked for is not parsed, and stays in the memo as long as there is its file."""
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    parsed: list[str] = []
    real = code.parsed

    def noted(text: str) -> code.Known:
        parsed.append(text)
        return real(text)

    monkeypatch.setattr(code, "parsed", noted)
    files = written(tmp_path)
    for asked, new in (("base", 1), ("other", 1), ("base", 0)):
        known = code.Trees(files.values())
        known[files[f"room.{asked}"]]
        known.keep()
        assert len(parsed) == new
        parsed.clear()
    files.pop("room.base").unlink()
    known = code.Trees(files.values())
    known[files["room.topk"]]
    known.keep()
    left = json.loads((tmp_path / "cache" / "code.hashes").read_text().partition("\n")[2])
    assert [names for _, names in left.values()] == [
        ["room.base"],
        ["room.base", "room.inside.late.K"],
    ]
