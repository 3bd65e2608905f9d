"""Write docs/gpu-measured.md from the files of `make gpu`."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gcsim.files import markdown_table
from tests.benchmarks.gpu.crew import read

Rows = list[dict[str, str]]


def page(folder: Path) -> Iterator[str]:
    """Yield the page as Markdown, without parts that have no file."""
    yield "# Measured on a GPU"
    yield ""
    yield "Written by `make gpu`. One GPU, one rank; [gpu.md](gpu.md) explains the results."
    for part, (title, text, shown) in _TABLES.items():
        if (file := folder / f"{part}.csv").is_file():
            conditions, rows = read(file)
            yield from ("", f"## {title}", "", f"{text} {conditions}", "")
            yield from shown(rows)
    for part in ("calibrate", "main"):
        if (file := folder / f"{part}.txt").is_file():
            text = file.read_text(encoding="utf-8", errors="replace").rstrip()
            yield from ("", f"## {part.capitalize()}", "", "```", text, "```")


def _correct(rows: Rows) -> Iterator[str]:
    columns = ("method", "payloads", "updates", "where", "checks", "seconds")
    yield from _table(columns, [row for row in rows if not row["error"]])
    yield from _errors(rows)


def _hook(rows: Rows) -> Iterator[str]:
    yield from _table(("method", "updates", "seconds"), [row for row in rows if not row["error"]])
    yield from _errors(rows)


def _deployed(rows: Rows) -> Iterator[str]:
    dense = {row["model"]: row["iteration_ms"] for row in rows if row["hook"] == "dense"}
    for row in rows:
        if row["iteration_ms"] and dense.get(row["model"]):
            row["times dense"] = f"{float(row['iteration_ms']) / float(dense[row['model']]):.2f}"
    columns = ("model", "hook", "parameters", "iteration_ms", "times dense", "warm_up_s")
    counts = ("computed_ms", "exchanged_ms", "device_us", "launches", "triton_launches", "waits")
    yield from _table((*columns, *counts), [row for row in rows if not row["error"]])
    yield from _errors(rows)


def _stages(rows: Rows) -> Iterator[str]:
    timed = [row for row in rows if not row["error"]]
    yield from _table(("data", "total_us", "host_us"), _of(timed, yardstick=True))
    yield ""
    columns = ("method", "phase", "data", "stage", "total_us", "host_us", "device_us")
    counts = ("launches", "triton_launches", "operators", "waits", "left_out_us")
    yield from _table((*columns, *counts), _of(timed, yardstick=False))
    yield from _errors(rows)


def _of(rows: Rows, *, yardstick: bool) -> Rows:
    return [row for row in rows if (row["method"] == "yardstick") == yardstick]


def _table(columns: Sequence[str], rows: Iterable[dict[str, str]]) -> Iterator[str]:
    headings = [name.replace("_", " ") for name in columns]
    lines = ([row.get(name) or "" for name in columns] for row in rows)
    yield from markdown_table(headings, lines, numbers=False)


def _errors(rows: Rows) -> Iterator[str]:
    """Yield failures and timeouts."""
    for row in rows:
        name = " ".join(row[key] for key in ("model", "hook", "method") if row.get(key))
        if wrong := row["error"] or row.get("failed"):
            yield from ("", f"- `{name}`: {wrong}")


_TABLES = {
    "correct": (
        "Correct",
        "Payloads and updates of two workers in three steps, compared with the CPU's byte for "
        "byte, and the checks of `gcsim.compressors.check` with gradients on the GPU.",
        _correct,
    ),
    "hook": (
        "Hook",
        "Updates of `gcsim.ddp_hook`, compared with those of workers in lockstep on the CPU.",
        _hook,
    ),
    "deployed": (
        "Training steps",
        "Median time of whole steps under DDP; kernels are compiled in the warm-up. Device time "
        "and counts come from one additional, profiled step.",
        _deployed,
    ),
    "stages": (
        "Stages",
        "Microseconds to encode and to decode one payload, from an idle GPU: until the GPU has "
        "finished (total), until the host has queued the work (host), and while the GPU is busy "
        "(device). gcsim does not price *left out*: checksums and checks of received data.",
        _stages,
    ),
}
