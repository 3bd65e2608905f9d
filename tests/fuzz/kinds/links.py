"""Files of links: the catalogue's entries with other values, rates that change as a CSV beside."""

from functools import cache
from random import Random
from typing import Any

import yaml

from gcsim.scenarios.catalog import FOLDER
from gcsim.scenarios.sections.file import schema_json
from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.generation import drawn
from tests.fuzz.mutation import as_yaml, lines, tree
from tests.fuzz.small import written

_RUN = 0.2
_CSV = "seconds,mbit_per_second\n# measured\n0,50.5\n1,20\n2.5,0\n3,700\n"


def _make(rng: Random, one: Try) -> None:
    name, entry = rng.choice(_entries())
    if choose(rng, 0.3):
        write(one.folder / "cell.csv", lines(rng, _CSV) if choose(rng, 0.8) else _CSV)
        entry = {key: entry[key] for key in ("latency", "source") if key in entry}
        entry |= {"trace": {"file": "cell.csv", "after": rng.choice(("hold", "repeat"))}}
        if choose(rng, 0.5):
            entry["trace"]["duration"] = "5 s"
        table = {"links": {name: entry}}
        table = tree(rng, table) if choose(rng, 0.3) else table
    elif choose(rng, 0.5):
        known = schema_json()["$defs"]
        keys = known["LinkSection"]["properties"]
        more = rng.sample(sorted(keys), rng.choice((1, 1, 2)))
        entry = entry | {key: drawn(rng, keys[key], known) for key in more}
        table = {"links": {name: entry}}
    else:
        table = tree(rng, {"links": {name: entry}})
    content = as_yaml(table)
    if choose(rng, 0.2):
        content = lines(rng, content.decode(errors="replace")).encode("utf-8", "surrogatepass")
    write(one.folder / "mine.yaml", content)
    transport = rng.choice(("textbook", "gloo", "nccl", "mpich"))
    at = rng.choice(("network", "intra_node"))
    written(
        one.folder,
        cluster={at: "mine.yaml", "collectives": {"transport": transport}, "devices_per_node": 2},
    )
    done = one.gcsim("check", "s.yaml")
    if done is not None and done.returncode == 0 and choose(rng, _RUN):
        one.run("s.yaml")


@cache
def _entries() -> list[tuple[str, dict[str, Any]]]:
    links = yaml.safe_load((FOLDER / "links.yaml").read_text(encoding="utf-8"))["links"]
    own = {"transports"}  # a key that only the catalogue's entries have
    return [(name, {k: v for k, v in link.items() if k not in own}) for name, link in links.items()]


LINKS = Kind(name="links", make=_make)
