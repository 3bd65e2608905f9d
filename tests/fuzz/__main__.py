"""Which mutated inputs does gcsim not survive? `make fuzz`; see docs/fuzzing.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: the tries share the cores

from tests.fuzz.pool import Job, run
from tests.fuzz.registry import KINDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Try, tell, and give 1 where something was found."""
    asked = _parsed(arguments)
    unknown = set(asked.only) - KINDS.keys()
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}", file=sys.stderr)
        return 2
    asked.build.mkdir(parents=True, exist_ok=True)
    kinds = [KINDS[name] for name in asked.only or KINDS]
    for _ in run(
        [Job(kind.name, asked.seed, -1) for kind in kinds], asked.build, processes=asked.jobs
    ):
        pass
    same: dict[str, list[Job]] = {}
    for kind in kinds:
        started, bad = time.monotonic(), 0
        count = max(1, asked.count // kind.one_in)
        jobs = (Job(kind.name, asked.seed, asked.first + n) for n in range(count))
        for job, found in run(jobs, asked.build, processes=asked.jobs):
            bad += bool(found)
            for text in found:
                if text not in same:
                    again = f"ONLY={job.kind} SEED={job.seed} FIRST={job.number} COUNT=1"
                    print(f"  {text}\n    make fuzz {again}; {asked.build / job.name}", flush=True)
                same.setdefault(text, []).append(job)
        taken = time.monotonic() - started
        print(f"{kind.name}: {count} tried, {bad} with findings, {taken:.0f} s", flush=True)
    for text, found in sorted(same.items(), key=lambda entry: -len(entry[1])):
        print(f"{len(found):6} x {text} (first: {found[0].name})")
    return 1 if same else 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="tries of each kind; see docs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first try")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help=", ".join(KINDS))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--build", type=Path, default=Path("build/fuzz"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
