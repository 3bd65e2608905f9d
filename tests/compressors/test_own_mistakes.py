"""A user's faulty compressor: the error names the file and the line, and the exit code is 2.

Each fault is a compressor of its own file; `# HERE` marks the line that is to be named, which is
the oracle. They run through the command line, on a table of layers with synthetic gradients.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gcsim.cli.app import app

NUMBERS: Iterator[int] = count()

HEAD = """
import numpy as np
import torch
from pydantic import Field
from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.coding.frame import pack_frame
from gcsim.compressors.requests import (
    AllGather, AllReduce, AllToAll, PushPull, TreeMerge, gather_variable)

ABOUT = About(title="Mine", family="sparsification", collective="any", bits="32", unbiased=True,
              state="none", paper="none")


class Base(Compressor):
    about = ABOUT

    def exchange(self, bucket, step):
        total = yield AllReduce(tensor=bucket.gradient.clone())
        return total / self.worker.count


def as_bytes(tensor):
    return tensor.contiguous().view(torch.uint8)
"""

EXCHANGE = {
    "raises": 'yield AllReduce(tensor=g)\nraise ValueError("no")  # HERE',
    "fails inside torch": "yield AllReduce(tensor=g @ torch.ones(3, 3))  # HERE",
    "fails inside a function of torch's own Python code": (
        "yield AllReduce(tensor=torch.stft(g, n_fft='four'))  # HERE"
    ),
    "uses a coder of gcsim's wrongly": (
        "yield AllGather(payload=pack_frame(200, g, numel=1, nonzero=1))  # HERE"
    ),
    "gathers unequal payloads": (
        "yield AllGather(payload=as_bytes(g[: 1 + rank]))  # HERE\nreturn g"
    ),
    "gathers unequal payloads in a function": (
        "yield from self.gather(as_bytes(g[: 1 + rank]))\nreturn g\n\n"
        "def gather(self, payload):\n    yield AllGather(payload=payload)  # HERE"
    ),
    "gathers unequal payloads behind lengths": (
        "yield from gather_variable(as_bytes(g))\n"
        "yield AllGather(payload=as_bytes(g[rank:]))  # HERE\nreturn g"
    ),
    "reduces unequal shapes": "yield AllReduce(tensor=g[: 1 + rank])  # HERE\nreturn g",
    "reduces unequal dtypes": "yield AllReduce(tensor=g.half() if rank else g)  # HERE\nreturn g",
    "reduces what has no maximum": (
        'yield AllReduce(tensor=torch.complex(g, g), op="max")  # HERE\nreturn g'
    ),
    "asks for different things": (
        "if rank:\n    yield AllGather(payload=as_bytes(g))  # HERE\n"
        "else:\n    yield AllReduce(tensor=g)\nreturn g"
    ),
    "lets one worker finish": "if rank:\n    yield AllReduce(tensor=g)  # HERE\nreturn g",
    "yields a tensor": "yield g  # HERE\nreturn g",
    "yields nothing": "yield  # HERE\nreturn g",
    "sends an array of numpy's": "yield AllGather(payload=g.numpy())  # HERE\nreturn g",
    "reduces an array of numpy's": "yield AllReduce(tensor=g.numpy())  # HERE\nreturn g",
    "exchanges too few payloads": "yield AllToAll(payloads=[as_bytes(g)])  # HERE\nreturn g",
    "exchanges unequal payloads": (
        "yield AllToAll(payloads=[as_bytes(g[: 1 + i]) for i in range(self.worker.count)])  # HERE"
    ),
    "has a server that raises": (
        "yield PushPull(payload=as_bytes(g), server=self.serve)\nreturn g\n\n"
        'def serve(self, payloads):\n    raise KeyError("lost")  # HERE'
    ),
    "has a server that returns nothing": (
        "yield PushPull(payload=as_bytes(g), server=lambda payloads: None)\nreturn g"
    ),
    "has a merge that raises": (
        "yield TreeMerge(payload=as_bytes(g), merge=lambda a, b: a / {})  # HERE\nreturn g"
    ),
    "is divided by zero": "yield AllReduce(tensor=g)\nreturn g / 0.0  # HERE",
    "returns infinity": "yield AllReduce(tensor=g)\nreturn (g * 1e30) * 1e30  # HERE",
    "returns half precision": "yield AllReduce(tensor=g)\nreturn g.half()  # HERE",
    "returns half of it": "yield AllReduce(tensor=g)\nreturn g[: g.numel() // 2]  # HERE",
    "returns nothing": "yield AllReduce(tensor=g)  # HERE",
}

CLASS = {
    "has a constructor that raises": (
        "def __init__(self, worker, parameters):\n"
        "    super().__init__(worker, parameters)\n    self.k = parameters.ratio  # HERE"
    ),
    "returns no generator": "def exchange(self, bucket, step):  # HERE\n    return bucket.gradient",
    "writes into the gradient": (
        "def exchange(self, bucket, step):  # HERE\n"
        "    total = yield AllReduce(tensor=bucket.gradient.mul_(0.5))\n    return total"
    ),
    "has properties that raise": (
        "@classmethod\ndef properties(cls, parameters):\n"
        "    return Properties(unbiased=True)  # HERE"
    ),
    "has a period of nothing": (
        "@classmethod\ndef period(cls, parameters):\n    return 0\n"
        "def exchange(self, bucket, step):  # HERE\n    yield AllReduce(tensor=bucket.gradient)"
    ),
}


STDOUT: list[str] = []
"""Of each run."""


def indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line if line else "" for line in text.splitlines())


def run(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, Path]:
    """Exit code, stderr, and the compressor's file."""
    path = folder / f"mine_{next(NUMBERS)}.py"  # of a name of its own: modules are kept
    path.write_text(HEAD + "\n\nclass Mine(Base):\n" + indented(body, 4) + "\n")
    (folder / "net.csv").write_text(
        "name,shape,forward_flops\nfc.weight,40x30,2400\nfc.bias,40,0\n"
    )
    scenario = {
        "model": {"layers": "net.csv"},
        "batch_size": 4,
        "gradients": {"source": "synthetic", "workers": 2, "iterations": 1},
        "cluster": {
            "nodes": [2], "devices_per_node": 1, "device": "v100", "network": "10gbe",
        },
        "compute": {"forward": "1 ms", "backward": "2 ms"},
        "compressors": ["none", {"kind": f"{path.stem}:Mine"}],
    }  # fmt: skip
    (folder / "s.yaml").write_text(json.dumps(scenario))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["run", "s.yaml", "-q", "--no-cache", "--json", "-o", "out"])
    STDOUT.append(done.stdout)
    return done.exit_code, done.stderr, path


def expect(path: Path, code: int, said: str) -> None:
    lines = path.read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if "# HERE" in line]
    assert code == 2, said
    assert "a bug in gcsim" not in said
    named = [int(n) for n in re.findall(re.escape(str(path)) + r":(\d+)", said)]
    assert named, said
    if marked:
        assert marked[0] in named, said


@pytest.mark.parametrize("fault", EXCHANGE)
def test_of_an_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    head = "def exchange(self, bucket, step):\n"
    setup = "    g, rank = bucket.gradient.clone(), self.worker.rank\n"
    text, _, methods = EXCHANGE[fault].partition("\n\n")
    code, said, path = run(tmp_path, head + setup + indented(text, 4) + "\n" + methods, monkeypatch)
    expect(path, code, said)


@pytest.mark.parametrize("fault", CLASS)
def test_of_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    code, said, path = run(tmp_path, CLASS[fault], monkeypatch)
    expect(path, code, said)


def test_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said, path = run(tmp_path, "about = undefined  # HERE", monkeypatch)
    expect(path, code, said)


def test_leaving_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "def exchange(self, bucket, step):\n    raise SystemExit(0)  # HERE"
    code, said, path = run(tmp_path, body, monkeypatch)
    expect(path, code, said)
    assert not (tmp_path / "out/results.json").exists()


def test_what_a_compressor_prints_is_not_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (
        "def exchange(self, bucket, step):\n    print('hello')\n"
        "    total = yield AllReduce(tensor=bucket.gradient.clone())\n"
        "    return total / self.worker.count"
    )
    code, said, _ = run(tmp_path, body, monkeypatch)
    assert code == 0, said
    assert "hello" in said
    assert json.loads(STDOUT[-1])["rows"]


def test_nothing_sent_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero bytes have no ratio; the row stands in the result all the same."""
    body = "def exchange(self, bucket, step):\n    yield from ()\n    return 0 * bucket.gradient"
    code, said, _ = run(tmp_path, body, monkeypatch)
    assert code == 0, said
    row = json.loads((tmp_path / "out/results.json").read_text())["rows"][-1]
    assert (row["wire_bytes_per_worker"], row["compression_ratio"]) == (0, None)
    dense = json.loads((tmp_path / "out/results.json").read_text())["rows"][0]
    assert dense["compression_ratio"] == 1
