"""A file with one link, read as a scenario's cluster is."""

from pathlib import Path
from typing import Annotated

from pydantic import Discriminator, Tag

from gcsim.errors import InputError
from gcsim.scenarios.links.rate_trace import read_traces
from gcsim.scenarios.reading.checking import NAMED, SPELLED_OUT, Section, by_shape, check
from gcsim.scenarios.reading.document import Document, read, read_file
from gcsim.scenarios.sections.link import LinkSection, build_link
from gcsim.simulator.network.links import Link
from tests.scenarios.files import told


class File(Section):
    """A link in a file, as a scenario's cluster has it."""

    network: Annotated[
        Annotated[str, Tag(NAMED)] | Annotated[LinkSection, Tag(SPELLED_OUT)],
        Discriminator(by_shape),
    ]


def built(document: Document, path: Path) -> Link:
    file, problems = check(File, document)
    if file is not None:
        problems += read_traces(file, document, path)
    if problems or file is None:
        raise InputError(document.sorted(problems))
    return build_link(file.network)


def load(text: str, tmp_path: Path) -> Link:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    return built(read_file(path), path)


def link(text: str) -> Link:
    return built(read(f"network: {text}", "a.yaml"), Path("a.yaml"))


def problems(text: str, tmp_path: Path) -> list[str]:
    return told(tmp_path, lambda: load(text, tmp_path))


def problem(text: str, tmp_path: Path) -> str:
    (found,) = problems(text, tmp_path)
    return found


TRACED = "network:\n  latency: 1 ms\n  trace: {file: c.csv, after: repeat}\n"


def csv(tmp_path: Path, text: str | bytes, trace: str = TRACED) -> Link:
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "c.csv").write_bytes(content)
    return load(trace, tmp_path)
