"""Files of devices: the catalogue's entries with other values."""

from functools import cache
from random import Random
from typing import Any

import yaml

from gcsim.scenarios.catalog import FOLDER
from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.mutation import as_yaml, lines, tree
from tests.fuzz.small import written

_RUN = 0.3


def _make(rng: Random, one: Try) -> None:
    name, entry = rng.choice(_entries())
    content = as_yaml(tree(rng, {"devices": {name: entry}}))
    if choose(rng, 0.2):
        content = lines(rng, content.decode(errors="replace")).encode("utf-8", "surrogatepass")
    write(one.folder / "mine.yaml", content)
    written(one.folder, cluster={"device": "mine.yaml"})
    done = one.gcsim("check", "s.yaml")
    if done is not None and done.returncode == 0 and choose(rng, _RUN):
        one.run("s.yaml")


@cache
def _entries() -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, entry)
        for path in sorted(FOLDER.glob("devices*.yaml"))
        for name, entry in yaml.safe_load(path.read_text(encoding="utf-8"))["devices"].items()
    ]


DEVICES = Kind(name="devices", make=_make)
