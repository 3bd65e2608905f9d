"""Table of formats of measurements; a new format needs a module and a line here.

Each module has `recognised`, `parse` (file's name, content, `Stated`), and `HEADINGS` if its table
may follow a prefix. Modules are imported on use, which keeps the command line fast.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["text", "JSON object", "JSON list"]
_HERE = __name__.rpartition(".")[0]


class Format(NamedTuple):
    """Reader of a format, the content it accepts, and its title."""

    module: str
    takes: tuple[Kind, ...]
    title: str


_FORMATS: tuple[tuple[str, str, tuple[Kind, ...], str], ...] = (
    ("nccl-tests-json", "nccl_tests_json", ("JSON object",), "JSON of nccl-tests (-J FILE)"),
    ("horovod", "horovod", ("JSON list",), "a timeline of Horovod (HOROVOD_TIMELINE)"),
    ("flight-recorder", "flight_recorder", ("JSON object",), "PyTorch's flight recorder, as JSON"),
    ("torch-profile", "torch_profile", ("JSON object",),
     "PyTorch's profile (Kineto) with NCCL's kernels"),
    ("nccl-tests", "nccl_tests", ("text",),
     "output of nccl-tests, from its '# nThread ...' line on"),
    ("gloo", "gloo_log", ("text",), "output of Gloo's benchmark"),
    ("iperf3", "iperf3", ("text", "JSON object"), "output of iperf3 -c, or its JSON (-J)"),
    ("ping", "ping", ("text",), "output of ping"),
    ("deepspeed", "deepspeed", ("text",),
     "DeepSpeed's communication log: log_summary() or verbose lines"),
    ("csv", "csv_table", ("text",), "CSV with the header collective,ranks,bytes,seconds"),
)  # fmt: skip

FORMATS: dict[str, Format] = {
    name: Format(f"{_HERE}.{module}", takes, title) for name, module, takes, title in _FORMATS
}
"""Formats by their names for `--format`."""
