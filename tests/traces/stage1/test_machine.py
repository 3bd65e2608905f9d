"""Threads and processor belong to a profile's name: torch is the oracle of its own threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.running.keys import profile_key
from gcsim.traces.stage1 import machine
from tests.process import printed

BEFORE_AND_AFTER = """
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
from gcsim.traces.stage1 import machine
guess = machine.threads()
with machine.all_cores():
    all = machine.threads()
assert "torch" not in sys.modules
import torch
print(guess, torch.get_num_threads(), all)
torch.set_num_threads(3)
assert machine.threads() == 3
"""
NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        (1, ""),
        (2, "OMP=1"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in [(2, ""), (1, "OMP=999"), (2, "MKL=1"), (1, "OMP=2,1"), (2, "OMP=two")]
        ),
    ],
)
def test_the_threads_that_torch_would_have(cores: int, said: str) -> None:
    plain = {key: value for key, value in os.environ.items() if key not in NAMES}
    library, _, number = said.partition("=")
    told = {f"{library}_NUM_THREADS": number} if said else {}
    done = subprocess.run(
        [sys.executable, "-c", BEFORE_AND_AFTER, str(cores)],
        env=plain | told, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    guess, found, all_cores = map(int, done.stdout.split())
    assert guess == found
    assert all_cores <= cores
    assert told or all_cores == found


INTEL = """processor : 0
vendor_id : GenuineIntel
cpu family : 6
model : 167
cpu MHz : 2600.000
flags : fpu sse2 avx2 fma ibrs

processor : 1
flags : other
"""
ARM = "processor : 0\nFeatures : fp asimd sve\nCPU implementer : 0x41\nCPU part : 0xd40\n"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (INTEL, True),
        (INTEL.replace("2600", "1200"), True),  # it saves power
        (INTEL.replace("ibrs", "ibpb"), True),  # another kernel
        (INTEL.replace("avx2", "avx2 avx512f"), False),
        (INTEL.replace("GenuineIntel", "AuthenticAMD"), False),
        (INTEL.replace("167", "168"), False),
        (ARM, False),
    ],
)
def test_a_processor_is_another_where_libraries_take_other_loops(
    tmp_path: Path, text: str, same: bool
) -> None:
    (tmp_path / "one").write_text(INTEL)
    (tmp_path / "other").write_text(text)
    one, other = (machine.processor(tmp_path / name) for name in ("one", "other"))
    assert (one == other) == same
    assert machine.processor(tmp_path / "none")  # of another system


@pytest.mark.parametrize("source", ["live", "synthetic"])
def test_a_profiles_name_has_threads_and_processor(
    monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    scenario = load_scenario("lenet_2node", [f"gradients={{source: {source}}}"])
    choice = scenario.compressors[0]
    names = {profile_key(scenario, choice)}
    monkeypatch.setattr(machine, "threads", lambda: 77)
    names.add(profile_key(scenario, choice))
    monkeypatch.setattr(machine, "processor", lambda: ["another"])
    names.add(profile_key(scenario, choice))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    names.add(profile_key(scenario, choice))
    assert len(names) == 4


SCENARIO = """
model: {build: "net:build", input_shape: [3, 16, 16], classes: 10}
batch_size: 32
gradients: {source: live, workers: 2, iterations: 2, warmup_steps: 2}
compute: {forward: 1 ms, backward: 2 ms}
cluster: {nodes: [2], devices_per_node: 1, device: v100, network: 10gbe}
compressors: [none, {kind: powersgd, rank: 2}, {kind: threshold, threshold: 0.001}]
"""
NET = """
from torch import nn


def build():
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1),
                         nn.Flatten(), nn.Linear(8192, 10))
"""


@pytest.mark.long
def test_a_warm_run_gives_the_figures_of_a_cold_one(tmp_path: Path) -> None:
    """A cache that was filled with one thread, and two threads: as with an empty cache."""
    (tmp_path / "s.yaml").write_text(SCENARIO)
    (tmp_path / "net.py").write_text(NET)

    def rows(cache: str, threads: str) -> object:
        command = ("-m", "gcsim", "run", "s.yaml", "-q", "--json")
        own = str(tmp_path / cache)
        said = printed(*command, folder=tmp_path, GCSIM_CACHE_DIR=own, OMP_NUM_THREADS=threads)
        return json.loads(said)["rows"]

    with_one = rows("cache", "1")
    with_two = rows("cache", "2")
    assert with_two == rows("empty", "2")
    assert with_one != with_two or len(os.sched_getaffinity(0)) == 1  # else nothing was tried
