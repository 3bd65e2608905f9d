"""Which formats of measurements are read? A new format is a file and a line here.

Each module has `recognised`, whether a text is of its format, and `parse`, a `Parser`. They are
named and not imported, so that the command line can list them and stay quick.
"""

from __future__ import annotations

from typing import NamedTuple

_HERE = __name__.rpartition(".")[0]


class Format(NamedTuple):
    """What reads a format, and how a person knows it."""

    module: str
    told: str


FORMATS: dict[str, Format] = {
    name: Format(f"{_HERE}.{module}", told)
    for name, module, told in (
        ("nccl-tests-json", "nccl_tests_json", "what nccl-tests writes with -J FILE"),
        ("horovod", "horovod", "a timeline of Horovod (HOROVOD_TIMELINE)"),
        ("flight-recorder", "flight_recorder", "PyTorch's flight recorder, as JSON"),
        ("torch-profile", "torch_profile", "PyTorch's profile (Kineto) with NCCL's kernels"),
        ("nccl-tests", "nccl_tests", "what nccl-tests prints, from its '# nThread ...' line on"),
        ("gloo", "gloo_log", "what Gloo's benchmark prints"),
        ("iperf3", "iperf3", "what iperf3 -c prints, or its JSON (-J)"),
        ("ping", "ping", "what ping prints"),
        ("deepspeed", "deepspeed", "DeepSpeed's communication log: log_summary() or verbose lines"),
        ("csv", "csv_table", "CSV with the header collective,ranks,bytes,seconds"),
    )
}
"""By the name that --format takes, in the order in which a text is tried: JSON may be long and is
told at once, the others line by line."""
