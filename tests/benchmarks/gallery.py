"""The page `docs/compressors.md`, from the registry.

python -m tests.benchmarks.gallery > docs/compressors.md        (make gallery)
"""

import sys
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from gcsim.cli.list import Entry, Kind, details, entries
from gcsim.cli.terminal import default_text, push_pull_line
from gcsim.files import markdown_table

_ABOUT = {
    "dense": "The baseline.",
    "sparsification": "Only some elements are sent.",
    "quantization": "Every element is sent, in fewer bits.",
    "low rank": "Thin factors of the gradient matrix are sent.",
    "sketching": "A linear sketch is sent.",
    "local updates": "Replicas train independently between synchronisations.",
    "reference": "PyTorch's own communication hooks, for comparison.",
}


def page() -> str:
    """The whole page, Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    found = [details(Kind.compressors, entry["name"]) for entry in entries(Kind.compressors)]
    yield "# The compressors"
    yield ""
    yield (
        f"{len(found)} methods, each the published algorithm with a real packed payload. Bits are "
        "those of the payload, per element of the tensor; every message also has a header of 20 "
        "bytes per tensor. Times on a CPU: [compressor-speed.md](compressor-speed.md). "
        "`make gallery` writes this page from the registry."
    )
    yield ""
    headings = ("name", "method", "collective", "bits per element", "bias", "state")
    rows = [
        (
            f"[`{entry['name']}`](#{entry['name']})",
            entry["title"],
            entry["collective"],
            entry["bits"],
            "unbiased" if entry["unbiased"] else "biased",
            entry["state"],
        )
        for entry in found
    ]
    yield from markdown_table(headings, rows, numbers=False)
    for family, members in groupby(found, key=itemgetter("family")):
        yield ""
        yield f"## {family.capitalize()}"
        yield ""
        yield _ABOUT[family]
        first: dict[str, str] = {}  # methods by the text that they share
        for entry in members:
            yield from _entry(entry, first.setdefault(entry["summary"], entry["name"]))


def _entry(entry: Entry, described: str) -> Iterator[str]:
    path = entry["module"].removeprefix("gcsim.").replace(".", "/") + ".py"
    yield ""
    yield f"### {entry['name']}"
    yield ""
    yield f"**{entry['title']}.** {entry['paper']}. Source: [{path}](../{path})."
    yield ""
    if described == entry["name"]:
        yield from ("```text", entry["summary"], "```")
    else:
        yield f"The text is that of [`{described}`](#{described})."
    if entry["requires"]:
        yield ""
        yield f"Needs of the gradients: {', '.join(entry['requires']).replace('_', ' ')}."
    if entry["without_server"]:
        yield ""
        yield f"{push_pull_line(entry).capitalize()}."
    if entry["parameters"]:
        yield ""
        headings = ("parameter", "default", "accepts", "meaning")
        rows = [
            (f"`{one['name']}`", f"`{default_text(one)}`", one["range"], one["meaning"])
            for one in entry["parameters"]
        ]
        yield from markdown_table(headings, rows, numbers=False)


if __name__ == "__main__":
    sys.stdout.write(page())
