"""Processes that start together, as DDP's ranks do, compile a loop once for all."""

import subprocess
import sys
from pathlib import Path

import pytest

RANK = """
import sys
import numpy as np
from gcsim.compressors.coding.scans import greatest_magnitude
print("ready", flush=True)
sys.stdin.readline()
greatest_magnitude(np.ones(3, dtype=np.float32))
compiled = sum(greatest_magnitude.stats.cache_misses.values())
print(compiled, "numba.np.linalg" in sys.modules)  # which numba needs in order to compile
"""


def test_one_of_two_processes_compiles_and_the_other_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]  # fmt: skip
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("go\n")
            rank.stdin.flush()
        found = [rank.communicate(timeout=60)[0].split() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert sorted(found) == [["0", "False"], ["1", "True"]]
