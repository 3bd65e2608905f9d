"""`make gpu`: measure gcsim on this machine's GPU, within eight minutes.

    PYTHONPATH=. python -m tests.benchmarks.gpu [correct|hook|deployed|stages|calibrate|main ...]

Each part writes its own file (build/gpu/PART.csv or .txt) line by line, within its share of the
time; a part that runs out of time keeps its lines. After each part, docs/gpu-measured.md and the
files of `shipped.py` are written from all existing files; the part `page` does only that. Exit code
2 without a GPU; `--device cpu --only fp16 --tiny` runs the same code on a CPU.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from gcsim.compressors.registry import REGISTRY
from gcsim.scenarios.calibration import machine
from tests.benchmarks.gpu import correct, deployed, shipped, stages
from tests.benchmarks.gpu.crew import Table, Task, work
from tests.benchmarks.gpu.page import page

FIRST = (
    "topk", "qsgd", "fp16", "ef_signsgd", "onebit_adam", "powersgd", "dgc",
    "gradient_sampling_bayes", "signsgd", "terngrad", "natural", "fp8", "threshold", "sidco",
    "randomk", "scaled_sign", "bingrad_b", "orq", "variance", "strom",
)  # fmt: skip
"""Methods that run first, in case time runs out."""
DATA: tuple[stages.Data, ...] = (
    ("1000000", None), ("7000000", None), ("25000000", None), ("61000000", None),
    ("bert_base", 5), ("resnet50", 3),
)  # fmt: skip
MODELS = (("bert_base", 32), ("resnet50", 64))
TINY_DATA: tuple[stages.Data, ...] = (("2500", None), ("lenet", 0))
TINY_MODELS = (("lenet", 2),)


SECONDS = {
    "correct": 110, "hook": 35, "deployed": 105, "stages": 90, "calibrate": 70, "main": 50,
    "page": 5,
}  # fmt: skip
"""Time limit of each part in seconds; eight minutes with the start of the command."""


class Plan(NamedTuple):
    """Methods and device to measure, and the output folder."""

    folder: Path
    device: str
    names: Sequence[str]
    tiny: bool

    @property
    def cores(self) -> int:
        """Number of concurrent processes."""
        return 2 if self.tiny else os.cpu_count() or 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: {', '.join(PARTS)}")
    parser.add_argument("--only", metavar="NAME,NAME", help="only these methods")
    parser.add_argument("--device", default="cuda", help="cpu: try the code without a GPU")
    parser.add_argument("--tiny", action="store_true", help="short tensors and a small network")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), metavar="FOLDER")
    parser.add_argument("--page", type=Path, default=Path("docs/gpu-measured.md"), metavar="FILE")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part {min(unknown)!r}; known: {', '.join(PARTS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"error: PyTorch {torch.__version__} sees no NVIDIA GPU here", file=sys.stderr)
        sys.exit(2)
    names = options.only.split(",") if options.only else sorted(REGISTRY, key=_turn)
    plan = Plan(options.out, options.device, names, options.tiny)
    plan.folder.mkdir(parents=True, exist_ok=True)
    for part in options.parts or PARTS:
        begun = time.monotonic()
        PARTS[part](plan)
        _say(f"{part}: {time.monotonic() - begun:.0f} s")
        options.page.write_text("\n".join(page(plan.folder)) + "\n", encoding="utf-8")
        written = [options.page, *shipped.write(plan.folder)]
    _say(f"written: {', '.join(map(str, written))}")


def _correct(plan: Plan) -> None:
    items = [(name, plan.device) for name in plan.names]
    _table(plan, "correct", correct.COLUMNS, correct.correct, items, limit=90)


def _hook(plan: Plan) -> None:
    items = [(name, plan.device) for name in plan.names]
    _table(plan, "hook", correct.HOOK_COLUMNS, correct.hook, items, limit=30)


def _deployed(plan: Plan) -> None:
    items = [
        (model, batch, kind, given, plan.device)
        for kind, given in deployed.HOOKS
        for model, batch in (TINY_MODELS if plan.tiny else MODELS)
        if not plan.tiny or kind in ("dense", "torch powerSGD_hook", *plan.names)
    ]
    _table(plan, "deployed", deployed.COLUMNS, deployed.deployed, items, limit=40, one=True)


def _stages(plan: Plan) -> None:
    data = TINY_DATA if plan.tiny else DATA
    items = [(name, data, plan.device) for name in ["yardstick", *plan.names]]
    _table(plan, "stages", stages.COLUMNS, stages.stages, items, limit=30, one=True)


def _table(
    plan: Plan,
    part: str,
    columns: Sequence[str],
    task: Task,
    items: Sequence[tuple[Any, ...]],
    *,
    limit: float,
    one: bool = False,
) -> None:
    """Write PART.csv; `one`: in one process, so that nothing disturbs the timing."""
    conditions = f"{machine.conditions(plan.device)} {datetime.now(UTC).date().isoformat()}"
    processes = 1 if one else plan.cores
    with Table(plan.folder / f"{part}.csv", conditions, columns) as table:
        for item, row in work(task, items, processes=processes, limit=limit, seconds=SECONDS[part]):
            known = dict(zip(columns, item, strict=False))
            if part == "deployed":
                known = dict(zip(("model", "batch", "hook"), item, strict=False))
            elif part != "correct":
                known = {"method": item[0]}
            table.add({**known, **row})
            if "error" in row:
                _say(f"{part}: {' '.join(map(str, known.values()))}: {row['error'][:300]}")


def _calibrate(plan: Plan) -> None:
    file = str(plan.folder / f"{shipped.CALIBRATED}.yaml")
    arguments = ["calibrate", "device", "--quick", "--device", plan.device, "-o", file]
    _command(plan, "calibrate", arguments)


def _main(plan: Plan) -> None:
    scenario = "lenet_2node" if plan.tiny else "alexnet_32node"
    with TemporaryDirectory() as folder:
        _command(plan, "main", ["run", scenario, "--no-cache", "-o", f"{folder}/run"])


def _command(plan: Plan, part: str, arguments: Sequence[str]) -> None:
    """Write the output of a gcsim command and its time to PART.txt."""
    begun = time.monotonic()
    with (plan.folder / f"{part}.txt").open("w", encoding="utf-8") as file:
        file.write(f"$ gcsim {' '.join(arguments)}\n")
        file.flush()
        command = [sys.executable, "-m", "gcsim", *arguments]
        try:
            ended = subprocess.run(
                command, stdout=file, stderr=file, timeout=SECONDS[part], check=False
            )
            how = f"exit code {ended.returncode}"
        except subprocess.TimeoutExpired:
            how = "not done"
        file.write(f"\n{how} after {time.monotonic() - begun:.1f} s\n")


PARTS: dict[str, Callable[[Plan], None]] = {
    "correct": _correct,
    "hook": _hook,
    "deployed": _deployed,
    "stages": _stages,
    "calibrate": _calibrate,
    "main": _main,
    "page": lambda _: None,
}


def _turn(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
