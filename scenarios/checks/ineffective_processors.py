"""Which settings of processors change nothing: those that carry messages, add, or compute beside
the devices?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gcsim.errors import Problem
from gcsim.scenarios.reading.document import Document, Keys
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.recorded import warn_once
from gcsim.scenarios.sections.transports import NONE, defaults, servers_add, transports
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.host import MANY, PRICES, Host
from gcsim.simulator.sums import DTYPES
from gcsim.simulator.training import Training
from gcsim.traces.profile import TrafficProfile


def idle_processors(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    """Of `cluster.host`, `cluster.sums`, `library` and `training.on_host`, to warn of."""
    stated = document.data["cluster"]
    if stated.get("host") not in (None, NONE):
        yield from _host(document, cluster, training)
    if stated.get("sums") not in (None, NONE):
        yield from _sums(document, cluster)
    yield from _library(document, cluster.collectives)
    yield from _on_host(document, cluster, training)


def warn_of_idle_sums(scenario: Scenario, profiles: Sequence[TrafficProfile]) -> None:
    """Warn of rates that the scenario changes for types that no method adds, which only the
    methods' traffic tells."""
    added = {
        record.dtype if record.dtype in DTYPES else "float32"
        for profile in profiles
        for phase in profile.phases
        for step in phase.steps
        for exchange in step.exchanges
        for record in exchange.collectives
        if record.kind == "all_reduce"
    }
    usual, _ = defaults(scenario.cluster.collectives)
    for dtype in DTYPES:
        if dtype not in added and getattr(scenario.cluster.sums, dtype) not in {
            None,
            getattr(usual, dtype),
        }:
            text = f"cluster.sums.{dtype} has no effect: no method here adds {dtype}; leave it out"
            warn_once(Path(scenario.name), text)


def said(
    document: Document, key_path: Keys, why: str, hint: str, *, value: object = None
) -> Problem:
    """The warning that a setting has no effect."""
    shown = "" if value is None else f" = {value!r}"
    return document.problem(key_path, f"{shown} has no effect{why}", hint)


def _host(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    host, key_path = cluster.host, ("cluster", "host")
    stated = document.data["cluster"]["host"]
    if host is None:
        return
    if cluster.workers == 1:
        yield said(document, key_path, ": one worker alone sends nothing", "set cluster.nodes")
    elif not any(getattr(host, price) for price in PRICES):
        why, hint = ": nothing costs any time", "set per_message, per_byte, per_call or dispatch"
        yield said(document, key_path, why, hint)
    chosen = cluster.collectives
    gathers = chosen.transport if chosen.all_gather == "auto" else chosen.all_gather
    if (
        "per_copied_byte" in stated
        and host.per_copied_byte
        and gathers not in {"gloo", "gloo_ring"}
    ):
        why = ": only Gloo's all-gather copies what it gathered"
        hint = "leave it out, or let all_gather be gloo_ring"
        yield said(document, (*key_path, "per_copied_byte"), why, hint)
    reduces = chosen.transport if chosen.all_reduce == "auto" else chosen.all_reduce
    if (
        "per_received_byte" in stated
        and host.per_received_byte
        and reduces not in {"gloo", "gloo_ring"}
    ):
        why = ": only the segments of Gloo's ring all-reduce wait for it"
        hint = "leave it out, or let all_reduce be gloo_ring"
        yield said(document, (*key_path, "per_received_byte"), why, hint)
    if host.in_flight != Host().in_flight and not host.interleaved:
        why = ": no message costs any processor time"
        hint = "set per_message, per_byte or per_call, or leave it out"
        yield said(document, (*key_path, "in_flight"), why, hint, value=host.in_flight)
    if host.ranks == "all" and host.cores == MANY and cluster.nodes > 1:
        why = ": each process has a core of its own"
        yield said(document, (*key_path, "ranks"), why, "set cores, or leave it out", value="all")
    if host.ranks == "all" and cluster.nodes == 1:
        why = ": there is one machine anyway"
        yield said(document, (*key_path, "ranks"), why, "leave it out", value="all")
    if host.interleaved and training.concurrent_collectives == 2:
        why = ": collectives whose processors count (cluster.host) run one at a time"
        hint = "write 1, or leave cluster.host out"
        yield said(document, ("training", "concurrent_collectives"), why, hint, value=2)


def _library(document: Document, chosen: Collectives) -> Iterator[Problem]:
    if f"{chosen.transport}_{chosen.library}" not in transports():
        newest = Collectives().library
        if chosen.library != newest:
            key_path = ("cluster", "collectives", "library")
            why = f": nothing is known of {chosen.transport} that differs between generations"
            yield said(document, key_path, why, "leave it out", value=chosen.library)


def _sums(document: Document, cluster: Cluster) -> Iterator[Problem]:
    chosen, key_path = cluster.collectives, ("cluster", "sums")
    reduces: str = chosen.transport if chosen.all_reduce == "auto" else chosen.all_reduce
    if cluster.workers == 1:
        why = ": one worker alone receives nothing"
        yield said(document, key_path, why, "set cluster.nodes")
    elif reduces.startswith("nccl") and not servers_add(chosen):
        why = ": the bandwidths of NCCL's tuner include it"
        hint = "leave it out, or let all_reduce be another algorithm"
        yield said(document, key_path, why, hint)


def _on_host(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    host, key_path = cluster.host, ("training", "on_host")
    if not training.on_host:
        return
    if host is None or host.cores == MANY:
        why, hint = ": nobody says how many cores a machine has", "set cluster.host.cores"
        yield said(document, key_path, why, hint)
    elif training.machines(cluster) is None:
        together = cluster.workers if host.ranks == "all" else cluster.devices_per_node
        why = f": each worker of a machine ({together} on {host.cores} cores) has one to itself"
        yield said(document, key_path, why, "leave it out, or set cluster.host.cores")
    elif "optimizer" in training.on_host and not training.optimizer:
        why = " on the optimizer: its time is 0, or part of the backward pass"
        yield said(document, key_path, why, "set training.optimizer, or leave optimizer out")
