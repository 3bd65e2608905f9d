"""Which mutated inputs does gcsim not survive? `make fuzz`; see docs/fuzzing.md."""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: the tries share the cores

from tests.fuzz.pool import PREPARE, Job, run
from tests.fuzz.registry import KINDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Try, tell, and give 1 where something was found."""
    asked = _parsed(arguments)
    unknown = set(asked.only) - KINDS.keys()
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}", file=sys.stderr)
        return 2
    kinds = [KINDS[name] for name in asked.only or KINDS]
    preparing = [Job(kind.name, asked.seed, PREPARE) for kind in kinds]
    for job, outcome in run(preparing, asked.build, processes=asked.jobs):
        if outcome.found:
            print(f"{job.kind}: cannot be prepared: {outcome.found[0]}", file=sys.stderr)
            return 2
    same: dict[str, list[Job]] = {}
    for kind in kinds:
        started, bad = time.monotonic(), 0
        count = max(1, asked.count // kind.one_in)
        jobs = (Job(kind.name, asked.seed, asked.first + n) for n in range(count))
        ends: Counter[str] = Counter()
        for job, outcome in run(jobs, asked.build, processes=asked.jobs):
            bad += bool(outcome.found)
            ends.update(outcome.ends)
            for text in outcome.found:
                if text not in same:
                    again = f"ONLY={job.kind} SEED={job.seed} FIRST={job.number} COUNT=1"
                    print(f"  {text}\n    make fuzz {again}; {asked.build / job.name}", flush=True)
                same.setdefault(text, []).append(job)
        taken = time.monotonic() - started
        codes = ", ".join(f"{end}: {times}" for end, times in sorted(ends.items()))
        told = f"{count} tried, {bad} with findings, {taken:.0f} s (exit codes: {codes})"
        print(f"{kind.name}: {told}", flush=True)
    for text, found in sorted(same.items(), key=lambda entry: -len(entry[1])):
        print(f"{len(found):6} x {text} (first: {found[0].name})")
    return 1 if same else 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="tries of each kind; see docs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first try")
    only = ", ".join(KINDS)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help=only)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--build", type=Path, default=Path("build/fuzz").resolve())
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
