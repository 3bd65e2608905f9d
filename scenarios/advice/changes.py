"""Changes instead of gradient compression, and the time that each saves.

A change consists of settings of the scenario. The engine simulates uncompressed training and the
advised methods with it, for the same number of samples; times are medians of the drawn worlds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.advice.question import LARGE_BUCKET, LOCAL, Question
from gcsim.scenarios.advice.slowest_link import holder_of, links_between, slowest_link
from gcsim.scenarios.findings import Change, Limits
from gcsim.scenarios.result import Row
from gcsim.scenarios.scenario import Scenario
from gcsim.units import exact

BY_SPEED = "cluster.batch=by_speed"
"""Change of the batches of unlike nodes."""
LEAST = 0.01
"""Least share of some method's iteration that a listed change saves."""
_FEW = 8
"""Most workers for trying two collectives at a time, which are simulated message by message."""
_ALL = 1000  # factor on the rate with which bytes take practically no time


def candidates(question: Question) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield the possible changes of this scenario: words, settings, effect on the training."""
    scenario = question.scenario
    cluster, training = scenario.cluster, scenario.training
    chosen = cluster.collectives
    if cluster.workers == 1:
        return
    yield from _faster_links(question)
    if cluster.groups and not scenario.by_speed:
        yield "batches in proportion to the nodes' speed", (BY_SPEED,), ""
    gpu = cluster.device.processor != "cpu"
    if chosen.transport != "nccl" and gpu:
        yield "NCCL", ("cluster.collectives.transport=nccl",), ""
    if chosen.transport == "gloo" and chosen.library == "pytorch1":
        yield "PyTorch 2", ("cluster.collectives.library=pytorch2",), ""
    few = cluster.workers <= _FEW
    if chosen.transport == "gloo" and training.concurrent_collectives == 1 and few:
        yield "two collectives at a time", ("training.concurrent_collectives=2",), ""
    if cluster.nodes > 1 and training.strategy in ("zero2", "zero3"):
        several = cluster.devices_per_node > 1
        if several:
            yield "sharding inside nodes alone", ("training.strategy=hsdp",), ""
        if several and training.strategy == "zero3" and not training.secondary:
            yield "a second copy of the weights in each node", ("training.secondary=true",), ""
        if training.gathered == "stored":
            gathered = ("training.gathered=int8",)
            yield "weights gathered in 8 bits", gathered, "check accuracy first"
    if scenario.buckets.cap < LARGE_BUCKET and not training.sharded:
        yield "buckets of 100 MiB", ("ddp.bucket=100 MiB",), ""
    micro = 4 * training.accumulation
    words = f"accumulating {micro} micro-batches"
    yield words, (f"training.accumulation={micro}",), "global batch 4x"


def _faster_links(question: Question) -> Iterator[tuple[str, tuple[str, ...], str]]:
    cluster = question.scenario.cluster
    several = cluster.nodes > 1
    for one in links_between(question):
        if not one.no_one_rate:
            near, of = "the " if several else "the bus's ", f" of {one.name}" if one.name else ""
            yield f"twice {near}bandwidth{of}", one.faster(2), ""
            yield f"half {near}latency{of}", one.latency(Fraction(1, 2)), ""
    if several and cluster.devices_per_node > 1 and not cluster.groups:
        rate = exact(2 * cluster.intra_node.bandwidth, "bandwidth")
        bus = holder_of(question, 0, "cluster.intra_node")
        yield "twice the bus's bandwidth", (f"{bus}.bandwidth={rate}",), ""


def changes(engine: Engine, labels: Sequence[str]) -> list[Change]:
    """Changes that save time, most of uncompressed training's first, changes to the training
    last."""
    now = engine.rows((), labels, draws=True)
    if now is None or engine.scenario.dense is None:
        return []
    found = []
    for words, overrides, note in candidates(engine.question):
        then = engine.rows(overrides, labels, draws=True)
        if then is not None:
            saves = {label: _saved(now[label], then[label]) for label in now if label in then}
            found.append(Change(words=words, overrides=overrides, saves_s=saves, note=note))
    found += _local_steps(engine, now)
    least = {label: LEAST * row.iteration_s for label, row in now.items()}
    worth = [one for one in found if any(s > least[label] for label, s in one.saves_s.items())]
    dense = dense_of(engine.scenario)
    return sorted(worth, key=lambda one: (one.note != "", -one.saves_s.get(dense, 0.0)))


def dense_of(scenario: Scenario) -> str:
    """Return the label of uncompressed training."""
    assert scenario.dense is not None  # noqa: S101
    return scenario.compressors[scenario.dense].label


def _local_steps(engine: Engine, now: Mapping[str, Row]) -> list[Change]:
    """Dense training that exchanges every fourth step only, where each step exchanges now."""
    if engine.scenario.cluster.workers == 1 or engine.scenario.training.local_steps > 1:
        return []
    dense = dense_of(engine.scenario)
    fields = ", ".join(f"{key}: {value!r}" for key, value in LOCAL.items()).replace("'", '"')
    overrides = (f"compressors=[none, {{{fields}}}]",)
    then = engine.rows(overrides, draws=True) or {}
    local = then.get(str(LOCAL["label"]))  # of shipped models alone this is known
    if local is None:
        return []
    saves = {dense: _saved(now[dense], local)}
    note = "check accuracy first"
    return [Change(words="local SGD, 4 steps", overrides=overrides, saves_s=saves, note=note)]


def _saved(now: Row, then: Row) -> float:
    """Return the seconds saved per iteration, for the same number of samples."""
    ratio = now.throughput_samples_per_s / then.throughput_samples_per_s
    return now.iteration_s * (1 - ratio)


def limits(engine: Engine, labels: Sequence[str]) -> dict[str, Limits]:
    """Parts of the time of uncompressed training and of these methods."""
    now = engine.rows((), labels)
    if now is None:
        return {}
    link = slowest_link(engine.question)
    fast, prompt = now, now
    if link is not None and not link.no_one_rate:
        fast = engine.rows(link.faster(_ALL), labels) or now
        prompt = engine.rows(link.latency(Fraction(0)), labels) or now
    return {
        label: Limits(
            compute_s=row.forward_s + row.backward_s + row.optimizer_s + row.input_s,
            encode_s=row.encode_s,
            decode_s=row.decode_s,
            bytes_s=row.iteration_s - fast[label].iteration_s,
            latency_s=row.iteration_s - prompt[label].iteration_s,
            waits_s=row.exposed_communication_s,
        )
        for label, row in now.items()
    }
