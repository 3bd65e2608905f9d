"""The peak of an exchange's memory, by method. A script: `python -m tests.compressors.peak_memory`.

What is printed is JSON: floats an element beyond the state. The argument: the most that some
methods state, by name, as JSON.
"""

import ctypes
import gc
import json
import sys
from pathlib import Path

import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.registry import REGISTRY, create

N = 1 << 22
M_MMAP_THRESHOLD = -3
"""Constant of glibc's malloc.h."""
PR_SET_THP_DISABLE = 41
"""Constant of Linux's prctl.h."""


def main() -> None:
    # numpy asks for pages of 2 MB; whether there are any depends on what else the machine does
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    stated = json.loads(sys.argv[1])
    print(json.dumps({name: _least(name, stated.get(name, 6.0)) for name in REGISTRY}))


def _least(name: str, enough: float) -> float:
    """The smallest of three peaks, which is the exchange's: others in this process only add."""
    peaks: list[float] = []
    while not peaks or (min(peaks) > enough and len(peaks) < 3):
        peaks.append(_peak(name))
    return min(peaks)


def _peak(name: str) -> float:
    """Floats an element, of one worker and one matrix of 4 Mi elements, in the third step: the
    state exists. The peak of the resident memory covers torch, numpy and compiled loops; 8 MB are
    for everything else."""
    layout = BucketLayout.behind(0, [("weight", 0, (1 << 11, N >> 11))])
    gradient = torch.randn(N, generator=torch.Generator().manual_seed(1))
    member = create(name, Worker(rank=0, count=1, seed=0))
    moment = gradient.square() if member.requires else None
    bucket = Bucket(layout=layout, gradient=gradient, second_moment=moment)
    first = type(member).warmup_steps(type(member).Parameters())

    def step(number: int) -> None:
        with torch.no_grad():
            lockstep([member.exchange(bucket, first + number)])

    step(0)
    step(1)
    gc.collect()
    # glibc's threshold adapts to what was freed before, by whichever test: arrays of 16 MB then
    # come from a heap with gaps. Set by hand it stays, and they are mapped and given back whole.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
    before, code = _status("VmRSS"), _status("RssFile")
    step(2)
    # A busy machine takes back the pages of libraries that nobody used for a while, and the step
    # reads them again: files are no memory of the method's.
    read_again = max(0, _status("RssFile") - code)
    return (_status("VmHWM") - before - read_again - 8e6) / (4 * N)


def _status(key: str) -> int:
    """Bytes, from /proc/self/status."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {key}")


if __name__ == "__main__":
    main()
