"""Sources of a result's numbers: a line for each kind, which says if it is an estimate."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from gcsim.scenarios.result import Result
from gcsim.scenarios.sections.link import carrier

_SHORT = 200  # most characters of a source in a note

_CALIBRATIONS = {"estimate": "an estimate", "stated": "stated by the user"}
"""Text for a link's calibration, by its value in results.json."""

_TRAINING = ("model", "data", "workers", "iterations", "warmup_steps", "device", "dtype")
"""Facts about the gradients that a note states, if known."""

SYNTHETIC = "synthetic"  # word in results.json for gradients drawn from fitted distributions

SYNTHETIC_NOTE = "synthetic gradients: drawn from fitted distributions, not recorded"
"""Note in figures of results with synthetic gradients."""

_UNITS = {
    "launch": ("us", 1e-6), "s": ("ms", 1e-3), "s/B": ("ns/B", 1e-9),
    "B/s": ("GB/s", 1e9), "FLOP/s": ("TFLOP/s", 1e12)
}  # fmt: skip
"""Text and size of the units in results.json; a launch is shown in microseconds."""

_NODES = 6  # most nodes with the same NIC that a note names


def provenance_notes(result: Result) -> list[str]:
    """Return a line for each kind of number: its source, and whether it is an estimate."""
    facts, batches = result.provenance, micro_batches(result)
    part = "" if batches == 1 else f" from one micro-batch's gradients, not the sum of {batches}"
    notes = [
        _gradients(facts.get("gradients")),
        _compute(facts.get("compute")),
        _kernels(facts.get("kernels")),
        _ranges(facts.get("estimates", ())),
        *_links(facts.get("links", {})),
        _transport(facts),
        _averages(facts.get("averages")),
        _versions({"seed": facts.get("seed"), **facts.get("versions", {})}),
        f"gradient error: of single updates{part}; a run does not simulate convergence",
    ]
    return [note for note in notes if note]


def conditions(scenario: Mapping[str, Any], nodes: int, workers: int) -> str:
    """Return transport and precision of a resolved scenario on `nodes`: "NCCL over TCP, fp32, "."""
    cluster, training = scenario.get("cluster", {}), scenario.get("training", {})
    stored = training.get("gradients", "fp32")
    precisions = training.get("precision"), "" if stored == "fp32" else f"{stored} gradients"
    transport = cluster.get("collectives", {}).get("transport")
    network = cluster.get("network", {}).get("name", "") if nodes > 1 else None
    named = [carrier(transport, network)] if transport is not None and workers > 1 else []
    return "".join(f"{word}, " for word in (*named, *precisions) if word)


def are_synthetic(result: Result) -> bool:
    """Whether the gradients were drawn from fitted distributions, which every report must say."""
    found: bool = result.provenance.get("gradients", {}).get("source") == SYNTHETIC
    return found


def micro_batches(result: Result) -> int:
    """Return the number of micro-batches per iteration."""
    return int(result.scenario.get("training", {}).get("accumulation", 1))


def _short(text: object) -> str:
    return textwrap.shorten(str(text), _SHORT, placeholder=" …")


def _versions(facts: Mapping[str, Any]) -> str:
    plain = [f"{key} {value}" for key, value in facts.items() if value is not None]
    return f"versions: {', '.join(plain)}" if plain else ""


def _gradients(facts: Mapping[str, Any] | None) -> str:
    """Return the origin of the gradients and what is known about the training behind them."""
    if not facts:
        return ""
    if facts.get("source") == SYNTHETIC:
        known = [f"{key} {facts[key]}" for key in ("workers", "iterations") if key in facts]
        drawn = ", ".join(["gradients: SYNTHETIC, drawn from fitted distributions", *known])
        return f"{drawn}; fit: {_short(facts.get('fit', 'unknown'))}"
    parts = [str(facts["source"])]
    parts += [f"{key.replace('_', ' ')} {_short(facts[key])}" for key in _TRAINING if key in facts]
    losses = facts.get("warmup_losses")
    if isinstance(losses, list | tuple) and losses:
        parts.append(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in the warm-up")
    return f"gradients: {', '.join(parts)}"


def _compute(facts: Mapping[str, Any] | None) -> str:
    if not facts:
        return ""
    mark = "an estimate; " if facts["estimate"] else ""
    return f"forward and backward: {mark}{_short(facts['source'])}"


def _kernels(facts: Mapping[str, Any] | None) -> str:
    if not facts:
        return ""
    estimated = [kind for kind, rate in facts["classes"].items() if rate["estimate"]]
    measured = [kind for kind in facts["classes"] if kind not in estimated]
    notes = [f"encode and decode: {facts['method']}, {facts['device']}"]
    if measured:
        notes.append("measured: " + ", ".join(measured))
    if estimated:
        notes.append("ESTIMATES: " + ", ".join(estimated))
    return "; ".join(notes)


def _ranges(estimates: Sequence[Mapping[str, Any]]) -> str:
    """Inputs with a range: "bandwidth in GB/s: sort 10 (10-30), random 200 (150-440); ...; latency
    in us: cluster.network 120 (50-220)"."""
    kinds: dict[str, list[str]] = {}
    for entry in estimates:
        if entry.get("range"):
            own = "kernels" in entry or entry["setting"] == "compute"
            unit, factor = _unit(entry, short=not own)
            value, low, high = (
                f"{number / factor:.3g}" for number in (entry["value"], *entry["range"])
            )
            name = entry.get("kernels", "" if own else entry["setting"])
            figure = str(entry["figure"]).replace("_", " ")
            kinds.setdefault(f"{figure} in {unit}" if unit else figure, []).append(
                f"{name} {value} ({low}-{high})".strip()
            )
    shown = "; ".join(f"{kind}: {', '.join(parts)}" for kind, parts in kinds.items())
    return f"uncertain inputs and their ranges: {shown}" if shown else ""


def _unit(entry: Mapping[str, Any], *, short: bool) -> tuple[str, float]:
    """Return the text for a figure's unit, and the unit's size."""
    if short and entry["unit"] == "s":
        return ("ns", 1e-9) if entry["value"] < 1e-6 else ("us", 1e-6)
    named = "launch" if entry["figure"] == "launch" else entry["unit"]
    return _UNITS.get(named, (named, 1.0))


def _transport(facts: Mapping[str, Any]) -> str:
    if "transport" not in facts:
        return ""
    algorithms = sorted({name for names in facts["algorithms"].values() for name in names})
    named = f"; algorithms: {'; '.join(algorithms)}" if algorithms else ""  # names have commas
    return f"transport: {facts['transport']}{named}"


def _links(facts: Mapping[str, Any]) -> list[str]:
    notes = []
    for key, value in facts.items():
        if isinstance(value, list):  # NICs of some nodes
            notes += [_link(_nodes(link["nodes"]), link) for link in value]
        else:
            notes.append(_link(key.replace("_", " "), value))
    return notes


def _nodes(nodes: Sequence[int]) -> str:
    """ "NIC of node 3", "NICs of nodes 3, 5 and 20 more"."""
    shown = ", ".join(map(str, nodes[:_NODES]))
    more = f" and {len(nodes) - _NODES} more" if len(nodes) > _NODES else ""
    return f"NICs of nodes {shown}{more}" if len(nodes) > 1 else f"NIC of node {shown}"


def _link(title: str, link: Mapping[str, Any]) -> str:
    efficiency, kind = link["efficiency"], link["calibration"]
    share = f" ({efficiency:.1%} of the line rate)" if efficiency < 1 else ""
    known = f"{link['name']}, {_CALIBRATIONS.get(kind, kind)}{share}"
    return f"{title}: {known}; {_short(link['source'])}"


def _averages(facts: Mapping[str, Any] | None) -> str:
    """Return a note on the number of iterations behind the times, and why they vary."""
    if not facts:
        return ""
    parts = [f"means of {facts['iterations']} iterations, which vary"]
    if facts.get("random"):
        parts.append(f"random, from seed {facts.get('seed')}: {', '.join(facts['random'])}")
    if facts.get("changing_with_time"):
        parts.append(f"changing with time: {', '.join(facts['changing_with_time'])}")
    return "; ".join(parts)
