"""Background traffic from another run: the share of a network's rate that this run takes.

cluster:
      network: {like: 10gbe, background: "runs/other:dense"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

from gcsim import units
from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.links.csv_table import shown
from gcsim.scenarios.stored import RESULTS, read_results

_RUN = re.compile(r"(?P<path>[^:%]*[^\W\d][^:%]*)(?::(?P<label>.*))?", re.DOTALL)


def share_of_run(text: str, folder: Path, link: Mapping[str, Any]) -> str | None:
    """Return the share of a network's rate that a method of a finished run takes. `text` is `RUN`
    or `RUN:LABEL`, a path relative to `folder`; returns None for text that names no run.

    With c seconds of communication in an iteration of i seconds, at the largest size, the share is
    c / (i + c): while both runs send, each has half of the rate, so the other run's messages take c
    more seconds. `link`: the network, unchecked. Raises `InputError` without a result or method of
    this name, without traffic between nodes, or for another network.
    """
    named = _RUN.fullmatch(text)
    if named is None:
        return None
    run = (folder / named["path"].strip()).resolve()
    name = shown(run)
    if not (run / RESULTS).is_file():
        message = f"there is no {RESULTS} in {name}"
        hint = "name the folder of a finished `gcsim run`, or a share of the rate (0.2)"
        raise InputError(message, hint=hint)
    result = read_results(run)
    labels = list(dict.fromkeys(row.label for row in result.rows))
    label = named["label"] or (labels[0] if len(labels) == 1 else "")
    if label not in labels:
        message = f"{name} has {', '.join(labels)}" + (f", no {label!r}" if label else "")
        raise InputError(message, hint=f"name one method: {named['path']}:{labels[0]}")
    row = max((row for row in result.rows if row.label == label), key=lambda row: row.nodes)
    if row.nodes == 1 or not row.communication_s:
        message = f"{label} of {name} sends nothing between nodes"
        raise InputError(message, hint="name a run of several nodes, or leave background out")
    cluster, line = result.scenario["cluster"], _line(link)
    places = (cluster, *(cluster.get("groups") or ()))
    known = {_line(place["network"]) for place in places if "network" in place} - {None}
    if line is not None and line not in known:
        theirs = " and ".join(units.exact(rate, "bandwidth") for rate in known if rate) or "a trace"
        message = f"{name} is of another network: {theirs}, here {units.exact(line, 'bandwidth')}"
        raise InputError(message, hint="name a run on this network, or a share of the rate (0.2)")
    period = row.iteration_as_stated_s or row.iteration_s
    share = Fraction(row.communication_s) / (Fraction(period) + Fraction(row.communication_s))
    return f"{float(share):.4f}"


def _line(link: Mapping[str, Any]) -> Fraction | None:
    """Return the line rate of an unchecked link, if it states one."""
    with suppress(InputError, ValueError):
        if link.get("trace") is None and (rate := link.get("bandwidth")) is not None:
            return units.parse(rate, "bandwidth")
        if link.get("trace") is None and "like" in link:
            return catalog.link(str(link["like"])).bandwidth
    return None
