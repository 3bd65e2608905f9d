"""Text of `gcsim check`: how gcsim understands a scenario, and a report on a compressor.

Message sizes are those of a dense gradient that fills DDP's buckets to their limits (`ddp`); a run
reports the sizes that the compressors send.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Literal, get_args

from gcsim import units
from gcsim.analysis.report.numbers import bits, duration, elapsed, plural, significant, size, times
from gcsim.cli.outcome import users_code
from gcsim.cli.terminal import width
from gcsim.compressors.conformance import CHECKS, Report, examine
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.compressors.registry import compressor_class
from gcsim.errors import InputError
from gcsim.scenarios.links.csv_table import shown
from gcsim.scenarios.reading.document import Document, dotted
from gcsim.scenarios.reading.overrides import apply
from gcsim.scenarios.running.keys import own_model_code
from gcsim.scenarios.scenario import CompressorChoice, ProfiledCompute, RecordedCompute, Scenario
from gcsim.scenarios.sections.cluster import matters, random_settings, slows, timed_settings
from gcsim.scenarios.trained.horizon import foreseen, inconclusive
from gcsim.scenarios.trained.runs import mid_round, unsupported
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import algorithm_of
from gcsim.simulator.host import MANY, Host
from gcsim.simulator.network.links import Link
from gcsim.simulator.push_pull import WAYS, way
from gcsim.simulator.steps.step_plan import Kind
from gcsim.simulator.training import Noise, Overlap, Training
from gcsim.traces.kineto.iterations import described
from gcsim.traces.profile import PassTimes

Line = tuple[str, str]
"""Label and text."""

_OVERLAP: Mapping[Overlap | None, str] = {
    "ddp": "each bucket is exchanged during the backward pass",
    "none": "nothing is exchanged before the backward pass has ended",
    "by_tensor": "each tensor is exchanged during the backward pass",
}
_SHOWN_TYPES = ("float32", "float16", "bfloat16")
"""Element types whose rates of addition are listed."""
_NICS = 8
"""Most NICs that are listed one by one."""
_SHARE = 100
"""Dense message over an all-gather's block: the block is 1 %."""


def lines(scenario: Scenario) -> Iterator[Line]:
    """Yield lines that show how a scenario is understood, from the devices outwards."""
    if own_model_code(scenario):
        yield "model", f"check does not import or try {scenario.model.build}; a run does"
    yield "compute", _compute(scenario)
    yield from _topology(scenario)
    yield from _training(scenario.training)
    yield from _averages(scenario)
    yield from _collectives(scenario)
    yield from _to_target(scenario)


def _compute(scenario: Scenario) -> str:
    compute = scenario.compute
    if isinstance(compute, PassTimes):
        times = f"forward {elapsed(compute.forward)}, backward {elapsed(compute.backward)}"
        return f"{times}, {compute.source}"
    if isinstance(compute, ProfiledCompute):
        return f"as measured in {shown(compute.profile)} ({described(compute.profile)})"
    if isinstance(compute, RecordedCompute):
        return "as measured when the gradients were recorded"
    devices = ", ".join(device.name for _, _, device in scenario.cluster.kinds)
    return f"the catalogue's times of {scenario.model.name} on {devices}"


# --- topology ------------------------------------------------------------------------------------


def _topology(scenario: Scenario) -> Iterator[Line]:
    cluster = scenario.cluster
    if cluster.crosses_intra_node and not cluster.groups:
        shared = "; devices share it" if cluster.shared_bus else "; each device has one"
        alone = cluster.devices_per_node == 1
        yield "intra-node", link_text(cluster.intra_node) + ("" if alone else shared)
    if not cluster.groups:
        yield "network", link_text(cluster.network)
    first = 0
    for number, group in enumerate(cluster.groups):
        batch = "" if scenario.by_speed else f", batch {round(scenario.batch_size * group.batch)}"
        inside = f", inside {link_text(cluster.buses.get(first, cluster.intra_node))}"
        each = f"{len(cluster.ranks_of(first))} x " if cluster.sizes else ""
        yield (
            f"group {number}",
            (
                f"{plural(group.nodes, 'node')} of {each}{group.device.title}{batch}, network "
                f"{link_text(cluster.nic(first))}{inside if cluster.crosses_intra_node else ''}"
            ),
        )
        first += group.nodes
    for number, (node, nic) in enumerate(() if cluster.groups else sorted(cluster.nics.items())):
        if number == _NICS:
            yield "", f"and {plural(len(cluster.nics) - _NICS, 'other NIC')}"
            break
        yield f"NIC, node {node}", link_text(nic)
    for name, (below, cable) in cluster.uplinks.items():
        of = f"{-(-cluster.nodes // below)} of up to {plural(below, 'node')}"
        uplink = f"uplink {link_text(cable)}, {_oversubscribed(cluster, below, cable)}"
        yield name, f"{of}; {uplink}"
    host = cluster.host
    if host is not None:
        yield "host", host_text(host)
    rates = [(dtype, getattr(cluster.sums, dtype)) for dtype in _SHOWN_TYPES]
    told = [f"{dtype} {units.exact(rate, 'bandwidth')}" for dtype, rate in rates if rate]
    if told:
        yield "summation", ", ".join(told)
    for number, (setting, file) in enumerate(scenario.files.items()):
        yield ("from files" if number == 0 else ""), f"{setting}: {shown(Path(file))}"


def host_text(host: Host) -> str:
    """Return the processor cost of messages and calls in a few words."""
    of = "for all nodes together" if host.ranks == "all" else "per node"
    parts = [] if host.cores == MANY else [f"{plural(host.cores, 'core')} {of}"]
    prices = (
        (host.per_message, 1, "per message"),
        (host.per_byte, 10**6, "per MB"),
        (host.per_copied_byte, 10**6, "per MB copied"),
        (host.per_call + host.dispatch, 1, "per call"),
    )
    parts += [f"{duration(float(count * price))} {what}" for price, count, what in prices if price]
    return ", ".join(parts) or "costs nothing"


def link_text(link: Link) -> str:
    """Return a link in a few words."""
    line, goodput = link.bandwidth, link.rate
    rate = bits(float(goodput)) + (f" of {bits(float(line))}" if goodput != line else "")
    parts = [f"{link.name}: {rate}, latency {duration(float(link.latency))}"]
    if link.trace is not None:
        parts.append("the rate changes over time")
    if link.up is not None:
        up = f"{bits(float(link.up.bandwidth))}, {duration(float(link.up.latency))}"
        parts.append(f"{up} away from the node")
    if link.shared:
        parts.append("one half-duplex medium for all nodes")
    if link.factors:
        parts.append("figures by message size")
    if link.background:
        parts.append(f"{float(link.background):.0%} taken by other traffic")
    if link.jitter:
        parts.append("jitter")
    if link.loss is not None:
        loss = link.loss
        how = loss.model if loss.model == "capped" else f"{loss.model}, {loss.recovery}"
        parts.append(f"{float(loss.rate):.3g} of the packets lost ({how})")
    return ", ".join(parts)


def _oversubscribed(cluster: Cluster, below: int, uplink: Link) -> str:
    """Return the ratio of the NICs of the fastest `below` consecutive nodes to their uplink."""
    nics = max(
        sum(cluster.nic(node).rate for node in range(first, min(first + below, cluster.nodes)))
        for first in range(0, cluster.nodes, below)
    )
    ratio = float(nics / uplink.rate)
    return f"oversubscribed {significant(ratio)}:1" if ratio > 1 else "not oversubscribed"


def _averages(scenario: Scenario) -> Iterator[Line]:
    """Yield the causes of varying iterations, and the number that is averaged."""
    means = f"means of {plural(scenario.training.iterations, 'iteration')}"
    random = random_settings(scenario.cluster, scenario.training)
    if random:
        yield "random", f"{', '.join(map(dotted, random))}; {means}, seed {scenario.seed}"
    timed = timed_settings(scenario.cluster)
    if timed:
        yield "with time", f"{', '.join(map(dotted, timed))}; {means}"


# --- training ------------------------------------------------------------------------------------


def _training(training: Training) -> Iterator[Line]:
    """Yield the training settings that differ from the usual ones."""
    if training.overlap is not None or training.exposed:
        share = f"a bucket waits for {float(training.exposed):.0%} of the remaining"
        yield "overlap", _OVERLAP.get(training.overlap, f"{share} backward pass")
    if training.encode_on == "side":
        slower = training.side_slowdown
        slowed = f", {times(float(slower))} as long" if slower != 1 else ""
        yield "encoding", f"on a stream parallel to the backward pass{slowed}"
    if training.encode_on == "communicator":
        yield "encoding", "on the collectives' stream, one bucket at a time"
    if training.concurrent_collectives > 1:
        at_a_time = training.concurrent_collectives
        yield "collectives", f"rings: {at_a_time} at a time; other algorithms: one after the other"
    if training.accumulation > 1:
        yield "iteration", f"{training.accumulation} micro-batches, one exchange"
    if training.optimizer:
        yield "optimizer", duration(float(training.optimizer))
    if training.input is not None:
        batch = duration(float(training.input.batch))
        yield "input", f"{batch} per batch, up to {training.input.prefetch} prefetched"
    if training.on_host:
        kinds = ", ".join(kind for kind in get_args(Kind) if kind in training.on_host)
        yield "on the host", f"{kinds}: the workers of a machine share its cores"
    if training.slow_nodes:
        yield "compute takes", _slow("node", training.slow_nodes)
    if training.slow_workers:
        label, on_top = ("", ", times its node's") if training.slow_nodes else ("compute takes", "")
        yield label, _slow("worker", training.slow_workers) + on_top
    if training.noise is not None and matters(training.noise):
        yield "noise", _noise(training.noise)
    if training.faults is not None:
        deaths = plural(len(training.faults.deaths), "death")
        horizon, restart = training.faults.horizon, training.faults.restart
        yield (
            "faults",
            f"{deaths} in {duration(float(horizon))}, restart {duration(float(restart))}",
        )


def _slow(what: str, factors: Mapping[int, Fraction]) -> str:
    slow = sorted(factors.items())
    named = ", ".join(f"{what} {place} {times(float(factor))}" for place, factor in slow[:_NICS])
    more = f" and {len(slow) - _NICS} more" if len(slow) > _NICS else ""
    return f"{named}{more} as long"


def _noise(noise: Noise) -> str:
    parts = []
    if noise.variation:
        parts.append(f"compute times vary by {float(noise.variation):.3g} ({noise.distribution})")
    if slows(noise):
        factor = times(float(noise.slow_factor))
        parts.append(
            f"a worker takes {factor} in {float(noise.slow_probability):.3g} of iterations"
        )
    if noise.skew:
        parts.append(f"all wait for the longest passes, which vary by {float(noise.skew):.3g}")
    return "; ".join(parts)


def _to_target(scenario: Scenario) -> Iterator[Line]:
    """Yield the problems that `gcsim train` would report before it trains."""
    if scenario.train is None:
        return
    found = [f"refused: {one.message}; {one.hint}" for one in unsupported(scenario)]
    found += [*mid_round(scenario), *inconclusive(foreseen(scenario, scenario.train.steps))]
    for number, text in enumerate(found):
        yield ("train" if number == 0 else ""), text


# --- collectives ---------------------------------------------------------------------------------


def _collectives(scenario: Scenario) -> Iterator[Line]:
    chosen = scenario.cluster.collectives
    staged = "copied through host memory" if chosen.stages else "from device memory"
    yield "transport", f"{chosen.transport}, {staged}"
    if scenario.cluster.servers:
        yield "servers", _servers(scenario)
    limits = sorted({scenario.buckets.first, scenario.buckets.cap})
    whole = {f"of {size(nbytes)}": nbytes for nbytes in limits}
    yield from _algorithms(scenario, "all_reduce", "a bucket", whole)
    blocks = {name: _block(nbytes) for name, nbytes in whole.items()}
    yield from _algorithms(scenario, "all_gather", "1 % of a bucket", blocks)
    if _size_decides(scenario, limits[0]):
        yield "", "smaller buckets may use other algorithms"
    yield "push-pull", _push_pull(scenario)
    for kind in ("all_to_all", "tree_merge"):
        answer = _by_size(scenario, CollectiveRecord(kind=kind, sent=(1,)))
        if answer:
            yield kind.replace("_", "-"), answer


def _servers(scenario: Scenario) -> str:
    chosen = scenario.cluster.collectives
    per_node = scenario.cluster_at(1).servers != scenario.cluster_at(2).servers
    if chosen.server_hosts == "nodes":
        return "one on every node" if per_node else f"{chosen.servers}, on the nodes"
    nic = "" if chosen.server_network is None else f", {link_text(chosen.server_network)}"
    if per_node:
        return f"as many as nodes, on dedicated machines{nic}"
    alone = "on a machine of its own" if chosen.servers == 1 else "on dedicated machines"
    return f"{chosen.servers}, {alone}{nic}"


def _push_pull(scenario: Scenario) -> str:
    """Return the collectives that carry out push-pulls, for methods that use one."""
    found: dict[str, list[str]] = {}
    for choice in scenario.compressors:
        without = compressor_class(choice.kind).about.without_server
        if without is not None and _asks(choice):
            asked = CollectiveRecord(kind="push_pull", sent=(1,), without_server=without)
            found.setdefault(WAYS[way(asked, scenario.cluster)], []).append(choice.label)
    if not found:
        return "no method here uses one"
    named = scenario.cluster.collectives.push_pull != "auto"
    how = "as named" if named else "as the methods say" if not scenario.cluster.servers else ""
    parts = [f"{carrier}: {', '.join(labels)}" for carrier, labels in found.items()]
    return "; ".join(parts) + (f" ({how})" if how else "")


def _asks(choice: CompressorChoice) -> bool:
    """Whether a method that has an alternative is set to push and pull."""
    fields = compressor_class(choice.kind).Parameters.model_fields
    ways = [name for name, field in fields.items() if "push_pull" in get_args(field.annotation)]
    return all(choice.parameters[name] == "push_pull" for name in ways)


def _algorithms(
    scenario: Scenario,
    kind: Literal["all_reduce", "all_gather"],
    what: str,
    messages: Mapping[str, int],
) -> Iterator[Line]:
    """Yield the algorithms for `what` of these sizes, with equal answers on one line."""
    chosen = scenario.cluster.collectives
    how = f"chosen by {chosen.transport}" if getattr(chosen, kind) == "auto" else "as named"
    by_answer: dict[str, list[str]] = {}
    for name, nbytes in messages.items():
        by_answer.setdefault(_by_size(scenario, _dense(kind, nbytes)), []).append(name)
    by_answer.pop("", None)
    for number, (answer, names) in enumerate(by_answer.items()):
        label = kind.replace("_", "-") if number == 0 else ""
        yield label, f"for {what} {' and '.join(names)}: {answer} ({how})"


def _size_decides(scenario: Scenario, limit: int) -> bool:
    """Whether smaller messages, by powers of two, use another algorithm."""
    sizes = [limit, *(1 << power for power in range(2, (limit - 1).bit_length()))]
    for kind in ("all_reduce", "all_gather"):
        answers = {
            _by_size(scenario, _dense(kind, nbytes if kind == "all_reduce" else _block(nbytes)))
            for nbytes in sizes
        }
        if len(answers) > 1:
            return True
    return False


def _dense(kind: Literal["all_reduce", "all_gather"], nbytes: int) -> CollectiveRecord:
    element = 4 if kind == "all_reduce" else 1
    return CollectiveRecord(kind=kind, sent=(nbytes,), element=element)


def _block(nbytes: int) -> int:
    return max(1, nbytes // _SHARE)


def _by_size(scenario: Scenario, record: CollectiveRecord) -> str:
    """Return the algorithm by number of nodes; a single worker needs none."""
    found: list[tuple[int, str]] = []
    for nodes in scenario.node_counts:
        cluster = scenario.cluster_at(nodes)
        if cluster.workers > 1:
            found.append((nodes, algorithm_of(record, cluster).title))
    runs = [list(run) for _, run in groupby(found, key=lambda entry: entry[1])]
    if len(runs) == 1:
        return runs[0][0][1]
    parts = []
    for run in runs:
        (first, title), last = run[0], run[-1][0]
        span = plural(first, "node") if first == last else f"{first} to {last} nodes"
        parts.append(f"{title} on {span}")
    return "; ".join(parts)


def names_a_compressor(text: str) -> bool:
    """Whether an argument is `package.module:Class` and not a file of that name."""
    module, colon, cls = text.partition(":")
    named = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and named and cls.isidentifier() and not Path(text).exists()


def report_on(name: str, sets: Sequence[str]) -> Report:
    """Run all checks of a compressor with parameters such as `--set limit=0.5`.

    Raises `InputError` if it cannot be imported, and for impossible parameters.
    """
    document = Document("--set", {})
    if problems := apply(document, sets):
        raise InputError(problems)
    try:
        with users_code():
            return examine(name, document.data)
    except InputError as error:
        places = {key: f"--set {key}" for key in document.data}
        raise InputError(
            [replace(p, place=places.get(p.place, p.place)) for p in error.problems]
        ) from error


def text_of(report: Report) -> str:
    """Return the report for people; with the names of the checks if all pass."""
    lines = str(report).splitlines()
    if not report.findings:
        checked = "; ".join(check.replace("_", " ") for check in CHECKS)
        lines += [f"  {checked}", *(f"note: {text}" for text in report.notes)]
    return "\n".join(map(_wrapped, lines))


def _wrapped(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + (0 if line.startswith("  ") else 2))
    return textwrap.fill(
        line, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
