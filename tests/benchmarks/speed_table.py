"""Write docs/compressor-speed.md from the results of `test_bench_compressors.py`.

python tests/benchmarks/speed_table.py measured.json > docs/compressor-speed.md
"""

import json
import sys
from typing import Any

PEERS = {
    "topk": ("GRACE", "72-97"),
    "dgc": ("GRACE / authors' code", "9-16 / 8-12"),
    "threshold": ("GRACE", "5-10"),
    "qsgd": ("GRACE", "23-49"),
    "terngrad": ("GRACE", "28-46"),
    "onebit_sgd": ("GRACE", "36-60"),
    "ef_signsgd": ("GRACE", "3"),
    "signsgd": ("GRACE", "1.5-1.9"),
    "randomk": ("GRACE", "190-213"),
    "sidco": ("authors' code", "21-54"),
    "powersgd": ("GRACE, epfml", "15-21"),
    "natural": ("GRACE (numpy instead of cupy)", "59-63"),
    "count_sketch": ("FetchSGD's CSVec", "123-198"),
    "torch_powersgd": ("PyTorch's whole hook", "10-31"),
    "torch_fp16": ("PyTorch's whole hook", "2.5"),
    "torch_bf16": ("PyTorch's whole hook", "2.8"),
}
"""Times to encode 61 M elements, in copies, without packing, on a machine of the same kind."""

HEAD = """# Speed of the compressors on a CPU

Times to encode and to decode one message, in units of a `copy_` of the same tensor into a warm
buffer in the same run (one copy of 61 M float32 took {copy} on this machine: 488 MB moved), and
bits on the wire, headers included. One tensor, N(0, 1) exp(.8 N(0, 1)) 1e-3, default parameters,
minimum of several rounds; the allocator keeps freed memory. Every payload is packed.

Measured {date} on {cpu}, at most {threads} threads, Python {python}. The machine is virtual and
shared: figures may be off by a third. Command: `make speed`.

*Encode* is all computation of a worker before its last collective; *decode* is the computation
after it, for one payload. All-gather methods decode once per worker. *Public code* gives times of
published implementations for encoding 61 M elements, with two threads to one thread, mostly
without packing the payload (GRACE fd3a7f4, DGC 24673d4, SIDCo 197f3c3, FetchSGD's csh, epfml's
PowerSGD f07be92, PyTorch 2.13; measured on a machine of the same kind with a warm allocator).

"""

COLUMNS = (
    "method", "step", "bits/element", "encode 1 M", "10 M", "61 M", "61 M, 1 thread",
    "decode 1 M", "10 M", "61 M", "61 M, 1 thread", "public code",
)  # fmt: skip


def page(measured: dict[str, Any]) -> str:
    """Return the page as Markdown from pytest-benchmark's JSON."""
    cells: dict[tuple[str, str], dict[tuple[int, int], dict[str, float]]] = {}
    copy = ""
    for benchmark in measured["benchmarks"]:
        info = benchmark["extra_info"]
        if "label" not in info:
            continue
        for row in info["phases"]:
            at = cells.setdefault((info["label"], row["phase"]), {})
            at[info["n"], info["threads"]] = row
            if (info["n"], info["threads"]) == (61_000_000, 2):
                copy = f"{row['copy_s'] * 1e3:.1f} ms"
    machine = measured["machine_info"]
    lines = [
        HEAD.format(
            copy=copy,
            date=measured["datetime"][:10],
            cpu=machine["cpu"].get("brand_raw", machine["machine"]),
            threads=2,
            python=machine["python_version"],
        ).rstrip("\n"),
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "|".join(["---", "---", *["--:"] * 9, "---"]) + "|",
    ]
    million = 1_000_000
    columns = [(million, 2), (10 * million, 2), (61 * million, 2), (61 * million, 1)]
    for (label, phase), rows in cells.items():
        bits = rows.get((61 * million, 2), next(iter(rows.values())))["bits"]
        encode = [_ratio(rows.get(c), "encode") for c in columns]
        decode = [_ratio(rows.get(c), "decode") for c in columns]
        who, what = PEERS.get(label, ("", ""))
        peer = f"{what} ({who})" if what else ""
        lines.append(
            "| " + " | ".join([f"`{label}`", phase, f"{bits:.4g}", *encode, *decode, peer]) + " |"
        )
    return "\n".join(lines) + "\n"


def _ratio(row: dict[str, float] | None, key: str) -> str:
    return "" if row is None else f"{row[key]:.2f}" if row[key] < 9.95 else f"{row[key]:.0f}"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write(page(json.load(file)))
