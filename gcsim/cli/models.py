"""How are models listed? One line each, by what they take; one of them in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gcsim.cli.list import Entry

ABOUT_MODELS = ("One model with its paper: gcsim list models NAME.",)
"""What stands below the tables."""

HEADINGS = ("name", "parameters", "sample", "what it is")


def model_tables(entries: Sequence[Entry]) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Title and rows (see `HEADINGS`): of models of images, of tokens, and tables of layers."""
    kinds = {
        "Images": [e for e in entries if e["build"] and e["input"] == "samples"],
        "Sequences of tokens": [e for e in entries if e["build"] and e["input"] == "tokens"],
        "Tables of layers: nothing to train, synthetic gradients only": [
            e for e in entries if not e["build"]
        ],
    }
    for title, members in kinds.items():
        if members:
            yield title, [_row(entry) for entry in members]


def model_details(entry: Entry) -> Iterator[tuple[str, str]]:
    """Label and text of each thing that is known of a model."""
    from gcsim.traces.tasks.registry import TASKS

    count = entry["parameters"]
    if count is not None:
        yield "parameters", f"{count:,}; gradients of {4 * count / 1e6:,.4g} MB in float32"
    yield "sample", _sample(entry, " x ")
    yield (
        "output",
        f"{entry['classes']:,} "
        + ("classes" if entry["input"] == "samples" else "kinds of tokens"),
    )
    if entry["auxiliary_weight"]:
        yield (
            "loss",
            "that of the last classifier and "
            f"{entry['auxiliary_weight']:g} times that of each one inside the network",
        )
    if entry["build"]:
        task = TASKS.get(entry["task"])
        yield "task", entry["task"] + (f": {task.title}" if task else "")
        yield "built by", entry["build"]
    else:
        forward = sum(layer["forward_flops"] for layer in entry["layers"])
        yield "layers", f"{len(entry['layers'])}, forward {forward:,} FLOPs a sample"
    if entry["paper"]:
        yield "paper", entry["paper"]


def _row(entry: Entry) -> tuple[str, ...]:
    count = entry["parameters"]
    size = "" if count is None else f"{count:,}"
    return entry["name"], f"{size:>11}", _sample(entry, "x"), entry["title"]


def _sample(entry: Entry, times: str) -> str:
    if entry["input"] == "tokens":
        return f"{entry['input_shape'][0]} tokens"
    return times.join(map(str, entry["input_shape"]))
