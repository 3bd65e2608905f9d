"""Logs of measured collectives: nccl-tests, Gloo's benchmark, CSV; and the links fitted to them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.mutation import pick
from tests.fuzz.small import written

_DATA = Path(__file__).parents[2] / "analysis" / "calibration" / "data"
_SHORT = """collective,ranks,bytes,seconds
all_reduce,4,1024,0.0004
all_reduce,4,1048576,0.0031
all_gather,4,16777216,0.045
"""


def _make(rng: Random, one: Try) -> None:
    write(one.folder / "log.txt", pick(rng, _texts()))
    options: list[object] = []
    if choose(rng, 0.2):
        options += rng.choice(
            (["--format", rng.choice(("csv", "gloo", "nccl-tests"))], ["--ranks", "2"],
             ["--devices-per-node", "2"], ["--collective", "all_gather"], ["--algorithm", "ring"],
             ["--line-rate", rng.choice(("10 Gbit/s", "0 bit/s", "1e308 Gbit/s"))])
        )  # fmt: skip
    done = one.gcsim("calibrate", "link", "log.txt", "-o", "mine.yaml", *options)
    if done is not None and done.returncode == 0:
        written(one.folder, cluster={"network": "mine.yaml"})
        checked = one.gcsim("check", "s.yaml")
        if checked is not None and checked.returncode != 0:
            one.found.append(f"a fitted link is refused: {checked.stderr.splitlines()[0][:200]}")


@cache
def _texts() -> tuple[str, ...]:
    return (_SHORT, *(path.read_text(encoding="utf-8") for path in sorted(_DATA.iterdir())))


LOGS = Kind(name="logs", make=_make)
