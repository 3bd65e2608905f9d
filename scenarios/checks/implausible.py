"""Warnings for values that are possible but probably have a wrong unit."""

from __future__ import annotations

from collections.abc import Iterator

from gcsim.errors import Problem
from gcsim.scenarios.reading.document import Document
from gcsim.scenarios.sections.file import ScenarioFile
from gcsim.scenarios.sections.network_words import ETHERNET
from gcsim.simulator.cluster import Cluster

FASTEST_NIC = 200_000_000_000  # bytes per second: 1.6 Tbit/s, twice the fastest Ethernet on sale
LONGEST_PASSES = 3600  # seconds of the passes of one iteration


def implausible(document: Document, file: ScenarioFile, cluster: Cluster) -> Iterator[Problem]:
    """Find NIC rates and times of passes that no real system has."""
    one = cluster.at_one_nic
    links = [one.network, *one.nics.values()] if cluster.nodes > 1 else []
    most = max((link.bandwidth for link in links if ETHERNET.match(link.name)), default=0)
    if most > FASTEST_NIC:
        rate = ("cluster", "network", "bandwidth")
        yield Problem(
            place=document.place(rate if rate in document.values else rate[:-1]),
            message=f"no NIC has {float(most) * 8e-12:g} Tbit/s",
            hint="the fastest have 0.8 Tbit/s; GB/s are bytes, Gbit/s bits",
        )
    passes = file.compute
    if passes and passes.forward and passes.backward:
        seconds = passes.forward + passes.backward
        if seconds > LONGEST_PASSES:
            yield Problem(
                place=document.place(("compute", "backward")),
                message=f"forward and backward take {float(seconds) / 3600:g} h",
                hint="state the times of one iteration",
            )
